// The operator as PyTorch calls it, over any launch: the kernels', or in the tests a stand-in on the CPU.
#pragma once

#include "naming.h"
#include "softmax_params.h"

namespace attngraft::torch_library
{

//! `causal` and `empty_rows` are positions in the contract's lists. python/attngraft/torch/library.py defines the same
//! where the library is not there.
constexpr char const* kSoftmaxSchema =
    "masked_softmax(Tensor scores, Tensor? bias, Tensor? keep, Tensor? kv_lengths, Tensor? kv_starts, float scale, "
    "int causal, int window_left, int window_right, float softcap, int empty_rows) -> Tensor";

//! Throws std::runtime_error where it fails.
using SoftmaxLaunch = void (*)(MaskedSoftmaxParams const&);

//! Probabilities of the scores' shape and type, contiguous. The tensors' device is the current one.
Tensor normalise(SoftmaxTensors const& tensors, MaskScalars const& scalars, SoftmaxLaunch launch);

//! The operator with the arguments of kSoftmaxSchema. While a `Device(scores)` lives, the scores' device is the current
//! one; `Device::softmax()` is the launch to use.
template <typename Device>
Tensor maskedSoftmax(Tensor const& scores, std::optional<Tensor> bias, std::optional<Tensor> keep,
    std::optional<Tensor> kvLengths, std::optional<Tensor> kvStarts, double scale, int64_t causal, int64_t windowLeft,
    int64_t windowRight, double softcap, int64_t emptyRows)
{
    return inTheNameOf("masked_softmax", [&] {
        Device const device(scores, "scores");
        return normalise({scores, {bias, keep, kvLengths, kvStarts}},
            {scale, causal, windowLeft, windowRight, softcap, emptyRows}, Device::softmax());
    });
}

} // namespace attngraft::torch_library
