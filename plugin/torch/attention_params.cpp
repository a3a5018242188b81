#include "attention_params.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/ScalarType.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

namespace attngraft::torch_library
{
namespace
{

using torch::headeronly::ScalarType;

[[noreturn]] void refuse(char const* tensor, std::string const& reason)
{
    throw std::runtime_error(std::string("attngraft::fused_attention: ") + tensor + ": " + reason);
}

void require(bool condition, char const* tensor, char const* expected)
{
    if (!condition)
    {
        refuse(tensor, std::string("expected ") + expected);
    }
}

DataType dataType(Tensor const& q)
{
    switch (q.scalar_type())
    {
    case ScalarType::Float: return DataType::kFloat32;
    case ScalarType::Half: return DataType::kFloat16;
    case ScalarType::BFloat16: return DataType::kBFloat16;
    default: refuse("q", "expected float32, float16 or bfloat16");
    }
}

KeepType keepType(Tensor const& keep)
{
    switch (keep.scalar_type())
    {
    case ScalarType::Bool:
    case ScalarType::Char:
    case ScalarType::Byte: return KeepType::kInt8;
    case ScalarType::Int: return KeepType::kInt32;
    case ScalarType::Long: return KeepType::kInt64;
    default: refuse("keep", "expected bool, int8, uint8, int32 or int64");
    }
}

void requireSizes(Tensor const& tensor, char const* name, std::initializer_list<int64_t> sizes)
{
    bool matches = tensor.dim() == static_cast<int64_t>(sizes.size());
    std::string expected;
    int64_t dim = 0;
    for (int64_t const size : sizes)
    {
        matches = matches && tensor.size(dim++) == size;
        expected += (expected.empty() ? "" : ", ") + std::to_string(size);
    }
    require(matches, name, ("shape [" + expected + "]").c_str());
}

void requireDevice(Tensor const& tensor, char const* name, Tensor const& q)
{
    require(tensor.device() == q.device(), name, "the device of q");
}

void checkHeads(Tensor const& q, Tensor const& k, Tensor const& v)
{
    for (auto const& [tensor, name] : {std::pair{&q, "q"}, std::pair{&k, "k"}, std::pair{&v, "v"}})
    {
        require(tensor->dim() == kScoreDims, name, "four dimensions");
        require(tensor->scalar_type() == q.scalar_type(), name, "the type of q");
        requireDevice(*tensor, name, q);
    }
    requireSizes(k, "k", {q.size(0), k.size(1), k.size(2), q.size(3)});
    requireSizes(v, "v", {q.size(0), k.size(1), k.size(2), v.size(3)});
    bool const hasGroups = q.size(1) == 0 || (k.size(1) > 0 && q.size(1) % k.size(1) == 0);
    require(hasGroups, "q", "a multiple of k's heads");
}

//! A mask that broadcasts to the scores [B,H,Sq,Sk] by NumPy's rules.
void checkMask(Tensor const& mask, char const* name, Tensor const& q, Tensor const& k)
{
    requireDevice(mask, name, q);
    int64_t const scores[kScoreDims] = {q.size(0), q.size(1), q.size(2), k.size(2)};
    require(mask.dim() <= kScoreDims, name, "at most four dimensions");
    for (int64_t dim = 0; dim < mask.dim(); ++dim)
    {
        int64_t const size = mask.size(dim);
        bool const broadcasts = size == 1 || size == scores[kScoreDims - mask.dim() + dim];
        require(broadcasts, name, "a shape that broadcasts to the scores [B, H, Sq, Sk]");
    }
}

void checkCounts(Tensor const& counts, char const* name, Tensor const& q)
{
    requireDevice(counts, name, q);
    require(counts.scalar_type() == ScalarType::Int, name, "int32");
    requireSizes(counts, name, {q.size(0)});
}

void check(AttentionTensors const& tensors)
{
    Tensor const& q = tensors.q;
    checkHeads(q, tensors.k, tensors.v);
    if (tensors.bias)
    {
        checkMask(*tensors.bias, "bias", q, tensors.k);
        ScalarType const type = tensors.bias->scalar_type();
        require(type == q.scalar_type() || type == ScalarType::Float, "bias", "the type of q, or float32");
    }
    if (tensors.keep)
    {
        checkMask(*tensors.keep, "keep", q, tensors.k);
    }
    if (tensors.kvLengths)
    {
        checkCounts(*tensors.kvLengths, "kv_lengths", q);
    }
    if (tensors.kvStarts)
    {
        checkCounts(*tensors.kvStarts, "kv_starts", q);
    }
}

//! Whether the elements along the last dimension are neighbours, or one and the same where `orRepeated`.
bool hasNeighbours(Tensor const& tensor, bool orRepeated)
{
    int64_t const last = tensor.dim() - 1;
    return last < 0 || tensor.size(last) <= 1 || tensor.stride(last) == 1 || (orRepeated && tensor.stride(last) == 0);
}

Tensor withNeighbours(Tensor const& tensor, bool orRepeated)
{
    return hasNeighbours(tensor, orRepeated) ? tensor : torch::stable::contiguous(tensor);
}

std::optional<Tensor> withNeighbours(std::optional<Tensor> const& tensor, bool orRepeated)
{
    return tensor ? std::optional<Tensor>(withNeighbours(*tensor, orRepeated)) : std::nullopt;
}

BroadcastTensor broadcastTensor(Tensor const& mask)
{
    BroadcastTensor found;
    found.data = mask.const_data_ptr();
    for (int64_t dim = 0; dim < mask.dim(); ++dim)
    {
        found.strides[kScoreDims - mask.dim() + dim] = mask.size(dim) == 1 ? 0 : mask.stride(dim);
    }
    return found;
}

HeadTensor<void const*> constHeadTensor(Tensor const& tensor)
{
    return {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

void setMasks(FusedAttentionParams& params, AttentionTensors const& tensors)
{
    if (tensors.bias)
    {
        params.bias = broadcastTensor(*tensors.bias);
        params.biasIsFloat32 = tensors.bias->scalar_type() == ScalarType::Float;
    }
    if (tensors.keep)
    {
        params.keep = broadcastTensor(*tensors.keep);
        params.keepType = keepType(*tensors.keep);
    }
    if (tensors.kvLengths)
    {
        params.kvLengths = static_cast<int32_t const*>(tensors.kvLengths->const_data_ptr());
    }
    if (tensors.kvStarts)
    {
        params.kvStarts = static_cast<int32_t const*>(tensors.kvStarts->const_data_ptr());
    }
}

void setScalars(FusedAttentionParams& params, AttentionScalars const& scalars)
{
    int64_t constexpr lastCausal = static_cast<int64_t>(Causal::kBottomRight);
    int64_t constexpr lastEmptyRows = static_cast<int64_t>(EmptyRows::kUnmasked);
    require(scalars.causal >= 0 && scalars.causal <= lastCausal, "causal", "0, 1 or 2");
    require(scalars.emptyRows >= 0 && scalars.emptyRows <= lastEmptyRows, "empty_rows", "0, 1 or 2");
    params.scale = static_cast<float>(scalars.scale);
    params.softcap = static_cast<float>(scalars.softcap);
    params.causal = static_cast<Causal>(scalars.causal);
    params.windowLeft = scalars.windowLeft;
    params.windowRight = scalars.windowRight;
    params.emptyRows = static_cast<EmptyRows>(scalars.emptyRows);
    params.isExact = scalars.isExact;
}

} // namespace

AttentionTensors readable(AttentionTensors const& tensors)
{
    check(tensors);
    return {withNeighbours(tensors.q, false), withNeighbours(tensors.k, false), withNeighbours(tensors.v, false),
        withNeighbours(tensors.bias, true), withNeighbours(tensors.keep, true),
        withNeighbours(tensors.kvLengths, false), withNeighbours(tensors.kvStarts, false)};
}

FusedAttentionParams paramsOf(AttentionTensors const& tensors, AttentionScalars const& scalars)
{
    FusedAttentionParams params;
    params.query = constHeadTensor(tensors.q);
    params.key = constHeadTensor(tensors.k);
    params.value = constHeadTensor(tensors.v);
    params.batch = tensors.q.size(0);
    params.heads = tensors.q.size(1);
    params.queries = tensors.q.size(2);
    params.headSize = tensors.q.size(3);
    params.kvHeads = tensors.k.size(1);
    params.keys = tensors.k.size(2);
    params.valueSize = tensors.v.size(3);
    params.type = dataType(tensors.q);
    setMasks(params, tensors);
    setScalars(params, scalars);
    return params;
}

} // namespace attngraft::torch_library
