// A block's work, whichever instructions do it: which keys it reads, and how they and the queries come to shared
// memory.
#pragma once

#include "attention_mask.cuh"
#include "attention_rows.cuh"

namespace attngraft
{

//! How a tile's parts lie in shared memory.
template <typename Tile>
struct TileLayouts
{
    using Query = std::conditional_t<Tile::kUsesWarpgroups, PanelLayout<Tile::kRows>, RowLayout<Tile::kHeadBytes>>;
    using Key = std::conditional_t<Tile::kUsesWarpgroups, PanelLayout<Tile::kKeys>, RowLayout<Tile::kHeadBytes>>;
    //! Where the elements are fp32, a row of a panel is a column of the values: see RoundingLoader.
    static constexpr int kPanelRows = Tile::kElementBytes == 4 ? Tile::kValue : Tile::kKeys;
    using Value = std::conditional_t<Tile::kUsesWarpgroups, PanelLayout<kPanelRows>, RowLayout<Tile::kValueBytes>>;
};

//! Base of the kernels' block objects.
template <typename T_, typename Tile, AttentionMask kMask, bool kVectorwise>
struct BlockWork
{
    using T = T_;
    static constexpr int kKeyStageBytes = Tile::kKeys * Tile::kHeadBytes;
    static constexpr int kValueStageBytes = Tile::kKeys * Tile::kValueBytes;

    AttentionPlan const& plan;
    BlockPlace<Tile::kPacks> place;
    SharedAddress const queryTile;
    SharedAddress const keyTiles;
    SharedAddress const valueTiles;
    KeyBits const bits;
    MaskPass pass{MaskPass::kMasked};
    KeyRange range{0, 0};

    ATTNGRAFT_DEVICE explicit BlockWork(AttentionPlan const& plan_)
        : plan(plan_)
        , place(plan_, Tile{})
        , queryTile(dynamicSharedMemory())
        , keyTiles(queryTile + Tile::kQueryBytes)
        , valueTiles(keyTiles + Tile::kStages * kKeyStageBytes)
        , bits{queryTile + Tile::kSharedBytes}
    { }

    //! What the scores, as they are after the mask, are multiplied with to be the contract's s_ij.
    ATTNGRAFT_DEVICE float unit() const
    {
        bool const isScaled = kScalesScores<kMask> || pass == MaskPass::kUniform;
        return isScaled ? 1.F : plan.scoreMap.slope();
    }

    //! What turns scores, as they are after the mask, into powers of two.
    ATTNGRAFT_DEVICE float factor() const
    {
        return unit() * kPowersPerExp;
    }

    ATTNGRAFT_DEVICE bool scansKeys() const
    {
        return kMask == AttentionMask::kKeyBits && pass == MaskPass::kMasked;
    }

    //! The first key of the first tile that may hold an allowed one.
    ATTNGRAFT_DEVICE int firstTile() const
    {
        return nextTile(range.begin / Tile::kKeys * Tile::kKeys);
    }

    //! The first tile from `firstKey` on that holds an allowed key.
    ATTNGRAFT_DEVICE int nextTile(int firstKey) const
    {
        if (scansKeys())
        {
            while (firstKey < range.end && !bits.template any<Tile::kKeys>(firstKey))
            {
                firstKey += Tile::kKeys;
            }
        }
        return firstKey;
    }

    //! Begins a pass: its range, and the bits of its keys. The block must synchronise before they are read.
    ATTNGRAFT_DEVICE void beginPass()
    {
        if (pass == MaskPass::kMasked)
        {
            place.findKeys(plan);
        }
        range = keysOfBlock<!Tile::kUsesWarpgroups>(plan, place, pass);
        if (scansKeys())
        {
            int const end = (range.end + Tile::kKeys - 1) / Tile::kKeys * Tile::kKeys;
            bits.scan(plan, place, range.begin / Tile::kKeys * Tile::kKeys, end, Tile::kThreads);
        }
    }

    //! Whether rows without any key may need a pass after this one.
    ATTNGRAFT_DEVICE bool mayGoOn() const
    {
        return plan.emptyRows != EmptyRows::kZeros && pass == MaskPass::kMasked;
    }

    //! On to the pass for rows without any key.
    ATTNGRAFT_DEVICE void goOn()
    {
        pass = plan.emptyRows == EmptyRows::kUniform ? MaskPass::kUniform : MaskPass::kUnmasked;
    }

