// Tuning as data: which backward kernel serves a row. In: vectors of a row, rows, the device. Out: a policy.
//
// For measuring, these macros change the table:
//   ATTNGRAFT_SOFTMAX_BACKWARD_UNITS         1, 2, 4, 8 or 16: vectors of each tensor that a thread holds of a long row
//   ATTNGRAFT_SOFTMAX_BACKWARD_THREADS       of a block that holds several rows
//   ATTNGRAFT_SOFTMAX_BACKWARD_MOST_THREADS  512 or 1024: of a block that holds a row, where clusters hold longer ones
//   ATTNGRAFT_SOFTMAX_BACKWARD_RESIDENT      threads of a multiprocessor that registers are to suffice for
#pragma once

#include "operands.h"

#include <cstddef>
#include <cstdint>

#if !defined(ATTNGRAFT_SOFTMAX_BACKWARD_UNITS)
#define ATTNGRAFT_SOFTMAX_BACKWARD_UNITS 4
#endif
#if !defined(ATTNGRAFT_SOFTMAX_BACKWARD_THREADS)
#define ATTNGRAFT_SOFTMAX_BACKWARD_THREADS 128
#endif
#if !defined(ATTNGRAFT_SOFTMAX_BACKWARD_MOST_THREADS)
#define ATTNGRAFT_SOFTMAX_BACKWARD_MOST_THREADS 512
#endif

namespace attngraft
{

//! A row is held in registers by `threads` threads, each with `units` vectors of 16 bytes of each tensor.
struct SoftmaxBackwardRung
{
    int threads;
    int units;

    constexpr int64_t capacity() const
    {
        return int64_t{threads} * units;
    }

    //! Rows longer than a warp have a block of their own.
    constexpr int blockThreads() const
    {
        return threads > 32 ? threads : ATTNGRAFT_SOFTMAX_BACKWARD_THREADS;
    }

    constexpr int rowsPerBlock() const
    {
        return blockThreads() / threads;
    }
};

constexpr int kSoftmaxBackwardMostThreads = 1024; //!< of a block on every device

//! The rung for that many vectors where a thread holds as many as the macro says.
constexpr SoftmaxBackwardRung longSoftmaxBackwardRung(int vectors)
{
    constexpr int kUnits = ATTNGRAFT_SOFTMAX_BACKWARD_UNITS;
    int const threads = vectors / kUnits;
    return {threads < kSoftmaxBackwardMostThreads ? threads : kSoftmaxBackwardMostThreads, kUnits};
}

//! By capacity, each twice the one before. Not measured yet: four vectors of each tensor are 128 bytes a thread on
//! their way, and with 1024 threads a multiprocessor three times what the memory's latency asks for.
constexpr SoftmaxBackwardRung kSoftmaxBackwardRungs[] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}, {8, 2},
    longSoftmaxBackwardRung(32), longSoftmaxBackwardRung(64), longSoftmaxBackwardRung(128),
    longSoftmaxBackwardRung(256), longSoftmaxBackwardRung(512), longSoftmaxBackwardRung(1024),
    longSoftmaxBackwardRung(2048), longSoftmaxBackwardRung(4096)};
constexpr int kSoftmaxBackwardRungCount = static_cast<int>(sizeof(kSoftmaxBackwardRungs) / sizeof(SoftmaxBackwardRung));

//! The part of a row that a block of a cluster holds: the first where rows are few, the others where they are long. Two
//! blocks of 512 threads share a multiprocessor: while one waits for the rest of its cluster, the other moves data.
constexpr SoftmaxBackwardRung kSoftmaxBackwardClusterRungs[] = {{128, 4}, {512, 4}, {1024, 4}};
constexpr int kSoftmaxBackwardClusterRungCount =
    static_cast<int>(sizeof(kSoftmaxBackwardClusterRungs) / sizeof(SoftmaxBackwardRung));
constexpr int kSoftmaxBackwardClusterBlocks = 8; //!< the largest cluster of every device that has them

//! Threads and vectors of a step of the kernel that reads a row twice.
constexpr SoftmaxBackwardRung kSoftmaxBackwardPasses = {512, 4};

