// Long rows that pass through shared memory, read once: a block, or a cluster of blocks, takes one row after another.
// One thread has the copy engine fill whatever chunks are empty, with those of later rows too, so that memory never
// waits for arithmetic. The others sum up a row while the maximum and the sum of the row before it travel between them,
// and then write that one.
#pragma once

#include "softmax_unmasked.cuh"

namespace attngraft
{

template <typename Work>
class RowsThroughRing
{
public:
    ATTNGRAFT_DEVICE explicit RowsThroughRing(SoftmaxPlan const& plan)
        : mPlan(plan)
        , mRing{{plan.policy.chunks, plan.policy.blocks}, dynamicSharedMemory()}
        , mShare{plan.policy.blocks, blockInCluster()}
        , mExchange{mRing.layout, mRing.base, mShare.block, 0}
        , mRows{mRing.layout, mRing.base}
        , mFactor(exponentFactor(plan))
        , mFirstRow(plan.blocks.quotient(blockIdx.x))
        , mRowStep(plan.blocks.quotient(gridDim.x))
    { }

    ATTNGRAFT_DEVICE void run()
    {
        if (threadIdx.x == 0)
        {
            mRing.makeBarriers();
            mRows.makeBarriers();
            mExchange.makeBarriers();
            RingExchange{mRing.layout, mRing.base, mShare.block, 1}.makeBarriers();
            publishCountingBarriers();
        }
        meetCluster();
        if (threadIdx.x < Work::kThreads)
        {
            useUp();
        }
        else if (threadIdx.x == Work::kThreads)
        {
            fill();
        }
        meetCluster(); // others may still send to this block's shared memory
    }

private:
    using Row = StreamedRow<Work>;
    using Masks = MaskUnits<Work>;
    using SomeUnits = StreamedUnits<Work, UnitRange<Work::kThreads>>;
    using AllUnits = StreamedUnits<Work, EveryUnit<false>>;
    using CutUnits = StreamedUnits<Work, EveryUnit<true>>;
    static constexpr bool kReadsMasksAgain = !AllUnits::kIsKept;

    static ATTNGRAFT_DEVICE void meetCluster()
    {
        arriveAtCluster();
        waitForCluster();
    }

    //! All chunks of all rows, as soon as there is room.
    ATTNGRAFT_DEVICE void fill() const
    {
        ChunkPlace place;
        unsigned number = 0;
        for (int64_t r = mFirstRow; r < mPlan.rows; r += mRowStep)
        {
            Row row;
            row.find(mPlan, mShare, r, false);
            mRows.put(number++, row);
            for (int chunk = row.allowed.begin; chunk < row.allowed.end; ++chunk)
            {
                UnitSpan const span = row.readableUnits(mShare.firstUnit(chunk));
                mRing.fill(place, span.begin * kVectorBytes, span.from, span.count * kVectorBytes);
                place.advance(mPlan.policy.chunks);
            }
        }
    }

    //! Every row is summed up, then written: the next one's sum comes first where both are held.
    ATTNGRAFT_DEVICE void useUp()
    {
        unsigned const ahead = mPlan.policy.rowsHeld > 1 ? 1 : 0;
        unsigned unmasked = 0;
        int64_t done = mFirstRow;
        int64_t r = mFirstRow;
#pragma unroll 1
        for (unsigned number = 0; done < mPlan.rows; ++number)
        {
            if (r < mPlan.rows)
            {
                start(number);
                r += mRowStep;
            }
            if (number >= ahead)
            {
                finish(number - ahead, done, unmasked);
                done += mRowStep;
            }
        }
    }

    ATTNGRAFT_DEVICE void start(unsigned number)
    {
        RowState const state = sumUp(mRows.take(number));
        publishToAsyncProxy(); // what was written to chunks, which copies will overwrite
        mExchange.send(number, joinLanes<kWarpThreads>(state, mFactor));
    }

    ATTNGRAFT_DEVICE void finish(unsigned number, int64_t r, unsigned& unmasked)
    {
        Row const row = mRows.take(number);
        mRows.release(number);
        RowState const whole = mExchange.receive(number, mFactor);
        if (mPlan.emptyRows == EmptyRows::kUnmasked && whole.sum == 0.F)
        {
            skip(row);
            writeUnmasked<Work>(mPlan, r, unmasked++);
        }
        else
        {
            write(row, whole);
        }
    }

