// The table of kernels that hold rows in registers. Choosing among them: softmax_policy.h.
#pragma once

#include <cstdint>

namespace attngraft
{

//! Which tensors a kernel reads beside the scores.
enum class MaskTensors : int32_t
{
    kNone,      //!< s is the raw score; the scale, a positive factor, is multiplied in later
    kKeepBytes, //!< `keep` of one byte an element; s as for kNone
    kBias,      //!< `bias` of the scores' type; no softcap
    kAny,       //!< everything in the contract
};

//! Whether scores stay as they are read, packed.
constexpr bool isRaw(MaskTensors tensors)
{
    return tensors == MaskTensors::kNone || tensors == MaskTensors::kKeepBytes;
}

//! Kinds of masks of rows that pass through shared memory: the rest is rare, and its arithmetic slower than memory.
constexpr bool mayStream(MaskTensors tensors)
{
    return tensors != MaskTensors::kAny;
}

constexpr int kBlockThreads = 128; //!< of blocks whose rows have fewer, unless a rung says otherwise

//! Kinds of masks that a rung serves, as bits. Raw scores stay packed, so that a thread holds more of them.
constexpr unsigned kPlain = 1U << static_cast<int>(MaskTensors::kNone);
constexpr unsigned kRaw = kPlain | 1U << static_cast<int>(MaskTensors::kKeepBytes);
constexpr unsigned kBiased = 1U << static_cast<int>(MaskTensors::kBias);
constexpr unsigned kRest = 1U << static_cast<int>(MaskTensors::kAny);

//! A row is held by `threads` threads, each with `units` units: vectors of 16 bytes, or single elements. A thread holds
//! as much of `rows` rows at once.
struct Rung
{
    int threads;
    int units;
    int rows;
    int blockThreads;
    unsigned masks;

    constexpr int64_t capacity() const
    {
        return int64_t{threads} * units;
    }

    constexpr int groups() const
    {
        return blockThreads / threads;
    }

    constexpr int rowsPerBlock() const
    {
        return groups() * rows;
    }

    constexpr bool serves(MaskTensors tensors) const
    {
        return (masks >> static_cast<int>(tensors) & 1U) != 0;
    }

    //! Blocks of such rungs may share a row.
    constexpr bool mayBeShared() const
    {
        return threads >= 256 && rowsPerBlock() == 1;
    }
};

// Threads, units, rows, threads of a block; the name is the capacity in vectors. W: of rows with a bias, held in fp32.
#if !defined(ATTNGRAFT_SOFTMAX_V1)
#define ATTNGRAFT_SOFTMAX_V1 1, 1, 4, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V2)
#define ATTNGRAFT_SOFTMAX_V2 2, 1, 4, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V4)
#define ATTNGRAFT_SOFTMAX_V4 2, 2, 2, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V8)
#define ATTNGRAFT_SOFTMAX_V8 4, 2, 2, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V16)
#define ATTNGRAFT_SOFTMAX_V16 4, 4, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V32)
#define ATTNGRAFT_SOFTMAX_V32 8, 4, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V48)
#define ATTNGRAFT_SOFTMAX_V48 16, 3, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V64)
#define ATTNGRAFT_SOFTMAX_V64 16, 4, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V128)
#define ATTNGRAFT_SOFTMAX_V128 16, 8, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V256)
#define ATTNGRAFT_SOFTMAX_V256 32, 8, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V512)
#define ATTNGRAFT_SOFTMAX_V512 64, 8, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V1024)
#define ATTNGRAFT_SOFTMAX_V1024 128, 8, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V2048)
#define ATTNGRAFT_SOFTMAX_V2048 256, 8, 1, 256
#endif
#if !defined(ATTNGRAFT_SOFTMAX_V4096)
#define ATTNGRAFT_SOFTMAX_V4096 512, 8, 1, 512
#endif
#if !defined(ATTNGRAFT_SOFTMAX_W128)
#define ATTNGRAFT_SOFTMAX_W128 32, 4, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_W256)
#define ATTNGRAFT_SOFTMAX_W256 64, 4, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_W512)
#define ATTNGRAFT_SOFTMAX_W512 128, 4, 1, kBlockThreads
#endif
#if !defined(ATTNGRAFT_SOFTMAX_W1024)
#define ATTNGRAFT_SOFTMAX_W1024 256, 4, 1, 256
#endif
#if !defined(ATTNGRAFT_SOFTMAX_W2048)
#define ATTNGRAFT_SOFTMAX_W2048 256, 8, 1, 256
#endif
#if !defined(ATTNGRAFT_SOFTMAX_W4096)
#define ATTNGRAFT_SOFTMAX_W4096 512, 8, 1, 512
#endif

//! By capacity. Units that no element of a row lies in cost next to nothing, so that there need be few rungs, each of
//! which costs time to compile and the library its size; fewest for masks that are rare.
constexpr Rung kVectorRungs[] = {
    {ATTNGRAFT_SOFTMAX_V1, kPlain},
    {ATTNGRAFT_SOFTMAX_V2, kPlain},
    {ATTNGRAFT_SOFTMAX_V4, kRaw | kBiased | kRest},
    {ATTNGRAFT_SOFTMAX_V8, kRaw},
    {ATTNGRAFT_SOFTMAX_V16, kRaw | kBiased},
    {ATTNGRAFT_SOFTMAX_V32, kRaw | kBiased},
    {ATTNGRAFT_SOFTMAX_V48, kRaw},
    {ATTNGRAFT_SOFTMAX_V64, kRaw | kBiased | kRest},
    {ATTNGRAFT_SOFTMAX_V128, kRaw},
    {ATTNGRAFT_SOFTMAX_W128, kBiased},
    {ATTNGRAFT_SOFTMAX_V256, kRaw},
    {ATTNGRAFT_SOFTMAX_W256, kBiased | kRest},
    {ATTNGRAFT_SOFTMAX_V512, kRaw},
    {ATTNGRAFT_SOFTMAX_W512, kBiased},
    {ATTNGRAFT_SOFTMAX_V1024, kRaw},
    {ATTNGRAFT_SOFTMAX_W1024, kBiased | kRest},
    {ATTNGRAFT_SOFTMAX_V2048, kRaw},
    {ATTNGRAFT_SOFTMAX_W2048, kBiased},
    {ATTNGRAFT_SOFTMAX_V4096, kRaw},
    {ATTNGRAFT_SOFTMAX_W4096, kBiased | kRest},
};
constexpr int kVectorRungCount = static_cast<int>(sizeof(kVectorRungs) / sizeof(Rung));

//! A whole row is held by `threads` threads, each with `units` vectors of it and of the next one.
struct LoopRung
{
    int threads;
    int units;
    int blockThreads;
    unsigned masks;

