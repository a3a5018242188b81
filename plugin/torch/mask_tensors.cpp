#include "mask_tensors.h"

#include <torch/headeronly/core/ScalarType.h>

namespace attngraft::torch_library
{
namespace
{

using torch::headeronly::ScalarType;

//! A mask that broadcasts to the scores by NumPy's rules.
void checkBroadcast(Tensor const& mask, char const* name, ScoresView const& scores)
{
    auto const rank = static_cast<int64_t>(scores.dims.size());
    requireDevice(mask, name, scores.tensor, scores.name);
    require(mask.dim() <= rank, name, "no more dimensions than the scores have");
    for (int64_t dim = 0; dim < mask.dim(); ++dim)
    {
        int64_t const size = mask.size(dim);
        bool const broadcasts = size == 1 || size == scores.dims[rank - mask.dim() + dim];
        require(broadcasts, name, "a shape that broadcasts to the scores");
    }
}

void checkCounts(std::optional<Tensor> const& tensor, char const* name, ScoresView const& scores)
{
    if (tensor)
    {
        requireDevice(*tensor, name, scores.tensor, scores.name);
        require(tensor->scalar_type() == ScalarType::Int, name, "int32");
        bool const hasBatch = static_cast<int64_t>(scores.dims.size()) > kMinScoreRank;
        requireSizes(*tensor, name, {hasBatch ? scores.dims[0] : 1});
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

int32_t const* counts(std::optional<Tensor> const& tensor)
{
    return tensor ? static_cast<int32_t const*>(tensor->const_data_ptr()) : nullptr;
}

} // namespace

ScoresView viewOf(Tensor const& scores, char const* name)
{
    std::vector<int64_t> dims;
    for (int64_t dim = 0; dim < scores.dim(); ++dim)
    {
        dims.push_back(scores.size(dim));
    }
    return {dims, scores, name};
}

void checkMasks(MaskTensors const& masks, ScoresView const& scores)
{
    if (masks.bias)
    {
        checkBroadcast(*masks.bias, "bias", scores);
        bool const hasType = masks.bias->scalar_type() == scores.tensor.scalar_type();
        std::string const expected = std::string("the type of ") + scores.name + ", or float32";
        require(hasType || isFloat32(*masks.bias), "bias", expected.c_str());
    }
    if (masks.keep)
    {
        checkBroadcast(*masks.keep, "keep", scores);
        keepType(*masks.keep);
    }
    checkCounts(masks.kvLengths, "kv_lengths", scores);
    checkCounts(masks.kvStarts, "kv_starts", scores);
}

void checkScalars(MaskScalars const& scalars)
{
    int64_t constexpr lastCausal = static_cast<int64_t>(Causal::kBottomRight);
    int64_t constexpr lastEmptyRows = static_cast<int64_t>(EmptyRows::kUnmasked);
    require(scalars.causal >= 0 && scalars.causal <= lastCausal, "causal", "0, 1 or 2");
    require(scalars.emptyRows >= 0 && scalars.emptyRows <= lastEmptyRows, "empty_rows", "0, 1 or 2");
}

MaskTensors readable(MaskTensors const& masks)
{
    return {withNeighbours(masks.bias, true), withNeighbours(masks.keep, true), withNeighbours(masks.kvLengths, false),
        withNeighbours(masks.kvStarts, false)};
}

BroadcastTensor broadcastTensor(Tensor const& mask, int64_t rank)
{
    BroadcastTensor found;
    found.data = mask.const_data_ptr();
    for (int64_t dim = 0; dim < mask.dim(); ++dim)
    {
        found.strides[rank - mask.dim() + dim] = mask.size(dim) == 1 ? 0 : mask.stride(dim);
    }
    return found;
}

bool isFloat32(Tensor const& tensor)
{
    return tensor.scalar_type() == ScalarType::Float;
}

void setMask(MaskParams& params, MaskTensors const& masks, MaskScalars const& scalars, int64_t rank)
{
    if (masks.bias)
    {
        params.bias = broadcastTensor(*masks.bias, rank);
        params.biasIsFloat32 = isFloat32(*masks.bias);
    }
    if (masks.keep)
    {
        params.keep = broadcastTensor(*masks.keep, rank);
        params.keepType = keepType(*masks.keep);
    }
    params.kvLengths = counts(masks.kvLengths);
    params.kvStarts = counts(masks.kvStarts);
    params.scale = static_cast<float>(scalars.scale);
    params.softcap = static_cast<float>(scalars.softcap);
    params.causal = static_cast<Causal>(scalars.causal);
    params.windowLeft = scalars.windowLeft;
    params.windowRight = scalars.windowRight;
    params.emptyRows = static_cast<EmptyRows>(scalars.emptyRows);
}

} // namespace attngraft::torch_library
