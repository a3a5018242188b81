// From a plan to a launch: the one place that turns the variant's number, the mask and the alignment into template
// arguments.
#pragma once

#include "attention_dispatch.h"
#include "attention_kernel.cuh"
#include "attention_splits.cuh"

namespace attngraft
{

//! Launches of one element type. See dispatchAttention.
template <typename Math>
struct AttentionLaunch
{
    cudaStream_t stream;

    template <typename Tile, AttentionMask kMask, bool kCapped, bool kVectorwise>
    cudaError_t run(AttentionPlan const& plan) const
    {
        auto const kernel = attentionKernel<Math, Tile, kMask, kCapped, kVectorwise>;
        int const bytes = sharedBytes<Tile>(plan);
        // For each device and each launch: the attribute belongs to the device's copy of the kernel, and setting it
        // costs less than remembering on which devices it was set.
        cudaError_t const status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (status != cudaSuccess)
        {
            return status;
        }
        kernel<<<attentionGrid<Tile>(plan), Tile::kThreads, bytes, stream>>>(plan);
        return cudaGetLastError();
    }
};

constexpr int kCombineThreads = 128;

template <typename Math>
cudaError_t launchAttention(AttentionPlan const& plan, cudaStream_t stream)
{
    cudaError_t const status =
        dispatchAttention<sizeof(typename Math::Element), false>(plan, AttentionLaunch<Math>{stream});
    if (status != cudaSuccess || plan.splits == 1)
    {
        return status;
    }
    constexpr int kWarpsOfBlock = kCombineThreads / 32;
    auto const blocks = static_cast<unsigned>((combineWarps(plan) + kWarpsOfBlock - 1) / kWarpsOfBlock);
    combineSplits<typename Math::Element><<<blocks, kCombineThreads, 0, stream>>>(plan);
    return cudaGetLastError();
}

} // namespace attngraft
