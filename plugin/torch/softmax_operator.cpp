#include "softmax_operator.h"

#include <torch/csrc/stable/ops.h>

namespace attngraft::torch_library
{

Tensor normalise(SoftmaxTensors const& tensors, MaskScalars const& scalars, SoftmaxLaunch launch)
{
    SoftmaxTensors const inPlace = readable(tensors);
    MaskedSoftmaxParams params = paramsOf(inPlace, scalars);
    Tensor const probabilities = torch::stable::new_empty(inPlace.scores, inPlace.scores.sizes());
    params.probabilities = probabilities.mutable_data_ptr();
    launch(params);
    return probabilities;
}

} // namespace attngraft::torch_library
