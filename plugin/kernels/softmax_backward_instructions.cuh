// What the row kernels of the backward pass ask of the device, one function each: where a thread stands, memory that
// is read or written once, and what the blocks of a cluster tell each other.
#pragma once

#include "tensor_core.cuh"

#include <cstdint>

#if defined(ATTNGRAFT_ROW_INSTRUCTIONS) // something else that has them: a test's, on the CPU
#include ATTNGRAFT_ROW_INSTRUCTIONS
#else

namespace attngraft
{

ATTNGRAFT_DEVICE int threadOfBlock()
{
    return static_cast<int>(threadIdx.x);
}

//! Of the grid's blocks in x.
ATTNGRAFT_DEVICE int64_t blockOfGrid()
{
    return blockIdx.x;
}

ATTNGRAFT_DEVICE int64_t blocksOfGrid()
{
    return gridDim.x;
}

//! Of the grid's clusters. 9.0 and later, as all functions of clusters.
ATTNGRAFT_DEVICE int64_t clusterOfGrid()
{
    uint32_t cluster = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
#endif
    return cluster;
}

ATTNGRAFT_DEVICE int blockOfCluster()
{
    uint32_t rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return static_cast<int>(rank);
}

ATTNGRAFT_DEVICE void synchronizeThreads()
{
    __syncthreads();
}

//! What a thread of the cluster stored in shared memory is seen by all others.
ATTNGRAFT_DEVICE void synchronizeCluster()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
}

//! So many floats of shared memory.
template <int floats>
ATTNGRAFT_DEVICE float* scratchOfBlock()
{
    __shared__ float scratch[floats];
    return scratch;
}

template <int floats>
ATTNGRAFT_DEVICE void storeScratch(int place, float value)
{
    scratchOfBlock<floats>()[place] = value;
}

template <int floats>
ATTNGRAFT_DEVICE float loadScratch(int place)
{
    return scratchOfBlock<floats>()[place];
}

//! Of another block of the cluster.
template <int floats>
ATTNGRAFT_DEVICE float loadScratchOf([[maybe_unused]] int block, int place)
{
    float value = 0.F;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    auto const own = static_cast<uint32_t>(__cvta_generic_to_shared(scratchOfBlock<floats>() + place));
    uint32_t theirs;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(own), "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(theirs) : "memory");
#else
    static_cast<void>(place);
#endif
    return value;
}

//! 16 bytes that nobody reads again soon. Yet not "evict first" (ld.global.cs), see loadOnce of row_instructions.cuh.
ATTNGRAFT_DEVICE uint4 loadStreaming16(void const* from)
{
    return __ldcg(static_cast<uint4 const*>(from));
}

ATTNGRAFT_DEVICE void storeStreaming16(void* to, uint4 vector)
{
    *static_cast<uint4*>(to) = vector;
}

//! 2 or 4 bytes.
template <typename Bits>
ATTNGRAFT_DEVICE Bits loadStreamingBits(void const* from)
{
    return __ldcg(static_cast<Bits const*>(from));
}

template <typename Bits>
ATTNGRAFT_DEVICE void storeStreamingBits(void* to, Bits bits)
{
    *static_cast<Bits*>(to) = bits;
}

} // namespace attngraft

#endif
