// The operator as PyTorch calls it, over any launch: the kernels', or in the tests their emulation on the CPU.
#pragma once

#include "attention_params.h"
#include "naming.h"

#include <tuple>

namespace attngraft::torch_library
{

//! `causal` and `empty_rows` are positions in the contract's lists. Without `with_log_sum_exp` the second result is
//! [0]. python/attngraft/torch/library.py defines the same where the library is not there.
constexpr char const* kAttentionSchema =
    "fused_attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? keep, Tensor? kv_lengths, Tensor? kv_starts, "
    "float scale, int causal, int window_left, int window_right, float softcap, int empty_rows, bool exact, "
    "bool with_log_sum_exp) -> (Tensor context, Tensor log_sum_exp)";

//! What does the work: attentionWorkspaceBytes, and a launch that throws std::runtime_error where it fails.
struct AttentionKernels
{
    size_t (*workspaceBytes)(FusedAttentionParams const&);
    void (*launch)(FusedAttentionParams const&);
};

//! Context [B,H,Sq,Dv] in q's memory order, and log-sum-exp [B,H,Sq]. The tensors' device is the current one.
std::tuple<Tensor, Tensor> attend(AttentionTensors const& tensors, MaskScalars const& scalars, bool isExact,
    bool withLogSumExp, AttentionKernels const& kernels);

//! The operator with the arguments of kAttentionSchema. While a `Device(q)` lives, q's device is the current one;
//! `Device::attention()` are the kernels to use.
template <typename Device>
std::tuple<Tensor, Tensor> fusedAttention(Tensor const& q, Tensor const& k, Tensor const& v, std::optional<Tensor> bias,
    std::optional<Tensor> keep, std::optional<Tensor> kvLengths, std::optional<Tensor> kvStarts, double scale,
    int64_t causal, int64_t windowLeft, int64_t windowRight, double softcap, int64_t emptyRows, bool isExact,
    bool withLogSumExp)
{
    return inTheNameOf("fused_attention", [&] {
        Device const device(q, "q");
        return attend({q, k, v, {bias, keep, kvLengths, kvStarts}},
            {scale, causal, windowLeft, windowRight, softcap, emptyRows}, isExact, withLogSumExp, Device::attention());
    });
}

} // namespace attngraft::torch_library
