// What the attention plugin tells the builder of a profile: tactics, workspace, and what it refuses.
#include "plugin_attention_support.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::DynamicPluginTensorDesc;
using test::CapturedLog;
using test::inProfile;
using test::kDynamic;
using test::makeAttention;
using test::packedInProfile;
using test::Plugin;

std::vector<int32_t> tacticsOf(Plugin const& plugin)
{
    std::vector<int32_t> tactics(static_cast<size_t>(plugin.build().getNbTactics()));
    EXPECT_EQ(plugin.build().getValidTactics(tactics.data(), static_cast<int32_t>(tactics.size())), 0);
    return tactics;
}

TEST(FusedAttentionPlugin, OffersTheVariantsOfTheOptimum)
{
    Plugin const plugin = makeAttention("qkv");
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
    Plugin const plugin = makeAttention("qkv");
    DynamicPluginTensorDesc const empty = packedInProfile(0, 512);
    EXPECT_EQ(plugin.build().configurePlugin(&empty, 1, nullptr, 1), 0);
    EXPECT_EQ(plugin.build().getNbTactics(), 0);
}

TEST(FusedAttentionPlugin, AnOptimumThatTheBuilderCannotTellHasTheDefaultTactic)
{
    Plugin const plugin = makeAttention("qkv");
    DynamicPluginTensorDesc const untold = packedInProfile(kUnknown, 512);
    EXPECT_EQ(plugin.build().configurePlugin(&untold, 1, nullptr, 1), 0);
}

TEST(FusedAttentionPlugin, ClonesOfferWhatTheOriginalOffers)
{
    Plugin const plugin = makeAttention("qkv");
    DynamicPluginTensorDesc const packed = packedInProfile(384, 512);
    EXPECT_EQ(plugin.build().configurePlugin(&packed, 1, nullptr, 1), 0);
    Plugin const clone{std::unique_ptr<nvinfer1::IPluginV3>(plugin.object->clone())};
    EXPECT_EQ(tacticsOf(clone), tacticsOf(plugin));
    EXPECT_FALSE(tacticsOf(clone).empty());
}

TEST(FusedAttentionPlugin, RefusesBoundsBeyondTheContract)
{
    Plugin const plugin = makeAttention("qkv");
    DynamicPluginTensorDesc const wide =
        inProfile({kDynamic, kDynamic, kDynamic}, {1, 1, 2304}, {4, 384, 2304}, {8, 512, 36 * 513});
    CapturedLog log;
    EXPECT_NE(plugin.build().configurePlugin(&wide, 1, nullptr, 1), 0);
    EXPECT_EQ(log.text(), "error: [attngraft] FusedAttention 'layer7': qkv: head size 513 is not in 1 to 512\n");
}

TEST(FusedAttentionPlugin, RefusesToBuildWhatTheKernelsDoNotServe)
{
    Plugin const plugin = makeAttention("bhsd");
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
    EXPECT_EQ(makeAttention("qkv").build().getWorkspaceSize(&packed, 1, nullptr, 1),
        static_cast<size_t>(test::fakeWorkspaceBytes(8, 12, 512, 64)));
}

TEST(FusedAttentionPlugin, WorkspaceTakesTheLargestOfBoundsThatDiffer)
{
    DynamicPluginTensorDesc const inputs[]{
        inProfile({kDynamic, 12, kDynamic, 64}, {1, 12, 1, 64}, {4, 12, 1, 64}, {8, 12, 1, 64}),
        inProfile({kDynamic, 12, kDynamic, 64}, {1, 12, 1, 64}, {4, 12, 100, 64}, {16, 12, 200, 64}),
        inProfile({kDynamic, 12, kDynamic, 32}, {1, 12, 1, 32}, {4, 12, 100, 32}, {8, 12, 201, 32})};
    Plugin const plugin = makeAttention("bhsd");
    EXPECT_EQ(plugin.build().configurePlugin(inputs, 3, nullptr, 1), 0);
    EXPECT_EQ(plugin.build().getWorkspaceSize(inputs, 3, nullptr, 1),
        static_cast<size_t>(test::fakeWorkspaceBytes(16, 12, 1, 32)));
}

} // namespace
} // namespace attngraft::plugin
