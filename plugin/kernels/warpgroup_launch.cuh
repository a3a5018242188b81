// From a plan to a launch of a kernel of warp groups. For files compiled for sm_90a.
#pragma once

#include "attention_start.cuh"
#include "bulk_copies.h"
#include "warpgroup_kernel.cuh"
#include "warpgroup_specialised.cuh"

namespace attngraft
{

template <typename Math>
struct WarpgroupLaunch
{
    cudaStream_t stream;

    template <typename Tile, AttentionMask kMask, bool kMayCap, bool kVectorwise>
    cudaError_t run(AttentionPlan const& plan) const
    {
        auto const kernel = [] {
            if constexpr (Tile::kTile.engine == AttentionEngine::kSpecialised)
            {
                return specialisedAttentionKernel<Math, Tile, kMask, kMayCap>;
            }
            else
            {
                return warpgroupAttentionKernel<Math, Tile, kMask, kMayCap>;
            }
        }();
        if constexpr (sizeof(typename Math::Element) == 4) // the kernel's threads bring the tiles
        {
            return startKernel<Tile>(kernel, plan, stream, BulkCopies{});
        }
        else
        {
            return startKernel<Tile>(kernel, plan, stream, makeBulkCopies(plan, Tile::kRows, Tile::kKeys));
        }
    }
};

template <typename Math>
cudaError_t launchWarpgroupAttention(AttentionPlan const& plan, cudaStream_t stream)
{
    return dispatchAttention<sizeof(typename Math::Element), true>(plan, WarpgroupLaunch<Math>{stream});
}

} // namespace attngraft