    constexpr int64_t capacity() const
    {
        return int64_t{threads} * units;
    }

    constexpr bool serves(MaskTensors tensors) const
    {
        return (masks >> static_cast<int>(tensors) & 1U) != 0;
    }
};

//! By capacity. Four vectors a thread, of a row and of the next, are what registers suffice for without spilling.
constexpr LoopRung kLoopRungs[] = {
    {8, 2, 128, kRaw},
    {8, 4, 128, kRaw | kBiased},
    {16, 3, 128, kRaw},
    {16, 4, 128, kRaw | kBiased},
    {32, 3, 128, kRaw},
    {32, 4, 128, kRaw | kBiased},
    {64, 3, 128, kRaw},
    {64, 4, 128, kRaw | kBiased},
    {128, 4, 128, kRaw | kBiased},
    {256, 4, 256, kRaw | kBiased},
    {512, 4, 512, kRaw | kBiased},
};
constexpr int kLoopRungCount = static_cast<int>(sizeof(kLoopRungs) / sizeof(LoopRung));

//! A row of a tile in shared memory is taken by `threads` threads of a warp, `units` vectors each.
struct TileRung
{
    int threads;
    int units;

    constexpr int64_t capacity() const
    {
        return int64_t{threads} * units;
    }

    //! Rows that a warp takes at once.
    constexpr int groups() const
    {
        return 32 / threads;
    }
};

//! By capacity; for raw scores. Eight threads read 128 neighbouring bytes of shared memory, so that a row has no fewer.
constexpr TileRung kTileRungs[] = {
    {8, 4},
    {8, 6},
    {16, 5},
    {32, 4},
    {32, 6},
    {32, 8},
};
constexpr int kTileRungCount = static_cast<int>(sizeof(kTileRungs) / sizeof(TileRung));

//! One element a thread keeps the loads of neighbouring rows contiguous; several rows a thread keep enough in flight.
constexpr Rung kElementRungs[] = {
    {2, 1, 4, kBlockThreads, kPlain | kRest},
    {4, 1, 4, kBlockThreads, kPlain | kRest},
    {8, 1, 4, kBlockThreads, kPlain | kRest},
};
constexpr int kElementRungCount = static_cast<int>(sizeof(kElementRungs) / sizeof(Rung));

} // namespace attngraft
