#include "softmax_params.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <iterator>

namespace attngraft::torch_library
{
namespace
{

constexpr int64_t kMinRank = 2;

//! Where dimension `dim` of scores of rank `rank` lies in MaskedSoftmaxParams::dims: the batch in front, the others
//! right-aligned, ones between.
int64_t kernelDimension(int64_t dim, int64_t rank)
{
    bool const isBatch = dim == 0 && rank > kMinRank;
    return isBatch ? 0 : kMaxRank - rank + dim;
}

//! Strides of a mask moved to where the dimensions of scores of rank `rank` lie.
BroadcastTensor spread(BroadcastTensor const& mask, int64_t rank)
{
    BroadcastTensor found;
    found.data = mask.data;
    for (int64_t dim = 0; dim < rank; ++dim)
    {
        found.strides[kernelDimension(dim, rank)] = mask.strides[dim];
    }
    return found;
}

} // namespace

SoftmaxTensors readable(SoftmaxTensors const& tensors)
{
    Tensor const& scores = tensors.scores;
    require(scores.dim() >= kMinRank && scores.dim() <= kMaxRank, "scores", "two to six dimensions");
    std::vector<int64_t> dims;
    for (int64_t dim = 0; dim < scores.dim(); ++dim)
    {
        dims.push_back(scores.size(dim));
    }
    checkMasks(tensors.masks, {dims, scores, "scores"});
    return {torch::stable::contiguous(scores), readable(tensors.masks)};
}

MaskedSoftmaxParams paramsOf(SoftmaxTensors const& tensors, MaskScalars const& scalars)
{
    checkScalars(scalars);
    Tensor const& scores = tensors.scores;
    int64_t const rank = scores.dim();
    MaskedSoftmaxParams params;
    params.scores = scores.const_data_ptr();
    params.type = dataType(scores, "scores");
    std::fill(std::begin(params.dims), std::end(params.dims), int64_t{1});
    for (int64_t dim = 0; dim < rank; ++dim)
    {
        params.dims[kernelDimension(dim, rank)] = scores.size(dim);
    }
    setMask(params, tensors.masks, scalars, rank);
    params.bias = spread(params.bias, rank);
    params.keep = spread(params.keep, rank);
    return params;
}

} // namespace attngraft::torch_library
