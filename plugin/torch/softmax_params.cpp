#include "softmax_params.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <iterator>

namespace attngraft::torch_library
{

SoftmaxTensors readable(SoftmaxTensors const& tensors)
{
    Tensor const& scores = tensors.scores;
    require(scores.dim() >= kMinScoreRank && scores.dim() <= kMaxRank, "scores", "two to six dimensions");
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
        params.dims[softmaxDimension(dim, rank)] = scores.size(dim);
    }
    setContiguous(params);
    setMask(params, tensors.masks, scalars, rank);
    params.bias = spreadOverScores(params.bias, rank);
    params.keep = spreadOverScores(params.keep, rank);
    return params;
}

} // namespace attngraft::torch_library
