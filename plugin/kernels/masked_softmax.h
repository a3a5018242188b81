// Border of the masked softmax kernels: what callers fill in and what they call.
// Meaning of every field: python/attngraft/contract.py. No TensorRT, no PyTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace attngraft
{

constexpr int kMaxRank = 6;

enum class DataType : int32_t
{
    kFloat32 = 0,
    kFloat16 = 1,
    kBFloat16 = 2,
};

//! Element type of `keep`: only its width matters, since any non-zero value may attend.
enum class KeepType : int32_t
{
    kInt8 = 0, //!< bool, uint8 and int8
    kInt32 = 1,
    kInt64 = 2,
};

enum class Causal : int32_t
{
    kNone = 0,
    kTopLeft = 1,
    kBottomRight = 2,
};

enum class EmptyRows : int32_t
{
    kZeros = 0,
    kUniform = 1,
    kUnmasked = 2,
};

//! A tensor that broadcasts to the scores. Strides are in elements, one for each dimension of
//! MaskedSoftmaxParams::dims, 0 where the tensor is broadcast. The last one is 0 or 1.
struct BroadcastTensor
{
    void const* data{nullptr}; //!< nullptr: absent
    int64_t strides[kMaxRank]{};
};

struct MaskedSoftmaxParams
{
    void const* scores{nullptr};  //!< contiguous
    void* probabilities{nullptr}; //!< contiguous, may be the same as scores
    int64_t dims[kMaxRank]{}; //!< [d0, d1, d2, d3, Sq, Sk]; lower ranks are filled up with 1 after the batch dimension
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

//! Enqueues one launch on `stream`. Allocates nothing, waits for nothing, and can be captured into a CUDA graph.
//! Empty tensors (a dimension of 0) are fine and launch nothing.
//! Returns cudaErrorInvalidValue for parameters outside the contract, else what the launch returned.
cudaError_t launchMaskedSoftmax(MaskedSoftmaxParams const& params, cudaStream_t stream);

} // namespace attngraft
