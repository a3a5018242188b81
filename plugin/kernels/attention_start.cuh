// The launch itself, the same for every attention kernel.
#pragma once

#include "attention_dispatch.h"

namespace attngraft
{

//! Launches `kernel` over the plan's grid. `more` are its parameters behind the plan.
template <typename Tile, typename... More>
cudaError_t startKernel(
    void (*kernel)(AttentionPlan, More...), AttentionPlan const& plan, cudaStream_t stream, More const&... more)
{
    int const bytes = sharedBytes<Tile>(plan);
    // For each device and each launch: the attribute belongs to the device's copy of the kernel, and setting it costs
    // less than remembering on which devices it was set.
    cudaError_t const status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess)
    {
        return status;
    }
    kernel<<<attentionGrid<Tile>(plan), Tile::kThreads, bytes, stream>>>(plan, more...);
    return cudaGetLastError();
}

} // namespace attngraft
