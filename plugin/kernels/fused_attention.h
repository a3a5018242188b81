// Border of the fused attention kernels: what callers fill in and what they call.
// Meaning of every field: python/attngraft/contract.py. No TensorRT, no PyTorch.
#pragma once

#include "operands.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace attngraft
{

//! Dimensions of the scores: batch, head, query, key. BroadcastTensor's first four strides belong to them.
constexpr int kScoreDims = 4;

//! A tensor [batch, heads, rows, size] anywhere in memory. Strides are in elements; the `size` elements of a row are
//! neighbours. Every layout of the contract, the packed projections included, is a choice of strides.
template <typename Pointer>
struct HeadTensor
{
    Pointer data{nullptr};
    int64_t batchStride{0};
    int64_t headStride{0};
    int64_t rowStride{0};
};

struct FusedAttentionParams : MaskParams
{
    HeadTensor<void const*> query{}; //!< [batch, heads, queries, headSize]
    HeadTensor<void const*> key{};   //!< [batch, kvHeads, keys, headSize]
    HeadTensor<void const*> value{}; //!< [batch, kvHeads, keys, valueSize]
    HeadTensor<void*> context{};     //!< [batch, heads, queries, valueSize]
    //! [batch, heads, queries], contiguous: the natural logarithm of the sum of exp(s) over the allowed keys, and
    //! -inf for a row without any. nullptr: not wanted.
    float* logSumExp{nullptr};

    int64_t batch{0};
    int64_t heads{0};
    int64_t kvHeads{0}; //!< divides heads; query head h reads head h / (heads / kvHeads)
    int64_t queries{0};
    int64_t keys{0};
    int64_t headSize{0};
    int64_t valueSize{0};
    //! Elements from the first query head of one key head to that of the next, where they are not all equally far
    //! apart; 0: heads / kvHeads times query.headStride.
    int64_t queryGroupStride{0};
    DataType type{DataType::kFloat16};
    //! fp32 tensors only: products in fp32 throughout, not in TF32.
    bool isExact{false};

    //! Which version of the kernel: 0 for the table's choice, else one of attentionVariants(*this).
    int32_t variant{0};
    //! At least attentionWorkspaceBytes(*this) bytes, aligned to 16; may be nullptr where that is 0.
    void* workspace{nullptr};
};

//! Writes the versions of the kernel that serve these parameters to `variants`, at most `capacity` of them, best guess
//! first. Each is positive, and the same number means the same version in every process. Returns how many there are;
//! 0 for parameters outside the contract. Pointers need not be set.
int attentionVariants(FusedAttentionParams const& params, int32_t* variants, int capacity);

//! Bytes of scratch memory that launchFusedAttention needs at most for these types and head sizes, whatever the other
//! sizes and the pointers are.
size_t attentionWorkspaceBytes(FusedAttentionParams const& params);

//! Enqueues one launch on `stream`, or two where the keys of a row are split over blocks. Allocates nothing, waits for
//! nothing, and can be captured into a CUDA graph. Empty tensors (a dimension of 0) are fine: without keys every row
//! is an empty row.
//! Returns cudaErrorInvalidValue for parameters outside the contract, else what the launch returned.
cudaError_t launchFusedAttention(FusedAttentionParams const& params, cudaStream_t stream);

} // namespace attngraft
