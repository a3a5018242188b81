// Tuning as data: which tile of queries and keys a block works on.
// Which tile serves which work: attention_choice.h.
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
    kBias,     //!< `bias` of the scores' type, two keys at a time: for warp groups
    kAny,      //!< `bias`, and `keep` element by element
};

//! Whether masked scores are what the contract calls s_ij. Else their scale is part of the exponentials.
template <AttentionMask mask>
constexpr bool kScalesScores = mask == AttentionMask::kBias || mask == AttentionMask::kAny;

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

    //! Whether there are kernels that read a bias ahead of the scores, which takes registers.
    constexpr bool fetchesBias() const
    {
        return engine != AttentionEngine::kWarps && !isWarpgroupFloat();
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
    {128, 16, 128, 64, 64, 2, false, 1, AttentionEngine::kSpecialised, true},      // 22
    {256, 16, 64, 64, 64, 3, false, 1, AttentionEngine::kSpecialised, true},       // 23
    {128, 16, 128, 128, 128, 2, false, 1, AttentionEngine::kSpecialised, true},    // 24
    {192, 16, 64, 128, 128, 3, false, 1, AttentionEngine::kSpecialised},           // 25
    {128, 16, 64, 256, 256, 2, false, 1, AttentionEngine::kSpecialised, true},     // 26
    {128, 16, 32, 320, 320, 3, false, 1, AttentionEngine::kSpecialised, true},     // 27
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

} // namespace attngraft
