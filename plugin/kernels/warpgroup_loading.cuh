// The warp group of the specialised kernels that loads keys and values for the others, and the barriers over which it
// speaks with them.
#pragma once

#include "rounding_loader.cuh"
#include "warpgroup_work.cuh"

namespace attngraft
{

//! Base of the specialised kernels' block objects: what loads.
template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap>
struct WarpgroupLoading : WarpgroupWork<Math, Tile, kMask, kMayCap>
{
    using Base = WarpgroupWork<Math, Tile, kMask, kMayCap>;
    using T = typename Base::T;
    using Place = RingPlace<Tile::kStages>;
    using Base::copies;
    using Base::keyTiles;
    using Base::range;
    using Base::valueTiles;

    //! Barriers of the hardware, beside that of the whole block.
    static constexpr int kFirstGroupBarrier = 1;
    static constexpr int kConsumerBarrier = kFirstGroupBarrier + Tile::kConsumers;
    static constexpr int kProducerBarrier = kConsumerBarrier + 1;
    static constexpr int kFirstTurnBarrier = kProducerBarrier + 1;
    static constexpr int kConsumerThreads = Tile::kConsumers * kWarpgroupThreads;

    static constexpr bool kIsFloat = sizeof(T) == 4;
    static constexpr int kFullArrivals = kIsFloat ? kWarpgroupThreads / 32 : 1; //!< of a stage

    ATTNGRAFT_DEVICE WarpgroupLoading(AttentionPlan const& plan_, BulkCopies const& copies_)
        : Base(plan_, copies_)
    { }

    ATTNGRAFT_DEVICE SharedAddress fullKeys(int stage) const
    {
        return this->barrier(stage);
    }
    ATTNGRAFT_DEVICE SharedAddress fullValues(int stage) const
    {
        return this->barrier(Tile::kStages + stage);
    }
    ATTNGRAFT_DEVICE SharedAddress emptyKeys(int stage) const
    {
        return this->barrier(2 * Tile::kStages + stage);
    }
    ATTNGRAFT_DEVICE SharedAddress emptyValues(int stage) const
    {
        return this->barrier(3 * Tile::kStages + stage);
    }

    //! Whether another pass follows, for rows without any key. All threads ask.
    ATTNGRAFT_DEVICE bool goesOn(bool hasEmptyRow)
    {
        if (!this->mayGoOn() || !anyOfThreads(0, Tile::kThreads, hasEmptyRow))
        {
            return false;
        }
        this->goOn();
        this->beginPass(); // scans nothing: only a masked pass does
        this->freeQueryTile();
        return true;
    }

    ATTNGRAFT_DEVICE void produce()
    {
        uint32_t const thread = threadIdx.x % kWarpgroupThreads;
        Place next;
        while (true)
        {
            for (int key = this->firstTile(); key < range.end; key = this->nextTile(key + Tile::kKeys))
            {
                SharedAddress const keyTile = keyTiles + next.stage * Base::kKeyStageBytes;
                bring(
                    emptyKeys(next.stage), next.parity ^ 1U, fullKeys(next.stage), thread, key, Base::kKeyStageBytes,
                    [&](SharedAddress full) { this->copyKeys(keyTile, full, key); },
                    [&] { this->template loadKeys<kWarpgroupThreads>(keyTile, thread, key); });
                SharedAddress const valueTile = valueTiles + next.stage * Base::kValueStageBytes;
                bring(
                    emptyValues(next.stage), next.parity ^ 1U, fullValues(next.stage), thread, key,
                    Base::kValueStageBytes, [&](SharedAddress full) { this->copyValues(valueTile, full, key); },
                    [&] { this->template loadValues<kWarpgroupThreads>(valueTile, thread, key); });
                next.advance();
            }
            if (!goesOn(false))
            {
                return;
            }
            if (thread == 0 && copies.areQueriesUsable)
            {
                this->copyQueries();
            }
        }
    }

    //! The same for fp32: see RoundingLoader. Loads are under way while the threads wait for a stage to be empty.
    ATTNGRAFT_DEVICE void produceRounded()
    {
        using Loader = RoundingLoader<Tile>;
        Loader loader(*this, threadIdx.x % kWarpgroupThreads);
        Place next;
        do
        {
            int key = this->firstTile();
            bool isWhole = this->isWhole(key);
#pragma unroll
            for (int chunk = 0; chunk < Tile::kHeldChunks; ++chunk)
            {
                loader.load(*this, chunk, key, isWhole);
            }
            while (key < range.end)
            {
                int const following = this->nextTile(key + Tile::kKeys);
                bool const isFollowingWhole = this->isWhole(following);
#pragma unroll
                for (int chunk = 0; chunk < Loader::kChunks; ++chunk)
                {
                    bring(loader, next, chunk);
                    int const ahead = chunk + Tile::kHeldChunks;
                    bool const isOfThis = ahead < Loader::kChunks;
                    loader.load(*this, ahead % Loader::kChunks, isOfThis ? key : following,
                        isOfThis ? isWhole : isFollowingWhole);
                }
                key = following;
                isWhole = isFollowingWhole;
                next.advance();
            }
        } while (goesOn(false));
    }

    //! A warp says that it is done with a stage.
    static ATTNGRAFT_DEVICE void giveBack(SharedAddress barrier)
    {
        if (laneOfThread() == 0)
        {
            arrive(barrier);
        }
    }

private:
    //! A chunk to shared memory, the first of a stage once that is empty; after the last one it is full.
    ATTNGRAFT_DEVICE void bring(RoundingLoader<Tile>& loader, Place const& next, int chunk) const
    {
        constexpr int kKeyChunks = RoundingLoader<Tile>::kKeyChunks;
        loader.round(chunk);
        if (chunk == 0 || chunk == kKeyChunks)
        {
            waitForPhase(chunk == 0 ? emptyKeys(next.stage) : emptyValues(next.stage), next.parity ^ 1U);
        }
        loader.store(
            keyTiles + next.stage * Base::kKeyStageBytes, valueTiles + next.stage * Base::kValueStageBytes, chunk);
        if (chunk == kKeyChunks - 1 || chunk == RoundingLoader<Tile>::kChunks - 1)
        {
            publishToAsyncProxy();
            synchronizeWarp();
            giveBack(chunk < kKeyChunks ? fullKeys(next.stage) : fullValues(next.stage));
        }
    }

    //! A tile of keys or values to shared memory, once the stage is empty: by the copy engine, or by all threads where
    //! not every key is read. No thread waits that others do not wait for: it might fall two phases behind, which their
    //! parity does not tell.
    template <typename Copy, typename Load>
    ATTNGRAFT_DEVICE void bring(SharedAddress empty, uint32_t parity, SharedAddress full, uint32_t thread, int key,
        int bytes, Copy copy, Load load) const
    {
        if (copies.isUsable && this->isBoxRead(key))
        {
            if (thread == 0)
            {
                waitForPhase(empty, parity);
                arriveExpecting(full, bytes);
                copy(full);
            }
            return;
        }
        synchronizeThreads(kProducerBarrier, kWarpgroupThreads); // nor is any two phases ahead
        waitForPhase(empty, parity);
        load();
        commitCopies();
        waitForCopies<0>();
        publishToAsyncProxy();
        synchronizeThreads(kProducerBarrier, kWarpgroupThreads);
        if (thread == 0)
        {
            arrive(full);
        }
    }
};

} // namespace attngraft
