// The fields of FusedAttention in, a configuration out, and back. Those of the mask: plugin_config_test.cpp.
#include "attention_config.h"
#include "plugin_test_support.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace attngraft::plugin
{
namespace
{
using test::Fields;

FusedAttentionConfig parse(Fields fields)
{
    return FusedAttentionConfig::parse(fields.collection());
}

//! The message with which FusedAttentionConfig::parse refuses, or "" when it does not.
std::string refusal(Fields const& fields)
{
    try
    {
        parse(fields);
    }
    catch (std::invalid_argument const& error)
    {
        return error.what();
    }
    return "";
}

//! Fields that also the layouts without a dimension of heads take.
Fields withHeads(char const* layout)
{
    return Fields().text("layout", layout).int32("heads", 12).int64("kv_heads", 4);
}

std::array<Layout, 4> layoutsOf(FusedAttentionConfig const& config)
{
    return {config.query, config.key, config.value, config.context};
}

TEST(FusedAttentionConfig, NoFieldsGiveTheDefaults)
{
    FusedAttentionConfig const config = FusedAttentionConfig::parse(nullptr);
    EXPECT_EQ(config, FusedAttentionConfig{});
    EXPECT_EQ(config.mask, MaskConfig{});
    EXPECT_EQ(layoutsOf(config), (std::array{Layout::kBhsd, Layout::kBhsd, Layout::kBhsd, Layout::kBhsd}));
    EXPECT_EQ(config.heads, 0);
    EXPECT_EQ(config.kvHeads, 0);
    EXPECT_FALSE(config.isExact);
}

TEST(FusedAttentionConfig, ReadsItsFieldsAndTheMasks)
{
    FusedAttentionConfig const config =
        parse(withHeads("bsd").int32("exact", 1).float32("scale", 0.5F).text("operands", "keep,bias"));
    EXPECT_EQ(config.heads, 12);
    EXPECT_EQ(config.kvHeads, 4);
    EXPECT_TRUE(config.isExact);
    EXPECT_EQ(config.mask.scale, 0.5F);
    EXPECT_EQ(config.mask.operands, (std::vector<Role>{Role::kKeep, Role::kBias}));
}

TEST(FusedAttentionConfig, OneWordIsForAllTensors)
{
    for (Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kBsd})
    {
        FusedAttentionConfig const config = parse(withHeads(layoutName(layout)));
        EXPECT_EQ(layoutsOf(config), (std::array{layout, layout, layout, layout}));
    }
}

TEST(FusedAttentionConfig, FourWordsAreForOneTensorEach)
{
    FusedAttentionConfig const config = parse(withHeads("bhsd,bshd,bsd,bshd"));
    EXPECT_EQ(layoutsOf(config), (std::array{Layout::kBhsd, Layout::kBshd, Layout::kBsd, Layout::kBshd}));
}

TEST(FusedAttentionConfig, APackedTensorHasAFoldedContext)
{
    for (Layout layout : {Layout::kQkv, Layout::kQkvByHead})
    {
        FusedAttentionConfig const config = parse(withHeads(layoutName(layout)));
        EXPECT_EQ(layoutsOf(config), (std::array{layout, layout, layout, Layout::kBsd}));
    }
}

TEST(FusedAttentionConfig, RefusesAndNamesTheField)
{
    struct Case
    {
        Fields fields;
        char const* message;
    };
    Case const cases[]{
        {Fields().text("layout", "sbhd"), "field 'layout': 'sbhd' is not one of bhsd, bshd, bsd, qkv, qkv_by_head"},
        {Fields().text("layout", ""), "field 'layout': '' is not one of bhsd, bshd, bsd, qkv, qkv_by_head"},
        {Fields().text("layout", "bhsd,bhsd,bhsd"),
            "field 'layout': 'bhsd,bhsd,bhsd' is neither one word nor four, q,k,v,context"},
        {Fields().text("layout", "bhsd,bhsd,bhsd,"),
            "field 'layout': '' is not one of bhsd, bshd, bsd, qkv, qkv_by_head"},
        {withHeads("qkv,qkv,qkv,bsd"),
            "field 'layout': 'qkv,qkv,qkv,bsd' names a packed tensor among others; give the one word"},
        {Fields().int32("layout", 0), "field 'layout': is not a string"},
        {Fields().int32("heads", -1), "field 'heads': -1 is not 0 (what the shapes say) or a number of heads"},
        {Fields().int64("kv_heads", int64_t{1} << 31),
            "field 'kv_heads': 2147483648 is not 0 (what the shapes say) or a number of heads"},
        {Fields().float32("heads", 8.F), "field 'heads': is not an integer"},
        {Fields().int32("exact", 2), "field 'exact': 2 is neither 0 nor 1"},
        {Fields().int32("heads", 8).int32("kv_heads", 3), "field 'heads': 8 is no multiple of kv_heads, 3"},
        {Fields().text("layout", "bsd"), "field 'heads': layout 'bsd' needs the number of heads, 1 or more"},
        {Fields().text("layout", "qkv").int32("heads", 8),
            "field 'kv_heads': layout 'qkv' needs the number of heads, 1 or more"},
        {Fields().text("layout", "bhsd,bhsd,bhsd,bsd"),
            "field 'heads': layout 'bhsd,bhsd,bhsd,bsd' needs the number of heads, 1 or more"},
        {Fields().text("causal", "yes"), "field 'causal': 'yes' is not one of none, top_left, bottom_right"},
        {Fields().int32("heads", 8).int32("heads", 8), "field 'heads': is given twice"},
    };
    for (Case const& each : cases)
    {
        EXPECT_EQ(refusal(each.fields), each.message);
    }
}

TEST(FusedAttentionConfig, FieldsComeBackAsTheyWere)
{
    for (char const* layout : {"bhsd", "bshd", "bsd", "qkv", "qkv_by_head", "bshd,bshd,bshd,bsd", "bhsd,bshd,bsd,bhsd"})
    {
        FusedAttentionConfig const config = parse(withHeads(layout).int32("exact", 1).float32("softcap", 50.F));
        EXPECT_EQ(FusedAttentionConfig::parse(config.fields().collection()), config) << layout;
    }
}

TEST(FusedAttentionConfig, LineTellsConfigurationsApart)
{
    EXPECT_STREQ(parse(withHeads("bsd")).fields().line(), parse(withHeads("bsd,bsd,bsd,bsd")).fields().line());
    EXPECT_STRNE(parse(withHeads("bsd")).fields().line(), parse(withHeads("bshd")).fields().line());
    EXPECT_STRNE(parse(withHeads("bsd")).fields().line(), parse(withHeads("bsd").int32("exact", 1)).fields().line());
}

} // namespace
} // namespace attngraft::plugin
