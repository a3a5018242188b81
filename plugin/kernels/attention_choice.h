// Which tiles of the table serve a work, and which of them is the best guess.
// In: head size, value size, sizes of the work. Out: a row of the table. Used by the dispatch and the plugin's tactics.
#pragma once

#include "attention_policy.h"

namespace attngraft
{

//! The work as far as the choice of a tile depends on it.
struct AttentionWork
{
    int64_t blocksOfOneRow{0}; //!< batch * groups of heads
    int64_t rows{0};           //!< of a group
    bool isPacked{false};      //!< groups of more than one head: only for blocks of kMmaRows rows
    int64_t keys{0};
    int headSize{0};
    int valueSize{0};
    int elementBytes{2};
    int sharedBytes{kSharedBytesAnywhere}; //!< that a block of the device can have
    bool isCausal{false};
    bool hasBias{false};
    bool hasWarpgroups{false}; //!< compute capability 9.0, kernels compiled for it, tensors of whole vectors
    bool isExact{false};       //!< fp32 with products in fp32
};

//! Whether TF32 products on warp groups are compiled and offered.
constexpr bool kOffersWarpgroupFloat = true;

//! Tiles from here on are for fp32, for which few of the others leave room, up to the first for warp groups.
constexpr int kFirstFloatTile = 12;

constexpr bool usesWarpgroups(int index)
{
    return kAttentionTiles[index].engine != AttentionEngine::kWarps;
}

constexpr bool isForFloat(int index)
{
    return index >= kFirstFloatTile && (!usesWarpgroups(index) || kAttentionTiles[index].isWarpgroupFloat());
}

//! Whether there are kernels for the tile.
constexpr bool isOffered(int index)
{
    return kOffersWarpgroupFloat || !kAttentionTiles[index].isWarpgroupFloat();
}

//! Few rows: a block of one warp, whose work is split along the keys.
constexpr int64_t kFewRows = kMmaRows;

//! Whether tile `index` holds the heads and fits the device. Values may come in parts where the tile is one for the
//! largest heads.
constexpr bool serves(int index, AttentionWork const& work)
{
    AttentionTile const& tile = kAttentionTiles[index];
    bool const holds = work.headSize <= tile.head && (work.valueSize <= tile.value || tile.value < tile.head);
    bool const isForType = (work.elementBytes == 4) == isForFloat(index);
    bool const packs = !work.isPacked || tile.rows == kMmaRows;
    // Few rows may have their keys split, which kernels of warp groups do not do.
    bool const isForDevice = !usesWarpgroups(index) || (work.hasWarpgroups && work.rows > kFewRows);
    bool const isForProducts = !tile.isWarpgroupFloat() || !work.isExact;
    return isOffered(index) && holds && isForProducts && isForType && packs && isForDevice
        && tile.sharedBytes(work.elementBytes) <= work.sharedBytes;
}

//! Whether no tile of its kind for smaller heads serves the work.
constexpr bool isSmallest(int index, AttentionWork const& work)
{
    for (int i = 0; i < kAttentionTileCount; ++i)
    {
        bool const isOfKind = usesWarpgroups(i) == usesWarpgroups(index);
        if (isOfKind && kAttentionTiles[i].head < kAttentionTiles[index].head && serves(i, work))
        {
            return false;
        }
    }
    return true;
}

//! Whether the tile is the table's first for its head size and type: the one that is compiled for unaligned tensors
//! too.
constexpr bool isFirstOfItsHead(int index)
{
    for (int i = isForFloat(index) ? kFirstFloatTile : 0; i < index; ++i)
    {
        if (kAttentionTiles[i].head == kAttentionTiles[index].head)
        {
            return false;
        }
    }
    return !usesWarpgroups(index);
}

//! Sizes from which on long tiles pay, measured on an H200.
constexpr int64_t kManyKeys = 1024;
constexpr int64_t kManyRows = 512;

//! Blocks from which on a device is full enough for tiles of many rows.
constexpr int64_t kManyBlocks = 120;

//! The part of `rank` for large blocks in which one warp group loads: for heads of 64 where long sequences fill the
//! device, a tile for causal masks and one for others; larger heads have no other kind.
constexpr int rankOfSpecialised(AttentionTile const& tile, AttentionWork const& work)
{
    bool const fills = work.blocksOfOneRow * (work.rows / tile.rows) >= kManyBlocks;
    if (tile.head > 64)
    {
        return tile.rows <= 128 ? 1 : fills ? 2 : 0;
    }
    bool const isLong = fills && work.rows >= kManyRows && work.keys >= kManyKeys && !work.hasBias;
    bool const isForCausal = tile.keys == 128;
    return isLong && isForCausal == work.isCausal ? 3 : 0;
}

//! The part of `rank` for TF32: as many rows as leave no multiprocessor without a block, since every block rounds the
//! keys and transposes the values anew; the most for long sequences alone, and under causal masks fewer. As measured on
//! an H200 (results/attention-kernel.json), but for causal masks.
constexpr int rankOfFloat(AttentionTile const& tile, AttentionWork const& work)
{
    auto const fills = [&](int rows) { return work.blocksOfOneRow * (work.rows / rows) >= kManyBlocks; };
    int wanted = tile.head > 64 || fills(128) ? 128 : 64;
    if (!work.isCausal && fills(192))
    {
        wanted = tile.head <= 64 && work.keys >= kManyKeys && fills(256) ? 256 : 192;
    }
    return tile.rows == wanted ? 1 : 0;
}

//! The part of `rank` for tiles of warp groups, 0 to 4: as measured on an H200 (results/attention-kernel.json).
constexpr int rankOfWarpgroups(AttentionTile const& tile, AttentionWork const& work)
{
    if (tile.isWarpgroupFloat())
    {
        return rankOfFloat(tile, work);
    }
    if (tile.engine == AttentionEngine::kSpecialised)
    {
        return rankOfSpecialised(tile, work);
    }
    bool const isShort = work.keys <= kManyKeys / 4;
    // A bias is waited for once a tile.
    bool const fetchesMuch = work.hasBias && !isShort;
    bool const wantsManyKeys = fetchesMuch || (work.isCausal && work.keys >= kManyKeys / 2);
    bool const wantsOverlap = !fetchesMuch && (work.isCausal || isShort);
    return (wantsManyKeys == (tile.keys == 128) ? 1 : 0) + (wantsOverlap == (tile.stages > 2) ? 1 : 0);
}

//! Keys from which on one query of heads of 128 is faster in a block of four warps, of which three have no rows and
//! help to load: measured on an H200, by a twentieth.
constexpr int64_t kKeysOfManyLoaders = 32768;

//! `rank` where a tile or the work has few rows.
constexpr int rankOfFewRows(AttentionTile const& tile, AttentionWork const& work)
{
    if (work.rows > kFewRows)
    {
        return 1; // a tile for few
    }
    bool const isLong = work.keys >= kKeysOfManyLoaders && tile.head == 128 && work.elementBytes == 2;
    return tile.rows == kMmaRows ? 4 : tile.rows == 64 && isLong ? 5 : 2;
}

//! How good a guess tile `index` is, 0 for one that does not serve; the highest wins.
constexpr int rank(int index, AttentionWork const& work)
{
    AttentionTile const& tile = kAttentionTiles[index];
    if (!serves(index, work) || !isSmallest(index, work))
    {
        return 0;
    }
    if (tile.rows == kMmaRows || work.rows <= kFewRows)
    {
        return rankOfFewRows(tile, work);
    }
    if (usesWarpgroups(index))
    {
        constexpr int kBeyondOthers = 6;
        return kBeyondOthers + rankOfWarpgroups(tile, work);
    }
    // As measured on an H200: for heads of 64 blocks of many rows where the sequence is long and not causal, and tiles
    // of many keys where it is either; for heads of 128 blocks of many rows.
    bool const isLong = work.keys >= kManyKeys;
    int const wantedRows = tile.head <= 64 ? (isLong && !work.isCausal ? 128 : 64) : tile.head <= 128 ? 128 : 64;
    int const wantedKeys = tile.head <= 64 && isLong == work.isCausal ? 128 : 64;
    return 2 + (tile.rows == wantedRows ? 2 : 0) + (tile.keys == wantedKeys ? 1 : 0);
}

//! Number of the best guess for this work, 0 where none serves.
constexpr int chooseAttentionTile(AttentionWork const& work)
{
    int best = 0;
    int bestRank = 0;
    for (int i = 0; i < kAttentionTileCount; ++i)
    {
        int const found = rank(i, work);
        if (found > bestRank)
        {
            bestRank = found;
            best = i + 1;
        }
    }
    return best;
}

constexpr AttentionWork exampleWork(int64_t rows, int64_t keys, int size, bool isCausal = false, int elementBytes = 2)
{
    return {8, rows, false, keys, size, size, elementBytes, kSharedBytesAnywhere, isCausal};
}

constexpr AttentionWork onWarpgroups(AttentionWork work, int64_t blocksOfOneRow)
{
    work.blocksOfOneRow = blocksOfOneRow;
    work.hasWarpgroups = true;
    return work;
}

constexpr AttentionWork withBias(AttentionWork work)
{
    work.hasBias = true;
    return work;
}

constexpr AttentionWork exactly(AttentionWork work)
{
    work.isExact = true;
    return work;
}

static_assert(chooseAttentionTile(onWarpgroups(exampleWork(384, 384, 64), 96)) == 18, "BERT-base");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(384, 384, 64, true), 96)) == 19, "GPT-2");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(197, 197, 64), 96)) == 19, "ViT");
static_assert(chooseAttentionTile(withBias(onWarpgroups(exampleWork(384, 384, 64), 96))) == 20, "T5");
static_assert(chooseAttentionTile(withBias(onWarpgroups(exampleWork(2048, 2048, 64), 24))) == 20, "long, with a bias");
static_assert(chooseAttentionTile(withBias(onWarpgroups(exampleWork(197, 197, 64), 96))) == 19, "BEiT");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(1000, 1000, 64, true), 16)) == 21, "causal");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(4096, 4096, 64), 8)) == 23, "long");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(4096, 4096, 64, true), 8)) == 22, "long and causal");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(4096, 4096, 128), 64)) == 25, "long, heads of 128");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(384, 384, 128), 96)) == 25, "short, heads of 128");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(384, 384, 128), 12)) == 24, "few, heads of 128");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(512, 512, 320), 32)) == 27, "heads of 320");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(1, 4096, 128), 32)) == 8, "one query");

