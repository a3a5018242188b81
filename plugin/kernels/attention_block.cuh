// Where a block's work lies and how its tiles come to shared memory.
#pragma once

#include "attention_plan.h"
#include "tensor_core.cuh"

namespace attngraft
{

template <typename T>
constexpr int kElementsOfVector = kVectorBytes / static_cast<int>(sizeof(T));

ATTNGRAFT_DEVICE int laneOfThread()
{
    return static_cast<int>(threadIdx.x % 32U); // of a signed number, the remainder would cost five instructions
}

ATTNGRAFT_DEVICE int warpOfThread()
{
    return static_cast<int>(threadIdx.x / 32U);
}

//! Byte offset of a vector within its row of a tile. See AttentionTile::pitch.
ATTNGRAFT_DEVICE int swizzled(int vector, int row)
{
    return (vector ^ (row & 7)) * 16;
}

//! A tile in shared memory whose rows lie one after another.
template <int rowBytes>
struct RowLayout
{
    //! Bytes from the beginning of the tile to a vector of a row.
    static ATTNGRAFT_DEVICE int at(int row, int vector)
    {
        return row * rowBytes + swizzled(vector, row);
    }
};

//! A tile as panels of 8 vectors of each row, as the products of warp groups read it.
template <int rows>
struct PanelLayout
{
    static constexpr int kPanelBytes = rows * 8 * kVectorBytes;

    static ATTNGRAFT_DEVICE int at(int row, int vector)
    {
        return vector / 8 * kPanelBytes + row * 8 * kVectorBytes + swizzled(vector % 8, row);
    }
};

//! Keys from `begin` to `end`.
struct KeyRange
{
    int begin;
    int end;
};

//! The rows that a block computes. Where it `packs`, a row is a query of one of the packed heads, else of the one head.
template <bool packs>
struct BlockPlace
{
    int batch;
    int head; //!< the first of the packed heads
    int kvHead;
    int firstRow;
    int rows;       //!< of the tile that exist
    int firstValue; //!< of the context's columns
    int valueSize;  //!< of the columns that this block computes
    int split;
    KeyRange batchKeys{}; //!< what starts and lengths leave of the batch element's keys; end < begin is possible

    template <typename Tile>
    ATTNGRAFT_DEVICE BlockPlace(AttentionPlan const& plan, Tile)
    {
        auto const group = static_cast<int>(blockIdx.x);
        int const packed = packs ? static_cast<int>(plan.packedHeads.value) : 1;
        batch = static_cast<int>(plan.headGroups.quotient(blockIdx.x));
        head = (group - batch * static_cast<int>(plan.headGroups.value)) * packed;
        kvHead = static_cast<int>(plan.headsOfGroup.quotient(static_cast<uint32_t>(head)));
        // The last rows first: under causality they have the most keys.
        firstRow = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tile::kRows;
        int const left = static_cast<int>(plan.rows) - firstRow;
        rows = left < Tile::kRows ? left : Tile::kRows;
        split = 0;
        firstValue = 0;
        if constexpr (!Tile::kUsesWarpgroups) // whose blocks have all keys and all columns of their rows
        {
            split = static_cast<int>(plan.valueChunks.quotient(blockIdx.z));
            int const chunk = static_cast<int>(blockIdx.z) - split * static_cast<int>(plan.valueChunks.value);
            firstValue = chunk * Tile::kValue;
        }
        int const values = plan.valueSize - firstValue;
        valueSize = values < Tile::kValue ? values : Tile::kValue;
    }

    //! Finds batchKeys, for which keysOf waits. Apart from the rest, so that copies can begin before.
    ATTNGRAFT_DEVICE void findKeys(AttentionPlan const& plan)
    {
        batchKeys = {0, plan.keys};
        if (plan.interval.dependsOnBatch())
        {
            KeyInterval const keys = plan.interval.ofBatch(batch);
            batchKeys = {static_cast<int>(keys.begin), static_cast<int>(keys.end)};
        }
    }

    //! The keys that a row of this block may attend to, with end < begin possible where it has none.
    ATTNGRAFT_DEVICE KeyInterval keysOf(AttentionPlan const& plan, int row) const
    {
        return plan.interval.bounds(KeyInterval{batchKeys.begin, batchKeys.end}, query(plan, row));
    }

    //! Of a row of this block.
    ATTNGRAFT_DEVICE int query(AttentionPlan const& plan, int row) const
    {
        return static_cast<int>(plan.packedHeads.quotient(static_cast<uint32_t>(firstRow + row)));
    }

