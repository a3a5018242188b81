// Planning on the CPU: what is refused, how dimensions merge, which strategy a shape and its addresses get.
#include "softmax_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace attngraft
{
namespace
{

//! Never dereferenced on the host: planning looks at addresses only.
void* address(uintptr_t value)
{
    return reinterpret_cast<void*>(value);
}

MaskedSoftmaxParams makeParams(int64_t batch, int64_t heads, int64_t queries, int64_t keys)
{
    MaskedSoftmaxParams params;
    int64_t const dims[kMaxRank] = {batch, heads, 1, 1, queries, keys};
    std::copy(std::begin(dims), std::end(dims), std::begin(params.dims));
    params.scores = address(0x1000);
    params.probabilities = address(0x100000);
    params.type = DataType::kFloat16;
    return params;
}

void setStrides(BroadcastTensor& tensor, int64_t batch, int64_t heads, int64_t queries, int64_t keys)
{
    tensor.data = address(0x2000);
    tensor.strides[0] = batch;
    tensor.strides[1] = heads;
    tensor.strides[4] = queries;
    tensor.strides[5] = keys;
}

SoftmaxPlan planOf(MaskedSoftmaxParams const& params)
{
    SoftmaxPlan plan;
    EXPECT_TRUE(makeSoftmaxPlan(params, plan));
    return plan;
}

TEST(Divisor, IsExactForEveryShortDividend)
{
    int64_t const largest = kShortDividends - 1;
    for (int64_t const value : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{384}, int64_t{641},
             int64_t{65535}, int64_t{65536}, int64_t{1000003}, (int64_t{1} << 30) + 1, largest - 1, largest})
    {
        Divisor const divisor(value);
        for (int64_t multiple = 0; multiple <= largest; multiple += std::max(value, largest / 1000 / value * value))
        {
            for (int64_t const n : {multiple - 1, multiple, multiple + 1, largest})
            {
                if (n >= 0 && n <= largest)
                {
                    ASSERT_EQ(divisor.quotient(static_cast<uint32_t>(n)), n / value) << n << " / " << value;
                }
            }
        }
    }
}

TEST(SoftmaxPlan, CountsRowsAndRowsOfABatch)
{
    SoftmaxPlan const plan = planOf(makeParams(8, 12, 384, 100));
    EXPECT_EQ(plan.rows, 8 * 12 * 384);
    EXPECT_EQ(plan.rowsPerBatch.value, 12 * 384);
    EXPECT_EQ(plan.keys, 100);
    EXPECT_EQ(plan.tensors, MaskTensors::kNone);
}

TEST(SoftmaxPlan, MergesDimensionsThatAKeyMaskDoesNotTellApart)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 128);
    setStrides(params.keep, 128, 0, 0, 1);
    SoftmaxPlan const plan = planOf(params);
    ASSERT_EQ(plan.offsets.rank, 2);
    EXPECT_EQ(plan.offsets.dims[0].value, 8);
    EXPECT_EQ(plan.offsets.dims[1].value, 12 * 384);
    EXPECT_EQ(plan.offsets.keepStrides[0], 128);
    EXPECT_EQ(plan.offsets.keepStrides[1], 0);
    EXPECT_EQ(plan.tensors, MaskTensors::kKeepBytes);
}

TEST(SoftmaxPlan, AFullMaskIsOneDimension)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 128);
    setStrides(params.bias, 12 * 384 * 128, 384 * 128, 128, 1);
    SoftmaxPlan const plan = planOf(params);
    ASSERT_EQ(plan.offsets.rank, 1);
    EXPECT_EQ(plan.offsets.dims[0].value, 8 * 12 * 384);
    EXPECT_EQ(plan.offsets.biasStrides[0], 128);
}

TEST(SoftmaxPlan, DimensionsMergeOnlyWhereBothTensorsAgree)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 128);
    setStrides(params.bias, 0, 0, 128, 1);
    setStrides(params.keep, 128, 0, 0, 1);
    EXPECT_EQ(planOf(params).offsets.rank, 3);
    setStrides(params.bias, 0, 384 * 128, 128, 1);
    EXPECT_EQ(planOf(params).offsets.rank, 2);
}

