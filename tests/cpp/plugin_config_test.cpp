// Plugin fields in, a configuration out, and back.
#include "plugin_test_support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::PluginFieldType;
using test::Fields;

//! The message with which MaskConfig::parse refuses, or "" when it does not.
std::string refusal(Fields& fields)
{
    try
    {
        MaskConfig::parse(fields.collection());
    }
    catch (std::invalid_argument const& error)
    {
        return error.what();
    }
    return "";
}

TEST(MaskConfig, NoFieldsGiveTheDefaults)
{
    EXPECT_EQ(MaskConfig::parse(nullptr), MaskConfig{});
    Fields none;
    EXPECT_EQ(MaskConfig::parse(none.collection()), MaskConfig{});
    EXPECT_EQ(MaskConfig{}.scale, 1.F);
    EXPECT_EQ(MaskConfig{}.windowLeft, -1);
}

TEST(MaskConfig, ReadsEveryField)
{
    Fields fields;
    fields.text("operands", "bias,keep,kv_lengths,kv_starts")
        .float32("scale", 0.125F)
        .text("causal", "bottom_right")
        .int32("window_left", 128)
        .int64("window_right", 0)
        .float32("softcap", 50.F)
        .text("empty_rows", "uniform");
    MaskConfig const config = MaskConfig::parse(fields.collection());
    EXPECT_EQ(config.operands, (std::vector<Role>{Role::kBias, Role::kKeep, Role::kKvLengths, Role::kKvStarts}));
    EXPECT_EQ(config.scale, 0.125F);
    EXPECT_EQ(config.causal, Causal::kBottomRight);
    EXPECT_EQ(config.windowLeft, 128);
    EXPECT_EQ(config.windowRight, 0);
    EXPECT_EQ(config.softcap, 50.F);
    EXPECT_EQ(config.emptyRows, EmptyRows::kUniform);
}

TEST(MaskConfig, StringsEndWithOrWithoutNul)
{
    for (bool withNul : {false, true})
    {
        Fields fields;
        fields.text("causal", "top_left", withNul)
            .text("operands", "keep", withNul)
            .text("empty_rows", "unmasked", withNul);
        MaskConfig const config = MaskConfig::parse(fields.collection());
        EXPECT_EQ(config.causal, Causal::kTopLeft);
        EXPECT_EQ(config.operands, std::vector<Role>{Role::kKeep});
        EXPECT_EQ(config.emptyRows, EmptyRows::kUnmasked);
    }
}

TEST(MaskConfig, EmptyOperandsMeanNone)
{
    for (bool withNul : {false, true})
    {
        Fields fields;
        fields.text("operands", "", withNul);
        EXPECT_TRUE(MaskConfig::parse(fields.collection()).operands.empty());
    }
}

TEST(MaskConfig, KeepsTheOrderOfTheOperands)
{
    Fields fields;
    fields.text("operands", "kv_starts,bias");
    EXPECT_EQ(MaskConfig::parse(fields.collection()).operands, (std::vector<Role>{Role::kKvStarts, Role::kBias}));
}

TEST(MaskConfig, AcceptsDoubles)
{
    double const scale = 0.25;
    Fields fields;
    fields.number("scale", PluginFieldType::kFLOAT64, &scale, sizeof(scale));
    EXPECT_EQ(MaskConfig::parse(fields.collection()).scale, 0.25F);
}

TEST(MaskConfig, IgnoresWhatTheContractDoesNotKnow)
{
    Fields fields;
    fields.text("plugin_namespace", "attngraft").int32("since_version", 7).float32("scale", 2.F);
    EXPECT_EQ(MaskConfig::parse(fields.collection()).scale, 2.F);
}

