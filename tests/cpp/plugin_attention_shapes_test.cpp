// Sizes of an attention out of the shapes of its tensors, and the shape of its context.
#include "attention_shapes.h"
#include "plugin_network_support.h"
#include "plugin_test_support.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::Dims;
using nvinfer1::DimsExprs;
using test::makeDims;
using test::ShapeBuilder;
using test::Shapes;
using test::sizesOf;

// Prime, so that no two products of them are the same.
constexpr int64_t kBatch = 2;
constexpr int64_t kHeads = 6;
constexpr int64_t kKvHeads = 3;
constexpr int64_t kQueries = 5;
constexpr int64_t kKeys = 7;
constexpr int64_t kHeadSize = 11;
constexpr int64_t kValueSize = 17;

FusedAttentionConfig withLayouts(Layout query, Layout key, Layout value, Layout context)
{
    FusedAttentionConfig config;
    config.query = query;
    config.key = key;
    config.value = value;
    config.context = context;
    config.heads = static_cast<int32_t>(kHeads);
    config.kvHeads = static_cast<int32_t>(kKvHeads);
    return config;
}

FusedAttentionConfig withLayout(Layout layout)
{
    return withLayouts(layout, layout, layout, isPacked(layout) ? Layout::kBsd : layout);
}

std::vector<int64_t> shapeOf(Layout layout, int64_t heads, int64_t rows, int64_t size)
{
    switch (layout)
    {
    case Layout::kBhsd: return {kBatch, heads, rows, size};
    case Layout::kBshd: return {kBatch, rows, heads, size};
    default: return {kBatch, rows, heads * size};
    }
}

DimsExprs expressions(Shapes& shapes, std::vector<int64_t> const& sizes, bool isDynamic)
{
    DimsExprs shape{};
    shape.nbDims = static_cast<int32_t>(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i)
    {
        shape.d[i] = shapes.of({isDynamic ? -sizes[i] : sizes[i]}).d[0];
    }
    return shape;
}

std::vector<int64_t> magnitudes(std::vector<int64_t> sizes)
{
    for (int64_t& size : sizes)
    {
        size = std::abs(size);
    }
    return sizes;
}

//! The message with which attentionSizes refuses, or "" when it does not.
std::string refusal(FusedAttentionConfig const& config, std::vector<Dims> const& tensors)
{
    try
    {
        attentionSizes(config, tensors.data());
    }
    catch (std::invalid_argument const& error)
    {
        return error.what();
    }
    return "";
}

constexpr Layout kSeparate[]{Layout::kBhsd, Layout::kBshd, Layout::kBsd};

//! The context's shape for inputs whose dimensions are all known, or none of them.
std::vector<int64_t> contextSizes(FusedAttentionConfig const& config, bool areDynamic)
{
    Shapes shapes;
    ShapeBuilder builder;
    DimsExprs const inputs[]{expressions(shapes, shapeOf(config.query, kHeads, kQueries, kHeadSize), areDynamic),
        expressions(shapes, shapeOf(config.key, kKvHeads, kKeys, kHeadSize), areDynamic),
        expressions(shapes, shapeOf(config.value, kKvHeads, kKeys, kValueSize), areDynamic)};
    return sizesOf(contextShape(config, inputs, builder));
}

TEST(ContextShape, FollowsEveryMixOfLayouts)
{
    for (Layout query : kSeparate)
    {
        for (Layout value : kSeparate)
        {
            for (Layout context : kSeparate)
            {
                FusedAttentionConfig const config = withLayouts(query, Layout::kBhsd, value, context);
                std::vector<int64_t> const expected = shapeOf(context, kHeads, kQueries, kValueSize);
                EXPECT_EQ(contextSizes(config, false), expected);
                EXPECT_EQ(magnitudes(contextSizes(config, true)), expected);
            }
        }
    }
}

TEST(ContextShape, IsConstantWhereTheInputsAre)
{
    Shapes shapes;
    ShapeBuilder builder;
    DimsExprs const separate[]{shapes.of({-2, -5, 66}), shapes.of({-2, -7, 33}), shapes.of({-2, -7, 51})};
    EXPECT_EQ(
        sizesOf(contextShape(withLayout(Layout::kBsd), separate, builder)), (std::vector<int64_t>{-2, -5, 6 * 17}));
    DimsExprs const packed = shapes.of({-2, -5, (6 + 3 + 3) * 11});
    EXPECT_EQ(sizesOf(contextShape(withLayout(Layout::kQkv), &packed, builder)), (std::vector<int64_t>{-2, -5, 66}));
}

TEST(ContextShape, OfAPackedTensorWhoseSizeIsDynamic)
{
    Shapes shapes;
    ShapeBuilder builder;
    DimsExprs const packed = shapes.of({2, 5, -(6 + 3 + 3) * 11});
    EXPECT_EQ(sizesOf(contextShape(withLayout(Layout::kQkv), &packed, builder)), (std::vector<int64_t>{2, 5, -66}));
}

TEST(ContextShape, TakesHeadsFromTheShapesWithoutAttributes)
{
    FusedAttentionConfig config = withLayouts(Layout::kBhsd, Layout::kBhsd, Layout::kBhsd, Layout::kBshd);
    config.heads = config.kvHeads = 0;
    Shapes shapes;
    ShapeBuilder builder;
    DimsExprs const inputs[]{shapes.of({2, -6, 5, 11}), shapes.of({2, -3, 7, 11}), shapes.of({2, -3, 7, 17})};
    EXPECT_EQ(sizesOf(contextShape(config, inputs, builder)), (std::vector<int64_t>{2, 5, -6, 17}));
}

