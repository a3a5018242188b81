// Rows on their way through shared memory: who fills the ring of chunks and who empties it, and the exchange of maxima
// and sums, during which nobody waits.
#pragma once

#include "bulk_instructions.cuh"
#include "row_reduction.cuh"
#include "softmax_ring.h"

namespace attngraft
{

//! A chunk of the ring, and the parity of the phase in which it is next full.
struct ChunkPlace
{
    int index{0};
    uint32_t parity{0};

    ATTNGRAFT_DEVICE void advance(int chunks)
    {
        index = index + 1 == chunks ? 0 : index + 1;
        parity ^= index == 0 ? 1U : 0U;
    }
};

//! A block's chunks. One thread fills them, all warps but its own empty them.
struct ChunkRing
{
    RingLayout layout;
    SharedAddress base;

    ATTNGRAFT_DEVICE SharedAddress chunk(ChunkPlace const& place) const
    {
        return base + static_cast<SharedAddress>(place.index * kChunkBytes);
    }

    ATTNGRAFT_DEVICE SharedAddress full(ChunkPlace const& place) const
    {
        return base + static_cast<SharedAddress>(layout.fullBarriers() + place.index * kBarrierBytes);
    }

    ATTNGRAFT_DEVICE SharedAddress empty(ChunkPlace const& place) const
    {
        return base + static_cast<SharedAddress>(layout.emptyBarriers() + place.index * kBarrierBytes);
    }

    ATTNGRAFT_DEVICE void makeBarriers() const
    {
        for (ChunkPlace place; place.index < layout.chunks; ++place.index)
        {
            makeCountingBarrier(full(place), 1);
            makeCountingBarrier(empty(place), kStreamThreads / kWarpThreads);
        }
    }

    //! Once the chunk is empty: fills it from byte `begin` on; nothing, where `bytes` is 0.
    ATTNGRAFT_DEVICE void fill(ChunkPlace const& place, int begin, uint8_t const* from, int bytes) const
    {
        waitForPhase(empty(place), place.parity ^ 1U);
        if (bytes > 0)
        {
            arriveExpecting(full(place), bytes);
            copyBulk(chunk(place) + static_cast<SharedAddress>(begin), from, bytes, full(place));
        }
        else
        {
            arrive(full(place));
        }
    }

    ATTNGRAFT_DEVICE void waitUntilFull(ChunkPlace const& place) const
    {
        waitForPhase(full(place), place.parity);
    }

    //! A warp needs the chunk no more. What its threads wrote there was published.
    ATTNGRAFT_DEVICE void release(ChunkPlace const& place) const
    {
        synchronizeWarp();
        if (threadIdx.x % kWarpThreads == 0)
        {
            arrive(empty(place));
        }
    }
};

//! Rows as the thread that loads found them, for all others.
template <typename Row>
struct RowSlots
{
    RingLayout layout;
    SharedAddress base;

    ATTNGRAFT_DEVICE void makeBarriers() const
    {
        for (unsigned i = 0; i < kRowSlots; ++i)
        {
            makeCountingBarrier(full(i), 1);
            makeCountingBarrier(empty(i), kStreamThreads / kWarpThreads);
        }
    }

    //! `number`: the row's, from 0 on.
    ATTNGRAFT_DEVICE void put(unsigned number, Row const& row) const
    {
        Bits bits;
        memcpy(&bits, &row, sizeof(row));
        waitForPhase(empty(number), (number / kRowSlots & 1U) ^ 1U);
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
        {
            storeShared(slot(number) + static_cast<SharedAddress>(i * kVectorBytes), bits.vectors[i]);
        }
        arrive(full(number));
    }

    ATTNGRAFT_DEVICE Row take(unsigned number) const
    {
        waitForPhase(full(number), number / kRowSlots & 1U);
        Bits bits;
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
        {
            bits.vectors[i] = loadShared<uint4>(slot(number) + static_cast<SharedAddress>(i * kVectorBytes));
        }
        Row row;
        memcpy(&row, &bits, sizeof(row));
        return row;
    }

