// Tuning as data: which tile of queries and keys a block works on.
// In: head size, value size, sizes of the work. Out: a row of the table. Used by the dispatch and the plugin's tactics.
#pragma once

#include "operands.h"

#include <cstddef>
#include <cstdint>

namespace attngraft
{

constexpr int kMaxHeadSize = 512;

//! What a kernel reads beside the intervals of keys.
enum class AttentionMask : int32_t
{
    kInterval, //!< nothing
    kKeyBits,  //!< `keep` that is the same for all queries: one bit a key, scanned before the keys are loaded
    kAny,      //!< `bias`, and `keep` element by element
};

//! Keys whose bits a block holds in shared memory, one a key.
constexpr int kMaxScannedKeys = 65536;

constexpr int kMmaRows = 16; //!< queries of one matrix product

//! Which instructions compute the products.
enum class AttentionEngine : int32_t
{
    kWarps,       //!< mma.sync, compute capability 8.0 upward
    kWarpgroups,  //!< wgmma, 9.0: every thread loads, multiplies and reduces
    kSpecialised, //!< the same, with one warp group that loads for the others
};

//! A block's work: `rows` queries, each warp `rowsPerWarp` of them, against `keys` keys at a time. `head` and `value`
//! are the largest head sizes that it serves, multiples of 16.
struct AttentionTile
{
    int rows;
    int rowsPerWarp;
    int keys;
    int head;
    int value;
    int stages;      //!< tiles of keys and values in shared memory
    bool keepsQuery; //!< the queries' fragments stay in registers
    int minBlocks;   //!< blocks of a multiprocessor that the compiler leaves registers for
    AttentionEngine engine{AttentionEngine::kWarps};
    bool takesTurns{false}; //!< kSpecialised: the warp groups start their products one after another
    //! kSpecialised, for fp32: chunks of keys and values that the loading threads hold in registers, a chunk being 4
    //! vectors of each thread. 0: 16-bit types, which need no work on their way to shared memory.
    int heldChunks{0};

    //! Whether the products are in TF32, on warp groups.
    constexpr bool isWarpgroupFloat() const
    {
        return heldChunks > 0;
    }

    //! Whether exponentials are multiplied with the values where they are, before the next scores: where the threads
    //! are too many for registers of both. Then other warp groups fill the gaps.
    constexpr bool weighsInPlace() const
    {
        return isWarpgroupFloat() && consumerThreads() > 256;
    }

    constexpr int consumerThreads() const
    {
        return rows / rowsPerWarp * 32;
    }

    constexpr int threads() const
    {
        return consumerThreads() + (engine == AttentionEngine::kSpecialised ? 128 : 0);
    }

    //! Bytes from one row to the next in shared memory: whole groups of 8 vectors, within which vectors change places
    //! by the row, so that the 8 rows of a matrix lie in different banks.
    static constexpr int pitch(int size, int elementBytes)
    {
        constexpr int kGroup = 8 * kVectorBytes;
        return (size * elementBytes + kGroup - 1) / kGroup * kGroup;
    }

    //! Of the queries' tile. The context leaves through it.
    constexpr int queryBytes(int elementBytes) const
    {
        int const headBytes = pitch(head, elementBytes);
        int const valueBytes = pitch(value, elementBytes);
        return rows * (headBytes > valueBytes ? headBytes : valueBytes);
    }

    //! Of the counting barriers: one of the queries, and of each stage one, or two of its keys and two of its values.
    constexpr int barrierBytes() const
    {
        if (engine == AttentionEngine::kWarps)
        {
            return 0;
        }
        constexpr int kBarrierBytes = 8;
        return (1 + stages * (engine == AttentionEngine::kSpecialised ? 4 : 1)) * kBarrierBytes;
    }

    //! Bytes of dynamic shared memory, the bits of scanned keys apart.
    constexpr int sharedBytes(int elementBytes) const
    {
        int const stageBytes = keys * (pitch(head, elementBytes) + pitch(value, elementBytes));
        return queryBytes(elementBytes) + stages * stageBytes + barrierBytes();
    }

    //! Registers that the compiler may give a thread, and what of them the loading warp group keeps.
    static constexpr int kRegisters = 65536;

    //! A chunk takes 16. The rest is for addresses, barriers and masks; less of it where that gives the others more.
    constexpr int producerRegisters() const
    {
        int const beside = consumerThreads() > 384 ? 32 : 40;
        return isWarpgroupFloat() ? 16 * heldChunks + beside : 32;
    }

