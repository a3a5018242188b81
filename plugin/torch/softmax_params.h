// From PyTorch's tensors, of any device, to MaskedSoftmaxParams. Checks what the kernels cannot: types, devices,
// shapes.
#pragma once

#include "mask_tensors.h"
#include "masked_softmax.h"

namespace attngraft::torch_library
{

//! Scores [..., Sq, Sk] of rank 2 to 6, and what the contract's roles name.
struct SoftmaxTensors
{
    Tensor scores;
    MaskTensors masks;
};

//! The same tensors in a form that the kernels read: contiguous scores, and masks whose innermost elements are
//! neighbours. What has that form already is the caller's own memory. Throws std::runtime_error for tensors outside the
//! contract.
SoftmaxTensors readable(SoftmaxTensors const& tensors);

//! Parameters without the probabilities. The tensors must outlive the launch, and be `readable`.
MaskedSoftmaxParams paramsOf(SoftmaxTensors const& tensors, MaskScalars const& scalars);

} // namespace attngraft::torch_library
