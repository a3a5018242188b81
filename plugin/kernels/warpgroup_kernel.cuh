// The attention kernel of compute capability 9.0 whose threads all multiply and reduce, while the copy engine loads.
// Small blocks, of which several share a multiprocessor and fill each other's gaps: for short sequences and causal
// masks.
#pragma once

#include "attention_output.cuh"
#include "warpgroup_work.cuh"

namespace attngraft
{

template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap>
struct WarpgroupBlock : WarpgroupWork<Math, Tile, kMask, kMayCap>
{
    using Base = WarpgroupWork<Math, Tile, kMask, kMayCap>;
    using T = typename Base::T;
    using Rows = typename Base::Rows;
    using Mask = typename Base::Mask;
    using Base::copies;
    using Base::keyTiles;
    using Base::pass;
    using Base::place;
    using Base::plan;
    using Base::queryTile;
    using Base::range;
    using Base::valueTiles;

    //! With a third stage the products of a tile of values run while the exponentials of the next tile are computed.
    static constexpr bool kOverlaps = Tile::kStages > 2;
    static constexpr int kTilesAhead = Tile::kStages - (kOverlaps ? 2 : 1);

    RingPlace<Tile::kStages> next; //!< of the tile that is computed next
    int loading{0};                //!< first key of the tile that is loaded next
    int loadStage{0};
    Rows rows;
    Mask mask;

    ATTNGRAFT_DEVICE WarpgroupBlock(AttentionPlan const& plan_, BulkCopies const& copies_)
        : Base(plan_, copies_)
    { }

    ATTNGRAFT_DEVICE void run()
    {
        if (threadIdx.x == 0)
        {
            this->prefetchMaps();
            makeCountingBarrier(this->fullQueries(), 1);
            for (int stage = 0; stage < Tile::kStages; ++stage)
            {
                makeCountingBarrier(full(stage), 1);
            }
            publishCountingBarriers();
        }
        waitForEarlierKernels();
        letNextKernelBegin();
        uint32_t chosen = 0;
        while (true) // twice at most
        {
            bringQueries();
            attend();
            AttentionOutput<T, Tile, true, typename Rows::Rows> const output{
                plan, place, rows, firstRow(), queryTile, this->unit(), computedHere(laneOfThread())};
            chosen = output.store(pass, chosen);
            if (!this->mayGoOn() || !anyInBlock(chosen != 0))
            {
                return;
            }
            this->goOn();
            this->freeQueryTile();
        }
    }

private:
    //! Of the thread, among those of the block.
    static ATTNGRAFT_DEVICE int warpgroup()
    {
        return Tile::kThreads == kWarpgroupThreads ? 0 : warpgroupOfThread();
    }

    static ATTNGRAFT_DEVICE int firstRow()
    {
        return warpOfThread() * Tile::kRowsPerWarp;
    }

    ATTNGRAFT_DEVICE SharedAddress full(int stage) const
    {
        return this->barrier(stage);
    }

    //! Starts the copy of the queries as early as can be: the thread that made the barriers needs no other's word for
    //! them.
    ATTNGRAFT_DEVICE void bringQueries()
    {
        if (!copies.areQueriesUsable)
        {
            this->template loadQueries<Tile::kRows, Tile::kThreads>(threadIdx.x, 0);
            commitCopies();
        }
        else if (threadIdx.x == 0)
        {
            this->copyQueries();
        }
    }

    //! Scores to context, over all keys of the block.
    ATTNGRAFT_DEVICE void attend()
    {
        this->beginPass();
        if (this->scansKeys())
        {
            synchronizeBlock();
        }
        loading = this->firstTile();
        loadStage = next.stage;
        for (int i = 0; i < kTilesAhead; ++i)
        {
            loadNext();
        }
        mask.locate(plan, place, firstRow(), pass);
        rows.clear();
        if (!copies.areQueriesUsable)
        {
            waitForCopies<0>();
            publishToAsyncProxy();
        }
        synchronizeBlock(); // every thread knows of the barriers, and of queries that others copied
        if (copies.areQueriesUsable)
        {
            this->waitForQueries();
        }

        int key = this->firstTile();
        if constexpr (kOverlaps)
        {
            attendOverlapped(key);
        }
        else
        {
            typename Rows::Shrink shrink;
            float const factor = this->factor();
            for (; key < range.end; key = this->nextTile(key + Tile::kKeys))
            {
                mask.fetch(plan, key);
                waitForTile(key);
                rows.multiplyKeys(queryTile, warpgroup(), keyTile(next.stage));
                if (this->weigh(key, firstRow(), factor, rows, mask, shrink))
                {
                    rows.scaleContext(shrink);
                }
                rows.packWeights();
                rows.multiplyValues(valueTile(next.stage));
                next.advance();
            }
        }
        rows.finishSums();
        synchronizeBlock(); // the context leaves through the queries' tile
    }