TEST(SoftmaxPlan, NegativeScaleAndSoftcapTakeTheGeneralPath)
{
    MaskedSoftmaxParams params = makeParams(1, 1, 4, 8);
    params.scale = -1.F;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
    params.scale = 1.F;
    params.softcap = 30.F;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
}

TEST(SoftmaxPlan, VectorwiseMasksGetKernelsOfTheirOwn)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 128);
    setStrides(params.bias, 128, 0, 0, 1);
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kBias);
    params.scale = -1.F;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kBias);
    params.softcap = 30.F;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
    params.softcap = 0.F;
    params.biasIsFloat32 = true;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
    params.biasIsFloat32 = false;
    params.bias.data = address(0x2002);
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
}

TEST(SoftmaxPlan, MasksThatAreNotVectorwiseAreReadAnyWay)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 128);
    setStrides(params.keep, 1, 0, 0, 0);
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
    setStrides(params.keep, 128, 0, 0, 1);
    params.keepType = KeepType::kInt64;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
    params = makeParams(8, 12, 384, 129);
    setStrides(params.keep, 129, 0, 0, 1);
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
}

TEST(SoftmaxPlan, AddressesDecideTheStrategy)
{
    MaskedSoftmaxParams params = makeParams(1, 1, 4, 384);
    EXPECT_EQ(planOf(params).policy.strategy, Strategy::kVectors);
    params.scores = address(0x1002);
    EXPECT_EQ(planOf(params).policy.strategy, Strategy::kMultiPassElements);
    params.probabilities = address(0x100002);
    EXPECT_EQ(planOf(params).policy.strategy, Strategy::kShiftedVectors);
}

TEST(SoftmaxPlan, EmptyTensorsAreFineAndHaveNoRows)
{
    MaskedSoftmaxParams params = makeParams(0, 12, 384, 128);
    params.scores = nullptr;
    EXPECT_EQ(planOf(params).rows, 0);
    EXPECT_EQ(planOf(makeParams(2, 12, 384, 0)).rows, 0);
}

TEST(SoftmaxPlan, MoreThanTwoToThe31ElementsCount)
{
    EXPECT_EQ(planOf(makeParams(2, 64, 4096, 4100)).rows, 2 * 64 * 4096);
    EXPECT_EQ(planOf(makeParams(int64_t{1} << 33, 1, 1, 2)).rows, int64_t{1} << 33);
}

TEST(SoftmaxPlan, RefusesWhatIsOutsideTheContract)
{
    SoftmaxPlan plan;
    auto const refuses = [&plan](auto change) {
        MaskedSoftmaxParams params = makeParams(2, 2, 4, 8);
        change(params);
        return !makeSoftmaxPlan(params, plan);
    };
    EXPECT_TRUE(refuses([](auto& p) { p.dims[1] = -1; }));
    EXPECT_TRUE(refuses([](auto& p) { p.dims[0] = p.dims[1] = std::numeric_limits<int64_t>::max() / 2; }));
    EXPECT_TRUE(refuses([](auto& p) { p.scores = nullptr; }));
    EXPECT_TRUE(refuses([](auto& p) { p.probabilities = address(0x1001); }));
    EXPECT_TRUE(refuses([](auto& p) { p.scale = std::numeric_limits<float>::quiet_NaN(); }));
    EXPECT_TRUE(refuses([](auto& p) { p.softcap = -1.F; }));
    EXPECT_TRUE(refuses([](auto& p) { p.windowLeft = -2; }));
    EXPECT_TRUE(refuses([](auto& p) { p.type = static_cast<DataType>(7); }));
    EXPECT_TRUE(refuses([](auto& p) { setStrides(p.bias, 0, 0, 1, 4); }));
}

} // namespace
} // namespace attngraft
