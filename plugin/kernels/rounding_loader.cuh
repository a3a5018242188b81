// How fp32 keys and values come to shared memory for TF32 products of warp groups: rounded, the values transposed. The
// copy engine does neither, so a warp group's threads do it, through registers.
#pragma once

#include "attention_work.cuh"
#include "warpgroup_instructions.cuh"

namespace attngraft
{

//! The 4 vectors of a thread, a bit each.
constexpr uint32_t kAllOfChunk = 0xf;

//! Where a thread finds its vectors of a tile in global memory, and which rows of the tile they belong to.
template <int width, int rowStep>
struct VectorsOfThread
{
    static constexpr int kRowsOfChunk = kWarpgroupThreads * 4 * kElementsOfVector<float> / width;

    float const* first; //!< of a tile that begins with the first row of the tensor
    int64_t rowStride;
    int row;           //!< of the first vector, in the tile
    bool isThere;      //!< the column
    float const* next; //!< first vector of the chunk that is loaded next

    //! Of vector i of a chunk, in the tile.
    ATTNGRAFT_DEVICE int rowOf(int chunk, int i) const
    {
        return row + chunk * kRowsOfChunk + i * rowStep;
    }

    //! Which vectors of a chunk are there. A loop, not four times its code: few tiles have holes.
    template <typename Exists>
    ATTNGRAFT_DEVICE uint32_t findPresent(int chunk, Exists exists) const
    {
        uint32_t present = 0;
#pragma unroll 1
        for (int i = 0; i < 4; ++i)
        {
            present |= (exists(rowOf(chunk, i)) ? 1U : 0U) << i;
        }
        return present;
    }

    //! Loads the 4 vectors of a chunk of the tile at `firstKey`, after the chunks before it. Those that are not present
    //! become 0.
    ATTNGRAFT_DEVICE void load(uint4 (&to)[4], int chunk, int firstKey, uint32_t present)
    {
        if (chunk == 0)
        {
            next = first + firstKey * rowStride;
        }
        float const* from = next;
        if (present == kAllOfChunk)
        {
#pragma unroll
            for (int i = 0; i < 4; ++i)
            {
                to[i] = loadGlobal16(from + i * rowStep * rowStride);
            }
        }
        else
        {
#pragma unroll
            for (int i = 0; i < 4; ++i)
            {
                bool const isPresent = (present >> i & 1U) != 0;
                to[i] = isPresent ? loadGlobal16(from + i * rowStep * rowStride) : uint4{};
            }
        }
        next += kRowsOfChunk * rowStride;
    }
};

//! roundForTf32 of finite numbers.
ATTNGRAFT_DEVICE uint4 addHalfStep(uint4 vector)
{
    return uint4{
        vector.x + kHalfTf32Step, vector.y + kHalfTf32Step, vector.z + kHalfTf32Step, vector.w + kHalfTf32Step};
}

//! Rounds a chunk for TF32. Most have no number that is not finite, which one look finds out.
ATTNGRAFT_DEVICE void roundChunk(uint4 (&vectors)[4])
{
    float trace = 0.F;
#pragma unroll
    for (uint4 const& vector : vectors)
    {
        trace = fmaf(bitsAsFloat(vector.x), 0.F, trace);
        trace = fmaf(bitsAsFloat(vector.y), 0.F, trace);
        trace = fmaf(bitsAsFloat(vector.z), 0.F, trace);
        trace = fmaf(bitsAsFloat(vector.w), 0.F, trace);
    }
    if (trace == 0.F)
    {
#pragma unroll
        for (uint4& vector : vectors)
        {
            vector = addHalfStep(vector);
        }
    }
    else
    {
#pragma unroll
        for (uint4& vector : vectors)
        {
            vector = roundForTf32(vector);
        }
    }
}

//! The loading warp group of a block. A tile of keys and the one of values that belongs to it come in chunks, keys
//! first; `kHeldChunks` of them are in registers or on their way there.
template <typename Tile>
struct RoundingLoader
{
    static constexpr int kElementsOfChunk = kWarpgroupThreads * 4 * kElementsOfVector<float>;
    static constexpr int kKeyChunks = Tile::kKeys * Tile::kHead / kElementsOfChunk;
    static constexpr int kChunks = kKeyChunks + Tile::kKeys * Tile::kValue / kElementsOfChunk;
    static_assert(kChunks % Tile::kHeldChunks == 0, "a chunk has the same registers in every tile");

    //! Keys: 8 lanes write neighbouring vectors of a panel's row, which lie in different banks.
    static constexpr int kKeyVectors = Tile::kHead / kElementsOfVector<float>;
    VectorsOfThread<Tile::kHead, kWarpgroupThreads / kKeyVectors> keys;
    SharedAddress keyOffset; //!< of the thread's first vector, in the tile

    //! Values: a thread transposes 4 keys of 4 columns. Where the product finds t and t + 4 of 8 keys, 2 t and 2 t + 1
    //! are: so a vector along the keys has every second one. 8 lanes write 4 vectors of 2 rows 4 apart, which lie in
    //! different banks; a warp reads whole lines of 128 bytes.
    static constexpr int kLineVectors = 8;
    static constexpr int kLines = Tile::kValue / (kLineVectors * kElementsOfVector<float>);
    static constexpr int kWarpKeys = 16;
    VectorsOfThread<Tile::kValue, 2> values;
    SharedAddress valueOffset; //!< the same