//! The choice for fp32 heads of `size` and as many keys as rows, where TF32 products on warp groups are offered.
constexpr bool choosesTf32(int tile, int rows, int size, bool isCausal, int64_t blocksOfOneRow)
{
    AttentionWork const work = onWarpgroups(exampleWork(rows, rows, size, isCausal, 4), blocksOfOneRow);
    return !kOffersWarpgroupFloat || chooseAttentionTile(work) == tile;
}

static_assert(choosesTf32(31, 4096, 64, false, 8), "TF32");
static_assert(choosesTf32(29, 4096, 64, true, 8), "TF32, causal");
static_assert(choosesTf32(28, 197, 64, false, 16), "TF32, few blocks");
static_assert(choosesTf32(33, 4096, 128, false, 8), "TF32, heads of 128");
static_assert(choosesTf32(30, 384, 64, false, 96), "TF32, short");
static_assert(choosesTf32(15, 4096, 256, false, 8), "TF32, larger heads");
static_assert(chooseAttentionTile(exactly(onWarpgroups(exampleWork(4096, 4096, 64, false, 4), 8))) == 13, "fp32");

static_assert(chooseAttentionTile(exampleWork(384, 384, 64)) == 2, "BERT-base");
static_assert(chooseAttentionTile(exampleWork(4096, 4096, 64)) == 3, "long");
static_assert(chooseAttentionTile(exampleWork(4096, 4096, 64, true)) == 2, "long and causal");
static_assert(chooseAttentionTile(exampleWork(384, 384, 64, true)) == 1, "causal");
static_assert(chooseAttentionTile(exampleWork(4096, 4096, 128)) == 7, "heads of 128");
static_assert(chooseAttentionTile(exampleWork(1, 4096, 128)) == 8, "one query");
static_assert(chooseAttentionTile(exampleWork(1, 65536, 128)) == 6, "one query, many keys");
static_assert(chooseAttentionTile(exampleWork(512, 512, 320)) == 11, "heads of 320");
static_assert(chooseAttentionTile(exampleWork(512, 512, 512)) == 12, "the largest heads");
static_assert(chooseAttentionTile(exampleWork(512, 512, 513)) == 0, "too large");
static_assert(chooseAttentionTile(exampleWork(4096, 4096, 64, false, 4)) == 13, "fp32");
static_assert(chooseAttentionTile(exampleWork(512, 512, 512, false, 4)) == 17, "the largest heads in fp32");

} // namespace attngraft