    //! Starts the copy of the queries of `rows` rows from `firstRow` on, a multiple of 8.
    template <int rows, int threads>
    ATTNGRAFT_DEVICE void loadQueries(uint32_t thread, int firstRow)
    {
        using Layout = typename TileLayouts<Tile>::Query;
        BlockPlace<Tile::kPacks> place = this->place;
        if constexpr (Tile::kUsesWarpgroups) // which come here where the copy engine cannot
        {
            place.batch = computedHere(place.batch);
            place.kvHead = computedHere(place.kvHead);
            place.head = computedHere(place.head);
        }
        SharedAddress const tile = queryTile + Layout::at(firstRow, 0);
        auto const* const base = static_cast<T const*>(plan.query.data) + place.batch * plan.query.batchStride;
        if constexpr (!Tile::kPacks)
        {
            loadTile<T, Layout, rows, Tile::kHead, threads, kVectorwise>(tile, thread, plan.headSize,
                base + place.queryOffset(plan, firstRow), plan.query.rowStride,
                [&](int row) { return firstRow + row < place.rows; });
            return;
        }
        constexpr uint32_t kVectors = Tile::kHead / kElementsOfVector<T>;
        for (uint32_t index = thread; index < rows * kVectors; index += threads)
        {
            auto const row = static_cast<int>(index / kVectors);
            auto const vector = static_cast<int>(index % kVectors);
            loadVector<T, kVectorwise>(tile + Layout::at(row, vector), base + place.queryOffset(plan, firstRow + row),
                vector, firstRow + row < place.rows ? plan.headSize : 0);
        }
    }

    //! Rounds those of the queries for TF32 that this thread's copies brought. They must be there.
    template <int rows, int threads>
    ATTNGRAFT_DEVICE void roundQueries(uint32_t thread, int firstRow) const
    {
        constexpr int kVectors = Tile::kHead / kElementsOfVector<T>;
        for (auto index = static_cast<int>(thread); index < rows * kVectors; index += threads)
        {
            SharedAddress const at =
                queryTile + TileLayouts<Tile>::Query::at(firstRow + index / kVectors, index % kVectors);
            storeShared(at, roundForTf32(loadShared<uint4>(at)));
        }
    }

    //! Start the copy of a tile of keys or values. Those outside the block's range are zeros: whatever lies there, NaN
    //! too, has no part in the products.
    template <int threads>
    ATTNGRAFT_DEVICE void loadKeys(SharedAddress tile, uint32_t thread, int firstKey)
    {
        load<typename TileLayouts<Tile>::Key, Tile::kHead, threads>(tile, thread, plan.key, firstKey, 0, plan.headSize);
    }

    template <int threads>
    ATTNGRAFT_DEVICE void loadValues(SharedAddress tile, uint32_t thread, int firstKey)
    {
        load<typename TileLayouts<Tile>::Value, Tile::kValue, threads>(
            tile, thread, plan.value, firstKey, place.firstValue, place.valueSize);
    }

    //! Whether every key of the tile is read.
    ATTNGRAFT_DEVICE bool isWhole(int firstKey) const
    {
        bool const isInRange = firstKey >= range.begin && firstKey + Tile::kKeys <= range.end;
        return isInRange && (!scansKeys() || bits.template all<Tile::kKeys>(firstKey));
    }

    ATTNGRAFT_DEVICE bool isRead(int key) const
    {
        bool const inRange = key >= range.begin && key < range.end;
        return inRange && (!scansKeys() || (bits.word(key / 32) >> (key % 32) & 1U) != 0);
    }

private:
    template <typename Layout, int width, int threads>
    ATTNGRAFT_DEVICE void load(SharedAddress tile, uint32_t thread, HeadTensor<void const*> const& tensor, int firstKey,
        int firstColumn, int size)
    {
        // Warp groups come here for few tiles.
        int const batch = Tile::kUsesWarpgroups ? computedHere(place.batch) : place.batch;
        int const kvHead = Tile::kUsesWarpgroups ? computedHere(place.kvHead) : place.kvHead;
        auto const* const first = static_cast<T const*>(tensor.data) + batch * tensor.batchStride
            + kvHead * tensor.headStride + firstColumn + firstKey * tensor.rowStride;
        if (isWhole(firstKey))
        {
            loadTile<T, Layout, Tile::kKeys, width, threads, kVectorwise>(
                tile, thread, size, first, tensor.rowStride, [](int) { return true; });
        }
        else
        {
            loadTile<T, Layout, Tile::kKeys, width, threads, kVectorwise>(
                tile, thread, size, first, tensor.rowStride, [&](int row) { return isRead(firstKey + row); });
        }
    }
};

} // namespace attngraft
