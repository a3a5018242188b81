// Tuning as data: which kernel serves rows of K scores.
// In: K, element size, alignment, the mask's kind, the device. Out: a Policy. Used by planning, dispatch and kernels.
//
// For measuring, and for tests with short rows:
//   ATTNGRAFT_SOFTMAX_LONG_VECTORS      rows longer than this, in vectors, are held in shared memory
//   ATTNGRAFT_SOFTMAX_LONG_SHARE        bytes of them that a block holds at most where several share a row
//   ATTNGRAFT_SOFTMAX_CHUNK_THREADS, ATTNGRAFT_SOFTMAX_CHUNK_UNITS   of those (softmax_chunks.h)
#pragma once

#include "operands.h"
#include "softmax_chunks.h"
#include "softmax_device.h"
#include "softmax_rungs.h"

#include <cstddef>
#include <cstdint>

namespace attngraft
{

#if !defined(ATTNGRAFT_SOFTMAX_LONG_VECTORS)
#define ATTNGRAFT_SOFTMAX_LONG_VECTORS 2048
#endif
#if !defined(ATTNGRAFT_SOFTMAX_LONG_SHARE)
#define ATTNGRAFT_SOFTMAX_LONG_SHARE (72 * 1024)
#endif

//! Threads that a multiprocessor has room for, of kernels that hold so many registers' worth of a row: 80, 96 or 128
//! registers for each thread, with which few or none are spilled. 40 KiB and more of loads can be on their way.
constexpr int residentThreads(int heldRegisters, bool isRawAnd16Bit)
{
    return heldRegisters > 40 ? 512 : isRawAnd16Bit ? 768 : 640;
}

//! The same of kernels for even rows: 48 to 128 registers, none of which is spilled.
constexpr int evenResidentThreads(int units, bool isRaw, bool isWhole, bool hasInterval)
{
    if (units > 6 || (units > 4 && !isRaw && !isWhole))
    {
        return 512;
    }
    if (units > 4 || (!isRaw && !isWhole))
    {
        return 768;
    }
    return isRaw && isWhole && hasInterval ? 1280 : 1024;
}

//! Their blocks: a warp, or the threads of one row. Rows of which some have less work than others do better in pairs
//! (measured on an H200, causal: 2 to 6%).
constexpr int evenBlockThreads(int threads, bool hasInterval)
{
    int const block = hasInterval ? 64 : 32;
    return threads > block ? threads : block;
}

//! Vectors of 16-bit scores a thread from which exponentials are made twice instead of being held.
constexpr int kRecomputedUnits = 5;

//! Rows longer than this, in vectors, are shared by the blocks of a cluster where registers hold them.
constexpr int64_t kClusterVectors = 2048;

//! Of a block that reads rows twice.
constexpr int kPassThreads = 256;
constexpr int kPassUnits = 4;

//! Few rows are shared by clusters of blocks where each block still gets this many vectors, and where rows are longer
//! than one block takes as fast: of 32 rows of 4096 keys clusters took 4.3 microseconds on an H200, where a Triton
//! kernel of one block a row took 2.2.
constexpr int64_t kSmallestShare = 256;
constexpr int64_t kSmallestShared = 2048;

//! Shorter rows, in vectors, leave most threads of a warp without one.
constexpr int64_t kShortestEven = 9;

//! Rows that begin anywhere and are no longer than this are held element by element.
constexpr int64_t kElementKeys = 8;

//! Rows longer than this, in vectors, are held in shared memory where they are many. Shorter ones do better in
//! registers.
constexpr int64_t kLongVectors = ATTNGRAFT_SOFTMAX_LONG_VECTORS;

//! The same where an interval of keys must be found before scores can be read, for which a multiprocessor full of large
//! blocks waits.
constexpr int64_t kLongCutVectors = kLongVectors / 2;

//! What a block holds of a long row at most where blocks of a cluster share it: three blocks of a multiprocessor take
//! turns then in reading, computing and writing.
constexpr int kLongShareBytes = ATTNGRAFT_SOFTMAX_LONG_SHARE;

//! Threads of a multiprocessor that registers of those kernels leave room for.
constexpr int longResidentThreads(bool isRaw)
{
    return isRaw ? 768 : 512;
}

enum class Strategy : int32_t
{
    kVectors,  //!< registers, 16-byte loads; partial vectors at both ends of a row where it does not begin on one
    kElements, //!< registers, one element a thread, several rows a thread
    kPasses,   //!< the row is read twice: it fits in no register file
    kLong,     //!< shared memory: a block or a cluster of blocks holds one long row
    kEven,     //!< registers, many whole rows
    kUneven    //!< the same of rows at the same places in vectors in scores and in probabilities
};

struct Policy
{
    Strategy strategy;
    int rung;   //!< index into the strategy's table; 0 where it has none
    int blocks; //!< that share a row: a cluster where there are several
};

//! What the choice depends on. `isWhole`: every row begins and ends on a vector, in the input and in the output.
//! `isEven`: rows lie equally far apart, each at the same place in a vector in both, and are read once whatever their
//! masks say. `hasInterval`: not every key of a row is allowed, whatever mask tensors say. `maskIsWhole`: where rows
//! are, the mask tensor's units are aligned to their size.
struct SoftmaxWork
{
    int64_t rows;
    int64_t keys;
    size_t elementBytes;
    bool isWhole;
    MaskTensors tensors;
    bool isEven{false};
    bool hasInterval{false};
    bool maskIsWhole{true};
};

//! Vectors that a row of `keys` elements touches at worst, when it may begin anywhere in a vector.
constexpr int64_t vectorsOfRow(int64_t keys, size_t elementBytes, bool isWhole)
{
    int64_t const perVector = kVectorBytes / static_cast<int64_t>(elementBytes);
    int64_t const slack = isWhole ? 0 : perVector - 1;
    return (keys + slack + perVector - 1) / perVector;
}

//! The smallest rung for these masks that holds `units`, -1 where none does. With `isShared` among those only whose
//! blocks may be a cluster's.
constexpr int findVectorRung(MaskTensors tensors, int64_t units, bool isShared = false)
{
    for (int i = 0; i < kVectorRungCount; ++i)
    {
        Rung const& rung = kVectorRungs[i];
        if (rung.serves(tensors) && units <= rung.capacity() && (!isShared || rung.mayBeShared()))
        {
            return i;
        }
    }
    return -1;
}

template <int count>
constexpr int findEvenRung(EvenRung const (&rungs)[count], MaskTensors tensors, int64_t units)
{
    for (int i = 0; i < count; ++i)
    {
        if (rungs[i].serves(tensors) && units <= rungs[i].capacity())
        {
            return i;
        }
    }
    return -1;
}

constexpr int findElementRung(int64_t keys)
{
    for (int i = 0; i < kElementRungCount; ++i)
    {
        if (keys <= kElementRungs[i].capacity())
        {
            return i;
        }
    }
    return -1;
}

//! Blocks for each of a few rows, so that all multiprocessors have something to do.
constexpr int blocksForFewRows(int64_t rows, int64_t vectors, int multiprocessors)
{
    int blocks = 1;
    while (vectors > kSmallestShared && blocks < kMaxCluster && rows * blocks * 2 <= multiprocessors
        && vectors / (blocks * 2) >= kSmallestShare)
    {
        blocks *= 2;
    }
    return blocks;
}

//! A row by a cluster of at least `blocks` blocks, 0 blocks where it is too long for any.
constexpr Policy chooseCluster(MaskTensors tensors, int64_t vectors, int blocks)
{
    int const rung = findVectorRung(tensors, (vectors + kMaxCluster - 1) / kMaxCluster, true);
    if (rung < 0)
    {
        return {Strategy::kPasses, 0, 0};
    }
    while (kVectorRungs[rung].capacity() * blocks < vectors)
    {
        blocks *= 2;
    }
    return {Strategy::kVectors, rung, blocks};
}

//! Long rows in shared memory: by the fewest blocks that hold one in what is theirs. 0 blocks where none do, or where
//! rows are too few.
constexpr Policy chooseLong(int64_t rows, int64_t vectors, SoftmaxDevice const& device)
{
    Policy policy{Strategy::kLong, 0, 1};
    while (policy.blocks < kMaxCluster && ChunkLayout{vectors, policy.blocks}.bytes() > kLongShareBytes)
    {
        policy.blocks *= 2;
    }
    bool const areMany = rows * policy.blocks >= device.multiprocessors;
    bool const fit = ChunkLayout{vectors, policy.blocks}.fits(device.sharedBytes);
    policy.blocks = areMany && fit ? policy.blocks : 0;
    return policy;
}

//! A rung of -1 where none holds a row.
constexpr Policy chooseEven(SoftmaxWork const& work, int64_t vectors)
{
    if (work.isWhole && work.maskIsWhole)
    {
        return {Strategy::kEven, findEvenRung(kEvenRungs, work.tensors, vectors), 1};
    }
    return {Strategy::kUneven, findEvenRung(kUnevenRungs, work.tensors, vectors), 1};
}

constexpr Policy choosePolicy(SoftmaxWork const& work, SoftmaxDevice const& device)
{
    if (!work.isWhole && work.keys <= kElementKeys)
    {
        return {Strategy::kElements, findElementRung(work.keys), 1};
    }
    int64_t const vectors = vectorsOfRow(work.keys, work.elementBytes, work.isWhole);
    bool const isCut = work.hasInterval && work.tensors == MaskTensors::kNone;
    bool const isLong = vectors > (isCut ? kLongCutVectors : kLongVectors);
    if (device.hasClusters && isLong && isLongServed(work.tensors))
    {
        Policy const inSharedMemory = chooseLong(work.rows, vectors, device);
        if (inSharedMemory.blocks > 0)
        {
            return inSharedMemory;
        }
    }
    int const wanted = device.hasClusters ? blocksForFewRows(work.rows, vectors, device.multiprocessors) : 1;
    if (work.isEven && wanted == 1 && vectors >= kShortestEven)
    {
        Policy const even = chooseEven(work, vectors);
        if (even.rung >= 0)
        {
            return even;
        }
    }
    int const rung = findVectorRung(work.tensors, vectors);
    if (device.hasClusters && (wanted > 1 || vectors > kClusterVectors || rung < 0))
    {
        Policy const cluster = chooseCluster(work.tensors, vectors, wanted > 1 ? wanted : 2);
        return cluster.blocks > 0 ? cluster : Policy{Strategy::kPasses, 0, kMaxCluster};
    }
    return rung >= 0 ? Policy{Strategy::kVectors, rung, 1} : Policy{Strategy::kPasses, 0, 1};
}

} // namespace attngraft
