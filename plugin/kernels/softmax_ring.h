// The shared memory that long rows pass through: a ring of chunks, each as much as the threads of a block hold at once,
// with two barriers a chunk; and what the blocks that share a row tell each other.
#pragma once

#include "mask.h"
#include "operands.h"

#include <cstdint>

namespace attngraft
{

#if !defined(ATTNGRAFT_SOFTMAX_STREAM_THREADS)
#define ATTNGRAFT_SOFTMAX_STREAM_THREADS 256
#endif
#if !defined(ATTNGRAFT_SOFTMAX_STREAM_UNITS)
#define ATTNGRAFT_SOFTMAX_STREAM_UNITS 4
#endif

//! Blocks of the largest cluster that every device with clusters can launch.
constexpr int kMaxCluster = 8;

constexpr int kStreamThreads = ATTNGRAFT_SOFTMAX_STREAM_THREADS; //!< beside those of the warp that loads
constexpr int kStreamUnits = ATTNGRAFT_SOFTMAX_STREAM_UNITS;     //!< of a chunk, for each thread
constexpr int kChunkVectors = kStreamThreads * kStreamUnits;
constexpr int kChunkBytes = kChunkVectors * kVectorBytes;

constexpr int kBarrierBytes = 8;
constexpr int kStateBytes = 8; //!< a maximum and a sum

//! Exchanges that blocks may be apart, so that states of one are not overwritten before all have read them. A block
//! sends those of exchange n + 2 when it has read those of exchange n, and those of n + 4 when all have sent n + 2.
constexpr int kExchangesAtOnce = 4;
constexpr int kExchangeKinds = 2; //!< of rows as they come, and of those that are read again

//! Rows that are found ahead, by the thread that loads for all others.
constexpr int kRowSlots = 8;
constexpr int kRowBytes = 128;

//! Where things lie in a block's shared memory; the chunks first.
struct RingLayout
{
    int chunks;
    int blocks; //!< that share a row

    ATTNGRAFT_HOST_DEVICE constexpr int fullBarriers() const
    {
        return chunks * kChunkBytes;
    }

    ATTNGRAFT_HOST_DEVICE constexpr int emptyBarriers() const
    {
        return fullBarriers() + chunks * kBarrierBytes;
    }

    ATTNGRAFT_HOST_DEVICE constexpr int exchangeBarriers() const
    {
        return emptyBarriers() + chunks * kBarrierBytes;
    }

    ATTNGRAFT_HOST_DEVICE constexpr int states() const
    {
        return emptyRows() + kRowSlots * kBarrierBytes;
    }

    ATTNGRAFT_HOST_DEVICE constexpr int rows() const
    {
        return states() + kExchangeKinds * kExchangesAtOnce * exchangedBytes();
    }

    ATTNGRAFT_HOST_DEVICE constexpr int fullRows() const
    {
        return exchangeBarriers() + kExchangeKinds * kExchangesAtOnce * kBarrierBytes;
    }

    ATTNGRAFT_HOST_DEVICE constexpr int emptyRows() const
    {
        return fullRows() + kRowSlots * kBarrierBytes;
    }

    //! Of all warps of a row.
    ATTNGRAFT_HOST_DEVICE constexpr int exchangedBytes() const
    {
        return blocks * (kStreamThreads / 32) * kStateBytes;
    }

    ATTNGRAFT_HOST_DEVICE constexpr int bytes() const
    {
        return rows() + kRowSlots * kRowBytes;
    }
};

//! More chunks make nothing faster on an H200, and take the first level of cache from the masks, which serve many rows.
constexpr int kMostChunks = 10;

//! Chunks that fit in so much shared memory, beside what the largest cluster exchanges.
constexpr int ringChunks(int sharedBytes)
{
    constexpr int kRest = RingLayout{0, kMaxCluster}.bytes();
    int const chunks = sharedBytes > kRest ? (sharedBytes - kRest) / (kChunkBytes + 2 * kBarrierBytes) : 0;
    return chunks < kMostChunks ? chunks : kMostChunks;
}

} // namespace attngraft
