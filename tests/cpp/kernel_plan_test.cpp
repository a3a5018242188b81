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

constexpr SoftmaxDevice kDevice{132, true};

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
    setContiguous(params);
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
    EXPECT_TRUE(makeSoftmaxPlan(params, kDevice, plan));
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
    ASSERT_EQ(plan.masks.rank, 2);
    EXPECT_EQ(plan.masks.dims[0].value, 8);
    EXPECT_EQ(plan.masks.dims[1].value, 12 * 384);
    EXPECT_EQ(plan.masks.secondStrides[0], 128);
    EXPECT_EQ(plan.masks.secondStrides[1], 0);
    EXPECT_EQ(plan.tensors, MaskTensors::kKeepBytes);
}

TEST(SoftmaxPlan, AFullMaskIsOneDimension)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 128);
    setStrides(params.bias, 12 * 384 * 128, 384 * 128, 128, 1);
    SoftmaxPlan const plan = planOf(params);
    ASSERT_EQ(plan.masks.rank, 1);
    EXPECT_EQ(plan.masks.dims[0].value, 8 * 12 * 384);
    EXPECT_EQ(plan.masks.firstStrides[0], 128);
}

TEST(SoftmaxPlan, DimensionsMergeOnlyWhereBothTensorsAgree)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 128);
    setStrides(params.bias, 0, 0, 128, 1);
    setStrides(params.keep, 128, 0, 0, 1);
    EXPECT_EQ(planOf(params).masks.rank, 3);
    setStrides(params.bias, 0, 384 * 128, 128, 1);
    EXPECT_EQ(planOf(params).masks.rank, 2);
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

TEST(Divisor, IsExactForLongDividends)
{
    for (int64_t const value : {int64_t{1}, int64_t{3}, int64_t{384}, int64_t{1000003}, (int64_t{1} << 40) + 1})
    {
        Divisor const divisor(value);
        for (int64_t n = int64_t{1} << 31; n < int64_t{1} << 51; n = n * 3 + 1)
        {
            for (int64_t const near : {n, n / value * value, n / value * value + value - 1})
            {
                ASSERT_EQ(divisor.quotientOfLong(near), near / value) << near << " / " << value;
            }
        }
    }
}

TEST(SoftmaxPlan, MasksOfWholeVectorsAreToldApart)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 128);
    setStrides(params.bias, 128, 0, 0, 1);
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kBias);
    EXPECT_TRUE(planOf(params).maskIsWhole);
    params.scale = -1.F;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kBias);
    params.bias.data = address(0x2002);
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kBias);
    EXPECT_FALSE(planOf(params).maskIsWhole);
    params.softcap = 30.F;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
    params.softcap = 0.F;
    params.biasIsFloat32 = true;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
}

TEST(SoftmaxPlan, KeepOfBytesHasKernelsForAnyAlignment)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 129);
    setStrides(params.keep, 129, 0, 0, 1);
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kKeepBytes);
    EXPECT_FALSE(planOf(params).maskIsWhole);
    params.keepType = KeepType::kInt64;
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
    params.keepType = KeepType::kInt8;
    setStrides(params.keep, 1, 0, 0, 0);
    EXPECT_EQ(planOf(params).tensors, MaskTensors::kAny);
}

TEST(SoftmaxPlan, TheMaskIsReadWithinItsTensor)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 129);
    setStrides(params.keep, 129, 0, 0, 1);
    Extent const extent = planOf(params).maskExtent;
    EXPECT_EQ(extent.low, address(0x2000));
    EXPECT_EQ(extent.high, static_cast<uint8_t const*>(address(0x2000)) + 8 * 129);
}

TEST(SoftmaxPlan, AddressesAndStridesDecideWhetherRowsAreWhole)
{
    MaskedSoftmaxParams params = makeParams(1, 1, 4, 384);
    EXPECT_TRUE(planOf(params).isWhole);
    params.scores = address(0x1002);
    EXPECT_FALSE(planOf(params).isWhole);
    params.scores = address(0x1000);
    params.probabilitiesStrides[4] = 385;
    EXPECT_FALSE(planOf(params).isWhole);
    params.probabilitiesStrides[4] = 392;
    EXPECT_TRUE(planOf(params).isWhole);
}

TEST(SoftmaxPlan, GapsAndReversedRowsBelongToTheExtent)
{
    MaskedSoftmaxParams params = makeParams(1, 2, 4, 100);
    params.scoresStrides[4] = 110;
    params.scoresStrides[1] = -440;
    params.scores = address(0x10000);
    SoftmaxPlan const plan = planOf(params);
    auto const* const scores = static_cast<uint8_t const*>(params.scores);
    EXPECT_EQ(plan.scoresExtent.low, scores - 440 * 2);
    EXPECT_EQ(plan.scoresExtent.high, scores + (3 * 110 + 100) * 2);
}

TEST(SoftmaxPlan, ContiguousTensorsAreOneDimension)
{
    MaskedSoftmaxParams params = makeParams(8, 12, 384, 128);
    EXPECT_EQ(planOf(params).places.rank, 1);
    params.probabilitiesStrides[4] = 136;
    EXPECT_EQ(planOf(params).places.rank, 2);
}

TEST(SoftmaxPlan, ABlockOfAClusterHoldsItsShareOfARow)
{
    SoftmaxPlan const plan = planOf(makeParams(8, 12, 384, 65536));
    ASSERT_GT(plan.policy.blocks, 1);
    EXPECT_EQ(plan.unitsPerBlock * plan.policy.blocks, 65536 / 8);
    EXPECT_EQ(plan.blocks.value, plan.policy.blocks);
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
        return !makeSoftmaxPlan(params, kDevice, plan);
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
    EXPECT_TRUE(refuses([](auto& p) { p.scoresStrides[5] = 2; }));
    EXPECT_TRUE(refuses([](auto& p) { p.probabilitiesStrides[5] = 0; }));
    EXPECT_TRUE(refuses([](auto& p) {
        p.probabilities = const_cast<void*>(p.scores);
        p.probabilitiesStrides[4] = 16;
    }));
}

} // namespace
} // namespace attngraft