    ATTNGRAFT_DEVICE void attendOverlapped(int key)
    {
        if (key >= range.end)
        {
            return;
        }
        int const warpgroup = this->warpgroup();
        typename Rows::Shrink shrink;
        float const factor = this->factor();
        mask.fetch(plan, key);
        waitForTile(key);
        rows.multiplyKeys(queryTile, warpgroup, keyTile(next.stage));
        this->weigh(key, firstRow(), factor, rows, mask, shrink);
        rows.packWeights();
        int before = next.stage;
        next.advance();
        for (key = this->nextTile(key + Tile::kKeys); key < range.end; key = this->nextTile(key + Tile::kKeys))
        {
            mask.fetch(plan, key);
            waitForTile(key);
            pinRegisters(rows.scores[0]);
            pinRegisters(rows.context[0]);
            fenceProducts();
            rows.startScores(queryTile, warpgroup, keyTile(next.stage));
            rows.startContext(valueTile(before));
            waitForProducts<1>();
            pinRegisters(rows.scores[0]);
            bool const isRaised = this->weigh(key, firstRow(), factor, rows, mask, shrink);
            waitForProducts<0>();
            pinRegisters(rows.context[0]);
            if (isRaised)
            {
                rows.scaleContext(shrink);
            }
            rows.packWeights();
            before = next.stage;
            next.advance();
        }
        rows.multiplyValues(valueTile(before));
    }

    ATTNGRAFT_DEVICE SharedAddress keyTile(int stage) const
    {
        return keyTiles + stage * Base::kKeyStageBytes;
    }

    ATTNGRAFT_DEVICE SharedAddress valueTile(int stage) const
    {
        return valueTiles + stage * Base::kValueStageBytes;
    }

    //! The tile at `key` is there for all, all are done with the stage that is loaded next, and its load begins.
    ATTNGRAFT_DEVICE void waitForTile(int key)
    {
        waitForPhase(full(next.stage), next.parity);
        if (!copies.isUsable)
        {
            waitForCopies<0>();
            publishToAsyncProxy();
        }
        else if (!this->isBoxRead(key))
        {
            clearUnread(valueTile(next.stage), key);
            publishToAsyncProxy();
        }
        synchronizeBlock();
        loadNext();
    }

    //! Values of keys that are not read become zeros: whatever lies there, NaN too, has no part in the products. Scores
    //! of such keys are masked whatever they are.
    ATTNGRAFT_DEVICE void clearUnread(SharedAddress tile, int firstKey) const
    {
        constexpr uint32_t kVectors = Tile::kValueBytes / kVectorBytes;
        for (uint32_t index = threadIdx.x; index < Tile::kKeys * kVectors; index += Tile::kThreads)
        {
            auto const row = static_cast<int>(index / kVectors);
            auto const vector = static_cast<int>(index % kVectors);
            if (!this->isRead(firstKey + row))
            {
                storeShared(tile + TileLayouts<Tile>::Value::at(row, vector), uint4{});
            }
        }
    }

    //! Starts the copy of a tile, if there is another one.
    ATTNGRAFT_DEVICE void loadNext()
    {
        if (loading >= range.end)
        {
            return;
        }
        uint32_t const thread = threadIdx.x;
        if (copies.isUsable)
        {
            if (thread == 0)
            {
                arriveExpecting(full(loadStage), Base::kKeyStageBytes + Base::kValueStageBytes);
                this->copyKeys(keyTile(loadStage), full(loadStage), loading);
                this->copyValues(valueTile(loadStage), full(loadStage), loading);
            }
        }
        else
        {
            this->template loadKeys<Tile::kThreads>(keyTile(loadStage), thread, loading);
            this->template loadValues<Tile::kThreads>(valueTile(loadStage), thread, loading);
            commitCopies();
            if (thread == 0)
            {
                arrive(full(loadStage)); // who waits for this tile waits for the copies too
            }
        }
        loading = this->nextTile(loading + Tile::kKeys);
        loadStage = loadStage + 1 == Tile::kStages ? 0 : loadStage + 1;
    }
};

template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    warpgroupAttentionKernel(__grid_constant__ AttentionPlan const plan, __grid_constant__ BulkCopies const copies)
{
    WarpgroupBlock<Math, Tile, kMask, kMayCap> block(plan, copies);
    block.run();
}

} // namespace attngraft
