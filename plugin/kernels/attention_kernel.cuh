// The attention kernel whose threads all load, multiply and reduce: a block's passes over its keys.
#pragma once

#include "attention_output.cuh"
#include "attention_tile.cuh"
#include "attention_work.cuh"

namespace attngraft
{

template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap, bool kVectorwise>
struct AttentionBlock : BlockWork<typename Math::Element, Tile, kMask, kVectorwise>
{
    using T = typename Math::Element;
    using Work = BlockWork<T, Tile, kMask, kVectorwise>;
    using Work::bits;
    using Work::keyTiles;
    using Work::pass;
    using Work::place;
    using Work::plan;
    using Work::queryTile;
    using Work::range;
    using Work::valueTiles;

    using Warp = AttentionWarp<Math, Tile>;

    int const firstRow; //!< of the warp, in the block
    Warp warp;
    WarpMask<T, Tile, kMask, kMayCap> mask;

    ATTNGRAFT_DEVICE explicit AttentionBlock(AttentionPlan const& plan_)
        : Work(plan_)
        , firstRow(warpOfThread() * Tile::kRowsPerWarp)
    { }

    ATTNGRAFT_DEVICE void run()
    {
        waitForEarlierKernels();
        uint32_t chosen = 0;
        while (true) // twice at most, in one loop so that the code is there once
        {
            attend();
            letNextKernelBegin();
            AttentionOutput<T, Tile, kVectorwise, typename Warp::Rows> const output{
                plan, place, warp, firstRow, queryTile, this->unit(), computedHere(laneOfThread())};
            if (plan.splits > 1)
            {
                output.storePartial();
                return;
            }
            chosen = output.store(pass, chosen);
            if (!this->mayGoOn() || !anyInBlock(chosen != 0))
            {
                return;
            }
            this->goOn();
        }
    }

private:
    //! Scores to context, over all keys of the block.
    ATTNGRAFT_DEVICE void attend()
    {
        this->template loadQueries<Tile::kRows, Tile::kThreads>(threadIdx.x, 0);
        this->beginPass();
        if (this->scansKeys())
        {
            synchronizeBlock();
        }
        mask.locate(plan, place, firstRow, pass);
        warp.clear();

        int loading = this->firstTile();
        for (int stage = 0; stage < Tile::kStages - 1; ++stage)
        {
            loading = loadKeysAndValues(loading, stage);
        }
        int stage = 0;
        int loadStage = Tile::kStages - 1;
        bool isFirst = true;
        for (int firstKey = this->firstTile(); firstKey < range.end; firstKey = this->nextTile(firstKey + Tile::kKeys))
        {
            if constexpr (Tile::kStages == 1)
            {
                synchronizeBlock(); // all are done with the tile before
                loading = loadKeysAndValues(loading, 0);
                waitForCopies<0>();
                synchronizeBlock();
            }
            else
            {
                waitForCopies<Tile::kStages - 2>();
                synchronizeBlock(); // the tile is there for all, and all are done with the one before
                loading = loadKeysAndValues(loading, loadStage);
            }
            if (isFirst)
            {
                warp.keepQueries(queryTile, firstRow);
                isFirst = false;
            }
            attendTile(firstKey, stage);
            stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
            loadStage = loadStage + 1 == Tile::kStages ? 0 : loadStage + 1;
        }
        waitForCopies<0>();
        synchronizeBlock(); // the context leaves through the queries' tile
        warp.finishSums();
    }

    ATTNGRAFT_DEVICE void attendTile(int firstKey, int stage)
    {
        float const factor = this->factor();
        warp.multiplyKeys(queryTile, firstRow, keyTiles + stage * Work::kKeyStageBytes);
        mask.apply(plan, place, bits, firstRow, firstKey, pass, warp.scores);
        typename Warp::Rows::Shrink shrink;
        if (warp.raiseReferences(factor, shrink))
        {
            warp.scaleContext(shrink);
        }
        warp.template multiplyValues<kScalesScores<kMask>>(valueTiles + stage * Work::kValueStageBytes, factor);
        warp.setBounds(factor);
    }

    //! Starts the copy of the tile at `firstKey`, if it is one, and returns the next tile to load.
    ATTNGRAFT_DEVICE int loadKeysAndValues(int firstKey, int stage)
    {
        uint32_t const thread = threadIdx.x;
        if (firstKey < range.end)
        {
            this->template loadKeys<Tile::kThreads>(keyTiles + stage * Work::kKeyStageBytes, thread, firstKey);
            this->template loadValues<Tile::kThreads>(valueTiles + stage * Work::kValueStageBytes, thread, firstKey);
            firstKey = this->nextTile(firstKey + Tile::kKeys);
        }
        commitCopies();
        return firstKey;
    }
};

template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap, bool kVectorwise>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    attentionKernel(__grid_constant__ AttentionPlan const plan)
{
    AttentionBlock<Math, Tile, kMask, kMayCap, kVectorwise> block(plan);
    block.run();
}

} // namespace attngraft