TEST(AttentionSizes, ComeFromWhicheverTensorShowsThem)
{
    FusedAttentionConfig config;
    Dims const tensors[]{
        makeDims({kUnknown, 6, 5, kUnknown}), makeDims({2, kUnknown, kUnknown, 11}), makeDims({kUnknown, 3, 7, 17})};
    AttentionSizes const sizes = attentionSizes(config, tensors);
    EXPECT_EQ(sizes.batch, 2);
    EXPECT_EQ(sizes.heads, 6);
    EXPECT_EQ(sizes.kvHeads, 3);
    EXPECT_EQ(sizes.queries, 5);
    EXPECT_EQ(sizes.keys, 7);
    EXPECT_EQ(sizes.headSize, 11);
    EXPECT_EQ(sizes.valueSize, 17);
}

TEST(AttentionSizes, OfAPackedTensor)
{
    FusedAttentionConfig const config = withLayout(Layout::kQkv);
    Dims const tensor = makeDims({2, 5, 12 * 11});
    AttentionSizes const sizes = attentionSizes(config, &tensor);
    EXPECT_EQ(sizes.queries, 5);
    EXPECT_EQ(sizes.keys, 5);
    EXPECT_EQ(sizes.headSize, 11);
    EXPECT_EQ(sizes.valueSize, 11);
}

TEST(AttentionSizes, RefuseAndNameTheTensor)
{
    struct Case
    {
        FusedAttentionConfig config;
        std::vector<Dims> tensors;
        char const* message;
    };
    Dims const q = makeDims({2, 6, 5, 11});
    Dims const k = makeDims({2, 3, 7, 11});
    Dims const v = makeDims({2, 3, 7, 17});
    FusedAttentionConfig const plain{};
    FusedAttentionConfig const told = withLayout(Layout::kBhsd);
    Case const cases[]{
        {plain, {makeDims({2, 5, 66}), k, v}, "q: rank 3; layout bhsd has rank 4"},
        {withLayout(Layout::kBsd), {q, k, v}, "q: rank 4; layout bsd has rank 3"},
        {withLayout(Layout::kQkv), {q}, "qkv: rank 4; layout qkv has rank 3"},
        {plain, {q, makeDims({1, 3, 7, 11}), v}, "k: its batch is 1, that of q is 2"},
        {plain, {makeDims({kUnknown, 6, 5, 11}), k, makeDims({3, 3, 7, 17})}, "v: its batch is 3, that of k is 2"},
        {plain, {q, k, makeDims({2, 3, 8, 17})}, "v: its number of keys is 8, that of k is 7"},
        {plain, {q, k, makeDims({2, 2, 7, 17})}, "v: its number of heads is 2, that of k is 3"},
        {plain, {q, makeDims({2, 3, 7, 12}), v}, "k: its head size is 12, that of q is 11"},
        {told, {makeDims({2, 3, 5, 11}), k, v}, "q: its number of heads is 3, that of the attribute heads is 6"},
        {told, {q, makeDims({2, 6, 7, 11}), v}, "k: its number of heads is 6, that of the attribute kv_heads is 3"},
        {plain, {makeDims({2, 4, 5, 11}), k, v}, "q: its 4 heads are no multiple of the 3 of k and v"},
        {plain, {makeDims({2, 0, 5, 11}), k, v}, "q: has no head"},
        {plain, {q, makeDims({2, 0, 7, 11}), makeDims({2, 0, 7, 17})}, "k: has no head"},
        {plain, {makeDims({2, 6, 5, 513}), makeDims({2, 3, 7, 513}), v}, "q: head size 513 is not in 1 to 512"},
        {plain, {q, k, makeDims({2, 3, 7, 0})}, "v: head size 0 is not in 1 to 512"},
        {withLayout(Layout::kBsd), {makeDims({2, 5, 65}), makeDims({2, 7, 33}), makeDims({2, 7, 51})},
            "q: the last dimension, 65, does not hold 6 heads of one size"},
        {withLayout(Layout::kBsd), {makeDims({2, 5, 66}), makeDims({2, 7, 66}), makeDims({2, 7, 51})},
            "k: its head size is 22, that of q is 11"},
        {withLayout(Layout::kQkv), {makeDims({2, 5, 66})},
            "qkv: the last dimension, 66, does not hold 12 heads of one size"},
    };
    for (Case const& each : cases)
    {
        EXPECT_EQ(refusal(each.config, each.tensors), each.message);
    }
    EXPECT_EQ(refusal(told, {q, k, v}), "");
}

TEST(AlignBounds, RaisesWhatTheTensorsShare)
{
    FusedAttentionConfig const config = withLayouts(Layout::kBhsd, Layout::kBshd, Layout::kBsd, Layout::kBsd);
    Dims tensors[]{makeDims({4, 6, 5, 11}), makeDims({8, 9, 3, 11}), makeDims({2, 7, 51})};
    alignBounds(config, tensors);
    AttentionSizes const sizes = attentionSizes(config, tensors);
    EXPECT_EQ(sizes.batch, 8);
    EXPECT_EQ(sizes.queries, 5);
    EXPECT_EQ(sizes.keys, 9);
}

} // namespace
} // namespace attngraft::plugin
