// The attention kernel of compute capability 9.0 whose warp groups have parts: one loads for the others, which
// multiply and reduce, each at its own pace. Counting barriers tell when a stage of shared memory is full or empty.
//
// Within a warp group the products of one tile of keys run while the exponentials of the next are computed, as in
// FlashAttention-3 (Shah et al., arXiv:2407.08608).
#pragma once

#include "attention_output.cuh"
#include "warpgroup_loading.cuh"

namespace attngraft
{

template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap>
struct SpecialisedBlock : WarpgroupLoading<Math, Tile, kMask, kMayCap>
{
    using Base = WarpgroupLoading<Math, Tile, kMask, kMayCap>;
    using T = typename Base::T;
    using Rows = typename Base::Rows;
    using Mask = typename Base::Mask;
    using Place = typename Base::Place;
    using Base::copies;
    using Base::emptyKeys;
    using Base::emptyValues;
    using Base::fullKeys;
    using Base::fullValues;
    using Base::giveBack;
    using Base::kConsumerBarrier;
    using Base::kConsumerThreads;
    using Base::keyTiles;
    using Base::kFirstGroupBarrier;
    using Base::kFirstTurnBarrier;
    using Base::kFullArrivals;
    using Base::kIsFloat;
    using Base::pass;
    using Base::place;
    using Base::plan;
    using Base::queryTile;
    using Base::range;
    using Base::valueTiles;

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
                this->produceRounded();
            }
            else
            {
                this->produce();
            }
        }
        else
        {
            acquireRegisters<Tile::kConsumerRegisters>();
            consume(warpgroup);
        }
    }

private:
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
            isLast = !this->goesOn(chosen != 0);
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
    ATTNGRAFT_DEVICE int attend(int warpgroup, Place& keys, Place& values, Rows& rows, Mask& mask)
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
            mask.fetch(plan, key);
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
                mask.fetch(plan, key);
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
};

template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    specialisedAttentionKernel(__grid_constant__ AttentionPlan const plan, __grid_constant__ BulkCopies const copies)
{
    SpecialisedBlock<Math, Tile, kMask, kMayCap> block(plan, copies);
    block.run();
}

} // namespace attngraft
