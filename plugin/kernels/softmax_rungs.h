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

//! Kinds of masks of long rows in shared memory: the rest is rare, and its arithmetic slower than memory.
constexpr bool isLongServed(MaskTensors tensors)
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

//! By capacity. Units that no element of a row lies in cost next to nothing, so that there need be few rungs, each of
//! which costs time to compile and the library its size; fewest for masks that are rare.
constexpr Rung kVectorRungs[] = {
    {1, 1, 4, kBlockThreads, kPlain},
    {2, 1, 4, kBlockThreads, kPlain},
    {2, 2, 2, kBlockThreads, kRaw | kBiased | kRest},
    {4, 2, 2, kBlockThreads, kRaw},
    {8, 4, 1, kBlockThreads, kRaw | kBiased},
    {16, 4, 1, kBlockThreads, kRest},
    {32, 8, 1, kBlockThreads, kRaw},
    {64, 4, 1, kBlockThreads, kBiased | kRest},
    {128, 8, 1, kBlockThreads, kRaw},
    {256, 4, 1, 256, kBiased | kRest},
    {256, 8, 1, 256, kRaw},
    {512, 8, 1, 512, kRaw},
    {512, 8, 1, 512, kBiased | kRest},
};
constexpr int kVectorRungCount = static_cast<int>(sizeof(kVectorRungs) / sizeof(Rung));

//! A row is held by `threads` threads, `units` vectors each, few enough that no register is spilled.
struct EvenRung
{
    int threads;
    int units;
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

//! By capacity.
constexpr EvenRung kEvenRungs[] = {
    {4, 4, kRaw | kBiased},
    {8, 3, kRaw | kBiased},
    {8, 4, kRaw | kBiased},
    {16, 3, kRaw | kBiased},
    {16, 4, kRaw | kBiased},
    {16, 5, kRaw},
    {32, 3, kRaw | kBiased},
    {32, 4, kRaw | kBiased},
    {64, 3, kRaw},
    {64, 4, kRaw | kBiased},
    {128, 3, kRaw},
    {128, 4, kRaw | kBiased},
    {128, 5, kRaw},
    {256, 3, kRaw},
    {256, 4, kRaw | kBiased},
    {512, 3, kRaw},
    {512, 4, kRaw | kBiased},
};
constexpr int kEvenRungCount = static_cast<int>(sizeof(kEvenRungs) / sizeof(EvenRung));

//! The same for rows that are not whole: what is done for a row once takes longer, so that a thread has more of it.
constexpr EvenRung kUnevenRungs[] = {
    {4, 4, kRaw},
    {4, 6, kBiased},
    {4, 8, kRaw},
    {8, 6, kRaw | kBiased},
    {8, 8, kRaw},
    {16, 5, kRaw},
    {16, 6, kBiased},
    {16, 8, kRaw},
    {32, 6, kRaw | kBiased},
    {32, 8, kRaw},
    {64, 6, kBiased},
    {64, 8, kRaw},
    {128, 5, kRaw},
    {128, 6, kBiased},
    {128, 8, kRaw},
    {256, 6, kBiased},
    {256, 8, kRaw},
    {512, 4, kBiased},
};
constexpr int kUnevenRungCount = static_cast<int>(sizeof(kUnevenRungs) / sizeof(EvenRung));

//! One element a thread keeps the loads of neighbouring rows contiguous; several rows a thread keep enough in flight.
constexpr Rung kElementRungs[] = {
    {2, 1, 4, kBlockThreads, kPlain | kRest},
    {4, 1, 4, kBlockThreads, kPlain | kRest},
    {8, 1, 4, kBlockThreads, kPlain | kRest},
};
constexpr int kElementRungCount = static_cast<int>(sizeof(kElementRungs) / sizeof(Rung));

} // namespace attngraft
