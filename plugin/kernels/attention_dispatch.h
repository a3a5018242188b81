// From a plan to the template arguments of the kernel that serves it, for whoever runs it: a launch, or a test.
#pragma once

#include "attention_plan.h"

#include <cuda_runtime_api.h>

namespace attngraft
{

//! The grid of a plan's kernel: x over batch and groups of heads, y over tiles of rows, z over splits and parts of the
//! values.
template <typename Tile>
dim3 attentionGrid(AttentionPlan const& plan)
{
    int64_t const groups = plan.batch * plan.headGroups.value;
    int64_t const tiles = (plan.rows + Tile::kRows - 1) / Tile::kRows;
    return dim3(static_cast<unsigned>(groups), static_cast<unsigned>(tiles),
        static_cast<unsigned>(plan.splits * plan.valueChunks.value));
}

//! Bytes of dynamic shared memory of a plan's kernel: its tiles, and the bits of scanned keys.
template <typename Tile>
int sharedBytes(AttentionPlan const& plan)
{
    int const keys = (plan.keys + Tile::kKeys - 1) / Tile::kKeys * Tile::kKeys;
    return Tile::kSharedBytes + (plan.mask == AttentionMask::kKeyBits ? keys / 8 : 0);
}

//! The kernel for `mask`. Kernels of warp groups, which have no register to spare, are there with a softcap and
//! without; the others look whether there is one.
template <typename Tile, AttentionMask mask, typename Launch>
cudaError_t runCapped(AttentionPlan const& plan, Launch const& launch)
{
    if constexpr (Tile::kUsesWarpgroups)
    {
        if (!plan.scoreMap.isCapped())
        {
            return launch.template run<Tile, mask, false, true>(plan);
        }
    }
    return launch.template run<Tile, mask, true, true>(plan);
}

//! Calls launch.run with what the plan says beside the tile. Without vectors only some tiles are compiled.
template <typename Tile, bool isForUnaligned, typename Launch>
cudaError_t runTile(AttentionPlan const& plan, Launch const& launch)
{
    if (!plan.isVectorwise)
    {
        if constexpr (isForUnaligned)
        {
            return launch.template run<Tile, AttentionMask::kAny, false, false>(plan);
        }
        return cudaErrorInvalidValue;
    }
    switch (plan.mask)
    {
    case AttentionMask::kInterval: return runCapped<Tile, AttentionMask::kInterval>(plan, launch);
    case AttentionMask::kKeyBits: return runCapped<Tile, AttentionMask::kKeyBits>(plan, launch);
    case AttentionMask::kBias:
        if constexpr (Tile::kTile.fetchesBias())
        {
            return launch.template run<Tile, AttentionMask::kBias, false, true>(plan);
        }
        return cudaErrorInvalidValue;
    case AttentionMask::kAny: return launch.template run<Tile, AttentionMask::kAny, false, true>(plan);
    }
    return cudaErrorInvalidValue;
}

//! Calls launch.run<Tile, mask, mayCap, isVectorwise>(plan) for the plan's variant, one of those with warp groups or
//! one of the others. Where all masks are served a softcap is too. Without vectors of 16 bytes only
//! the first tile of each head size is compiled; makeAttentionPlan chooses accordingly.
template <int elementBytes, bool warpgroups, typename Launch, int index = 0>
cudaError_t dispatchAttention(AttentionPlan const& plan, Launch const& launch)
{
    if constexpr (index < kAttentionTileCount)
    {
        if (plan.variant != index + 1)
        {
            return dispatchAttention<elementBytes, warpgroups, Launch, index + 1>(plan, launch);
        }
        constexpr bool kIsOfType = (elementBytes == 4) == isForFloat(index);
        if constexpr (kIsOfType && isOffered(index) && warpgroups == usesWarpgroups(index))
        {
            return runTile<TileOf<index, elementBytes>, isFirstOfItsHead(index)>(plan, launch);
        }
    }
    return cudaErrorInvalidValue;
}

} // namespace attngraft
