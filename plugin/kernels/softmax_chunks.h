// The shared memory of kernels in which blocks hold rows: what warps and blocks tell each other, barriers, and long
// rows in chunks, each as much as the threads of a block take at once.
#pragma once

#include "mask.h"
#include "operands.h"

#include <cstdint>

namespace attngraft
{

#if !defined(ATTNGRAFT_SOFTMAX_CHUNK_THREADS)
#define ATTNGRAFT_SOFTMAX_CHUNK_THREADS 256
#endif
#if !defined(ATTNGRAFT_SOFTMAX_CHUNK_UNITS)
#define ATTNGRAFT_SOFTMAX_CHUNK_UNITS 4
#endif

//! Blocks of the largest cluster that every device with clusters can launch.
constexpr int kMaxCluster = 8;

constexpr int kChunkThreads = ATTNGRAFT_SOFTMAX_CHUNK_THREADS;
constexpr int kChunkUnits = ATTNGRAFT_SOFTMAX_CHUNK_UNITS; //!< of a chunk, for each thread
constexpr int kChunkVectors = kChunkThreads * kChunkUnits;
constexpr int kChunkBytes = kChunkVectors * kVectorBytes;

constexpr int kBarrierBytes = 8;
constexpr int kStateBytes = 8; //!< a maximum and a sum

constexpr int kLineBytes = 128;

//! What the warps of all blocks that share a row tell each other comes first in shared memory, twice: an empty row may
//! be read again. Barriers are next, of both exchanges and of the chunks; then chunks.
constexpr int kExchanges = 2;
constexpr int kExchangeBytes = kMaxCluster * (kChunkThreads / 32) * kStateBytes;
constexpr int kExchangeBarriers = kExchanges * kExchangeBytes;
constexpr int kChunkBarriers = kExchangeBarriers + kExchanges * kBarrierBytes;
constexpr int kMostChunks = 14;
constexpr int kChunksBegin = kChunkBarriers + kMostChunks * kBarrierBytes;
static_assert(kChunksBegin % kLineBytes == 0);

constexpr int64_t dividedUp(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

//! A row of so many vectors, held in chunks by so many blocks, which take turns along the row.
struct ChunkLayout
{
    int64_t vectors;
    int blocks;

    //! Of a block at most.
    constexpr int64_t chunks() const
    {
        return dividedUp(dividedUp(shared(), kChunkVectors), blocks);
    }

    //! Of a block's shared memory. The first block holds most; its last chunk may be the row's, which need not be full.
    constexpr int64_t bytes() const
    {
        int64_t const last = (chunks() - 1) * blocks * kChunkVectors;
        int64_t const held = shared() - last < kChunkVectors ? shared() - last : kChunkVectors;
        return kChunksBegin + ((chunks() - 1) * kChunkVectors + held) * kVectorBytes;
    }

    //! The row's vectors and up to blocks - 1 more, so that all count alike.
    constexpr int64_t shared() const
    {
        return dividedUp(vectors, blocks) * blocks;
    }

    constexpr bool fits(int sharedBytes) const
    {
        return chunks() <= kMostChunks && bytes() <= sharedBytes;
    }
};

} // namespace attngraft
