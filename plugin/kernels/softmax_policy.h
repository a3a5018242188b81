// Tuning as data: which kernel serves rows of K scores.
// In: K, element size, alignment, the mask's kind, the device. Out: a Policy. Used by planning, dispatch and kernels.
//
// For measuring, every rung can be given anew when compiling: -DATTNGRAFT_SOFTMAX_V256='32,8,1,128' makes rows of up to
// 256 vectors be held by 32 threads of 8 vectors each, one row a thread group, 128 threads a block. Further knobs:
//   ATTNGRAFT_SOFTMAX_RESIDENT_THREADS  threads of a multiprocessor that a kernel's registers must leave room for
//   ATTNGRAFT_SOFTMAX_RECOMPUTED_UNITS  vectors of 16-bit scores a thread from which exponentials are computed twice
//   ATTNGRAFT_SOFTMAX_CLUSTER_VECTORS   rows longer than this, in vectors, are shared by the blocks of a cluster
//   ATTNGRAFT_SOFTMAX_LOOP              1: many whole rows are taken one after another, the next read ahead
//                                       (softmax_loop.cuh). 0, the default, until that is measured
//   ATTNGRAFT_SOFTMAX_PASS_THREADS, ATTNGRAFT_SOFTMAX_PASS_UNITS   the same as for rungs, of rows that are read twice
//   ATTNGRAFT_SOFTMAX_STREAM_VECTORS    rows longer than this, in vectors, pass through shared memory
//   ATTNGRAFT_SOFTMAX_STREAM_THREADS, ATTNGRAFT_SOFTMAX_STREAM_UNITS   of those (softmax_ring.h)
//   ATTNGRAFT_SOFTMAX_TILES             1: many rows without gaps between them pass through shared memory in tiles
//                                       (softmax_tiles.cuh). 0, the default, until that is measured
//   ATTNGRAFT_SOFTMAX_TILE_WARPS, ATTNGRAFT_SOFTMAX_TILE_BYTES   of those (softmax_tile_layout.h)
#pragma once

#include "operands.h"
#include "softmax_device.h"
#include "softmax_ring.h"
#include "softmax_rungs.h"
#include "softmax_tile_layout.h"

#include <cstddef>
#include <cstdint>

