// From tensor descriptors to the softmax kernels' parameters.
#include "plugin_test_support.h"
#include "softmax_tensors.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>

namespace attngraft::plugin
{
namespace
{
using TensorType = nvinfer1::DataType;
using nvinfer1::PluginTensorDesc;
using nvinfer1::TensorFormat;
using test::makeDescriptor;

using Sizes = std::array<int64_t, kMaxRank>;

constexpr std::array kAllTypes{TensorType::kFLOAT, TensorType::kHALF, TensorType::kINT8, TensorType::kINT32,
    TensorType::kBOOL, TensorType::kUINT8, TensorType::kFP8, TensorType::kBF16, TensorType::kINT64, TensorType::kINT4,
    TensorType::kFP4};

MaskConfig withOperands(std::vector<Role> operands)
{
    MaskConfig config;
    config.operands = std::move(operands);
    return config;
}

Sizes sizes(int64_t const (&values)[kMaxRank])
{
    Sizes result{};
    std::copy(std::begin(values), std::end(values), result.begin());
    return result;
}

//! Parameters for fp16 scores and one operand; nothing is dereferenced.
MaskedSoftmaxParams paramsFor(Role role, PluginTensorDesc const& scores, PluginTensorDesc const& operand)
{
    PluginTensorDesc const inputs[]{scores, operand};
    return makeSoftmaxParams(withOperands({role}), inputs, nullptr, nullptr);
}

std::string refusal(Role role, PluginTensorDesc const& scores, PluginTensorDesc const& operand)
{
    try
    {
        paramsFor(role, scores, operand);
    }
    catch (std::invalid_argument const& error)
    {
        return error.what();
    }
    return "";
}

TEST(MakeSoftmaxParams, PutsTheBatchInFrontAndTheRestRightAligned)
{
    struct Case
    {
        PluginTensorDesc scores;
        Sizes dims;
    };
    Case const cases[]{
        {makeDescriptor(TensorType::kHALF, {5, 7}), {1, 1, 1, 1, 5, 7}},
        {makeDescriptor(TensorType::kHALF, {2, 5, 7}), {2, 1, 1, 1, 5, 7}},
        {makeDescriptor(TensorType::kHALF, {2, 3, 5, 7}), {2, 1, 1, 3, 5, 7}},
        {makeDescriptor(TensorType::kHALF, {2, 4, 3, 5, 7}), {2, 1, 4, 3, 5, 7}},
        {makeDescriptor(TensorType::kHALF, {2, 6, 4, 3, 5, 7}), {2, 6, 4, 3, 5, 7}},
    };
    for (Case const& each : cases)
    {
        EXPECT_EQ(sizes(makeSoftmaxParams({}, &each.scores, nullptr, nullptr).dims), each.dims);
    }
}

TEST(MakeSoftmaxParams, CarriesTheConfigurationAndTheAddresses)
{
    MaskConfig config = withOperands({Role::kKvStarts, Role::kKeep, Role::kKvLengths, Role::kBias});
    config.scale = 0.5F;
    config.softcap = 30.F;
    config.causal = Causal::kTopLeft;
    config.windowLeft = 3;
    config.windowRight = 4;
    config.emptyRows = EmptyRows::kUniform;
    PluginTensorDesc const descriptors[]{makeDescriptor(TensorType::kBF16, {2, 3, 5, 7}),
        makeDescriptor(TensorType::kINT32, {2}), makeDescriptor(TensorType::kINT64, {5, 7}),
        makeDescriptor(TensorType::kINT32, {2}), makeDescriptor(TensorType::kFLOAT, {7})};
    std::array<char, 6> bytes{};
    void const* const inputs[]{&bytes[0], &bytes[1], &bytes[2], &bytes[3], &bytes[4]};

    MaskedSoftmaxParams const params = makeSoftmaxParams(config, descriptors, inputs, &bytes[5]);
    EXPECT_EQ(params.scores, &bytes[0]);
    EXPECT_EQ(static_cast<void const*>(params.kvStarts), &bytes[1]);
    EXPECT_EQ(params.keep.data, &bytes[2]);
    EXPECT_EQ(static_cast<void const*>(params.kvLengths), &bytes[3]);
    EXPECT_EQ(params.bias.data, &bytes[4]);
    EXPECT_EQ(params.probabilities, &bytes[5]);
    EXPECT_EQ(params.type, attngraft::DataType::kBFloat16);
    EXPECT_TRUE(params.biasIsFloat32);
    EXPECT_EQ(params.keepType, KeepType::kInt64);
    EXPECT_EQ(params.scale, 0.5F);
    EXPECT_EQ(params.softcap, 30.F);
    EXPECT_EQ(params.causal, Causal::kTopLeft);
    EXPECT_EQ(params.windowLeft, 3);
    EXPECT_EQ(params.windowRight, 4);
    EXPECT_EQ(params.emptyRows, EmptyRows::kUniform);
}

TEST(MakeSoftmaxParams, BroadcastsByStrides)
{
    struct Case
    {
        PluginTensorDesc scores;
        PluginTensorDesc operand;
        Sizes strides;
    };
    PluginTensorDesc const rank4 = makeDescriptor(TensorType::kHALF, {2, 3, 5, 7});
    Case const cases[]{
        {rank4, makeDescriptor(TensorType::kHALF, {2, 3, 5, 7}), {105, 0, 0, 35, 7, 1}},
        {rank4, makeDescriptor(TensorType::kHALF, {2, 1, 1, 7}), {7, 0, 0, 0, 0, 1}},
        {rank4, makeDescriptor(TensorType::kHALF, {1, 3, 5, 7}), {0, 0, 0, 35, 7, 1}},
        {rank4, makeDescriptor(TensorType::kHALF, {2, 1, 5, 1}), {5, 0, 0, 0, 1, 0}},
        {rank4, makeDescriptor(TensorType::kHALF, {5, 7}), {0, 0, 0, 0, 7, 1}},
        {rank4, makeDescriptor(TensorType::kHALF, {7}), {0, 0, 0, 0, 0, 1}},
        {rank4, makeDescriptor(TensorType::kHALF, {1}), {0, 0, 0, 0, 0, 0}},
        {rank4, makeDescriptor(TensorType::kHALF, {}), {0, 0, 0, 0, 0, 0}},
        {makeDescriptor(TensorType::kHALF, {5, 7}), makeDescriptor(TensorType::kHALF, {5, 7}), {0, 0, 0, 0, 7, 1}},
        {makeDescriptor(TensorType::kHALF, {2, 5, 7}), makeDescriptor(TensorType::kHALF, {2, 1, 7}),
            {7, 0, 0, 0, 0, 1}},
        {makeDescriptor(TensorType::kHALF, {2, 9, 4, 3, 5, 7}), makeDescriptor(TensorType::kHALF, {9, 1, 3, 1, 7}),
            {0, 21, 0, 7, 0, 1}},
    };
    for (Case const& each : cases)
    {
        EXPECT_EQ(sizes(paramsFor(Role::kBias, each.scores, each.operand).bias.strides), each.strides);
        PluginTensorDesc keep = each.operand;
        keep.type = TensorType::kBOOL;
        EXPECT_EQ(sizes(paramsFor(Role::kKeep, each.scores, keep).keep.strides), each.strides);
    }
}

TEST(MakeSoftmaxParams, StridesAreIn64Bits)
{
    PluginTensorDesc const scores = makeDescriptor(TensorType::kHALF, {2, 64, 8192, 8192});
    MaskedSoftmaxParams const params = paramsFor(Role::kBias, scores, scores);
    EXPECT_EQ(params.bias.strides[0], int64_t{64} * 8192 * 8192);
}

TEST(MakeSoftmaxParams, TellsTheWidthsOfKeep)
{
    PluginTensorDesc const scores = makeDescriptor(TensorType::kFLOAT, {5, 7});
    auto const keepType = [&](TensorType type) {
        return paramsFor(Role::kKeep, scores, makeDescriptor(type, {5, 7})).keepType;
    };
    EXPECT_EQ(keepType(TensorType::kBOOL), KeepType::kInt8);
    EXPECT_EQ(keepType(TensorType::kINT8), KeepType::kInt8);
    EXPECT_EQ(keepType(TensorType::kUINT8), KeepType::kInt8);
    EXPECT_EQ(keepType(TensorType::kINT32), KeepType::kInt32);
    EXPECT_EQ(keepType(TensorType::kINT64), KeepType::kInt64);
}

TEST(MakeSoftmaxParams, RefusesAndNamesTheInput)
{
    PluginTensorDesc const scores = makeDescriptor(TensorType::kHALF, {2, 3, 5, 7});
    PluginTensorDesc const oneKey = makeDescriptor(TensorType::kHALF, {2, 3, 5, 1});
    EXPECT_EQ(refusal(Role::kBias, scores, makeDescriptor(TensorType::kHALF, {2, 1, 1, 6})),
        "bias: has 6 where the scores have 7 in dimension 3; it does not broadcast");
    EXPECT_EQ(refusal(Role::kKeep, scores, makeDescriptor(TensorType::kBOOL, {4, 7})),
        "keep: has 4 where the scores have 5 in dimension 2; it does not broadcast");
    EXPECT_EQ(refusal(Role::kBias, oneKey, makeDescriptor(TensorType::kHALF, {7})),
        "bias: has 7 where the scores have 1 in dimension 3; it does not broadcast");
    EXPECT_EQ(refusal(Role::kBias, scores, makeDescriptor(TensorType::kHALF, {1, 2, 3, 5, 7})),
        "bias: rank 5 is above the scores' rank 4; it does not broadcast");
    EXPECT_EQ(refusal(Role::kKvLengths, scores, makeDescriptor(TensorType::kINT32, {1})),
        "kv_lengths: has 1 where the scores have 2 in dimension 0; give one value a batch entry");
    EXPECT_EQ(
        refusal(Role::kKvStarts, scores, makeDescriptor(TensorType::kINT32, {2, 1})), "kv_starts: rank 2; give [B]");
    EXPECT_NE(refusal(Role::kKvLengths, scores, makeDescriptor(TensorType::kINT64, {2})), "");
    EXPECT_NE(refusal(Role::kBias, scores, makeDescriptor(TensorType::kBF16, {7})), "");
}

TEST(MakeSoftmaxParams, RankTwoHasABatchOfOne)
{
    PluginTensorDesc const scores = makeDescriptor(TensorType::kHALF, {5, 7});
    EXPECT_EQ(refusal(Role::kKvLengths, scores, makeDescriptor(TensorType::kINT32, {1})), "");
    EXPECT_EQ(refusal(Role::kKvLengths, scores, makeDescriptor(TensorType::kINT32, {5})),
        "kv_lengths: has 5 where the scores have 1 in their batch; give one value a batch entry");
}

TEST(MakeSoftmaxParams, RefusesScoresOfOtherRanks)
{
    PluginTensorDesc const tooLow = makeDescriptor(TensorType::kHALF, {7});
    PluginTensorDesc const tooHigh = makeDescriptor(TensorType::kHALF, {1, 1, 1, 1, 1, 5, 7});
    EXPECT_THROW(makeSoftmaxParams({}, &tooLow, nullptr, nullptr), std::invalid_argument);
    EXPECT_THROW(makeSoftmaxParams({}, &tooHigh, nullptr, nullptr), std::invalid_argument);
}

TEST(MakeSoftmaxParams, TakesEmptyTensors)
{
    PluginTensorDesc const scores = makeDescriptor(TensorType::kHALF, {0, 3, 5, 7});
    MaskedSoftmaxParams const params = paramsFor(Role::kBias, scores, makeDescriptor(TensorType::kHALF, {0, 1, 1, 7}));
    EXPECT_EQ(params.dims[0], 0);
}

TEST(SupportsTensor, TakesTheContractsTypesOnly)
{
    MaskConfig const config = withOperands({Role::kBias, Role::kKeep, Role::kKvLengths, Role::kKvStarts});
    auto const isOneOf = [](TensorType type, std::initializer_list<TensorType> types) {
        return std::find(types.begin(), types.end(), type) != types.end();
    };
    for (TensorType scores : kAllTypes)
    {
        for (TensorType type : kAllTypes)
        {
            auto const supports = [&](int32_t position) {
                nvinfer1::DynamicPluginTensorDesc tensors[6]{};
                tensors[0].desc = makeDescriptor(scores, {5, 7});
                tensors[position].desc = makeDescriptor(type, {5, 7});
                return supportsTensor(softmaxInputs(config), tensors, position);
            };
            EXPECT_EQ(supports(0), isOneOf(type, {TensorType::kFLOAT, TensorType::kHALF, TensorType::kBF16}));
            EXPECT_EQ(supports(1), isOneOf(type, {scores, TensorType::kFLOAT}));
            EXPECT_EQ(supports(2),
                isOneOf(type,
                    {TensorType::kBOOL, TensorType::kINT8, TensorType::kUINT8, TensorType::kINT32,
                        TensorType::kINT64}));
            EXPECT_EQ(supports(3), type == TensorType::kINT32);
            EXPECT_EQ(supports(4), type == TensorType::kINT32);
            EXPECT_EQ(supports(5), type == scores);
        }
    }
}

TEST(SupportsTensor, TakesLinearOnly)
{
    for (int32_t format = 0; format < nvinfer1::EnumMax<TensorFormat>(); ++format)
    {
        bool const isLinear = static_cast<TensorFormat>(format) == TensorFormat::kLINEAR;
        for (int32_t position : {0, 1})
        {
            nvinfer1::DynamicPluginTensorDesc tensors[2]{};
            tensors[0].desc = makeDescriptor(TensorType::kHALF, {5, 7});
            tensors[position].desc = makeDescriptor(TensorType::kHALF, {5, 7}, static_cast<TensorFormat>(format));
            EXPECT_EQ(supportsTensor(softmaxInputs({}), tensors, position), isLinear);
        }
    }
}

TEST(CheckCounts, SaysHowManyInputsThereShouldBe)
{
    InputList const list = softmaxInputs(withOperands({Role::kBias, Role::kKeep}));
    EXPECT_EQ(list.count(), 3);
    EXPECT_NO_THROW(checkCounts(list, 3, 1));
    EXPECT_THROW(checkCounts(list, 2, 1), std::invalid_argument);
    EXPECT_THROW(checkCounts(list, 4, 1), std::invalid_argument);
    EXPECT_THROW(checkCounts(list, 3, 2), std::invalid_argument);
}

} // namespace
} // namespace attngraft::plugin