    constexpr int registersAtEntry() const
    {
        return kRegisters / (minBlocks * threads()) / 8 * 8;
    }

    constexpr int consumerRegisters() const
    {
        int const left = registersAtEntry() * threads() - producerRegisters() * 128;
        int const each = left / consumerThreads() / 8 * 8;
        return each < 240 ? each : 240; // an instruction takes no more
    }
};

//! Dynamic shared memory that a block can have on every device from compute capability 8.0 on (8.6, 8.9 and 12.0 have
//! least), and on the one that has most (9.0 and 10.0).
constexpr int kSharedBytesEverywhere = 99 * 1024;
constexpr int kSharedBytesAnywhere = 227 * 1024;

//! Variants by number: index + 1. Numbers are in engines and timing caches: new ones go to the end.
constexpr AttentionTile kAttentionTiles[] = {
    {64, 16, 64, 64, 64, 3, true, 4},                                 // 1
    {64, 16, 128, 64, 64, 2, true, 3},                                // 2
    {128, 32, 64, 64, 64, 3, true, 2},                                // 3
    {16, 16, 64, 64, 64, 4, true, 1},                                 // 4
    {64, 16, 64, 96, 96, 2, true, 2},                                 // 5
    {64, 16, 64, 128, 128, 2, true, 2},                               // 6
    {128, 32, 64, 128, 128, 2, false, 1},                             // 7
    {16, 16, 64, 128, 128, 3, true, 1},                               // 8
    {64, 16, 32, 192, 192, 2, false, 2},                              // 9
    {64, 16, 32, 256, 256, 2, false, 1},                              // 10
    {64, 16, 32, 320, 320, 2, false, 1},                              // 11
    {32, 16, 32, 512, 256, 2, false, 1},                              // 12: values in two parts
    {64, 16, 64, 64, 64, 1, false, 2},                                // 13: for fp32 from here on
    {64, 16, 32, 128, 128, 1, false, 1},                              // 14
    {64, 16, 32, 256, 256, 1, false, 1},                              // 15
    {32, 16, 32, 320, 320, 1, false, 1},                              // 16
    {16, 16, 32, 512, 256, 1, false, 1},                              // 17
    {64, 16, 64, 64, 64, 2, false, 5, AttentionEngine::kWarpgroups},  // 18: for compute capability 9.0 from here on
    {64, 16, 64, 64, 64, 3, false, 4, AttentionEngine::kWarpgroups},  // 19
    {64, 16, 128, 64, 64, 2, false, 3, AttentionEngine::kWarpgroups}, // 20
    {64, 16, 128, 64, 64, 3, false, 2, AttentionEngine::kWarpgroups}, // 21
    {128, 16, 128, 64, 64, 2, false, 1, AttentionEngine::kSpecialised, true},   // 22
    {256, 16, 64, 64, 64, 3, false, 1, AttentionEngine::kSpecialised, true},    // 23
    {128, 16, 128, 128, 128, 2, false, 1, AttentionEngine::kSpecialised, true}, // 24
    {192, 16, 64, 128, 128, 3, false, 1, AttentionEngine::kSpecialised},        // 25
    {128, 16, 64, 256, 256, 2, false, 1, AttentionEngine::kSpecialised, true},  // 26
    {128, 16, 32, 320, 320, 3, false, 1, AttentionEngine::kSpecialised, true},  // 27
    {64, 16, 64, 64, 64, 2, true, 2, AttentionEngine::kSpecialised, false, 2},     // 28: TF32 on 9.0 from here on
    {128, 16, 64, 64, 64, 3, true, 1, AttentionEngine::kSpecialised, true, 4},     // 29
    {192, 16, 64, 64, 64, 3, true, 1, AttentionEngine::kSpecialised, false, 4},    // 30
    {256, 16, 64, 64, 64, 3, false, 1, AttentionEngine::kSpecialised, false, 2},   // 31
    {128, 16, 64, 128, 128, 2, false, 1, AttentionEngine::kSpecialised, true, 4},  // 32
    {192, 16, 64, 128, 128, 2, false, 1, AttentionEngine::kSpecialised, false, 4}, // 33
};
constexpr int kAttentionTileCount = static_cast<int>(sizeof(kAttentionTiles) / sizeof(AttentionTile));

//! A tile's numbers as constants that device code may use, for elements of so many bytes. `Source` has the tile.
template <typename Source, int elementBytes>
struct TileNumbers
{
    static constexpr AttentionTile kTile = Source::kTile;
    static constexpr int kRows = kTile.rows;
    static constexpr int kRowsPerWarp = kTile.rowsPerWarp;
    static constexpr int kSlices = kTile.rowsPerWarp / kMmaRows; //!< 16-row slices of a warp
    static constexpr int kKeys = kTile.keys;
    static constexpr int kHead = kTile.head;
    static constexpr int kValue = kTile.value;
    static constexpr int kStages = kTile.stages;
    static constexpr bool kKeepsQuery = kTile.keepsQuery;
    static constexpr bool kWeighsInPlace = kTile.weighsInPlace();
    static constexpr int kHeldChunks = kTile.heldChunks;
    static constexpr int kElementBytes = elementBytes;
    static constexpr int kMinBlocks = kTile.minBlocks;
    static constexpr int kThreads = kTile.threads();
    static constexpr int kHeadBytes = AttentionTile::pitch(kTile.head, elementBytes);   //!< of a row in shared memory
    static constexpr int kValueBytes = AttentionTile::pitch(kTile.value, elementBytes); //!< the same
    static constexpr int kQueryBytes = kTile.queryBytes(elementBytes);
    static constexpr int kBarrierBytes = kTile.barrierBytes();
    static constexpr int kSharedBytes = kTile.sharedBytes(elementBytes);
    static constexpr bool kPacks = kTile.rows == kMmaRows; //!< heads of few queries each: see AttentionWork
    static constexpr bool kUsesWarpgroups = kTile.engine != AttentionEngine::kWarps;
    static constexpr bool kTakesTurns = kTile.takesTurns;
    static constexpr int kConsumers = kTile.consumerThreads() / 128; //!< warp groups that multiply
    static constexpr int kProducerRegisters = kTile.producerRegisters();
    static constexpr int kConsumerRegisters = kTile.consumerRegisters();