namespace attngraft
{

#if !defined(ATTNGRAFT_SOFTMAX_RECOMPUTED_UNITS)
#define ATTNGRAFT_SOFTMAX_RECOMPUTED_UNITS 5
#endif
#if !defined(ATTNGRAFT_SOFTMAX_CLUSTER_VECTORS)
#define ATTNGRAFT_SOFTMAX_CLUSTER_VECTORS 2048
#endif
#if !defined(ATTNGRAFT_SOFTMAX_LOOP)
#define ATTNGRAFT_SOFTMAX_LOOP 0
#endif
#if !defined(ATTNGRAFT_SOFTMAX_PASS_THREADS)
#define ATTNGRAFT_SOFTMAX_PASS_THREADS 256
#endif
#if !defined(ATTNGRAFT_SOFTMAX_PASS_UNITS)
#define ATTNGRAFT_SOFTMAX_PASS_UNITS 4
#endif
#if !defined(ATTNGRAFT_SOFTMAX_STREAM_VECTORS)
#define ATTNGRAFT_SOFTMAX_STREAM_VECTORS 2048
#endif
#if !defined(ATTNGRAFT_SOFTMAX_TILES)
#define ATTNGRAFT_SOFTMAX_TILES 0
#endif

//! Threads that a multiprocessor has room for, of kernels that hold so many registers' worth of a row: 80, 96 or 128
//! registers for each thread, with which few or none are spilled. 40 KiB and more of loads can be on their way.
constexpr int residentThreads(int heldRegisters, bool isRawAnd16Bit)
{
#if defined(ATTNGRAFT_SOFTMAX_RESIDENT_THREADS)
    return heldRegisters > 0 || isRawAnd16Bit ? ATTNGRAFT_SOFTMAX_RESIDENT_THREADS : 0;
#else
    return heldRegisters > 40 ? 512 : isRawAnd16Bit ? 768 : 640;
#endif
}

constexpr bool kReadsAhead = ATTNGRAFT_SOFTMAX_LOOP != 0;
constexpr bool kHasTiles = ATTNGRAFT_SOFTMAX_TILES != 0;

//! The same of kernels that read the next whole row ahead, `units` vectors of it. A row of several warps takes more
//! registers.
constexpr int loopResidentThreads(int threads, int units, bool isRaw)
{
    if (isRaw)
    {
        return units <= 3 && threads <= 32 ? 1024 : 768;
    }
    return 512;
}

constexpr int kRecomputedUnits = ATTNGRAFT_SOFTMAX_RECOMPUTED_UNITS;
constexpr int64_t kClusterVectors = ATTNGRAFT_SOFTMAX_CLUSTER_VECTORS;

//! Few rows are shared by clusters of blocks where each block still gets this many vectors.
constexpr int64_t kSmallestShare = 256;

//! Shorter rows, in vectors, leave most threads of a warp without one.
constexpr int64_t kSmallestLoop = 9;

//! Rows that follow each other in a thread group at least, for reading ahead to pay.
constexpr int64_t kLoopedRows = 2;

//! Rows that begin anywhere and are no longer than this are held element by element.
constexpr int64_t kElementKeys = 8;

//! Rows longer than this, in vectors, pass through shared memory where they are many. Shorter ones do better in
//! registers, several blocks of a multiprocessor taking turns.
constexpr int64_t kStreamVectors = ATTNGRAFT_SOFTMAX_STREAM_VECTORS;

//! Chunks of shared memory with which that pays.
constexpr int kSmallestRing = 8;

//! Rows that each block gets at least when rows pass through shared memory: with fewer, the time in which it only
//! reads or only writes, at both ends, is too large a part.
constexpr int64_t kStreamedRows = 4;

enum class Strategy : int32_t
{
    kVectors,  //!< registers, 16-byte loads; partial vectors at both ends of a row where it does not begin on one
    kElements, //!< registers, one element a thread, several rows a thread
    kPasses,   //!< the row is read twice: it fits in no register file
    kStream,   //!< rows pass through shared memory, the next ones being read while one is written
    kLoop,     //!< registers, whole rows one after another, the next read ahead
    kTiles     //!< rows pass through shared memory, several at once, every warp for itself
};

struct Policy
{
    Strategy strategy;
    int rung;        //!< index into the strategy's table; 0 where it has none
    int blocks;      //!< that share a row: a cluster where there are several
    int chunks{0};   //!< of shared memory that rows pass through, kChunkVectors each
    int rowsHeld{0}; //!< at once, by blocks that rows pass through
    int tileRows{0}; //!< rows of a tile
    int stages{0};   //!< tiles of a warp's ring
};

//! What the choice depends on. `isWhole`: every row begins and ends on a vector, in the input and in the output.
//! `isEven`: moreover rows lie equally far apart, under an interval of keys or under a mask tensor, not under both.
//! `isGapless`: nothing is asked of a row's keys but what mask tensors say, and rows follow each other without gaps, in
//! the input and in the output, which begin at the same place in a vector.
struct SoftmaxWork
{
    int64_t rows;
    int64_t keys;
    size_t elementBytes;
    bool isWhole;
    MaskTensors tensors;
    bool isEven{false};
    bool isGapless{false};
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

constexpr int findLoopRung(MaskTensors tensors, int64_t units)
{
    for (int i = 0; i < kLoopRungCount; ++i)
    {
        if (kLoopRungs[i].serves(tensors) && units <= kLoopRungs[i].capacity())
        {
            return i;
        }
    }
    return -1;
}

constexpr int findTileRung(int64_t units)
{
    for (int i = 0; i < kTileRungCount; ++i)
    {
        if (units <= kTileRungs[i].capacity())
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
    while (blocks < kMaxCluster && rows * blocks * 2 <= multiprocessors && vectors / (blocks * 2) >= kSmallestShare)
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

//! Rows that a block holds at once where `blocks` of them share each: two, so that a row is summed up while what was
//! found of the one before it travels, one where the exchange is waited for, 0 where there is no room. Loads ahead have
//! room in any case.
constexpr int rowsHeld(int64_t chunksOfRow, int blocks, int chunks)
{
    int64_t const share = (chunksOfRow + blocks - 1) / blocks;
    int const ahead = chunks / 5;
    return 2 * share + ahead <= chunks ? 2 : share + ahead <= chunks ? 1 : 0;
}

//! Rows through shared memory: by the fewest blocks that hold one, since what they do for a row beside its scores is as
//! much for each. 0 blocks where none do, or where rows are too few.
constexpr Policy chooseStream(int64_t rows, int64_t vectors, SoftmaxDevice const& device)
{
    Policy policy{Strategy::kStream, 0, 1, ringChunks(device.sharedBytes), 0};
    int64_t const chunks = (vectors + kChunkVectors - 1) / kChunkVectors;
    while (policy.blocks < kMaxCluster && rowsHeld(chunks, policy.blocks, policy.chunks) == 0)
    {
        policy.blocks *= 2;
    }
    policy.rowsHeld = rowsHeld(chunks, policy.blocks, policy.chunks);
    bool const areMany = rows * policy.blocks >= kStreamedRows * device.multiprocessors;
    policy.blocks = areMany && policy.rowsHeld > 0 && policy.chunks >= kSmallestRing ? policy.blocks : 0;
    return policy;
}

//! Whether so many rows, each held by so many threads, occupy a device long enough that reading ahead pays.
constexpr bool areManyRows(int64_t rows, int threads, SoftmaxDevice const& device)
{
    constexpr int64_t kThreads = 1024; // that a multiprocessor has room for at most
    return rows * threads >= kLoopedRows * kThreads * device.multiprocessors;
}

//! The rung of rows one after another, -1 where there are too few of them for that, or none holds a row.
constexpr int chooseLoop(SoftmaxWork const& work, int64_t vectors, SoftmaxDevice const& device)
{
    int const rung = findLoopRung(work.tensors, vectors);
    if (!kReadsAhead || !device.hasClusters || !work.isEven || vectors < kSmallestLoop || rung < 0)
    {
        return -1; // clusters: what tells the devices that it is meant for
    }
    return areManyRows(work.rows, kLoopRungs[rung].threads, device) ? rung : -1;
}

//! Rows through shared memory in tiles. 0 blocks where there are too few of them, or where a tile holds none.
constexpr Policy chooseTiles(SoftmaxWork const& work, int64_t vectors, SoftmaxDevice const& device)
{
    Policy policy{Strategy::kTiles, findTileRung(vectors), 0};
    if (!kHasTiles || !device.hasClusters || !work.isGapless || !isRaw(work.tensors) || vectors < kSmallestLoop
        || policy.rung < 0)
    {
        return policy; // clusters: as for the loop
    }
    TileRung const& rung = kTileRungs[policy.rung];
    int const rowBytes = static_cast<int>(work.keys) * static_cast<int>(work.elementBytes);
    policy.tileRows = rowsOfTile(rung, rowBytes);
    policy.stages = tileStages(policy.tileRows, rowBytes, device.sharedBytes);
    policy.blocks = policy.stages > 0 && areManyRows(work.rows, rung.threads, device) ? 1 : 0;
    return policy;
}

constexpr Policy choosePolicy(SoftmaxWork const& work, SoftmaxDevice const& device)
{
    if (!work.isWhole && work.keys <= kElementKeys)
    {
        return {Strategy::kElements, findElementRung(work.keys), 1};
    }
    int64_t const vectors = vectorsOfRow(work.keys, work.elementBytes, work.isWhole);
    if (device.hasClusters && vectors > kStreamVectors && mayStream(work.tensors))
    {
        Policy const stream = chooseStream(work.rows, vectors, device);
        if (stream.blocks > 0)
        {
            return stream;
        }
    }
    Policy const tiles = chooseTiles(work, vectors, device);
    bool const endOnLines = work.keys * static_cast<int64_t>(work.elementBytes) % kLineBytes == 0;
    if (tiles.blocks > 0 && !endOnLines)
    {
        return tiles;
    }
    if (int const loop = chooseLoop(work, vectors, device); loop >= 0)
    {
        return {Strategy::kLoop, loop, 1};
    }
    if (tiles.blocks > 0)
    {
        return tiles;
    }
    int const wanted = device.hasClusters ? blocksForFewRows(work.rows, vectors, device.multiprocessors) : 1;
    int const rung = findVectorRung(work.tensors, vectors);
    if (device.hasClusters && (wanted > 1 || vectors > kClusterVectors || rung < 0))
    {
        Policy const cluster = chooseCluster(work.tensors, vectors, wanted > 1 ? wanted : 2);
        return cluster.blocks > 0 ? cluster : Policy{Strategy::kPasses, 0, kMaxCluster};
    }
    return rung >= 0 ? Policy{Strategy::kVectors, rung, 1} : Policy{Strategy::kPasses, 0, 1};
}

} // namespace attngraft