enum class SoftmaxBackwardStrategy : int32_t
{
    kRegisters, //!< a row is read once, by some threads of a block or all of them
    kCluster,   //!< the same by the blocks of a cluster
    kPasses,    //!< a row is read twice, by a block or by the blocks of a cluster
};

struct SoftmaxBackwardPolicy
{
    SoftmaxBackwardStrategy strategy{SoftmaxBackwardStrategy::kRegisters};
    int rung{0};          //!< index into the strategy's table
    int clusterBlocks{1}; //!< 1: no cluster
};

//! Vectors that a row of `keys` elements touches at worst. Rows begin a multiple of `step` elements behind a vector's
//! beginning, `step` a power of two of at most a vector.
constexpr int64_t softmaxBackwardVectors(int64_t keys, size_t elementBytes, int64_t step)
{
    int64_t const perVector = kVectorBytes / static_cast<int64_t>(elementBytes);
    return (keys + (perVector - step) + perVector - 1) / perVector;
}

//! The smallest cluster whose blocks hold the row, 0 where none does.
constexpr int softmaxBackwardCluster(SoftmaxBackwardRung rung, int64_t vectors)
{
    for (int blocks = 2; blocks <= kSoftmaxBackwardClusterBlocks; blocks *= 2)
    {
        if (vectors <= blocks * rung.capacity())
        {
            return blocks;
        }
    }
    return 0;
}

//! By a cluster of the rungs from `first` to `last`, or in passes by the largest cluster.
constexpr SoftmaxBackwardPolicy softmaxBackwardInCluster(int64_t vectors, int first, int last)
{
    for (int rung = first; rung <= last; ++rung)
    {
        if (int const blocks = softmaxBackwardCluster(kSoftmaxBackwardClusterRungs[rung], vectors))
        {
            return {SoftmaxBackwardStrategy::kCluster, rung, blocks};
        }
    }
    return {SoftmaxBackwardStrategy::kPasses, 0, kSoftmaxBackwardClusterBlocks};
}

//! `multiprocessors` of a device with clusters; 0: it has none.
constexpr SoftmaxBackwardPolicy chooseSoftmaxBackward(int64_t vectors, int64_t rows, int multiprocessors)
{
    bool const areFew = 2 * rows <= multiprocessors && vectors > kSoftmaxBackwardClusterRungs[0].capacity();
    SoftmaxBackwardPolicy const spread = softmaxBackwardInCluster(vectors, 0, 0);
    if (areFew && spread.strategy == SoftmaxBackwardStrategy::kCluster)
    {
        return spread;
    }
    int const mostThreads = multiprocessors > 0 ? ATTNGRAFT_SOFTMAX_BACKWARD_MOST_THREADS : kSoftmaxBackwardMostThreads;
    for (int rung = 0; rung < kSoftmaxBackwardRungCount; ++rung)
    {
        SoftmaxBackwardRung const candidate = kSoftmaxBackwardRungs[rung];
        if (vectors <= candidate.capacity() && candidate.threads <= mostThreads)
        {
            return {SoftmaxBackwardStrategy::kRegisters, rung, 1};
        }
    }
    return multiprocessors > 0 ? softmaxBackwardInCluster(vectors, 1, kSoftmaxBackwardClusterRungCount - 1)
                               : SoftmaxBackwardPolicy{SoftmaxBackwardStrategy::kPasses, 0, 1};
}

static_assert(softmaxBackwardVectors(2048, 2, 8) == 256, "2048 halves that begin on vectors");
static_assert(softmaxBackwardVectors(197, 2, 1) == 26, "197 halves that begin anywhere");
static_assert(softmaxBackwardVectors(2, 2, 2) == 1, "no row of two halves straddles a vector");
static_assert(chooseSoftmaxBackward(4097, 1000, 0).strategy == SoftmaxBackwardStrategy::kPasses, "in no registers");
static_assert(chooseSoftmaxBackward(4097, 1000, 132).clusterBlocks == 4, "in those of four blocks of 512 threads");
static_assert(chooseSoftmaxBackward(40000, 1000, 132).strategy == SoftmaxBackwardStrategy::kPasses, "in no cluster's");
static_assert(chooseSoftmaxBackward(1024, 4, 132).clusterBlocks == 2, "few rows are spread over the device");

} // namespace attngraft
