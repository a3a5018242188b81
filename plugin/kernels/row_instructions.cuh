// The instructions that row kernels need beside those of tensor_core.cuh, one function each: loads and stores of global
// memory that say how long the data matters, packed pairs, barriers of a row's threads, clusters of blocks.
#pragma once

#include "tensor_core.cuh"

#if defined(ATTNGRAFT_ROW_INSTRUCTIONS) // something else that has them: a test's, on the CPU
#include ATTNGRAFT_ROW_INSTRUCTIONS
#else

namespace attngraft
{

//! Data that is read again soon: masks, shared by many rows.
template <typename Chunk>
ATTNGRAFT_DEVICE Chunk loadShareable(void const* from)
{
    return __ldg(static_cast<Chunk const*>(from));
}

//! Data that no other thread reads: scores. Not through the read-only path, since the output may be the same tensor.
//! And not with the cache's policy "evict first" (ld.global.cs): where rows do not end on a line of 128 bytes, both its
//! readers would fetch the line from memory (measured on an H200: 2 to 13% slower).
template <typename Chunk>
ATTNGRAFT_DEVICE Chunk loadOnce(void const* from)
{
    Chunk chunk;
    if constexpr (sizeof(Chunk) == 16)
    {
        asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
            : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
            : "l"(from)); // volatile: not to be put off until it is used
    }
    else
    {
        chunk = __ldcg(static_cast<Chunk const*>(from));
    }
    return chunk;
}

template <typename Chunk>
ATTNGRAFT_DEVICE void storeOnce(void* to, Chunk chunk)
{
    *static_cast<Chunk*>(to) = chunk;
}

//! The larger elements of two pairs of T. NaN loses.
template <typename T>
ATTNGRAFT_DEVICE uint32_t largerPair(uint32_t a, uint32_t b)
{
    uint32_t larger;
    if constexpr (std::is_same_v<T, __half>)
    {
        asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    }
    else
    {
        asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    }
    return larger;
}

//! Byte i is filled with the sign of the byte of `word` that the lower 3 bits of nibble i of `selector` name; the
//! nibbles' highest bits are set.
template <uint32_t selector>
ATTNGRAFT_DEVICE uint32_t spreadSigns(uint32_t word)
{
    uint32_t spread;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(spread) : "r"(word), "n"(selector));
    return spread;
}

//! The 32 bits of high:low from bit `shift` on, shift < 32.
ATTNGRAFT_DEVICE uint32_t bitsFrom(uint32_t low, uint32_t high, uint32_t shift)
{
    return __funnelshift_r(low, high, shift);
}

//! Two neighbouring words of shared memory, aligned to 8 bytes.
ATTNGRAFT_DEVICE uint2 loadSharedPair(SharedAddress from)
{
    uint2 pair;
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(pair.x), "=r"(pair.y) : "r"(from) : "memory");
    return pair;
}

//! Waits for `threads` threads at one of the block's 16 barriers.
template <int barrier, int threads>
ATTNGRAFT_DEVICE void meetRow()
{
    asm volatile("barrier.sync %0, %1;" ::"n"(barrier), "n"(threads) : "memory");
}

//! This block's number in its cluster. What follows is for compute capability 9.0 and later.
ATTNGRAFT_DEVICE int blockInCluster()
{
#if __CUDA_ARCH__ >= 900
    int block;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
    return block;
#else
    __trap();
    return 0;
#endif
}

//! Says that this thread came to the cluster's barrier, with what it wrote to shared memory.
ATTNGRAFT_DEVICE void arriveAtCluster()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

//! The same with nothing but barriers that were published.
ATTNGRAFT_DEVICE void arriveAtClusterWithBarriers()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

//! Waits for all other threads of the cluster.
ATTNGRAFT_DEVICE void waitForCluster()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

//! What another block of the cluster has at this address of its shared memory.
ATTNGRAFT_DEVICE uint2 loadFromBlock(SharedAddress from, int block)
{
    uint2 value{0, 0};
#if __CUDA_ARCH__ >= 900
    SharedAddress there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(from), "r"(block));
    asm volatile("ld.shared::cluster.v2.b32 {%0,%1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(there) : "memory");
#endif
    return value;
}

} // namespace attngraft

#endif
