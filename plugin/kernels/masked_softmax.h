// Border of the masked softmax kernels: what callers fill in and what they call.
// Meaning of every field: python/attngraft/contract.py. No TensorRT, no PyTorch.
#pragma once

#include "operands.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace attngraft
{

struct MaskedSoftmaxParams
{
    void const* scores{nullptr};
    void* probabilities{nullptr}; //!< may be the same as scores, then with the same strides; else does not overlap them
    int64_t dims[kMaxRank]{}; //!< [d0, d1, d2, d3, Sq, Sk]; lower ranks are filled up with 1 after the batch dimension
    int64_t scoresStrides[kMaxRank]{};        //!< in elements; the last one is 1
    int64_t probabilitiesStrides[kMaxRank]{}; //!< the same
    DataType type{DataType::kFloat32};

    BroadcastTensor bias{};
    bool biasIsFloat32{false}; //!< else of the scores' type
    BroadcastTensor keep{};
    KeepType keepType{KeepType::kInt8};
    int32_t const* kvLengths{nullptr}; //!< [dims[0]]
    int32_t const* kvStarts{nullptr};  //!< [dims[0]]

    float scale{1.F};
    float softcap{0.F};
    Causal causal{Causal::kNone};
    int64_t windowLeft{-1};
    int64_t windowRight{-1};
    EmptyRows emptyRows{EmptyRows::kZeros};
};

//! Where dimension `dim` of scores of rank `rank` lies in MaskedSoftmaxParams::dims: the batch in front, the others
//! right-aligned, ones between.
constexpr int64_t softmaxDimension(int64_t dim, int64_t rank)
{
    bool const isBatch = dim == 0 && rank > kMinScoreRank;
    return isBatch ? 0 : kMaxRank - rank + dim;
}

//! Strides of an operand, one for each dimension of scores of rank `rank`, moved to where these lie.
inline BroadcastTensor spreadOverScores(BroadcastTensor const& operand, int64_t rank)
{
    BroadcastTensor tensor;
    tensor.data = operand.data;
    for (int64_t dim = 0; dim < rank; ++dim)
    {
        tensor.strides[softmaxDimension(dim, rank)] = operand.strides[dim];
    }
    return tensor;
}

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
