// Border of the masked softmax's backward kernels: what callers fill in and what they call.
// Meaning of every field: python/attngraft/contract.py. No TensorRT, no PyTorch.
#pragma once

#include "softmax_dims.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace attngraft
{

//! For p the probabilities and g the gradient that comes in for them, of one row:
//!
//!     ds_j = p_j * (g_j - sum over the row of p * g)      the gradient of s, and so of the bias
//!     dx_j = scale * (1 - tanh(scale * x_j / softcap)^2) * ds_j      without softcap: scale * ds_j
//!
//! A key whose p is 0 takes no part, whatever its g and its score are. A row without any allowed key has a gradient of
//! 0 under `zeros` and `uniform`. Inputs are never written to, and overlap no output.
//!
//! The masks are those that the probabilities were made with. Only kUniform reads them, to tell rows without any
//! allowed key.
struct MaskedSoftmaxBackwardParams : MaskParams
{
    void const* probabilities{nullptr}; //!< contiguous, as all four
    void const* gradient{nullptr};      //!< of the probabilities
    void const* scores{nullptr};        //!< read under softcap, and where emptyRows is kUniform
    void* scoresGradient{nullptr};
    int64_t dims[kMaxRank]{};          //!< see softmax_dims.h
    DataType type{DataType::kFloat32}; //!< of all four

    //! Gradient of the bias, in float32 where biasIsFloat32, else of the scores' type; nullptr: not wanted. A stride in
    //! elements for each of `dims`: the gradient is summed over dimensions of stride 0. The last one is 0 or 1.
    void* biasGradient{nullptr};
    int64_t biasGradientStrides[kMaxRank]{};

    void* workspace{nullptr}; //!< softmaxBackwardWorkspaceBytes of device memory, aligned to 16 bytes
};

//! Scratch memory that the launch needs: none without a gradient of the bias, else some bytes a row and more.
//! 0 for parameters outside the contract.
size_t softmaxBackwardWorkspaceBytes(MaskedSoftmaxBackwardParams const& params);

//! Enqueues one launch on `stream`, with a gradient of the bias two or three; the same bits for the same parameters.
//! Allocates nothing, waits for nothing, and can be captured into a CUDA graph. Empty scores launch nothing, unless a
//! gradient of the bias is to be filled with zeros.
//! Returns cudaErrorInvalidValue for parameters outside the contract, else what the launches returned.
cudaError_t launchMaskedSoftmaxBackward(MaskedSoftmaxBackwardParams const& params, cudaStream_t stream);

} // namespace attngraft