    ATTNGRAFT_DEVICE RowState sumUp(Row const& row)
    {
        RowState state;
        Masks ahead = fetchMasks(row, row.allowed.begin);
#pragma unroll 1
        for (int chunk = row.allowed.begin; chunk < row.allowed.end; ++chunk)
        {
            Masks const masks = ahead;
            ahead = fetchMasks(row, chunk + 1);
            mRing.waitUntilFull(mFilled);
            int const first = mShare.firstUnit(chunk);
            if (row.allows(first))
            {
                add(AllUnits(row, first), masks, state);
            }
            else
            {
                // What no key is allowed of was not copied, and is masked whatever it is.
                CutUnits const units(row, first);
                units.bringEdges(mPlan, mRing.chunk(mFilled));
                add(units, masks, state);
            }
            mFilled.advance(mPlan.policy.chunks);
        }
        return state;
    }

    template <typename Units>
    ATTNGRAFT_DEVICE void add(Units units, Masks const& masks, RowState& state) const
    {
        units.masks = masks;
        units.takeScores(mRing.chunk(mFilled));
        float largest;
        if (Work::kTensors == MaskTensors::kKeepBytes && units.areAllAllowed())
        {
            largest = units.largestRaw();
        }
        else
        {
            largest = units.applyMasks(mPlan);
            units.keepMasked(mRing.chunk(mFilled));
        }
        state.raise(fmaxf(largest, state.maximum), mFactor);
        state.sum += units.exponentiate(Exponent(finiteMaximum(state.maximum), mFactor));
    }

    ATTNGRAFT_DEVICE void write(Row const& row, RowState const& whole)
    {
        Exponent const exponent(finiteMaximum(whole.maximum), mFactor);
        Normalisation const normalisation(mPlan, whole, whole, mFactor);
        Masks ahead = fetchMasks(row, kReadsMasksAgain ? 0 : row.chunks);
#pragma unroll 1
        for (int chunk = 0; chunk < row.chunks; ++chunk)
        {
            Masks const masks = ahead;
            ahead = fetchMasks(row, kReadsMasksAgain ? chunk + 1 : row.chunks);
            int const first = mShare.firstUnit(chunk);
            bool const isThere = row.allowed.has(chunk);
            if (isThere && row.storesWhole(first))
            {
                if (row.allows(first))
                {
                    writeChunk(AllUnits(row, first), masks, exponent, normalisation);
                }
                else
                {
                    writeChunk(CutUnits(row, first), masks, exponent, normalisation);
                }
                continue;
            }
            SomeUnits units(row, first);
            if (isThere)
            {
                takeAgain(units, masks, exponent);
            }
            units.write(exponent, normalisation);
        }
    }

    template <typename Units>
    ATTNGRAFT_DEVICE void writeChunk(
        Units units, Masks const& masks, Exponent const& exponent, Normalisation const& normalisation)
    {
        takeAgain(units, masks, exponent);
        units.write(exponent, normalisation);
    }

    //! The chunk's exponentials, or what they are made of when they are written.
    template <typename Units>
    ATTNGRAFT_DEVICE void takeAgain(Units& units, Masks const& masks, Exponent const& exponent)
    {
        units.masks = masks;
        units.takeScores(mRing.chunk(mEmptied));
        leaveChunk();
        units.maskAgain(mPlan);
        if constexpr (!Work::kRecomputes)
        {
            units.exponentiate(exponent);
        }
    }

    ATTNGRAFT_DEVICE void skip(Row const& row)
    {
        for (int chunk = row.allowed.begin; chunk < row.allowed.end; ++chunk)
        {
            leaveChunk();
        }
    }

    ATTNGRAFT_DEVICE void leaveChunk()
    {
        mRing.release(mEmptied);
        mEmptied.advance(mPlan.policy.chunks);
    }

    //! Of a chunk, on their way while there is something else to do.
    ATTNGRAFT_DEVICE Masks fetchMasks(Row const& row, int chunk) const
    {
        if (mPlan.maskIsWhole && row.allows(mShare.firstUnit(chunk)))
        {
            AllUnits units(row, mShare.firstUnit(chunk));
            units.loadWholeMasks();
            return units.masks;
        }
        SomeUnits units(row, mShare.firstUnit(chunk));
        units.loadMasks(mPlan);
        return units.masks;
    }

    SoftmaxPlan const& mPlan;
    ChunkRing mRing;
    ChunkShare mShare;
    RingExchange mExchange;
    RowSlots<Row> mRows;
    float mFactor;
    int64_t mFirstRow;
    int64_t mRowStep;
    ChunkPlace mFilled;  //!< the next chunk to sum up
    ChunkPlace mEmptied; //!< the next chunk to write
};

//! Beside the threads that do the arithmetic.
constexpr int kLoadingThreads = kWarpThreads;

template <typename Work>
__global__ void __launch_bounds__(Work::kBlockThreads + kLoadingThreads, 1)
    softmaxThroughRing(__grid_constant__ SoftmaxPlan const plan)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    RowsThroughRing<Work>(plan).run();
#endif
}

} // namespace attngraft
