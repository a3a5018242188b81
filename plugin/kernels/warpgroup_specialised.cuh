// The attention kernel of compute capability 9.0 whose warp groups have parts: one loads for the others, which
// multiply and reduce, each at its own pace. Counting barriers tell when a stage of shared memory is full or empty.
//
// Within a warp group the products of one tile of keys run while the exponentials of the next are computed, as in
// FlashAttention-3 (Shah et al., arXiv:2407.08608).
#pragma once

#include "attention_output.cuh"
#include "rounding_loader.cuh"
#include "warpgroup_work.cuh"

namespace attngraft
{

template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap>
struct SpecialisedBlock : WarpgroupWork<Math, Tile, kMask, kMayCap>
{
    using Base = WarpgroupWork<Math, Tile, kMask, kMayCap>;
    using T = typename Base::T;
    using Rows = typename Base::Rows;
    using Mask = typename Base::Mask;
    using Place = RingPlace<Tile::kStages>;
    using Base::copies;
    using Base::keyTiles;
    using Base::pass;
    using Base::place;
    using Base::plan;
    using Base::queryTile;
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

    ATTNGRAFT_DEVICE SpecialisedBlock(AttentionPlan const& plan_, BulkCopies const& copies_)
        : Base(plan_, copies_)
    { }

    ATTNGRAFT_DEVICE void run()
    {
        bool const isFirstProducer = threadIdx.x == kConsumerThreads;
        if (isFirstProducer)
        {
            this->prefetchMaps();
            makeCountingBarrier(this->fullQueries(), 1);
            for (int stage = 0; stage < Tile::kStages; ++stage)
            {
                makeCountingBarrier(fullKeys(stage), kFullArrivals);
                makeCountingBarrier(fullValues(stage), kFullArrivals);
                makeCountingBarrier(emptyKeys(stage), kConsumerThreads / 32);
                makeCountingBarrier(emptyValues(stage), kConsumerThreads / 32);
            }
            publishCountingBarriers();
        }
        waitForEarlierKernels();
        letNextKernelBegin();
        if (isFirstProducer && copies.areQueriesUsable)
        {
            this->copyQueries(); // the thread that made the barriers needs no other's word for them
        }
        this->beginPass();
        synchronizeBlock();
        int const warpgroup = warpgroupOfThread();
        if (warpgroup == Tile::kConsumers)
        {
            releaseRegisters<Tile::kProducerRegisters>();
            if constexpr (kIsFloat)
            {
                produceRounded();
            }
            else
            {
                produce();
            }
        }
        else
        {
            acquireRegisters<Tile::kConsumerRegisters>();
            consume(warpgroup);
        }
    }

private:
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

    ATTNGRAFT_DEVICE void consume(int warpgroup)
    {
        int const firstRow = warpOfThread() * Tile::kRowsPerWarp;
        Place keys;
        Place values;
        uint32_t chosen = 0;
        Rows rows;
        Mask mask;
        bool isLast = false;
        while (!isLast)
        {
            if (!copies.areQueriesUsable)
            {
                loadOwnQueries(warpgroup, rows);
            }
            mask.locate(plan, place, firstRow, pass);
            rows.clear();
            if (copies.areQueriesUsable)
            {
                this->waitForQueries();
            }
            int rest;
            if constexpr (Tile::kWeighsInPlace)
            {
                rest = attendInPlace(warpgroup, keys, values, rows, mask);
            }
            else
            {
                rest = attend(warpgroup, keys, values, rows, mask);
            }
            leaveOut(rest, keys, values);
            rows.finishSums();
            // The context leaves through the queries' tile: no product may read it any more.
            if constexpr (Tile::kHead * static_cast<int>(sizeof(T)) <= 128)
            {
                synchronizeThreads(kFirstGroupBarrier + warpgroup, kWarpgroupThreads);
            }
            else
            {
                synchronizeThreads(kConsumerBarrier, kConsumerThreads);
            }
            AttentionOutput<T, Tile, true, typename Rows::Rows> const output{
                plan, place, rows, firstRow, queryTile, this->unit(), computedHere(laneOfThread())};
            chosen = output.store(pass, chosen);
            isLast = !goesOn(chosen != 0);
        }
    }

    ATTNGRAFT_DEVICE void loadOwnQueries(int warpgroup, Rows& rows)
    {
        this->template loadQueries<kWarpgroupRows, kWarpgroupThreads>(
            threadIdx.x % kWarpgroupThreads, warpgroup * kWarpgroupRows);
        commitCopies();
        waitForCopies<0>();
        if constexpr (kIsFloat && !Tile::kKeepsQuery)
        {
            this->template roundQueries<kWarpgroupRows, kWarpgroupThreads>(
                threadIdx.x % kWarpgroupThreads, warpgroup * kWarpgroupRows);
        }
        publishToAsyncProxy();
        synchronizeThreads(kFirstGroupBarrier + warpgroup, kWarpgroupThreads);
        if constexpr (Tile::kKeepsQuery)
        {
            rows.keepQueries(queryTile, warpOfThread() * Tile::kRowsPerWarp);
        }
    }

