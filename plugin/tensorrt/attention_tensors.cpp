#include "attention_tensors.h"

#include <algorithm>
#include <array>
#include <vector>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::Dims;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

//! A dense tensor of its own; [B, S, H, D] and [B, S, H * D] are the same memory.
template <typename Pointer>
HeadTensor<Pointer> place(Pointer data, Layout layout, int64_t heads, int64_t rows, int64_t size) noexcept
{
    int64_t const batchStride = heads * rows * size;
    return layout == Layout::kBhsd ? HeadTensor<Pointer>{data, batchStride, rows * size, size}
                                   : HeadTensor<Pointer>{data, batchStride, size, heads * size};
}

//! q, k and v in one tensor [batch, rows, (heads + 2 * kvHeads) * headSize].
void setPacked(FusedAttentionParams& params, Layout layout, void const* data) noexcept
{
    int64_t const size = params.headSize;
    int64_t const rowStride = (params.heads + 2 * params.kvHeads) * size;
    int64_t const batchStride = params.queries * rowStride;
    auto const place = [&](int64_t firstHead, int64_t headsApart) {
        int64_t const offset = firstHead * size * static_cast<int64_t>(elementSize(params.type));
        void const* const start = data == nullptr ? nullptr : static_cast<char const*>(data) + offset;
        return HeadTensor<void const*>{start, batchStride, headsApart * size, rowStride};
    };
    if (layout == Layout::kQkv)
    {
        params.query = place(0, 1);
        params.key = place(params.heads, 1);
        params.value = place(params.heads + params.kvHeads, 1);
        return;
    }
    int64_t const group = params.heads / params.kvHeads;
    params.query = place(0, 1);
    params.queryGroupStride = (group + 2) * size;
    params.key = place(group, group + 2);
    params.value = place(group + 1, group + 2);
}

//! Everything that does not depend on addresses and operands.
FusedAttentionParams sizedParams(
    FusedAttentionConfig const& config, AttentionSizes const& sizes, nvinfer1::DataType type)
{
    FusedAttentionParams params{};
    params.batch = sizes.batch;
    params.heads = sizes.heads;
    params.kvHeads = sizes.kvHeads;
    params.queries = sizes.queries;
    params.keys = sizes.keys;
    params.headSize = sizes.headSize;
    params.valueSize = sizes.valueSize;
    params.type = kernelType(type, isPacked(config.query) ? "qkv" : "q");
    // The contract: of half types it makes no difference.
    params.isExact = config.isExact && params.type == attngraft::DataType::kFloat32;
    return params;
}

void setTensors(
    FusedAttentionParams& params, FusedAttentionConfig const& config, void const* const* inputs, void* output) noexcept
{
    auto const address = [&](int32_t i) { return inputs == nullptr ? nullptr : inputs[i]; };
    if (isPacked(config.query))
    {
        setPacked(params, config.query, address(0));
    }
    else
    {
        params.query = place(address(0), config.query, params.heads, params.queries, params.headSize);
        params.key = place(address(1), config.key, params.kvHeads, params.keys, params.headSize);
        params.value = place(address(2), config.value, params.kvHeads, params.keys, params.valueSize);
    }
    params.context = place(output, config.context, params.heads, params.queries, params.valueSize);
}
} // namespace

FusedAttentionParams makeAttentionParams(FusedAttentionConfig const& config, PluginTensorDesc const* inputDescriptors,
    void const* const* inputs, void* output)
{
    int32_t const own = ownInputs(config);
    std::array<Dims, kMaxOwnInputs> shapes{};
    std::transform(
        inputDescriptors, inputDescriptors + own, shapes.begin(), [](auto const& tensor) { return tensor.dims; });
    AttentionSizes const sizes = attentionSizes(config, shapes.data());
    FusedAttentionParams params = sizedParams(config, sizes, inputDescriptors[0].type);
    setTensors(params, config, inputs, output);
    setMask(params, config.mask, inputDescriptors + own, inputs == nullptr ? nullptr : inputs + own, scoresShape(sizes),
        inputDescriptors[0].type);
    return params;
}

FusedAttentionParams makeOptimumParams(FusedAttentionConfig const& config, DynamicPluginTensorDesc const* inputs)
{
    std::vector<PluginTensorDesc> descriptors;
    for (int32_t i = 0; i < attentionInputs(config).count(); ++i)
    {
        descriptors.push_back(inputs[i].desc);
        descriptors.back().dims = inputs[i].opt;
    }
    return makeAttentionParams(config, descriptors.data(), nullptr, nullptr);
}

FusedAttentionParams makeLargestParams(FusedAttentionConfig const& config, DynamicPluginTensorDesc const* inputs)
{
    int32_t const own = ownInputs(config);
    std::array<Dims, kMaxOwnInputs> shapes{};
    std::transform(inputs, inputs + own, shapes.begin(), [](auto const& tensor) { return tensor.max; });
    alignBounds(config, shapes.data());
    return sizedParams(config, attentionSizes(config, shapes.data()), inputs[0].desc.type);
}

} // namespace attngraft::plugin
