// Maximum and sum of a long row over all warps of the blocks that share it. Every warp sends what it found to all of
// them, by way of barriers that count bytes: the cluster's own barrier would have each thread wait for all its writes
// and throw away the first level of cache (measured on an H200 where two blocks share a row: 16% slower).
#pragma once

#include "bulk_instructions.cuh"
#include "row_reduction.cuh"

namespace attngraft
{

template <int threads, bool isCluster>
struct LongExchange
{
    static constexpr int kWarps = threads / kWarpThreads;

    int blocks; //!< that share the row
    int block;  //!< this one

    ATTNGRAFT_DEVICE void makeBarriers() const
    {
        for (int number = 0; isCluster && number < kExchanges; ++number)
        {
            makeCountingBarrier(barrier(number), 1);
        }
    }

    //! For all threads, before the first exchange and before they wait at any barrier that one of them made.
    ATTNGRAFT_DEVICE void meet() const
    {
        if constexpr (isCluster)
        {
            arriveAtClusterWithBarriers();
            waitForCluster();
        }
        else
        {
            synchronizeBlock();
        }
    }

    //! `number`: of the exchange, each has memory of its own.
    ATTNGRAFT_DEVICE RowState operator()(RowState const& ofWarp, float factor, int number) const
    {
        if constexpr (!isCluster)
        {
            return RowExchange<threads, 1, false>{0, 1}(ofWarp, factor, number);
        }
        int const lane = static_cast<int>(threadIdx.x) % kWarpThreads;
        int const place = (block * kWarps + static_cast<int>(threadIdx.x) / kWarpThreads) * kStateBytes;
        if (threadIdx.x == 0)
        {
            arriveExpecting(barrier(number), blocks * kWarps * kStateBytes);
        }
        if (lane < blocks)
        {
            sendToBlock(states(number) + static_cast<SharedAddress>(place), bitsOf(ofWarp), barrier(number), lane);
        }
        waitForPhase(barrier(number), 0);
        return joinStates(blocks * kWarps, lane, factor,
            [number](int i) { return loadSharedPair(states(number) + static_cast<SharedAddress>(i * kStateBytes)); });
    }

private:
    static ATTNGRAFT_DEVICE SharedAddress barrier(int number)
    {
        return dynamicSharedMemory() + static_cast<SharedAddress>(kExchangeBarriers + number * kBarrierBytes);
    }

    static ATTNGRAFT_DEVICE SharedAddress states(int number)
    {
        return dynamicSharedMemory() + static_cast<SharedAddress>(number * kExchangeBytes);
    }
};

} // namespace attngraft