    static_assert(kKeys % 32 == 0, "the bits of scanned keys are words");
    static_assert(kHead % 16 == 0 && kValue % 16 == 0, "whole matrix products");
    static_assert(kRowsPerWarp % kMmaRows == 0 && kRowsPerWarp <= 32, "the bits of a warp's rows are a word");
};

//! A row of the table.
template <int index>
struct TableTile
{
    static constexpr AttentionTile kTile = kAttentionTiles[index];
};

template <int index, int elementBytes>
using TileOf = TileNumbers<TableTile<index>, elementBytes>;

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
    bool const isLong = fills && work.rows >= kManyRows && work.keys >= kManyKeys;
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
    bool const wantsManyKeys = work.isCausal && work.keys >= kManyKeys / 2;
    bool const wantsOverlap = work.isCausal || work.keys <= kManyKeys / 4;
    return (wantsManyKeys == (tile.keys == 128) ? 1 : 0) + (wantsOverlap == (tile.stages > 2) ? 1 : 0);
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
        return tile.rows == kMmaRows ? (work.rows <= kFewRows ? 4 : 1) : 2;
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

constexpr AttentionWork exactly(AttentionWork work)
{
    work.isExact = true;
    return work;
}

static_assert(chooseAttentionTile(onWarpgroups(exampleWork(384, 384, 64), 96)) == 18, "BERT-base");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(384, 384, 64, true), 96)) == 19, "GPT-2");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(197, 197, 64), 96)) == 19, "ViT");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(1000, 1000, 64, true), 16)) == 21, "causal");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(4096, 4096, 64), 8)) == 23, "long");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(4096, 4096, 64, true), 8)) == 22, "long and causal");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(4096, 4096, 128), 64)) == 25, "long, heads of 128");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(384, 384, 128), 96)) == 25, "short, heads of 128");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(384, 384, 128), 12)) == 24, "few, heads of 128");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(512, 512, 320), 32)) == 27, "heads of 320");
static_assert(chooseAttentionTile(onWarpgroups(exampleWork(1, 65536, 128), 32)) == 8, "one query");

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
static_assert(chooseAttentionTile(exampleWork(1, 65536, 128)) == 8, "one query");
static_assert(chooseAttentionTile(exampleWork(512, 512, 320)) == 11, "heads of 320");
static_assert(chooseAttentionTile(exampleWork(512, 512, 512)) == 12, "the largest heads");
static_assert(chooseAttentionTile(exampleWork(512, 512, 513)) == 0, "too large");
static_assert(chooseAttentionTile(exampleWork(4096, 4096, 64, false, 4)) == 13, "fp32");
static_assert(chooseAttentionTile(exampleWork(512, 512, 512, false, 4)) == 17, "the largest heads in fp32");

} // namespace attngraft
