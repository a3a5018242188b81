// The attention plugin and its creator, called as TensorRT calls them.
#include "fused_attention_plugin.h"
#include "plugin_network_support.h"
#include "plugin_test_support.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace attngraft::plugin
{
namespace
{
using TensorType = nvinfer1::DataType;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;
using test::CapturedLog;
using test::Fields;
using test::kDynamic;
using test::makeDescriptor;
using test::makeDims;
using test::Plugin;
using test::Shapes;

Plugin create(Fields fields)
{
    FusedAttentionCreator creator;
    return {std::unique_ptr<nvinfer1::IPluginV3>(
        creator.createPlugin("layer7", fields.collection(), nvinfer1::TensorRTPhase::kBUILD))};
}

Plugin makePlugin(char const* layout, char const* operands = "")
{
    return create(Fields().text("layout", layout).int32("heads", 12).int32("kv_heads", 12).text("operands", operands));
}

//! The configuration as TensorRT would store it.
FusedAttentionConfig stored(Plugin const& plugin)
{
    return FusedAttentionConfig::parse(plugin.runtime().getFieldsToSerialize());
}

//! A network's tensor whose dimensions are `sizes`, those below 0 known at run time only; and its profile.
DynamicPluginTensorDesc inProfile(std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> least,
    std::initializer_list<int64_t> optimum, std::initializer_list<int64_t> largest)
{
    DynamicPluginTensorDesc tensor{};
    tensor.desc = makeDescriptor(TensorType::kHALF, sizes);
    tensor.min = makeDims(least);
    tensor.opt = makeDims(optimum);
    tensor.max = makeDims(largest);
    return tensor;
}

//! A packed tensor of 12 heads of 64, batch 1 to 8 and 4 at the optimum, with these lengths.
DynamicPluginTensorDesc packedInProfile(int64_t optimum, int64_t largest)
{
    return inProfile({kDynamic, kDynamic, 2304}, {1, 1, 2304}, {4, optimum, 2304}, {8, largest, 2304});
}

std::vector<int32_t> tacticsOf(Plugin const& plugin)
{
    std::vector<int32_t> tactics(static_cast<size_t>(plugin.build().getNbTactics()));
    EXPECT_EQ(plugin.build().getValidTactics(tactics.data(), static_cast<int32_t>(tactics.size())), 0);
    return tactics;
}

TEST(FusedAttentionCreator, SaysWhatItMakes)
{
    FusedAttentionCreator creator;
    EXPECT_STREQ(creator.getPluginName(), "FusedAttention");
    EXPECT_STREQ(creator.getPluginVersion(), "1");
    EXPECT_STREQ(creator.getPluginNamespace(), "attngraft");
}

TEST(FusedAttentionCreator, AnnouncesTheFieldsThatItWrites)
{
    FusedAttentionCreator creator;
    test::expectAnnounced(*creator.getFieldNames(), *FusedAttentionConfig{}.fields().collection());
    EXPECT_EQ(creator.getFieldNames()->nbFields, 11);
}

TEST(FusedAttentionCreator, GivesNullAndALogLineForBadFields)
{
    CapturedLog log;
    EXPECT_EQ(create(Fields().text("layout", "bsd")).object, nullptr);
    EXPECT_EQ(log.text(),
        "error: [attngraft] FusedAttention 'layer7' cannot be created: field 'heads': layout 'bsd' needs the number of "
        "heads, 1 or more\n");
}

TEST(FusedAttentionPlugin, HasTheThreeCapabilities)
{
    Plugin const plugin = makePlugin("bhsd");
    EXPECT_STREQ(plugin.core().getPluginName(), "FusedAttention");
    EXPECT_STREQ(plugin.core().getPluginVersion(), "1");
    EXPECT_STREQ(plugin.core().getPluginNamespace(), "attngraft");
    EXPECT_EQ(plugin.build().getNbOutputs(), 1);
    EXPECT_STREQ(plugin.build().getTimingCacheID(), plugin.build().getMetadataString());
    EXPECT_STRNE(plugin.build().getTimingCacheID(), makePlugin("bshd").build().getTimingCacheID());
}

TEST(FusedAttentionPlugin, ComesBackFromItsSerializedFields)
{
    Plugin const plugin = makePlugin("bshd,bshd,bhsd,bsd", "kv_starts,keep");
    FusedAttentionCreator creator;
    Plugin const back{std::unique_ptr<nvinfer1::IPluginV3>(
        creator.createPlugin("layer7", plugin.runtime().getFieldsToSerialize(), nvinfer1::TensorRTPhase::kRUNTIME))};
    ASSERT_NE(back.object, nullptr);
    EXPECT_EQ(stored(back), stored(plugin));
    EXPECT_EQ(stored(back).value, Layout::kBhsd);
    EXPECT_EQ(stored(back).heads, 12);
}

TEST(FusedAttentionPlugin, OutputHasTheTypeOfTheQuery)
{
    Plugin const plugin = makePlugin("bhsd", "bias");
    for (TensorType type : {TensorType::kFLOAT, TensorType::kHALF, TensorType::kBF16})
    {
        TensorType const inputs[]{type, type, type, TensorType::kFLOAT};
        TensorType output{TensorType::kINT4};
        EXPECT_EQ(plugin.build().getOutputDataTypes(&output, 1, inputs, 4), 0);
        EXPECT_EQ(output, type);
    }
}

TEST(FusedAttentionPlugin, OutputHasTheShapeOfTheContext)
{
    Plugin const plugin = makePlugin("qkv", "kv_lengths");
    Shapes shapes;
    test::ShapeBuilder builder;
    DimsExprs const inputs[]{shapes.of({-2, -5, 2304}), shapes.of({-2})};
    DimsExprs output{};
    ASSERT_EQ(plugin.build().getOutputShapes(inputs, 2, nullptr, 0, &output, 1, builder), 0);
    EXPECT_EQ(test::sizesOf(output), (std::vector<int64_t>{-2, -5, 768}));
}

TEST(FusedAttentionPlugin, RefusesConstantShapesThatDoNotFit)
{
    Plugin const plugin = makePlugin("bhsd", "keep");
    Shapes shapes;
    test::ShapeBuilder builder;
    auto const logOf = [&](DimsExprs const& key, DimsExprs const& keep) {
        CapturedLog log;
        DimsExprs output{};
        DimsExprs const inputs[]{shapes.of({kDynamic, 12, 5, 64}), key, shapes.of({kDynamic, 12, 7, 64}), keep};
        int32_t const status = plugin.build().getOutputShapes(inputs, 4, nullptr, 0, &output, 1, builder);
        EXPECT_EQ(status == 0, log.text().empty());
        return log.text();
    };
    DimsExprs const key = shapes.of({kDynamic, 12, 7, 64});
    DimsExprs const keep = shapes.of({kDynamic, 1, 1, 7});
    EXPECT_EQ(logOf(key, keep), "");
    EXPECT_EQ(logOf(shapes.of({kDynamic, 12, 7, 32}), keep),
        "error: [attngraft] FusedAttention 'layer7': k: its head size is 32, that of q is 64\n");
    EXPECT_EQ(logOf(shapes.of({kDynamic, 12, 8, 64}), keep),
        "error: [attngraft] FusedAttention 'layer7': v: its number of keys is 7, that of k is 8\n");
    EXPECT_EQ(logOf(key, shapes.of({6})),
        "error: [attngraft] FusedAttention 'layer7': keep: has 6 where the scores have 7 in dimension 3; it does not "
        "broadcast\n");
    EXPECT_EQ(logOf(shapes.of({kDynamic, kDynamic, kDynamic, kDynamic}), shapes.of({kDynamic, kDynamic})), "");
}

TEST(FusedAttentionPlugin, SupportsFormatsByPosition)
{
    Plugin const plugin = makePlugin("bhsd", "bias,keep");
    constexpr int32_t kTensors = 6; // q, k, v, bias, keep, context
    auto const supports = [&](int32_t position, TensorType type, nvinfer1::TensorFormat format) {
        DynamicPluginTensorDesc tensors[kTensors]{};
        for (DynamicPluginTensorDesc& tensor : tensors)
        {
            tensor.desc = makeDescriptor(TensorType::kHALF, {2, 12, 5, 64});
        }
        tensors[position].desc = makeDescriptor(type, {2, 12, 5, 64}, format);
        return plugin.build().supportsFormatCombination(position, tensors, kTensors - 1, 1);
    };
    constexpr auto kLinear = nvinfer1::TensorFormat::kLINEAR;
    for (int32_t position : {0, 1, 2, 3, 5})
    {
        EXPECT_TRUE(supports(position, TensorType::kHALF, kLinear));
        EXPECT_FALSE(supports(position, TensorType::kHALF, nvinfer1::TensorFormat::kCHW2));
        EXPECT_FALSE(supports(position, TensorType::kINT32, kLinear));
        EXPECT_EQ(supports(position, TensorType::kBF16, kLinear), position == 0); // alike, but for the first
        EXPECT_EQ(supports(position, TensorType::kFLOAT, kLinear), position == 0 || position == 3);
    }
    EXPECT_TRUE(supports(4, TensorType::kBOOL, kLinear));
    EXPECT_FALSE(supports(4, TensorType::kHALF, kLinear));
}

TEST(FusedAttentionPlugin, SaysHowManyInputsThereShouldBe)
{
    TensorType const types[8]{};
    TensorType output{};
    CapturedLog log;
    EXPECT_NE(makePlugin("bhsd", "keep").build().getOutputDataTypes(&output, 1, types, 3), 0);
    EXPECT_NE(makePlugin("qkv").build().getOutputDataTypes(&output, 1, types, 3), 0);
    EXPECT_EQ(log.text(),
        "error: [attngraft] FusedAttention 'layer7': the node has 3 inputs; its attribute operands asks for 4: q, k, v "
        "and one for each role\n"
        "error: [attngraft] FusedAttention 'layer7': the node has 3 inputs; its attribute operands asks for 1: qkv and "
        "one for each role\n");
}

TEST(FusedAttentionPlugin, OffersTheVariantsOfTheOptimum)
{
    Plugin const plugin = makePlugin("qkv");
    EXPECT_EQ(plugin.build().getNbTactics(), 0);
    DynamicPluginTensorDesc const longer = packedInProfile(384, 512);
    EXPECT_EQ(plugin.build().configurePlugin(&longer, 1, nullptr, 1), 0);
    EXPECT_EQ(tacticsOf(plugin), (std::vector<int32_t>{test::kFirstVariant, test::kLastVariant}));
    DynamicPluginTensorDesc const shorter = packedInProfile(8, 512);
    EXPECT_EQ(plugin.build().configurePlugin(&shorter, 1, nullptr, 1), 0);
    EXPECT_EQ(tacticsOf(plugin),
        (std::vector<int32_t>{test::kFirstVariant, test::kVariantForFewQueries, test::kLastVariant}));
    CapturedLog log;
    int32_t tactic = 0;
    EXPECT_NE(plugin.build().getValidTactics(&tactic, 1), 0);
    EXPECT_NE(log.text(), "");
}

TEST(FusedAttentionPlugin, AnEmptyOptimumHasNoTactics)
{
    Plugin const plugin = makePlugin("qkv");
    DynamicPluginTensorDesc const empty = packedInProfile(0, 512);
    EXPECT_EQ(plugin.build().configurePlugin(&empty, 1, nullptr, 1), 0);
    EXPECT_EQ(plugin.build().getNbTactics(), 0);
}

TEST(FusedAttentionPlugin, AnOptimumThatTheBuilderCannotTellHasTheDefaultTactic)
{
    Plugin const plugin = makePlugin("qkv");
    DynamicPluginTensorDesc const untold = packedInProfile(kUnknown, 512);
    EXPECT_EQ(plugin.build().configurePlugin(&untold, 1, nullptr, 1), 0);
}

TEST(FusedAttentionPlugin, ClonesOfferWhatTheOriginalOffers)
{
    Plugin const plugin = makePlugin("qkv");
    DynamicPluginTensorDesc const packed = packedInProfile(384, 512);
    EXPECT_EQ(plugin.build().configurePlugin(&packed, 1, nullptr, 1), 0);
    Plugin const clone{std::unique_ptr<nvinfer1::IPluginV3>(plugin.object->clone())};
    EXPECT_EQ(tacticsOf(clone), tacticsOf(plugin));
    EXPECT_FALSE(tacticsOf(clone).empty());
}

TEST(FusedAttentionPlugin, RefusesBoundsBeyondTheContract)
{
    Plugin const plugin = makePlugin("qkv");
    DynamicPluginTensorDesc const wide =
        inProfile({kDynamic, kDynamic, kDynamic}, {1, 1, 2304}, {4, 384, 2304}, {8, 512, 36 * 513});
    CapturedLog log;
    EXPECT_NE(plugin.build().configurePlugin(&wide, 1, nullptr, 1), 0);
    EXPECT_EQ(log.text(), "error: [attngraft] FusedAttention 'layer7': qkv: head size 513 is not in 1 to 512\n");
}

TEST(FusedAttentionPlugin, RefusesToBuildWhatTheKernelsDoNotServe)
{
    Plugin const plugin = makePlugin("bhsd");
    std::vector<DynamicPluginTensorDesc> const inputs(3,
        inProfile({2, 12, 5, test::kUnservedHeadSize}, {2, 12, 5, test::kUnservedHeadSize},
            {2, 12, 5, test::kUnservedHeadSize}, {2, 12, 5, test::kUnservedHeadSize}));
    CapturedLog log;
    EXPECT_NE(plugin.build().configurePlugin(inputs.data(), 3, nullptr, 1), 0);
    EXPECT_EQ(log.text(),
        "error: [attngraft] FusedAttention 'layer7': the kernels do not serve these sizes: batch 2, 12 heads, 5 "
        "queries, 5 keys, head size 13 and 13\n");
}

TEST(FusedAttentionPlugin, WorkspaceIsForTheLargestShapes)
{
    DynamicPluginTensorDesc const packed = packedInProfile(384, 512);
    EXPECT_EQ(makePlugin("qkv").build().getWorkspaceSize(&packed, 1, nullptr, 1),
        static_cast<size_t>(test::fakeWorkspaceBytes(8, 12, 512, 64)));
}

TEST(FusedAttentionPlugin, WorkspaceTakesTheLargestOfBoundsThatDiffer)
{
    DynamicPluginTensorDesc const inputs[]{
        inProfile({kDynamic, 12, kDynamic, 64}, {1, 12, 1, 64}, {4, 12, 1, 64}, {8, 12, 1, 64}),
        inProfile({kDynamic, 12, kDynamic, 64}, {1, 12, 1, 64}, {4, 12, 100, 64}, {16, 12, 200, 64}),
        inProfile({kDynamic, 12, kDynamic, 32}, {1, 12, 1, 32}, {4, 12, 100, 32}, {8, 12, 201, 32})};
    Plugin const plugin = makePlugin("bhsd");
    EXPECT_EQ(plugin.build().configurePlugin(inputs, 3, nullptr, 1), 0);
    EXPECT_EQ(plugin.build().getWorkspaceSize(inputs, 3, nullptr, 1),
        static_cast<size_t>(test::fakeWorkspaceBytes(16, 12, 1, 32)));
}

TEST(FusedAttentionPlugin, ChecksRunTimeShapes)
{
    Plugin const plugin = makePlugin("bsd");
    PluginTensorDesc inputs[]{makeDescriptor(TensorType::kHALF, {2, 5, 768}),
        makeDescriptor(TensorType::kHALF, {2, 7, 768}), makeDescriptor(TensorType::kHALF, {2, 7, 768})};
    EXPECT_EQ(plugin.runtime().onShapeChange(inputs, 3, nullptr, 1), 0);
    inputs[1].dims = makeDims({3, 7, 768});
    CapturedLog log;
    EXPECT_NE(plugin.runtime().onShapeChange(inputs, 3, nullptr, 1), 0);
    EXPECT_EQ(log.text(), "error: [attngraft] FusedAttention 'layer7': k: its batch is 3, that of q is 2\n");
}

class FusedAttentionEnqueue : public testing::Test
{
protected:
    void SetUp() override
    {
        test::fakeAttention() = {};
    }

    int32_t enqueue(Plugin const& plugin, int64_t queries = 5)
    {
        mInputs[0].dims.d[1] = queries;
        void* const outputs[]{&mBytes[2]};
        void const* const inputs[]{&mBytes[0], &mBytes[1]};
        return plugin.runtime().enqueue(mInputs, nullptr, inputs, outputs, &mBytes[3], mStream);
    }

    //! The version of the kernel that was launched.
    int32_t launched(Plugin const& plugin, int64_t queries)
    {
        EXPECT_EQ(enqueue(plugin, queries), 0);
        return test::fakeAttention().params.variant;
    }

    char mBytes[4]{};
    cudaStream_t mStream{reinterpret_cast<cudaStream_t>(&mBytes)};
    PluginTensorDesc mInputs[2]{
        makeDescriptor(TensorType::kHALF, {2, 5, 2304}), makeDescriptor(TensorType::kINT32, {2})};
    Plugin mPlugin{makePlugin("qkv", "kv_lengths")};
};

TEST_F(FusedAttentionEnqueue, LaunchesOnceOnTheGivenStream)
{
    EXPECT_EQ(enqueue(mPlugin), 0);
    EXPECT_EQ(test::fakeAttention().calls, 1);
    EXPECT_EQ(test::fakeAttention().stream, mStream);
    FusedAttentionParams const& params = test::fakeAttention().params;
    EXPECT_EQ(params.query.data, &mBytes[0]);
    EXPECT_EQ(static_cast<void const*>(params.kvLengths), &mBytes[1]);
    EXPECT_EQ(params.context.data, &mBytes[2]);
    EXPECT_EQ(params.workspace, &mBytes[3]);
    EXPECT_EQ(params.queries, 5);
    EXPECT_EQ(params.variant, 0);
}

TEST_F(FusedAttentionEnqueue, TakesTheTacticWhereItServes)
{
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kVariantForFewQueries), 0);
    EXPECT_EQ(launched(mPlugin, test::kFewQueries), test::kVariantForFewQueries);
    EXPECT_EQ(launched(mPlugin, test::kFewQueries + 1), 0);
    EXPECT_EQ(launched(mPlugin, 1), test::kVariantForFewQueries);
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kLastVariant), 0);
    EXPECT_EQ(launched(mPlugin, 384), test::kLastVariant);
    EXPECT_EQ(mPlugin.runtime().setTactic(0), 0);
    EXPECT_EQ(launched(mPlugin, 384), 0);
}

