// The softmax plugin and its creator, called as TensorRT calls them.
#include "masked_softmax_plugin.h"
#include "plugin_network_support.h"
#include "plugin_test_support.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace attngraft::plugin
{
namespace
{
using TensorType = nvinfer1::DataType;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginCapabilityType;
using nvinfer1::PluginTensorDesc;
using test::CapturedLog;
using test::Fields;
using test::kDynamic;
using test::makeDescriptor;
using test::Plugin;
using test::Shapes;

Plugin makePlugin(char const* operands)
{
    MaskedSoftmaxCreator creator;
    Fields fields;
    fields.text("operands", operands).float32("scale", 0.125F).text("causal", "bottom_right");
    return {std::unique_ptr<nvinfer1::IPluginV3>(
        creator.createPlugin("layer7", fields.collection(), nvinfer1::TensorRTPhase::kBUILD))};
}

//! The configuration as TensorRT would store it.
MaskConfig stored(Plugin const& plugin)
{
    return MaskConfig::parse(plugin.runtime().getFieldsToSerialize());
}

TEST(MaskedSoftmaxCreator, SaysWhatItMakes)
{
    MaskedSoftmaxCreator creator;
    EXPECT_STREQ(creator.getPluginName(), "MaskedSoftmax");
    EXPECT_STREQ(creator.getPluginVersion(), "1");
    EXPECT_STREQ(creator.getPluginNamespace(), "attngraft");
}

TEST(MaskedSoftmaxCreator, AnnouncesTheFieldsThatItWrites)
{
    MaskedSoftmaxCreator creator;
    test::expectAnnounced(*creator.getFieldNames(), *MaskConfig{}.fields().collection());
    EXPECT_EQ(creator.getFieldNames()->nbFields, 7);
}

TEST(MaskedSoftmaxCreator, GivesNullAndALogLineForBadFields)
{
    CapturedLog log;
    MaskedSoftmaxCreator creator;
    Fields fields;
    fields.text("causal", "sideways");
    EXPECT_EQ(creator.createPlugin("layer7", fields.collection(), nvinfer1::TensorRTPhase::kBUILD), nullptr);
    EXPECT_EQ(log.text(),
        "error: [attngraft] MaskedSoftmax 'layer7' cannot be created: field 'causal': 'sideways' is not one of none, "
        "top_left, bottom_right\n");
}

TEST(MaskedSoftmaxCreator, TakesNoFieldsAndNoName)
{
    MaskedSoftmaxCreator creator;
    std::unique_ptr<nvinfer1::IPluginV3> const plugin(
        creator.createPlugin(nullptr, nullptr, nvinfer1::TensorRTPhase::kRUNTIME));
    EXPECT_NE(plugin, nullptr);
}

TEST(MaskedSoftmaxPlugin, HasTheThreeCapabilities)
{
    Plugin const plugin = makePlugin("bias");
    EXPECT_STREQ(plugin.core().getPluginName(), "MaskedSoftmax");
    EXPECT_STREQ(plugin.core().getPluginVersion(), "1");
    EXPECT_STREQ(plugin.core().getPluginNamespace(), "attngraft");
    EXPECT_EQ(plugin.build().getNbOutputs(), 1);
    EXPECT_STREQ(plugin.runtime().getInterfaceInfo().kind, "PLUGIN_V3ONE_RUNTIME");
    EXPECT_EQ(plugin.object->getCapabilityInterface(static_cast<PluginCapabilityType>(99)), nullptr);
}

TEST(MaskedSoftmaxPlugin, NeedsNeitherWorkspaceNorTactics)
{
    Plugin const plugin = makePlugin("");
    EXPECT_EQ(plugin.build().getWorkspaceSize(nullptr, 0, nullptr, 0), 0U);
    EXPECT_EQ(plugin.build().getNbTactics(), 0);
    EXPECT_STREQ(plugin.build().getTimingCacheID(), plugin.build().getMetadataString());
}

TEST(MaskedSoftmaxPlugin, ClonesOutliveTheOriginal)
{
    Plugin original = makePlugin("keep,bias");
    MaskConfig const config = stored(original);
    Plugin const clone{std::unique_ptr<nvinfer1::IPluginV3>(original.object->clone())};
    Plugin const attached{std::unique_ptr<nvinfer1::IPluginV3>(original.runtime().attachToContext(nullptr))};
    EXPECT_NE(clone.object, original.object);
    EXPECT_NE(attached.object, original.object);
    original.object.reset();
    EXPECT_EQ(stored(clone), config);
    EXPECT_EQ(stored(attached), config);
}

TEST(MaskedSoftmaxPlugin, ComesBackFromItsSerializedFields)
{
    Plugin const plugin = makePlugin("kv_starts,keep");
    MaskedSoftmaxCreator creator;
    Plugin const back{std::unique_ptr<nvinfer1::IPluginV3>(
        creator.createPlugin("layer7", plugin.runtime().getFieldsToSerialize(), nvinfer1::TensorRTPhase::kRUNTIME))};
    ASSERT_NE(back.object, nullptr);
    EXPECT_EQ(stored(back), stored(plugin));
    EXPECT_EQ(stored(back).scale, 0.125F);
    EXPECT_EQ(stored(back).causal, Causal::kBottomRight);
}

TEST(MaskedSoftmaxPlugin, OutputHasTheTypeOfTheScores)
{
    Plugin const plugin = makePlugin("bias");
    for (TensorType type : {TensorType::kFLOAT, TensorType::kHALF, TensorType::kBF16})
    {
        TensorType const inputs[]{type, TensorType::kFLOAT};
        TensorType output{TensorType::kINT4};
        EXPECT_EQ(plugin.build().getOutputDataTypes(&output, 1, inputs, 2), 0);
        EXPECT_EQ(output, type);
    }
}

TEST(MaskedSoftmaxPlugin, OutputHasTheShapeOfTheScores)
{
    Plugin const plugin = makePlugin("bias,kv_lengths");
    Shapes shapes;
    test::ShapeBuilder builder;
    DimsExprs const inputs[]{
        shapes.of({kDynamic, 12, kDynamic, 77}), shapes.of({kDynamic, 1, 1, 77}), shapes.of({kDynamic})};
    DimsExprs output{};
    ASSERT_EQ(plugin.build().getOutputShapes(inputs, 3, nullptr, 0, &output, 1, builder), 0);
    ASSERT_EQ(output.nbDims, 4);
    for (int32_t i = 0; i < output.nbDims; ++i)
    {
        EXPECT_EQ(output.d[i], inputs[0].d[i]);
    }
}

TEST(MaskedSoftmaxPlugin, RefusesConstantShapesThatDoNotBroadcast)
{
    Plugin const plugin = makePlugin("keep");
    Shapes shapes;
    test::ShapeBuilder builder;
    DimsExprs output{};
    auto const status = [&](DimsExprs const& scores, DimsExprs const& keep) {
        DimsExprs const inputs[]{scores, keep};
        return plugin.build().getOutputShapes(inputs, 2, nullptr, 0, &output, 1, builder);
    };
    CapturedLog log;
    EXPECT_NE(status(shapes.of({kDynamic, 12, 77, 77}), shapes.of({76})), 0);
    EXPECT_EQ(log.text(),
        "error: [attngraft] MaskedSoftmax 'layer7': keep: has 76 where the scores have 77 in dimension 3; it does not "
        "broadcast\n");
    EXPECT_NE(status(shapes.of({77, 77}), shapes.of({1, 77, 77})), 0);
    EXPECT_NE(status(shapes.of({77}), shapes.of({77})), 0);
    EXPECT_EQ(status(shapes.of({kDynamic, 12, 77, kDynamic}), shapes.of({76})), 0);
    EXPECT_EQ(status(shapes.of({kDynamic, 12, 77, 77}), shapes.of({kDynamic, 1, 1, 77})), 0);
}

TEST(MaskedSoftmaxPlugin, KnowsThatScoresOfRankTwoHaveABatchOfOne)
{
    Plugin const plugin = makePlugin("kv_lengths");
    Shapes shapes;
    test::ShapeBuilder builder;
    DimsExprs output{};
    auto const status = [&](DimsExprs const& lengths) {
        DimsExprs const inputs[]{shapes.of({5, 7}), lengths};
        return plugin.build().getOutputShapes(inputs, 2, nullptr, 0, &output, 1, builder);
    };
    CapturedLog log;
    EXPECT_EQ(status(shapes.of({1})), 0);
    EXPECT_EQ(status(shapes.of({kDynamic})), 0);
    EXPECT_NE(status(shapes.of({5})), 0);
    EXPECT_NE(status(shapes.of({})), 0);
}

TEST(MaskedSoftmaxPlugin, SupportsFormatsByPosition)
{
    Plugin const plugin = makePlugin("keep");
    DynamicPluginTensorDesc tensors[3]{};
    tensors[0].desc = makeDescriptor(TensorType::kHALF, {5, 7});
    tensors[1].desc = makeDescriptor(TensorType::kBOOL, {5, 7});
    tensors[2].desc = makeDescriptor(TensorType::kHALF, {5, 7});
    for (int32_t position : {0, 1, 2})
    {
        EXPECT_TRUE(plugin.build().supportsFormatCombination(position, tensors, 2, 1));
    }
    tensors[2].desc.type = TensorType::kFLOAT;
    EXPECT_FALSE(plugin.build().supportsFormatCombination(2, tensors, 2, 1));
    CapturedLog log;
    EXPECT_FALSE(plugin.build().supportsFormatCombination(0, tensors, 3, 1));
    EXPECT_NE(log.text(), "");
}

TEST(MaskedSoftmaxPlugin, ConfiguresForTheDeclaredInputsOnly)
{
    Plugin const plugin = makePlugin("keep");
    DynamicPluginTensorDesc inputs[2]{};
    inputs[0].desc = makeDescriptor(TensorType::kHALF, {kDynamic, 12, kDynamic, kDynamic});
    EXPECT_EQ(plugin.build().configurePlugin(inputs, 2, nullptr, 1), 0);
    CapturedLog log;
    EXPECT_NE(plugin.build().configurePlugin(inputs, 1, nullptr, 1), 0);
    EXPECT_EQ(log.text(),
        "error: [attngraft] MaskedSoftmax 'layer7': the node has 1 inputs; its attribute operands asks for 2: the "
        "scores and one for each role\n");
}

TEST(MaskedSoftmaxPlugin, ChecksRunTimeShapes)
{
    Plugin const plugin = makePlugin("bias");
    PluginTensorDesc inputs[]{
        makeDescriptor(TensorType::kHALF, {2, 12, 5, 7}), makeDescriptor(TensorType::kHALF, {2, 1, 1, 7})};
    EXPECT_EQ(plugin.runtime().onShapeChange(inputs, 2, nullptr, 1), 0);
    inputs[1].dims = test::makeDims({3, 1, 1, 7});
    CapturedLog log;
    EXPECT_NE(plugin.runtime().onShapeChange(inputs, 2, nullptr, 1), 0);
    EXPECT_EQ(log.text(),
        "error: [attngraft] MaskedSoftmax 'layer7': bias: has 3 where the scores have 2 in dimension 0; it does not "
        "broadcast\n");
}

class MaskedSoftmaxEnqueue : public testing::Test
{
protected:
    void SetUp() override
    {
        test::fakeSoftmax() = {};
    }

    int32_t enqueue(Plugin const& plugin)
    {
        PluginTensorDesc const output = mInputs[0];
        void* const outputs[]{&mBytes[2]};
        void const* const inputs[]{&mBytes[0], &mBytes[1]};
        return plugin.runtime().enqueue(mInputs, &output, inputs, outputs, nullptr, mStream);
    }

    char mBytes[3]{};
    cudaStream_t mStream{reinterpret_cast<cudaStream_t>(&mBytes)};
    PluginTensorDesc mInputs[2]{
        makeDescriptor(TensorType::kHALF, {2, 12, 5, 7}), makeDescriptor(TensorType::kINT32, {2})};
};

TEST_F(MaskedSoftmaxEnqueue, LaunchesOnceOnTheGivenStream)
{
    EXPECT_EQ(enqueue(makePlugin("kv_lengths")), 0);
    EXPECT_EQ(test::fakeSoftmax().calls, 1);
    EXPECT_EQ(test::fakeSoftmax().stream, mStream);
    MaskedSoftmaxParams const& params = test::fakeSoftmax().params;
    EXPECT_EQ(params.scores, &mBytes[0]);
    EXPECT_EQ(static_cast<void const*>(params.kvLengths), &mBytes[1]);
    EXPECT_EQ(params.probabilities, &mBytes[2]);
    EXPECT_EQ(params.dims[5], 7);
    EXPECT_EQ(params.scale, 0.125F);
}

TEST_F(MaskedSoftmaxEnqueue, AllocatesNothing)
{
    Plugin const plugin = makePlugin("kv_lengths");
    int64_t const before = test::allocationCount();
    EXPECT_EQ(enqueue(plugin), 0);
    EXPECT_EQ(test::allocationCount(), before);
    EXPECT_GT(before, 0);
}

TEST_F(MaskedSoftmaxEnqueue, ReportsAFailedLaunch)
{
    test::fakeSoftmax().answer = cudaErrorInvalidConfiguration;
    CapturedLog log;
    EXPECT_NE(enqueue(makePlugin("kv_lengths")), 0);
    EXPECT_EQ(log.text(),
        "error: [attngraft] MaskedSoftmax 'layer7': the kernel launch failed: cudaErrorInvalidConfiguration, invalid "
        "configuration argument\n");
}

TEST_F(MaskedSoftmaxEnqueue, LaunchesNothingForShapesThatDoNotFit)
{
    mInputs[1].dims = test::makeDims({3});
    CapturedLog log;
    EXPECT_NE(enqueue(makePlugin("kv_lengths")), 0);
    EXPECT_EQ(test::fakeSoftmax().calls, 0);
    EXPECT_NE(log.text(), "");
}

TEST(MaskedSoftmaxPlugin, ServesManyThreads)
{
    Plugin const plugin = makePlugin("bias");
    PluginTensorDesc const inputs[]{
        makeDescriptor(TensorType::kHALF, {2, 12, 5, 7}), makeDescriptor(TensorType::kHALF, {7})};
    std::vector<int32_t> failures(4);
    std::vector<std::thread> threads;
    for (int32_t& failed : failures)
    {
        threads.emplace_back([&] {
            for (int i = 0; i < 200; ++i)
            {
                Plugin const clone{std::unique_ptr<nvinfer1::IPluginV3>(plugin.object->clone())};
                failed += clone.runtime().onShapeChange(inputs, 2, nullptr, 1);
                failed += stored(clone) == stored(plugin) ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads)
    {
        thread.join();
    }
    EXPECT_EQ(failures, std::vector<int32_t>(4, 0));
}

} // namespace
} // namespace attngraft::plugin
