// From a plan to a launch: the one place that turns the variant's number, the mask and the alignment into template
// arguments.
#pragma once

#include "attention_kernel.cuh"
#include "attention_splits.cuh"
#include "attention_start.cuh"

namespace attngraft
{

//! Launches of one element type. See dispatchAttention.
template <typename Math>
struct AttentionLaunch
{
    cudaStream_t stream;

    template <typename Tile, AttentionMask kMask, bool kMayCap, bool kVectorwise>
    cudaError_t run(AttentionPlan const& plan) const
    {
        return startKernel<Tile>(attentionKernel<Math, Tile, kMask, kMayCap, kVectorwise>, plan, stream);
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
    return startEarly(combineSplits<typename Math::Element>, dim3(blocks), kCombineThreads, 0, stream, plan);
}

} // namespace attngraft
