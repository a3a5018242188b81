// From tensor descriptors to the attention kernels' parameters.
#include "attention_tensors.h"
#include "plugin_test_support.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

namespace attngraft::plugin
{
namespace
{
using TensorType = nvinfer1::DataType;
using nvinfer1::PluginTensorDesc;
using test::makeDescriptor;

constexpr int64_t kBatch = 2;
constexpr int64_t kRows = 3; //!< queries, and keys of packed tensors
constexpr int64_t kKeys = 5;
constexpr int64_t kHeadSize = 4;
constexpr int64_t kValueSize = 6;

//! A logical tensor [batch, heads, rows, size].
struct Logical
{
    int64_t heads;
    int64_t rows;
    int64_t size;
};

//! Where element (b, h, s, d) of a tensor of its own lies, by the contract's words.
int64_t indexOf(Layout layout, Logical const& tensor, int64_t b, int64_t h, int64_t s, int64_t d)
{
    return layout == Layout::kBhsd ? ((b * tensor.heads + h) * tensor.rows + s) * tensor.size + d
                                   : ((b * tensor.rows + s) * tensor.heads + h) * tensor.size + d;
}

//! What lies at one position of a packed tensor's last dimension.
struct PackedElement
{
    char tensor; //!< 'q', 'k' or 'v'
    int64_t head;
    int64_t element;

