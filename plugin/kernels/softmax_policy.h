// Tuning as data: which kernel serves a row of K scores.
// In: element size, K, alignment. Out: a Policy. Used by the dispatch and, for the supported types, by the plugin.
#pragma once

#include "operands.h"

#include <cstddef>
#include <cstdint>

namespace attngraft
{

//! Threads of a block that holds several rows.
constexpr int kSharedBlockThreads = 128;

//! Threads of a block in the multi-pass kernel.
constexpr int kMultiPassThreads = 1024;

//! A row is held in registers by `threads` threads, each with `units` units: vectors of 16 bytes, or
//! single elements where a row is shorter than a few vectors and does not begin on a vector.
struct Rung
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
        return threads > 32 ? threads : kSharedBlockThreads;
    }

    constexpr int rowsPerBlock() const
    {
        return blockThreads() / threads;
    }
};

//! Vector rungs, by capacity. Measured on an H200 (benchmarks/results/softmax-kernel.json); no other compute
//! capability has been measured, so all from 8.0 upward share them.
constexpr Rung kVectorRungs[] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}, {8, 2}, {16, 2}, {16, 4}, {32, 4}, {64, 4}, {128, 4},
    {256, 4}, {512, 4}, {1024, 4}};
constexpr int kVectorRungCount = static_cast<int>(sizeof(kVectorRungs) / sizeof(Rung));

//! Element rungs, by capacity: one element a thread keeps the loads of neighbouring rows contiguous.
constexpr Rung kElementRungs[] = {{1, 1}, {2, 1}, {4, 1}, {8, 1}, {16, 1}, {32, 1}};
constexpr int kElementRungCount = static_cast<int>(sizeof(kElementRungs) / sizeof(Rung));

enum class Strategy : int32_t
{
    kVectors,          //!< registers, 16-byte loads; rows consist of whole vectors
    kShiftedVectors,   //!< the same with partial vectors at both ends of a row, for odd K and any alignment
    kElements,         //!< registers, one element a thread
    kMultiPassVectors, //!< the row is read twice: it fits in no register file
    kMultiPassElements //!< the same where input and output are aligned differently, so that no vector fits both
};

struct Policy
{
    Strategy strategy;
    int rung; //!< index into the strategy's table; 0 for the multi-pass kernels
};

//! Vectors that a row of `keys` elements touches at worst, when it may begin anywhere in a vector.
constexpr int64_t vectorsOfRow(int64_t keys, size_t elementBytes, bool rowsBeginOnVectors)
{
    int64_t const perVector = kVectorBytes / static_cast<int64_t>(elementBytes);
    int64_t const slack = rowsBeginOnVectors ? 0 : perVector - 1;
    return (keys + slack + perVector - 1) / perVector;
}

constexpr int findRung(Rung const* rungs, int count, int64_t units)
{
    for (int i = 0; i < count; ++i)
    {
        if (units <= rungs[i].capacity())
        {
            return i;
        }
    }
    return -1;
}

//! `rowsBeginOnVectors`: every row begins on a 16-byte boundary, in the input and in the output.
//! `equallyAligned`: input and output have the same remainder modulo 16 bytes.
constexpr Policy choosePolicy(int64_t keys, size_t elementBytes, bool rowsBeginOnVectors, bool equallyAligned)
{
    if (!rowsBeginOnVectors)
    {
        int const rung = findRung(kElementRungs, kElementRungCount, keys);
        if (rung >= 0)
        {
            return {Strategy::kElements, rung};
        }
    }
    if (!equallyAligned)
    {
        return {Strategy::kMultiPassElements, 0};
    }
    int64_t const vectors = vectorsOfRow(keys, elementBytes, rowsBeginOnVectors);
    int const rung = findRung(kVectorRungs, kVectorRungCount, vectors);
    if (rung < 0)
    {
        return {Strategy::kMultiPassVectors, 0};
    }
    return {rowsBeginOnVectors ? Strategy::kVectors : Strategy::kShiftedVectors, rung};
}

constexpr bool holdsRow(Policy policy, int threads, int units)
{
    bool const isVectors = policy.strategy == Strategy::kVectors || policy.strategy == Strategy::kShiftedVectors;
    return isVectors && kVectorRungs[policy.rung].threads == threads && kVectorRungs[policy.rung].units == units;
}

static_assert(holdsRow(choosePolicy(2048, 2, true, true), 64, 4), "2048 halves: 256 vectors");
static_assert(holdsRow(choosePolicy(384, 2, true, true), 16, 4), "384 halves: 48 vectors");
static_assert(holdsRow(choosePolicy(384, 4, true, true), 32, 4), "384 floats: 96 vectors");
static_assert(holdsRow(choosePolicy(197, 2, false, true), 16, 2), "197 halves touch at most 26 vectors");
static_assert(holdsRow(choosePolicy(32768, 2, true, true), 1024, 4), "the longest row of halves held in registers");
static_assert(choosePolicy(32769, 2, false, true).strategy == Strategy::kMultiPassVectors, "one more than fits");
static_assert(choosePolicy(2, 2, false, true).strategy == Strategy::kElements, "rows of length 2");
static_assert(choosePolicy(2048, 2, false, false).strategy == Strategy::kMultiPassElements, "unequal alignment");

} // namespace attngraft
