// The backward operator as PyTorch calls it, over any launch: the kernels', or in the tests their emulation on the CPU.
#pragma once

#include "masked_softmax_backward.h"
#include "mask_tensors.h"
#include "naming.h"

#include <tuple>

namespace attngraft::torch_library
{

//! Without `with_bias` the second result is [0]. `scores` are needed under softcap and where `empty_rows` is `uniform`,
//! the masks in the latter case alone. python/attngraft/torch/library.py defines the same where the library is not
//! there.
constexpr char const* kSoftmaxBackwardSchema =
    "masked_softmax_backward(Tensor grad_probabilities, Tensor probabilities, Tensor? scores, Tensor? bias, "
    "Tensor? keep, Tensor? kv_lengths, Tensor? kv_starts, float scale, int causal, int window_left, int window_right, "
    "float softcap, int empty_rows, bool with_bias) -> (Tensor grad_scores, Tensor grad_bias)";

//! What does the work: softmaxBackwardWorkspaceBytes, and a launch that throws std::runtime_error where it fails.
struct SoftmaxBackwardKernels
{
    size_t (*workspaceBytes)(MaskedSoftmaxBackwardParams const&);
    void (*launch)(MaskedSoftmaxBackwardParams const&);
};

//! Probabilities and their gradient [..., Sq, Sk] of rank 2 to 6, the scores of the same shape and type, and the masks.
struct SoftmaxBackwardTensors
{
    Tensor gradient;
    Tensor probabilities;
    std::optional<Tensor> scores;
    MaskTensors masks;
};

//! Gradients of the scores and of the bias, contiguous. The tensors' device is the current one.
std::tuple<Tensor, Tensor> differentiate(SoftmaxBackwardTensors const& tensors, MaskScalars const& scalars,
    bool withBias, SoftmaxBackwardKernels const& kernels);

//! The operator with the arguments of kSoftmaxBackwardSchema. While a `Device(probabilities)` lives, their device is
//! the current one; `Device::softmaxBackward()` are the kernels to use.
template <typename Device>
std::tuple<Tensor, Tensor> maskedSoftmaxBackward(Tensor const& gradient, Tensor const& probabilities,
    std::optional<Tensor> scores, std::optional<Tensor> bias, std::optional<Tensor> keep,
    std::optional<Tensor> kvLengths, std::optional<Tensor> kvStarts, double scale, int64_t causal, int64_t windowLeft,
    int64_t windowRight, double softcap, int64_t emptyRows, bool withBias)
{
    return inTheNameOf("masked_softmax_backward", [&] {
        Device const device(probabilities, "probabilities");
        return differentiate({gradient, probabilities, scores, {bias, keep, kvLengths, kvStarts}},
            {scale, causal, windowLeft, windowRight, softcap, emptyRows}, withBias, Device::softmaxBackward());
    });
}

} // namespace attngraft::torch_library
