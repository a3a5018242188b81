// From PyTorch's tensors, of any device, to FusedAttentionParams. Checks what the kernels cannot: types, devices,
// shapes.
#pragma once

#include "fused_attention.h"

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

namespace attngraft::torch_library
{

using torch::stable::Tensor;

//! q [B,H,Sq,D], k [B,Hk,Sk,D], v [B,Hk,Sk,Dv], and what the contract's roles name.
struct AttentionTensors
{
    Tensor q;
    Tensor k;
    Tensor v;
    std::optional<Tensor> bias;
    std::optional<Tensor> keep;
    std::optional<Tensor> kvLengths;
    std::optional<Tensor> kvStarts;
};

//! The contract's attributes; `causal` and `emptyRows` are positions in its lists of words.
struct AttentionScalars
{
    double scale;
    int64_t causal;
    int64_t windowLeft;
    int64_t windowRight;
    double softcap;
    int64_t emptyRows;
    bool isExact;
};

//! The same tensors in a form that the kernels read: one whose innermost elements are no neighbours is copied, all
//! others are the caller's own memory. Throws std::runtime_error for tensors outside the contract.
AttentionTensors readable(AttentionTensors const& tensors);

//! Parameters without context, log-sum-exp and workspace. The tensors must outlive the launch, and be `readable`.
FusedAttentionParams paramsOf(AttentionTensors const& tensors, AttentionScalars const& scalars);

} // namespace attngraft::torch_library
