// Rows that no registers hold: a block, or a cluster of blocks, reads them once for maximum and sum and once more to
// write. The second time from the end on, which the second level of cache may still have.
#pragma once

#include "softmax_held_row.cuh"

namespace attngraft
{

template <typename Work>
class RowInPasses
{
public:
    ATTNGRAFT_DEVICE explicit RowInPasses(SoftmaxPlan const& plan)
        : mPlan(plan)
        , mExchange{0, plan.policy.blocks}
        , mFactor(exponentFactor(plan))
        , mRow(blockIdx.x)
    {
        if constexpr (Work::kIsCluster)
        {
            mRow = plan.blocks.quotient(blockIdx.x);
            mFrom = blockInCluster() * plan.unitsPerBlock;
        }
    }

    ATTNGRAFT_DEVICE void run()
    {
        RowState whole;
#pragma unroll 1
        for (int reading = 0;; ++reading)
        {
            bool const isEmpty = reading == 1;
            mHeld.find(mPlan, mRow, mFrom, mFrom + mPlan.unitsPerBlock, isEmpty);
            mHeld.findMasks(mPlan, mRow);
            whole = mExchange(joinLanes<kWarpThreads>(sumUp(), mFactor), mFactor, reading);
            if (mPlan.emptyRows != EmptyRows::kUnmasked || reading == 1 || whole.sum != 0.F)
            {
                break;
            }
        }
        write(whole);
        Exchange::leave();
    }

private:
    using Exchange = RowExchange<Work::kThreads, 1, Work::kIsCluster>;
    static constexpr int64_t kStep = int64_t{Work::kThreads} * Work::kUnits;

    ATTNGRAFT_DEVICE RowState sumUp()
    {
        RowState state;
        for (int64_t first = mFrom + threadIdx.x; first < mHeld.allowedEnd; first += kStep)
        {
            mHeld.moveTo(first);
            mHeld.loadScores(mPlan);
            mHeld.loadMasks(mPlan);
            state.raise(fmaxf(mHeld.applyMasks(mPlan), state.maximum), mFactor);
            state.sum += mHeld.exponentiate(Exponent(finiteMaximum(state.maximum), mFactor));
        }
        return state;
    }

    ATTNGRAFT_DEVICE void write(RowState const& whole)
    {
        Exponent const exponent(finiteMaximum(whole.maximum), mFactor);
        Normalisation const normalisation(mPlan, whole, whole, mFactor);
        int64_t const steps = (mHeld.limit - mFrom + kStep - 1) / kStep;
        for (int64_t step = steps - 1; step >= 0; --step)
        {
            mHeld.moveTo(mFrom + step * kStep + threadIdx.x);
            mHeld.loadScores(mPlan);
            mHeld.loadMasks(mPlan);
            mHeld.applyMasks(mPlan);
            mHeld.exponentiate(exponent);
            mHeld.write(exponent, normalisation);
        }
    }

    SoftmaxPlan const& mPlan;
    Exchange mExchange;
    float mFactor;
    int64_t mRow;
    int64_t mFrom{0}; //!< this block's first unit of the row
    HeldRow<Work, int64_t> mHeld;
};

//! Blocks that a multiprocessor has room for: fewer than of rows in registers, since 64-bit positions take more of
//! them.
constexpr int kPassBlocks = 2;

template <typename Work>
__global__ void __launch_bounds__(Work::kBlockThreads, kPassBlocks)
    softmaxInPasses(__grid_constant__ SoftmaxPlan const plan)
{
    RowInPasses<Work>(plan).run();
}

} // namespace attngraft