    //! A warp needs the row no more.
    ATTNGRAFT_DEVICE void release(unsigned number) const
    {
        synchronizeWarp();
        if (threadIdx.x % kWarpThreads == 0)
        {
            arrive(empty(number));
        }
    }

private:
    static constexpr int kVectors = (static_cast<int>(sizeof(Row)) + kVectorBytes - 1) / kVectorBytes;
    static_assert(sizeof(Row) <= kRowBytes && std::is_trivially_copyable_v<Row>);

    struct Bits
    {
        uint4 vectors[kVectors];
    };

    ATTNGRAFT_DEVICE SharedAddress full(unsigned number) const
    {
        return base + static_cast<SharedAddress>(layout.fullRows()) + number % kRowSlots * kBarrierBytes;
    }

    ATTNGRAFT_DEVICE SharedAddress empty(unsigned number) const
    {
        return base + static_cast<SharedAddress>(layout.emptyRows()) + number % kRowSlots * kBarrierBytes;
    }

    ATTNGRAFT_DEVICE SharedAddress slot(unsigned number) const
    {
        return base + static_cast<SharedAddress>(layout.rows()) + number % kRowSlots * kRowBytes;
    }
};

//! Maxima and sums of rows, from every warp to the blocks that share them, by way of barriers that count bytes: other
//! work is done between sending and receiving.
struct RingExchange
{
    RingLayout layout;
    SharedAddress base;
    int block; //!< this one, of those that share rows
    int kind;  //!< below kExchangeKinds, each with numbers and memory of its own

    ATTNGRAFT_DEVICE void makeBarriers() const
    {
        for (unsigned i = 0; i < kExchangesAtOnce; ++i)
        {
            makeCountingBarrier(barrier(i), 1);
        }
    }

    //! `exchange`: the number of it, from 0 on.
    ATTNGRAFT_DEVICE void send(unsigned exchange, RowState const& ofWarp) const
    {
        int const lane = static_cast<int>(threadIdx.x) % kWarpThreads;
        int const warp = static_cast<int>(threadIdx.x) / kWarpThreads;
        if (threadIdx.x == 0)
        {
            arriveExpecting(barrier(exchange), layout.exchangedBytes());
        }
        if (lane < layout.blocks)
        {
            int const place = (block * kWarps + warp) * kStateBytes;
            sendToBlock(states(exchange) + static_cast<SharedAddress>(place), bitsOf(ofWarp), barrier(exchange), lane);
        }
    }

    //! The row's.
    ATTNGRAFT_DEVICE RowState receive(unsigned exchange, float factor) const
    {
        waitForPhase(barrier(exchange), exchange / kExchangesAtOnce & 1U);
        if (layout.blocks == 1)
        {
            auto const place = static_cast<SharedAddress>(threadIdx.x % kWarps * kStateBytes);
            return joinLanes<kWarps>(stateOf(loadSharedPair(states(exchange) + place)), factor);
        }
        RowState mine;
        for (int i = static_cast<int>(threadIdx.x) % kWarpThreads; i < layout.blocks * kWarps; i += kWarpThreads)
        {
            auto const place = static_cast<SharedAddress>(i * kStateBytes);
            mine.add(stateOf(loadSharedPair(states(exchange) + place)), factor);
        }
        return joinLanes<kWarpThreads>(mine, factor);
    }

private:
    static constexpr int kWarps = kStreamThreads / kWarpThreads;
    static_assert((kWarps & (kWarps - 1)) == 0, "lanes are joined in pairs");

    ATTNGRAFT_DEVICE int slot(unsigned exchange) const
    {
        return kind * kExchangesAtOnce + static_cast<int>(exchange % kExchangesAtOnce);
    }

    ATTNGRAFT_DEVICE SharedAddress barrier(unsigned exchange) const
    {
        return base + static_cast<SharedAddress>(layout.exchangeBarriers() + slot(exchange) * kBarrierBytes);
    }

    ATTNGRAFT_DEVICE SharedAddress states(unsigned exchange) const
    {
        return base + static_cast<SharedAddress>(layout.states() + slot(exchange) * layout.exchangedBytes());
    }
};

} // namespace attngraft
