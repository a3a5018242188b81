#include "softmax_params.h"

#include <torch/csrc/stable/ops.h>

namespace attngraft::torch_library
{

SoftmaxTensors readable(SoftmaxTensors const& tensors)
{
    Tensor const& scores = tensors.scores;
    require(scores.dim() >= kMinScoreRank && scores.dim() <= kMaxRank, "scores", "two to six dimensions");
    checkMasks(tensors.masks, viewOf(scores, "scores"));
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
    setDims(params.dims, rank, [&](int64_t dim) { return scores.size(dim); });
    setContiguous(params);
    setMask(params, tensors.masks, scalars, rank);
    spreadMasks(params, rank);
    return params;
}

} // namespace attngraft::torch_library
