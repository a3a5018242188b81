// Rows held in registers, read once: a block holds one tile of rows, or a cluster of blocks holds one row. All loads
// are on their way before the first score is used.
#pragma once

#include "softmax_held_row.cuh"

namespace attngraft
{

template <typename Work>
class RowsInRegisters
{
public:
    ATTNGRAFT_DEVICE explicit RowsInRegisters(SoftmaxPlan const& plan)
        : mPlan(plan)
        , mExchange{static_cast<int>(threadIdx.x) / Work::kThreads, plan.policy.blocks}
    { }

    //! Twice at most: an empty row is read again without its mask where the contract says `unmasked`.
    ATTNGRAFT_DEVICE void run()
    {
        bool isEmpty[Work::kRows] = {};
        float const factor = exponentFactor(mPlan);
        RowState mine[Work::kRows];
        RowState whole[Work::kRows];
#pragma unroll 1
        for (int reading = 0;; ++reading)
        {
            // Rows are found anew, so that nothing of a second reading, which is rare, is prepared before the first.
            read(computedHere(static_cast<int>(threadIdx.x)), isEmpty);
            bool isAnyEmpty = false;
#pragma unroll
            for (int r = 0; r < Work::kRows; ++r)
            {
                reduce(r, factor, reading, mine[r], whole[r]);
                isEmpty[r] = whole[r].sum == 0.F;
                isAnyEmpty = isAnyEmpty || isEmpty[r];
            }
            if (mPlan.emptyRows != EmptyRows::kUnmasked || reading == 1 || !isAnyInGroup(isAnyEmpty))
            {
                break;
            }
        }
#pragma unroll
        for (int r = 0; r < Work::kRows; ++r)
        {
            Exponent const exponent(finiteMaximum(mine[r].maximum), factor);
            mRows[r].write(exponent, Normalisation(mPlan, mine[r], whole[r], factor));
        }
        Exchange::leave();
    }

private:
    using Exchange = RowExchange<Work::kThreads, Work::kGroups, Work::kIsCluster>;

    ATTNGRAFT_DEVICE void read(int thread, bool const (&ignoresMask)[Work::kRows])
    {
        int64_t tile = blockIdx.x;
        int from = 0; // this block's first unit of the row
        if constexpr (Work::kIsCluster)
        {
            tile = mPlan.blocks.quotient(blockIdx.x);
            from = blockInCluster() * static_cast<int>(mPlan.unitsPerBlock);
        }
        int64_t const firstRow = tile * (Work::kGroups * Work::kRows) + thread / Work::kThreads;
#pragma unroll
        for (int r = 0; r < Work::kRows; ++r)
        {
            int64_t const row = firstRow + r * Work::kGroups;
            if (row < mPlan.rows)
            {
                mRows[r].find(mPlan, row, from, from + static_cast<int>(mPlan.unitsPerBlock), ignoresMask[r]);
                mRows[r].moveTo(from + thread % Work::kThreads);
                mRows[r].loadScores(mPlan);
            }
        }
#pragma unroll
        for (int r = 0; r < Work::kRows; ++r)
        {
            int64_t const row = firstRow + r * Work::kGroups;
            if (row < mPlan.rows)
            {
                mRows[r].findMasks(mPlan, row);
                mRows[r].loadMasks(mPlan);
            }
        }
    }

    //! `mine`: of those threads whose exponentials have one maximum, the warp's or fewer; `whole`: of the row.
    ATTNGRAFT_DEVICE void reduce(int r, float factor, int reading, RowState& mine, RowState& whole)
    {
        constexpr int kLanes = Work::kThreads < kWarpThreads ? Work::kThreads : kWarpThreads;
        mine.maximum = maximumOfLanes<kLanes>(mRows[r].applyMasks(mPlan));
        Exponent const exponent(finiteMaximum(mine.maximum), factor);
        mine.sum = sumOfLanes<kLanes>(mRows[r].exponentiate(exponent));
        whole = mine;
        if constexpr (Work::kThreads > kWarpThreads || Work::kIsCluster)
        {
            whole = mExchange(mine, factor, reading);
        }
    }

    //! Of a warp, or of a row's threads, who agree.
    static ATTNGRAFT_DEVICE bool isAnyInGroup(bool condition)
    {
        return Work::kThreads < kWarpThreads ? anyInWarp(condition) : condition;
    }

    SoftmaxPlan const& mPlan;
    Exchange mExchange;
    HeldRow<Work, int> mRows[Work::kRows];
};

template <typename Work>
__global__ void __launch_bounds__(Work::kBlockThreads, Work::kResidentBlocks)
    softmaxInRegisters(__grid_constant__ SoftmaxPlan const plan)
{
    RowsInRegisters<Work>(plan).run();
}

} // namespace attngraft
