// The attention plugin and its creator, called as TensorRT calls them: what they are and which tensors they take.
#include "plugin_attention_support.h"

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
using test::CapturedLog;
using test::createAttention;
using test::Fields;
using test::kDynamic;
using test::makeAttention;
using test::makeDescriptor;
using test::Plugin;
using test::Shapes;
using test::stored;

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
    EXPECT_EQ(createAttention(Fields().text("layout", "bsd")).object, nullptr);
    EXPECT_EQ(log.text(),
        "error: [attngraft] FusedAttention 'layer7' cannot be created: field 'heads': layout 'bsd' needs the number of "
        "heads, 1 or more\n");
}

TEST(FusedAttentionPlugin, HasTheThreeCapabilities)
{
    Plugin const plugin = makeAttention("bhsd");
    EXPECT_STREQ(plugin.core().getPluginName(), "FusedAttention");
    EXPECT_STREQ(plugin.core().getPluginVersion(), "1");
    EXPECT_STREQ(plugin.core().getPluginNamespace(), "attngraft");
    EXPECT_EQ(plugin.build().getNbOutputs(), 1);
    EXPECT_STREQ(plugin.build().getTimingCacheID(), plugin.build().getMetadataString());
    EXPECT_STRNE(plugin.build().getTimingCacheID(), makeAttention("bshd").build().getTimingCacheID());
}

TEST(FusedAttentionPlugin, ComesBackFromItsSerializedFields)
{
    Plugin const plugin = makeAttention("bshd,bshd,bhsd,bsd", "kv_starts,keep");
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
    Plugin const plugin = makeAttention("bhsd", "bias");
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
    Plugin const plugin = makeAttention("qkv", "kv_lengths");
    Shapes shapes;
    test::ShapeBuilder builder;
    DimsExprs const inputs[]{shapes.of({-2, -5, 2304}), shapes.of({-2})};
    DimsExprs output{};
    ASSERT_EQ(plugin.build().getOutputShapes(inputs, 2, nullptr, 0, &output, 1, builder), 0);
    EXPECT_EQ(test::sizesOf(output), (std::vector<int64_t>{-2, -5, 768}));
}

TEST(FusedAttentionPlugin, RefusesConstantShapesThatDoNotFit)
{
    Plugin const plugin = makeAttention("bhsd", "keep");
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
    Plugin const plugin = makeAttention("bhsd", "bias,keep");
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
    EXPECT_NE(makeAttention("bhsd", "keep").build().getOutputDataTypes(&output, 1, types, 3), 0);
    EXPECT_NE(makeAttention("qkv").build().getOutputDataTypes(&output, 1, types, 3), 0);
    EXPECT_EQ(log.text(),
        "error: [attngraft] FusedAttention 'layer7': the node has 3 inputs; its attribute operands asks for 4: q, k, v "
        "and one for each role\n"
        "error: [attngraft] FusedAttention 'layer7': the node has 3 inputs; its attribute operands asks for 1: qkv and "
        "one for each role\n");
}

} // namespace
} // namespace attngraft::plugin