TEST(MaskConfig, RefusesAndNamesTheField)
{
    struct Case
    {
        Fields fields;
        char const* message;
    };
    float const two[]{1.F, 2.F};
    Case cases[]{
        {Fields().text("operands", "bias,mask"),
            "field 'operands': 'mask' is not one of bias, keep, kv_lengths, kv_starts"},
        {Fields().text("operands", "bias,bias"), "field 'operands': 'bias,bias' names a role twice"},
        {Fields().text("causal", "yes"), "field 'causal': 'yes' is not one of none, top_left, bottom_right"},
        {Fields().text("empty_rows", "nan"), "field 'empty_rows': 'nan' is not one of zeros, uniform, unmasked"},
        {Fields().int32("causal", 1), "field 'causal': is not a string"},
        {Fields().text("scale", "1"), "field 'scale': is not a float"},
        {Fields().int32("scale", 1), "field 'scale': is not a float"},
        {Fields().float32("scale", std::numeric_limits<float>::infinity()), "field 'scale': is not finite"},
        {Fields().float32("scale", std::nanf("")), "field 'scale': is not finite"},
        {Fields().number("scale", PluginFieldType::kFLOAT32, two, sizeof(two), 2),
            "field 'scale': holds 2 values; give one"},
        {Fields().number("scale", PluginFieldType::kFLOAT32, two, 0, 0), "field 'scale': holds 0 values; give one"},
        {Fields().float32("softcap", -1.F), "field 'softcap': is negative; 0 turns it off"},
        {Fields().float32("softcap", std::nanf("")), "field 'softcap': is not finite"},
        {Fields().float32("window_left", 1.F), "field 'window_left': is not an integer"},
        {Fields().int32("window_left", -2),
            "field 'window_left': -2 is not -1 (unbounded) or a number of keys below 2^31"},
        {Fields().int64("window_right", int64_t{1} << 31),
            "field 'window_right': 2147483648 is not -1 (unbounded) or a number of keys below 2^31"},
        {Fields().float32("scale", 1.F).float32("scale", 1.F), "field 'scale': is given twice"},
    };
    for (Case& each : cases)
    {
        EXPECT_EQ(refusal(each.fields), each.message);
    }
}

TEST(MaskConfig, RefusesBrokenFields)
{
    nvinfer1::PluginField const unnamed(nullptr, nullptr, PluginFieldType::kFLOAT32, 1);
    nvinfer1::PluginFieldCollection const withoutName{1, &unnamed};
    EXPECT_THROW(MaskConfig::parse(&withoutName), std::invalid_argument);
    nvinfer1::PluginField const empty("scale", nullptr, PluginFieldType::kFLOAT32, 1);
    nvinfer1::PluginFieldCollection const withoutData{1, &empty};
    EXPECT_THROW(MaskConfig::parse(&withoutData), std::invalid_argument);
    nvinfer1::PluginField const text("causal", nullptr, PluginFieldType::kCHAR, 4);
    nvinfer1::PluginFieldCollection const withoutText{1, &text};
    EXPECT_THROW(MaskConfig::parse(&withoutText), std::invalid_argument);
}

TEST(MaskConfig, FieldsComeBackAsTheyWere)
{
    MaskConfig config;
    config.operands = {Role::kKvLengths, Role::kBias};
    config.scale = 1.F / 3.F;
    config.causal = Causal::kTopLeft;
    config.windowLeft = 0;
    config.windowRight = std::numeric_limits<int32_t>::max();
    config.softcap = 0.1F;
    config.emptyRows = EmptyRows::kUnmasked;
    for (MaskConfig const& each : {config, MaskConfig{}})
    {
        EXPECT_EQ(MaskConfig::parse(each.fields().collection()), each);
    }
}

TEST(OwnedFields, StayWhereTheyAreWhenMoved)
{
    OwnedFields fields;
    fields.add("text", std::string("short"));
    fields.add("number", 0.5F);
    OwnedFields const moved = std::move(fields);
    nvinfer1::PluginFieldCollection const& collection = *moved.collection();
    ASSERT_EQ(collection.nbFields, 2);
    EXPECT_STREQ(static_cast<char const*>(collection.fields[0].data), "short");
    EXPECT_EQ(collection.fields[0].length, 6); // with its NUL
    EXPECT_EQ(*static_cast<float const*>(collection.fields[1].data), 0.5F);
    EXPECT_STREQ(moved.line(), "text=short number=0.5");
}

TEST(OwnedFields, AnEmptyTextIsNoEmptyField)
{
    OwnedFields fields;
    fields.add("operands", std::string());
    EXPECT_EQ(fields.collection()->fields[0].length, 1);
    EXPECT_STREQ(static_cast<char const*>(fields.collection()->fields[0].data), "");
}

TEST(OwnedFields, LineTellsConfigurationsApart)
{
    MaskConfig config;
    config.scale = 0.1F;
    MaskConfig next = config;
    next.scale = std::nextafter(config.scale, 1.F);
    EXPECT_STRNE(config.fields().line(), next.fields().line());
    EXPECT_STREQ(config.fields().line(), config.fields().line());
}

} // namespace
} // namespace attngraft::plugin
