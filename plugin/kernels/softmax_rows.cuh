// Rows held in registers, read once: a block holds one tile of rows, or a cluster of blocks holds one row. All loads
// are on their way before the first score is used.
#pragma once

#include "softmax_work.cuh"

namespace attngraft
{

template <typename Work>
class RowsInRegisters
{
public:
    ATTNGRAFT_DEVICE explicit RowsInRegisters(SoftmaxPlan const& plan)
        : mPlan(plan)
        , mExchange{static_cast<int>(threadIdx.x) / Work::kThreads, plan.policy.blocks}
    {
        int64_t tile = blockIdx.x;
        if constexpr (Work::kIsCluster)
        {
            tile = plan.blocks.quotient(blockIdx.x);
            mFrom = blockInCluster() * static_cast<int>(plan.unitsPerBlock);
        }
        mFirstRow = tile * (Work::kGroups * Work::kRows) + mExchange.group;
        mFirstUnit = mFrom + static_cast<int>(threadIdx.x) % Work::kThreads;
    }

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
            read(isEmpty);
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

    ATTNGRAFT_DEVICE void read(bool const (&ignoresMask)[Work::kRows])
    {
        int const to = mFrom + static_cast<int>(mPlan.unitsPerBlock);
#pragma unroll
        for (int r = 0; r < Work::kRows; ++r)
        {
            int64_t const row = mFirstRow + r * Work::kGroups;
            if (row < mPlan.rows)
            {
                mRows[r].find(mPlan, row, mFrom, to, ignoresMask[r]);
                mRows[r].moveTo(mFirstUnit);
                mRows[r].template loadScores<Reading::kOnly>(mPlan);
            }
        }
#pragma unroll
        for (int r = 0; r < Work::kRows; ++r)
        {
            if (mFirstRow + r * Work::kGroups < mPlan.rows)
            {
                mRows[r].findMasks(mPlan, mFirstRow + r * Work::kGroups);
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
    int mFrom{0}; //!< this block's first unit of the row
    int64_t mFirstRow{0};
    int mFirstUnit{0}; //!< of the row's, this thread's
    HeldRow<Work, int> mRows[Work::kRows];
};

template <typename Work>
__global__ void __launch_bounds__(Work::kBlockThreads, Work::kResidentBlocks)
    softmaxInRegisters(__grid_constant__ SoftmaxPlan const plan)
{
    RowsInRegisters<Work>(plan).run();
}

} // namespace attngraft