TEST_F(FusedAttentionEnqueue, PassesOverATacticOfAnotherVersion)
{
    for (int32_t unknown : {-1, 999})
    {
        EXPECT_EQ(mPlugin.runtime().setTactic(unknown), 0);
        EXPECT_EQ(launched(mPlugin, 5), 0);
    }
}

TEST_F(FusedAttentionEnqueue, ClonesTakeTheTacticAlongAndThenGoTheirWay)
{
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kLastVariant), 0);
    Plugin const clone{std::unique_ptr<nvinfer1::IPluginV3>(mPlugin.object->clone())};
    Plugin const attached{std::unique_ptr<nvinfer1::IPluginV3>(mPlugin.runtime().attachToContext(nullptr))};
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kFirstVariant), 0);
    EXPECT_EQ(clone.runtime().setTactic(0), 0);
    EXPECT_EQ(launched(mPlugin, 5), test::kFirstVariant);
    EXPECT_EQ(launched(clone, 5), 0);
    FusedAttentionConfig const config = stored(mPlugin);
    mPlugin.object.reset();
    EXPECT_EQ(launched(attached, 5), test::kLastVariant);
    EXPECT_EQ(stored(attached), config);
}

TEST_F(FusedAttentionEnqueue, AllocatesNothing)
{
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kFirstVariant), 0);
    int64_t const before = test::allocationCount();
    EXPECT_EQ(enqueue(mPlugin), 0);
    EXPECT_EQ(test::allocationCount(), before);
    EXPECT_GT(before, 0);
}

