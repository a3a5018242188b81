// From PyTorch's tensors, of any device, to FusedAttentionParams. Checks what the kernels cannot: types, devices,
// shapes.
#pragma once

#include "fused_attention.h"
#include "mask_tensors.h"

namespace attngraft::torch_library
{

//! q [B,H,Sq,D], k [B,Hk,Sk,D], v [B,Hk,Sk,Dv], and what the contract's roles name.
struct AttentionTensors
{
    Tensor q;
    Tensor k;
    Tensor v;
    MaskTensors masks;
};

//! The same tensors in a form that the kernels read: one whose innermost elements are no neighbours is copied, all
//! others are the caller's own memory. Throws std::runtime_error for tensors outside the contract.
AttentionTensors readable(AttentionTensors const& tensors);

//! Parameters without context, log-sum-exp and workspace. The tensors must outlive the launch, and be `readable`.
FusedAttentionParams paramsOf(AttentionTensors const& tensors, MaskScalars const& scalars, bool isExact);

} // namespace attngraft::torch_library