    ATTNGRAFT_DEVICE int headOf(AttentionPlan const& plan, int row) const
    {
        if constexpr (packs)
        {
            return head + firstRow + row - query(plan, row) * static_cast<int>(plan.packedHeads.value);
        }
        return head;
    }

    //! Elements from the first query of the batch element to a row of this block.
    ATTNGRAFT_DEVICE int64_t queryOffset(AttentionPlan const& plan, int row) const
    {
        int const headInGroup = headOf(plan, row) - kvHead * static_cast<int>(plan.headsOfGroup.value);
        return kvHead * plan.queryGroupStride + headInGroup * plan.query.headStride
            + query(plan, row) * plan.query.rowStride;
    }

    //! Index of the row among all rows of the context, [batch, heads, queries].
    ATTNGRAFT_DEVICE int64_t contextRow(AttentionPlan const& plan, int row) const
    {
        return (int64_t{batch} * plan.heads + headOf(plan, row)) * plan.queries + query(plan, row);
    }
};

//! 16 bytes of a row, of which the elements from `present` on are 0; without any alignment.
template <typename T>
ATTNGRAFT_DEVICE uint4 gatherVector(T const* from, int present)
{
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
    constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
    uint32_t words[4] = {};
#pragma unroll
    for (int e = 0; e < kElementsOfVector<T>; ++e)
    {
        if (e < present)
        {
            uint32_t const bits = reinterpret_cast<Bits const*>(from)[e];
            words[e / kPerWord] |= bits << (16 * (e % kPerWord));
        }
    }
    return uint4{words[0], words[1], words[2], words[3]};
}

//! Writes the first `present` elements of a vector, without any alignment.
template <typename T>
ATTNGRAFT_DEVICE void scatterVector(T* to, uint4 vector, int present)
{
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
    constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
    uint32_t const words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int e = 0; e < kElementsOfVector<T>; ++e)
    {
        if (e < present)
        {
            reinterpret_cast<Bits*>(to)[e] = static_cast<Bits>(words[e / kPerWord] >> (16 * (e % kPerWord)));
        }
    }
}

//! Starts the copy of one vector of a row of `size` elements that begins at `row`; what lies beyond them becomes 0.
template <typename T, bool kVectorwise>
ATTNGRAFT_DEVICE void loadVector(SharedAddress to, T const* row, int vector, int size)
{
    T const* const from = row + vector * kElementsOfVector<T>;
    int const present = size - vector * kElementsOfVector<T>;
    if constexpr (kVectorwise)
    {
        copyAsync16(to, from, present > 0 ? 16 : 0); // of 0 bytes nothing is read
    }
    else
    {
        storeShared(to, gatherVector(from, present));
    }
}

//! Whether each thread of the block can copy vectors of one column only.
template <int rows, int vectors, int threads>
constexpr bool kStaysInColumn =
    threads >= vectors && threads % vectors == 0 && rows % (threads >= vectors ? threads / vectors : 1) == 0;

//! Starts the copy of a tile whose first row begins at `first`, by `threads` threads of which this one is `thread`.
//! `size` elements of a row are there, of the `width` that are computed with; rows for which exists(row) is false
//! become 0.
template <typename T, typename Layout, int rows, int width, int threads, bool kVectorwise, typename Exists>
ATTNGRAFT_DEVICE void loadTile(
    SharedAddress tile, uint32_t thread, int size, T const* first, int64_t rowStride, Exists exists)
{
    constexpr uint32_t kVectors = width / kElementsOfVector<T>;
    if constexpr (kStaysInColumn<rows, kVectors, threads>) // then a thread needs one pointer and one step
    {
        constexpr int kRowsAtOnce = threads / kVectors;
        auto const vector = static_cast<int>(thread % kVectors);
        auto row = static_cast<int>(thread / kVectors);
        T const* from = first + row * rowStride;
#pragma unroll
        for (int i = 0; i < rows / kRowsAtOnce; ++i)
        {
            loadVector<T, kVectorwise>(tile + Layout::at(row, vector), from, vector, exists(row) ? size : 0);
            row += kRowsAtOnce;
            from += kRowsAtOnce * rowStride;
        }
    }
    else
    {
        for (uint32_t index = thread; index < rows * kVectors; index += threads)
        {
            auto const row = static_cast<int>(index / kVectors);
            auto const vector = static_cast<int>(index % kVectors);
            loadVector<T, kVectorwise>(
                tile + Layout::at(row, vector), first + row * rowStride, vector, exists(row) ? size : 0);
        }
    }
}

} // namespace attngraft