    //! All tiles of keys, one after another: other warp groups fill the gaps. Returns the first tile that is left.
    ATTNGRAFT_DEVICE int attendInPlace(int warpgroup, Place& keys, Place& values, Rows& rows, Mask const& mask)
    {
        int const firstRow = warpOfThread() * Tile::kRowsPerWarp;
        typename Rows::Shrink shrink;
        float const factor = this->factor();
        int const end = endOf(warpgroup);
        int key = this->firstTile();
        for (; key < end; key = this->nextTile(key + Tile::kKeys))
        {
            waitForPhase(fullKeys(keys.stage), keys.parity);
            rows.multiplyKeys(queryTile, warpgroup, keyTiles + keys.stage * Base::kKeyStageBytes);
            giveBack(emptyKeys(keys.stage));
            keys.advance();
            if (this->weigh(key, firstRow, factor, rows, mask, shrink))
            {
                rows.scaleContext(shrink);
            }
            rows.packWeights();
            waitForPhase(fullValues(values.stage), values.parity);
            rows.multiplyValues(valueTiles + values.stage * Base::kValueStageBytes);
            giveBack(emptyValues(values.stage));
            values.advance();
        }
        return key;
    }

    //! The same. A tile's scores are computed while the context takes up the tile before it.
    ATTNGRAFT_DEVICE int attend(int warpgroup, Place& keys, Place& values, Rows& rows, Mask const& mask)
    {
        int const firstRow = warpOfThread() * Tile::kRowsPerWarp;
        int key = this->firstTile();
        int const end = endOf(warpgroup);
        if (key < end)
        {
            if (warpgroup == Tile::kConsumers - 1)
            {
                passTurn(warpgroup); // the first has it first
            }
            typename Rows::Shrink shrink;
            float const factor = this->factor();
            waitForPhase(fullKeys(keys.stage), keys.parity);
            waitForTurn(warpgroup);
            pinRegisters(rows.scores[0]);
            fenceProducts();
            rows.startScores(queryTile, warpgroup, keyTiles + keys.stage * Base::kKeyStageBytes);
            passTurn(warpgroup);
            waitForProducts<0>();
            pinRegisters(rows.scores[0]);
            giveBack(emptyKeys(keys.stage));
            keys.advance();
            this->weigh(key, firstRow, factor, rows, mask, shrink);
            rows.packWeights();
            for (key = this->nextTile(key + Tile::kKeys); key < end; key = this->nextTile(key + Tile::kKeys))
            {
                waitForPhase(fullKeys(keys.stage), keys.parity);
                waitForPhase(fullValues(values.stage), values.parity);
                waitForTurn(warpgroup);
                pinRegisters(rows.scores[0]);
                pinRegisters(rows.context[0]);
                fenceProducts();
                rows.startScores(queryTile, warpgroup, keyTiles + keys.stage * Base::kKeyStageBytes);
                rows.startContext(valueTiles + values.stage * Base::kValueStageBytes);
                passTurn(warpgroup);
                waitForProducts<1>();
                pinRegisters(rows.scores[0]);
                giveBack(emptyKeys(keys.stage));
                keys.advance();
                bool const isRaised = this->weigh(key, firstRow, factor, rows, mask, shrink);
                waitForProducts<0>();
                pinRegisters(rows.context[0]);
                giveBack(emptyValues(values.stage));
                values.advance();
                if (isRaised)
                {
                    rows.scaleContext(shrink);
                }
                rows.packWeights();
            }
            if (warpgroup == 0)
            {
                waitForTurn(warpgroup); // the last passed it on
            }
            waitForPhase(fullValues(values.stage), values.parity);
            pinRegisters(rows.context[0]);
            fenceProducts();
            rows.startContext(valueTiles + values.stage * Base::kValueStageBytes);
            waitForProducts<0>();
            pinRegisters(rows.context[0]);
            giveBack(emptyValues(values.stage));
            values.advance();
        }
        return key;
    }

    //! Tiles that only later rows of the block need.
    ATTNGRAFT_DEVICE void leaveOut(int key, Place& keys, Place& values) const
    {
        for (; key < range.end; key = this->nextTile(key + Tile::kKeys))
        {
            waitForPhase(fullKeys(keys.stage), keys.parity);
            synchronizeWarp(); // no lane falls two phases behind
            giveBack(emptyKeys(keys.stage));
            keys.advance();
            waitForPhase(fullValues(values.stage), values.parity);
            synchronizeWarp();
            giveBack(emptyValues(values.stage));
            values.advance();
        }
    }

    //! Turns keep the warp groups apart, so that some compute exponentials while one has the tensor cores.
    ATTNGRAFT_DEVICE void waitForTurn(int warpgroup) const
    {
        if constexpr (Tile::kTakesTurns)
        {
            synchronizeThreads(kFirstTurnBarrier + warpgroup, 2 * kWarpgroupThreads);
        }
    }

    ATTNGRAFT_DEVICE void passTurn(int warpgroup) const
    {
        if constexpr (Tile::kTakesTurns)
        {
            int const next = warpgroup + 1 == Tile::kConsumers ? 0 : warpgroup + 1;
            arriveThreads(kFirstTurnBarrier + next, 2 * kWarpgroupThreads);
        }
    }

    //! The end of the keys that the warp group's rows may attend to: that of its last row.
    ATTNGRAFT_DEVICE int endOf(int warpgroup) const
    {
        int const last = (warpgroup + 1) * kWarpgroupRows - 1;
        if (Tile::kTakesTurns || pass != MaskPass::kMasked || last >= place.rows)
        {
            return range.end;
        }
        int64_t const end = place.keysOf(plan, last).end;
        return end < range.end ? static_cast<int>(end) : range.end;
    }

    //! A warp says that it is done with a stage.
    static ATTNGRAFT_DEVICE void giveBack(SharedAddress barrier)
    {
        if (laneOfThread() == 0)
        {
            arrive(barrier);
        }
    }
};

template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    specialisedAttentionKernel(__grid_constant__ AttentionPlan const plan, __grid_constant__ BulkCopies const copies)
{
    SpecialisedBlock<Math, Tile, kMask, kMayCap> block(plan, copies);
    block.run();
}

} // namespace attngraft