    bool operator==(PackedElement const& other) const
    {
        return tensor == other.tensor && head == other.head && element == other.element;
    }
};

//! The last dimension of a packed tensor, written down in the order of the contract's words.
std::vector<PackedElement> packedRow(Layout layout, int64_t heads, int64_t kvHeads)
{
    std::vector<PackedElement> row;
    auto const append = [&](char tensor, int64_t head) {
        for (int64_t d = 0; d < kHeadSize; ++d)
        {
            row.push_back({tensor, head, d});
        }
    };
    if (layout == Layout::kQkv)
    {
        for (int64_t head = 0; head < heads; ++head)
        {
            append('q', head);
        }
        for (char tensor : {'k', 'v'})
        {
            for (int64_t head = 0; head < kvHeads; ++head)
            {
                append(tensor, head);
            }
        }
        return row;
    }
    int64_t const group = heads / kvHeads;
    for (int64_t kvHead = 0; kvHead < kvHeads; ++kvHead)
    {
        for (int64_t i = 0; i < group; ++i)
        {
            append('q', kvHead * group + i);
        }
        append('k', kvHead);
        append('v', kvHead);
    }
    return row;
}

//! Where element (b, h, s, d) of the packed tensor `tensor` lies.
int64_t packedIndexOf(std::vector<PackedElement> const& row, char tensor, int64_t b, int64_t h, int64_t s, int64_t d)
{
    auto const found = std::find(row.begin(), row.end(), PackedElement{tensor, h, d});
    return (b * kRows + s) * static_cast<int64_t>(row.size()) + (found - row.begin());
}

//! Query heads of one key head, and the distance of such groups; of all others the heads are equally far apart.
struct Groups
{
    int64_t heads{1};
    int64_t stride{0};
};

//! Calls expect(b, h, s, d, address) for each element, with the address that the strides give it.
template <typename Pointer, typename Expect>
void forEachElement(HeadTensor<Pointer> const& tensor, Logical const& logical, Expect&& expect, Groups groups = {})
{
    for (int64_t b = 0; b < kBatch; ++b)
    {
        for (int64_t h = 0; h < logical.heads; ++h)
        {
            for (int64_t s = 0; s < logical.rows; ++s)
            {
                for (int64_t d = 0; d < logical.size; ++d)
                {
                    int64_t const head = groups.stride == 0
                        ? h * tensor.headStride
                        : h / groups.heads * groups.stride + h % groups.heads * tensor.headStride;
                    int64_t const offset = b * tensor.batchStride + head + s * tensor.rowStride + d;
                    expect(b, h, s, d, static_cast<int16_t const*>(tensor.data) + offset);
                }
            }
        }
    }
}

PluginTensorDesc describe(Layout layout, Logical const& tensor)
{
    switch (layout)
    {
    case Layout::kBhsd: return makeDescriptor(TensorType::kHALF, {kBatch, tensor.heads, tensor.rows, tensor.size});
    case Layout::kBshd: return makeDescriptor(TensorType::kHALF, {kBatch, tensor.rows, tensor.heads, tensor.size});
    default: return makeDescriptor(TensorType::kHALF, {kBatch, tensor.rows, tensor.heads * tensor.size});
    }
}

FusedAttentionConfig withLayouts(std::array<Layout, 4> const& layouts, int64_t heads, int64_t kvHeads)
{
    FusedAttentionConfig config;
    config.query = layouts[0];
    config.key = layouts[1];
    config.value = layouts[2];
    config.context = layouts[3];
    config.heads = static_cast<int32_t>(heads);
    config.kvHeads = static_cast<int32_t>(kvHeads);
    return config;
}

TEST(MakeAttentionParams, StridesFindEveryElementOfEveryLayout)
{
    Logical const query{4, kRows, kHeadSize};
    Logical const key{2, kKeys, kHeadSize};
    Logical const value{2, kKeys, kValueSize};
    Logical const context{4, kRows, kValueSize};
    std::array<std::vector<int16_t>, 4> memory;
    memory.fill(std::vector<int16_t>(1000));
    void const* const inputs[]{memory[0].data(), memory[1].data(), memory[2].data()};
    constexpr Layout kWords[]{Layout::kBhsd, Layout::kBshd, Layout::kBsd};
    for (Layout first : kWords)
    {
        for (Layout second : kWords)
        {
            FusedAttentionConfig const config = withLayouts({first, second, first, second}, 4, 2);
            PluginTensorDesc const descriptors[]{describe(first, query), describe(second, key), describe(first, value)};
            FusedAttentionParams const params = makeAttentionParams(config, descriptors, inputs, memory[3].data());
            auto const check = [&](auto const& tensor, Layout layout, Logical const& logical, size_t i) {
                forEachElement(tensor, logical, [&](auto b, auto h, auto s, auto d, int16_t const* address) {
                    ASSERT_EQ(address - memory[i].data(), indexOf(layout, logical, b, h, s, d));
                });
            };
            check(params.query, first, query, 0);
            check(params.key, second, key, 1);
            check(params.value, first, value, 2);
            check(params.context, second, context, 3);
        }
    }
}

TEST(MakeAttentionParams, StridesFindEveryElementOfAPackedTensor)
{
    struct Case
    {
        Layout layout;
        int64_t heads;
        int64_t kvHeads;
    };
    Case const cases[]{{Layout::kQkv, 4, 4}, {Layout::kQkv, 4, 2}, {Layout::kQkv, 4, 1}, {Layout::kQkvByHead, 4, 4},
        {Layout::kQkvByHead, 4, 2}, {Layout::kQkvByHead, 4, 1}, {Layout::kQkvByHead, 1, 1}};
    std::vector<int16_t> const memory(1000);
    void const* const input = memory.data();
    std::vector<int16_t> output(1000);
    for (auto const& [layout, heads, kvHeads] : cases)
    {
        std::vector<PackedElement> const row = packedRow(layout, heads, kvHeads);
        FusedAttentionConfig const config = withLayouts({layout, layout, layout, Layout::kBsd}, heads, kvHeads);
        PluginTensorDesc const descriptor =
            makeDescriptor(TensorType::kHALF, {kBatch, kRows, static_cast<int64_t>(row.size())});
        FusedAttentionParams const params = makeAttentionParams(config, &descriptor, &input, output.data());
        auto const check = [&](auto const& tensor, char name, int64_t tensorHeads, Groups groups = {}) {
            forEachElement(
                tensor, {tensorHeads, kRows, kHeadSize},
                [&](auto b, auto h, auto s, auto d, int16_t const* address) {
                    ASSERT_EQ(address - memory.data(), packedIndexOf(row, name, b, h, s, d));
                },
                groups);
        };
        check(params.query, 'q', heads, {heads / kvHeads, params.queryGroupStride});
        check(params.key, 'k', kvHeads);
        check(params.value, 'v', kvHeads);
        Logical const context{heads, kRows, kHeadSize};
        forEachElement(params.context, context, [&](auto b, auto h, auto s, auto d, int16_t const* address) {
            ASSERT_EQ(address - output.data(), indexOf(Layout::kBsd, context, b, h, s, d));
        });
        EXPECT_EQ(params.queries, kRows);
        EXPECT_EQ(params.keys, kRows);
        EXPECT_EQ(params.valueSize, kHeadSize);
    }
}

TEST(MakeAttentionParams, OffsetsInAPackedTensorCountTheElementsSize)
{
    FusedAttentionConfig const config = withLayouts({Layout::kQkv, Layout::kQkv, Layout::kQkv, Layout::kBsd}, 2, 2);
    std::array<char, 200> memory{};
    void const* const input = memory.data();
    for (auto const& [type, bytes] :
        {std::pair{TensorType::kFLOAT, 4}, std::pair{TensorType::kHALF, 2}, std::pair{TensorType::kBF16, 2}})
    {
        PluginTensorDesc const descriptor = makeDescriptor(type, {1, 1, 6 * 4});
        FusedAttentionParams const params = makeAttentionParams(config, &descriptor, &input, nullptr);
        EXPECT_EQ(static_cast<char const*>(params.key.data) - memory.data(), 2 * 4 * bytes);
        EXPECT_EQ(static_cast<char const*>(params.value.data) - memory.data(), 4 * 4 * bytes);
    }
}

TEST(MakeAttentionParams, APackedTensorWithoutAnAddressHasNone)
{
    FusedAttentionConfig const config = withLayouts({Layout::kQkv, Layout::kQkv, Layout::kQkv, Layout::kBsd}, 2, 2);
    PluginTensorDesc const descriptor = makeDescriptor(TensorType::kHALF, {1, 1, 24});
    FusedAttentionParams const params = makeAttentionParams(config, &descriptor, nullptr, nullptr);
    EXPECT_EQ(params.query.data, nullptr);
    EXPECT_EQ(params.key.data, nullptr);
    EXPECT_EQ(params.value.data, nullptr);
}

TEST(MakeAttentionParams, StridesAreIn64Bits)
{
    FusedAttentionConfig const config = withLayouts({Layout::kQkv, Layout::kQkv, Layout::kQkv, Layout::kBsd}, 64, 64);
    PluginTensorDesc const descriptor = makeDescriptor(TensorType::kHALF, {2, 131072, 3 * 64 * 128});
    FusedAttentionParams const params = makeAttentionParams(config, &descriptor, nullptr, nullptr);
    EXPECT_EQ(params.query.batchStride, int64_t{131072} * 3 * 64 * 128);
    EXPECT_EQ(params.context.batchStride, int64_t{131072} * 64 * 128);
}

TEST(MakeAttentionParams, CarriesTheConfigurationAndTheAddresses)
{
    FusedAttentionConfig config;
    config.mask.operands = {Role::kKvStarts, Role::kKeep, Role::kKvLengths, Role::kBias};
    config.mask.scale = 0.5F;
    config.mask.softcap = 30.F;
    config.mask.causal = Causal::kTopLeft;
    config.mask.windowLeft = 3;
    config.mask.windowRight = 4;
    config.mask.emptyRows = EmptyRows::kUniform;
    PluginTensorDesc const descriptors[]{makeDescriptor(TensorType::kBF16, {2, 6, 5, 8}),
        makeDescriptor(TensorType::kBF16, {2, 3, 7, 8}), makeDescriptor(TensorType::kBF16, {2, 3, 7, 9}),
        makeDescriptor(TensorType::kINT32, {2}), makeDescriptor(TensorType::kINT64, {2, 1, 5, 7}),
        makeDescriptor(TensorType::kINT32, {2}), makeDescriptor(TensorType::kFLOAT, {6, 1, 7})};
    std::array<char, 8> bytes{};
    void const* const inputs[]{&bytes[0], &bytes[1], &bytes[2], &bytes[3], &bytes[4], &bytes[5], &bytes[6]};

    FusedAttentionParams const params = makeAttentionParams(config, descriptors, inputs, &bytes[7]);
    EXPECT_EQ(params.query.data, &bytes[0]);
    EXPECT_EQ(params.key.data, &bytes[1]);
    EXPECT_EQ(params.value.data, &bytes[2]);
    EXPECT_EQ(static_cast<void const*>(params.kvStarts), &bytes[3]);
    EXPECT_EQ(params.keep.data, &bytes[4]);
    EXPECT_EQ(static_cast<void const*>(params.kvLengths), &bytes[5]);
    EXPECT_EQ(params.bias.data, &bytes[6]);
    EXPECT_EQ(params.context.data, &bytes[7]);
    EXPECT_EQ(params.logSumExp, nullptr);
    EXPECT_EQ(params.batch, 2);
    EXPECT_EQ(params.heads, 6);
    EXPECT_EQ(params.kvHeads, 3);
    EXPECT_EQ(params.queries, 5);
    EXPECT_EQ(params.keys, 7);
    EXPECT_EQ(params.headSize, 8);
    EXPECT_EQ(params.valueSize, 9);
    EXPECT_EQ(params.type, attngraft::DataType::kBFloat16);
    EXPECT_TRUE(params.biasIsFloat32);
    EXPECT_EQ(params.keepType, KeepType::kInt64);
    EXPECT_EQ(params.scale, 0.5F);
    EXPECT_EQ(params.softcap, 30.F);
    EXPECT_EQ(params.causal, Causal::kTopLeft);
    EXPECT_EQ(params.windowLeft, 3);
    EXPECT_EQ(params.windowRight, 4);
    EXPECT_EQ(params.emptyRows, EmptyRows::kUniform);
    EXPECT_EQ(params.variant, 0);
}

TEST(MakeAttentionParams, OperandsBroadcastToTheScoresByStrides)
{
    struct Case
    {
        PluginTensorDesc operand;
        std::array<int64_t, kScoreDims> strides;
    };
    // The scores are [2, 6, 5, 7].
    Case const cases[]{
        {makeDescriptor(TensorType::kHALF, {2, 6, 5, 7}), {210, 35, 7, 1}},
        {makeDescriptor(TensorType::kHALF, {2, 1, 1, 7}), {7, 0, 0, 1}},
        {makeDescriptor(TensorType::kHALF, {1, 6, 5, 7}), {0, 35, 7, 1}},
        {makeDescriptor(TensorType::kHALF, {2, 1, 5, 1}), {5, 0, 1, 0}},
        {makeDescriptor(TensorType::kHALF, {6, 1, 7}), {0, 7, 0, 1}},
        {makeDescriptor(TensorType::kHALF, {5, 7}), {0, 0, 7, 1}},
        {makeDescriptor(TensorType::kHALF, {7}), {0, 0, 0, 1}},
        {makeDescriptor(TensorType::kHALF, {}), {0, 0, 0, 0}},
    };
    for (Case const& each : cases)
    {
        FusedAttentionConfig config;
        config.mask.operands = {Role::kBias, Role::kKeep};
        PluginTensorDesc keep = each.operand;
        keep.type = TensorType::kBOOL;
        PluginTensorDesc const descriptors[]{makeDescriptor(TensorType::kHALF, {2, 6, 5, 8}),
            makeDescriptor(TensorType::kHALF, {2, 3, 7, 8}), makeDescriptor(TensorType::kHALF, {2, 3, 7, 8}),
            each.operand, keep};
        FusedAttentionParams const params = makeAttentionParams(config, descriptors, nullptr, nullptr);
        for (BroadcastTensor const* tensor : {&params.bias, &params.keep})
        {
            EXPECT_TRUE(std::equal(each.strides.begin(), each.strides.end(), tensor->strides));
        }
    }
}

TEST(MakeAttentionParams, ExactIsForFloat32Only)
{
    FusedAttentionConfig config;
    config.isExact = true;
    for (TensorType type : {TensorType::kFLOAT, TensorType::kHALF, TensorType::kBF16})
    {
        PluginTensorDesc const tensor = makeDescriptor(type, {2, 3, 5, 8});
        PluginTensorDesc const descriptors[]{tensor, tensor, tensor};
        EXPECT_EQ(makeAttentionParams(config, descriptors, nullptr, nullptr).isExact, type == TensorType::kFLOAT);
    }
}

TEST(MakeAttentionParams, RefusesOperandsThatDoNotFitTheScores)
{
    FusedAttentionConfig config;
    config.mask.operands = {Role::kBias};
    PluginTensorDesc const tensor = makeDescriptor(TensorType::kHALF, {2, 3, 5, 8});
    auto const refusal = [&](PluginTensorDesc const& bias) -> std::string {
        PluginTensorDesc const descriptors[]{tensor, tensor, tensor, bias};
        try
        {
            makeAttentionParams(config, descriptors, nullptr, nullptr);
        }
        catch (std::invalid_argument const& error)
        {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(refusal(makeDescriptor(TensorType::kHALF, {2, 1, 1, 6})),
        "bias: has 6 where the scores have 5 in dimension 3; it does not broadcast");
    EXPECT_EQ(refusal(makeDescriptor(TensorType::kHALF, {1, 2, 3, 5, 5})),
        "bias: rank 5 is above the scores' rank 4; it does not broadcast");
    EXPECT_NE(refusal(makeDescriptor(TensorType::kBF16, {5})), "");
    EXPECT_EQ(refusal(makeDescriptor(TensorType::kFLOAT, {5})), "");
}

} // namespace
} // namespace attngraft::plugin
