// What the kernels of warp groups share: tiles that come by bulk copies, and scores that become weights.
#pragma once

#include "attention_work.cuh"
#include "bulk_copies.h"
#include "warpgroup_tile.cuh"

namespace attngraft
{

//! A place in a ring of stages, and the parity of the phase in which it is next full (for who empties it).
template <int stages>
struct RingPlace
{
    int stage{0};
    uint32_t parity{0};

    ATTNGRAFT_DEVICE void advance()
    {
        stage = stage + 1 == stages ? 0 : stage + 1;
        parity ^= stage == 0 ? 1U : 0U;
    }
};

template <typename Math, typename Tile, AttentionMask kMask, bool kMayCap>
struct WarpgroupWork : BlockWork<typename Math::Element, Tile, kMask, true>
{
    using T = typename Math::Element;
    using Work = BlockWork<T, Tile, kMask, true>;
    using Rows = WarpgroupRows<Math, Tile>;
    using Mask = WarpMask<T, Tile, kMask, kMayCap>;
    using Work::pass;
    using Work::place;
    using Work::plan;

    static constexpr int kBarrierBytes = 8;
    static constexpr int kColumnsOfPanel = 64;
    static constexpr int kHeadPanels = (Tile::kHead + kColumnsOfPanel - 1) / kColumnsOfPanel;
    static constexpr int kValuePanels = (Tile::kValue + kColumnsOfPanel - 1) / kColumnsOfPanel;

    BulkCopies const& copies;
    SharedAddress const barriers;

    ATTNGRAFT_DEVICE WarpgroupWork(AttentionPlan const& plan_, BulkCopies const& copies_)
        : Work(plan_)
        , copies(copies_)
        , barriers(Work::queryTile + Tile::kSharedBytes - Tile::kBarrierBytes)
    { }

    //! Of the queries' copy; those of the stages follow.
    ATTNGRAFT_DEVICE SharedAddress fullQueries() const
    {
        return barriers;
    }

    ATTNGRAFT_DEVICE SharedAddress barrier(int index) const
    {
        return barriers + (1 + index) * kBarrierBytes;
    }

    ATTNGRAFT_DEVICE void prefetchMaps() const
    {
        prefetchMap(&copies.queries);
        prefetchMap(&copies.keys);
        prefetchMap(&copies.values);
    }

    //! One thread starts the bulk copy of the block's queries; rows that do not exist become zeros.
    ATTNGRAFT_DEVICE void copyQueries() const
    {
        int const headInGroup = place.head - place.kvHead * static_cast<int>(plan.headsOfGroup.value);
        arriveExpecting(fullQueries(), Tile::kRows * Tile::kHeadBytes);
#pragma unroll
        for (int panel = 0; panel < kHeadPanels; ++panel)
        {
            copyBox(this->queryTile + panel * TileLayouts<Tile>::Query::kPanelBytes, &copies.queries, fullQueries(),
                panel * kColumnsOfPanel, place.firstRow, headInGroup, place.kvHead, place.batch);
        }
    }

    //! Waits for the queries of this pass, of which each has a copy of its own.
    ATTNGRAFT_DEVICE void waitForQueries() const
    {
        waitForPhase(fullQueries(), pass == MaskPass::kMasked ? 0U : 1U);
    }

    //! All threads of the block are done with the queries' tile, through which contexts left, and the copy engine may
    //! write it again.
    ATTNGRAFT_DEVICE static void freeQueryTile()
    {
        publishToAsyncProxy();
        synchronizeBlock();
    }

    //! Whether a tile is right as the copy engine brings it: it cannot leave out keys that are not read, but gives
    //! zeros beyond the last of the tensor.
    ATTNGRAFT_DEVICE bool isBoxRead(int key) const
    {
        int const end = key + Tile::kKeys < plan.keys ? key + Tile::kKeys : plan.keys;
        bool const isInRange = key >= this->range.begin && end <= this->range.end;
        return isInRange && (!this->scansKeys() || this->bits.template all<Tile::kKeys>(key));
    }

    //! One thread starts the bulk copy of a tile of keys or values, after the barrier was told its bytes.
    ATTNGRAFT_DEVICE void copyKeys(SharedAddress tile, SharedAddress full, int key) const
    {
        copyPanels<kHeadPanels, TileLayouts<Tile>::Key::kPanelBytes>(tile, full, copies.keys, 0, key);
    }

    ATTNGRAFT_DEVICE void copyValues(SharedAddress tile, SharedAddress full, int key) const
    {
        copyPanels<kValuePanels, TileLayouts<Tile>::Value::kPanelBytes>(
            tile, full, copies.values, place.firstValue, key);
    }

    //! Scores to exponentials. Returns whether the context is to be scaled, by `shrink`.
    ATTNGRAFT_DEVICE bool weigh(
        int key, int firstRow, float factor, Rows& rows, Mask const& mask, typename Rows::Rows::Shrink& shrink) const
    {
        mask.apply(plan, place, this->bits, firstRow, key, pass, rows.scores);
        bool const isRaised = rows.raiseReferences(factor, shrink);
        rows.template exponentiate<kScalesScores<kMask>>(factor);
        rows.setBounds(factor);
        return isRaised;
    }

private:
    template <int panels, int panelBytes>
    ATTNGRAFT_DEVICE void copyPanels(
        SharedAddress tile, SharedAddress full, CUtensorMap const& map, int firstColumn, int key) const
    {
#pragma unroll
        for (int panel = 0; panel < panels; ++panel)
        {
            copyBox(tile + panel * panelBytes, &map, full, firstColumn + panel * kColumnsOfPanel, key, place.kvHead,
                place.batch);
        }
    }
};

} // namespace attngraft