    uint4 chunks[Tile::kHeldChunks][4];

    template <typename Work>
    ATTNGRAFT_DEVICE RoundingLoader(Work const& work, uint32_t thread)
    {
        AttentionPlan const& plan = work.plan;
        auto const keyVector = static_cast<int>(thread % kKeyVectors);
        keys.row = static_cast<int>(thread / kKeyVectors);
        keyOffset = TileLayouts<Tile>::Key::at(keys.row, keyVector);
        keys.isThere = keyVector * kElementsOfVector<float> < plan.headSize;
        keys.first = firstOf(work, plan.key) + keyVector * kElementsOfVector<float> + keys.row * plan.key.rowStride;
        keys.rowStride = plan.key.rowStride;

        auto const warp = static_cast<int>(thread / 32U);
        auto const lane = static_cast<int>(thread % 32U);
        int const unit = lane / 2 % 4;
        int const valueVector = warp % kLines * kLineVectors + lane / 8 * 2 + lane % 2;
        int const keyUnit = warp / kLines * (kWarpKeys / kElementsOfVector<float>)+unit;
        values.row = warp / kLines * kWarpKeys + unit / 2 * 8 + unit % 2;
        valueOffset = TileLayouts<Tile>::Value::at(valueVector * kElementsOfVector<float>, keyUnit);
        values.isThere = valueVector * kElementsOfVector<float> < work.place.valueSize;
        values.first = firstOf(work, plan.value) + work.place.firstValue + valueVector * kElementsOfVector<float>
            + values.row * plan.value.rowStride;
        values.rowStride = plan.value.rowStride;
    }

    //! Starts the loads of a chunk of the tile at `firstKey`, if there is one.
    template <typename Work>
    ATTNGRAFT_DEVICE void load(Work const& work, int chunk, int firstKey, bool isWhole)
    {
        if (firstKey >= work.range.end)
        {
            return;
        }
        uint4(&to)[4] = chunks[chunk % Tile::kHeldChunks];
        auto const loadOf = [&](auto& vectors, int part) {
            uint32_t const present =
                isWhole ? kAllOfChunk : vectors.findPresent(part, [&](int row) { return work.isRead(firstKey + row); });
            vectors.load(to, part, firstKey, vectors.isThere ? present : 0);
        };
        if (chunk < kKeyChunks)
        {
            loadOf(keys, chunk);
        }
        else
        {
            loadOf(values, chunk - kKeyChunks);
        }
    }

    //! Rounds a chunk, once it is there.
    ATTNGRAFT_DEVICE void round(int chunk)
    {
        roundChunk(chunks[chunk % Tile::kHeldChunks]);
    }

    //! A rounded chunk to its place in the tile of keys or of values.
    ATTNGRAFT_DEVICE void store(SharedAddress keyTile, SharedAddress valueTile, int chunk) const
    {
        uint4 const(&from)[4] = chunks[chunk % Tile::kHeldChunks];
        if (chunk < kKeyChunks)
        {
#pragma unroll
            for (int i = 0; i < 4; ++i)
            {
                using Layout = typename TileLayouts<Tile>::Key;
                storeShared(behind<Layout>(keyTile + keyOffset, keys.rowOf(chunk, i) - keys.row, 0), from[i]);
            }
        }
        else
        {
            storeTransposed(valueTile + valueOffset, chunk - kKeyChunks, from);
        }
    }

private:
    template <typename Work>
    static ATTNGRAFT_DEVICE float const* firstOf(Work const& work, HeadTensor<void const*> const& tensor)
    {
        return static_cast<float const*>(tensor.data) + work.place.batch * tensor.batchStride
            + work.place.kvHead * tensor.headStride;
    }

    //! The vector so many rows and vectors behind another one, whose own numbers are 0 where these have bits. Tiles
    //! begin where swizzles do.
    template <typename Layout>
    static ATTNGRAFT_DEVICE SharedAddress behind(SharedAddress at, int rows, int vectors)
    {
        return (at ^ ((rows ^ vectors) % 8 * kVectorBytes)) + rows * 8 * kVectorBytes
            + vectors / 8 * Layout::kPanelBytes;
    }

    static ATTNGRAFT_DEVICE void storeTransposed(SharedAddress at, int chunk, uint4 const (&from)[4])
    {
        using Layout = typename TileLayouts<Tile>::Value;
        constexpr int kUnitsOfChunk = decltype(values)::kRowsOfChunk / kElementsOfVector<float>;
        int const units = chunk * kUnitsOfChunk;
        storeShared(behind<Layout>(at, 0, units), uint4{from[0].x, from[1].x, from[2].x, from[3].x});
        storeShared(behind<Layout>(at, 1, units), uint4{from[0].y, from[1].y, from[2].y, from[3].y});
        storeShared(behind<Layout>(at, 2, units), uint4{from[0].z, from[1].z, from[2].z, from[3].z});
        storeShared(behind<Layout>(at, 3, units), uint4{from[0].w, from[1].w, from[2].w, from[3].w});
    }
};

} // namespace attngraft
