// Border of the masked softmax kernels: what callers fill in and what they call.
// Meaning of every field: python/attngraft/contract.py. No TensorRT, no PyTorch.
#pragma once

#include "softmax_dims.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace attngraft
{

struct MaskedSoftmaxParams : MaskParams
{
    void const* scores{nullptr};
    void* probabilities{nullptr}; //!< may be the same as scores, then with the same strides; else does not overlap them
    int64_t dims[kMaxRank]{};     //!< see softmax_dims.h
    int64_t scoresStrides[kMaxRank]{};        //!< in elements; the last one is 1
    int64_t probabilitiesStrides[kMaxRank]{}; //!< the same
    DataType type{DataType::kFloat32};
};

//! Scores and probabilities without gaps, once `dims` are set.
inline void setContiguous(MaskedSoftmaxParams& params)
{
    int64_t stride = 1;
    for (int dim = kMaxRank - 1; dim >= 0; --dim)
    {
        params.scoresStrides[dim] = params.probabilitiesStrides[dim] = stride;
        stride *= params.dims[dim];
    }
}

//! Enqueues one launch on `stream`. Allocates nothing, waits for nothing, and can be captured into a CUDA graph.
//! Empty tensors (a dimension of 0) are fine and launch nothing.
//! Returns cudaErrorInvalidValue for parameters outside the contract, else what the launch returned.
cudaError_t launchMaskedSoftmax(MaskedSoftmaxParams const& params, cudaStream_t stream);

} // namespace attngraft