TEST_F(FusedAttentionEnqueue, AllocatesNothingForSeparateTensors)
{
    Plugin const plugin = makePlugin("bhsd,bshd,bsd,bsd", "bias");
    PluginTensorDesc const descriptors[]{makeDescriptor(TensorType::kHALF, {2, 12, 5, 64}),
        makeDescriptor(TensorType::kHALF, {2, 7, 12, 64}), makeDescriptor(TensorType::kHALF, {2, 7, 768}),
        makeDescriptor(TensorType::kHALF, {2, 1, 1, 7})};
    void const* const inputs[]{&mBytes[0], &mBytes[1], &mBytes[0], &mBytes[1]};
    void* const outputs[]{&mBytes[2]};
    int64_t const before = test::allocationCount();
    EXPECT_EQ(plugin.runtime().enqueue(descriptors, nullptr, inputs, outputs, nullptr, mStream), 0);
    EXPECT_EQ(test::allocationCount(), before);
}

TEST_F(FusedAttentionEnqueue, ReportsAFailedLaunch)
{
    test::fakeAttention().answer = cudaErrorInvalidConfiguration;
    CapturedLog log;
    EXPECT_NE(enqueue(mPlugin), 0);
    EXPECT_EQ(log.text(),
        "error: [attngraft] FusedAttention 'layer7': the kernel launch failed: cudaErrorInvalidConfiguration, invalid "
        "configuration argument\n");
}

TEST_F(FusedAttentionEnqueue, LaunchesNothingForShapesThatDoNotFit)
{
    mInputs[1].dims = makeDims({3});
    CapturedLog log;
    EXPECT_NE(enqueue(mPlugin), 0);
    EXPECT_EQ(test::fakeAttention().calls, 0);
    EXPECT_NE(log.text(), "");
}

} // namespace
} // namespace attngraft::plugin
