// Who holds a row, which of its units a thread has, and what exponentials become.
#pragma once

#include "row_mask.cuh"
#include "row_reduction.cuh"
#include "softmax_plan.h"

namespace attngraft
{

//! Who holds a row, and which kernel it is. `inCluster`: the blocks of a cluster hold it together.
template <typename T_, MaskTensors tensors, int elements, int threads, int units, int rows, int blockThreads,
    bool inCluster>
struct RowWork
{
    using T = T_;
    static constexpr MaskTensors kTensors = tensors;
    static constexpr int kElements = elements; //!< of a unit
    static constexpr int kThreads = threads;
    static constexpr int kUnits = units;
    static constexpr int kRows = rows;
    static constexpr int kBlockThreads = blockThreads;
    static constexpr bool kIsCluster = inCluster;
    static constexpr int kGroups = blockThreads / threads;
    static constexpr bool kIsRaw = isRaw(tensors);
    //! Packed scores stay, and exponentials are made of them twice: half the registers.
    static constexpr bool kRecomputes = kIsRaw && sizeof(T) == 2 && units * rows >= kRecomputedUnits;
    static constexpr int kHeldRegisters = rows * units * (kRecomputes ? kVectorBytes / 4 : elements);
    static constexpr int kResidentThreads = residentThreads(kHeldRegisters, kIsRaw && sizeof(T) == 2);
    static constexpr int kResidentBlocks = kResidentThreads / blockThreads > 0 ? kResidentThreads / blockThreads : 1;
    static_assert(blockThreads % threads == 0 && blockThreads % kWarpThreads == 0, "whole groups, whole warps");
    static_assert(threads <= kWarpThreads || rows == 1, "rows of several warps are held one at a time");
    static_assert(!inCluster || blockThreads == threads, "a cluster's block holds a part of one row");
};

//! s - max(s) is multiplied with this before exp2.
ATTNGRAFT_DEVICE float exponentFactor(SoftmaxPlan const& plan)
{
    return plan.scaleIsDeferred ? plan.scoreMap.scale * kLog2E : kLog2E;
}

//! What the exponentials of a thread become, and what a key gets that has none.
struct Normalisation
{
    float weight;
    float offset;

    ATTNGRAFT_DEVICE Normalisation(SoftmaxPlan const& plan, RowState const& mine, RowState const& row, float factor)
    {
        bool const isEmpty = row.sum == 0.F;
        float const share = row.maximum == mine.maximum ? 1.F : mine.weight(row.maximum, factor);
        weight = isEmpty ? 0.F : share * reciprocalFast(row.sum);
        offset = isEmpty && plan.emptyRows == EmptyRows::kUniform ? 1.F / static_cast<float>(plan.keys) : 0.F;
    }

    ATTNGRAFT_DEVICE float operator()(float power) const
    {
        return fmaf(power, weight, offset);
    }
};

//! A thread's units of a row, counted from its first one in steps of the row's threads: those of them that lie between.
template <int threads>
struct UnitRange
{
    int begin{0};
    int end{0};

    UnitRange() = default;

    //! Units `from` to `to` of the row, seen from unit `first`. Differences beyond int count for one that is far away.
    template <typename Index>
    ATTNGRAFT_DEVICE UnitRange(Index from, Index to, Index first)
        : begin(clamp(from - first))
        , end(clamp(to - first))
    { }

    ATTNGRAFT_DEVICE bool has(int u) const
    {
        return u * threads >= begin && u * threads < end;
    }

private:
    static ATTNGRAFT_DEVICE int clamp(int apart)
    {
        return apart;
    }

    static ATTNGRAFT_DEVICE int clamp(int64_t apart)
    {
        constexpr int64_t kFar = int64_t{1} << 24;
        return static_cast<int>(apart < -kFar ? -kFar : apart > kFar ? kFar : apart);
    }
};

//! The same of a thread all of whose units are read, so that nothing is asked and their instructions mix. `mayBeCut`:
//! not every element is allowed, or not even every unit.
template <bool mayBeCut>
struct EveryUnit
{
    EveryUnit() = default;

    template <typename Index>
    ATTNGRAFT_DEVICE EveryUnit(Index, Index, Index)
    { }

    static ATTNGRAFT_DEVICE constexpr bool has(int)
    {
        return true;
    }
};

} // namespace attngraft
