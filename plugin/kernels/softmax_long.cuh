// Long rows in shared memory, read once: a block, or a cluster of blocks, holds one row. The copy engine brings all of
// it at once, chunk by chunk; the threads sum chunks up as they come, then write them. Several blocks of a
// multiprocessor take turns, so that memory is read for one while another computes or writes.
#pragma once

#include "bulk_instructions.cuh"
#include "softmax_unmasked.cuh"

namespace attngraft
{

template <typename Work>
class RowInChunks
{
public:
    ATTNGRAFT_DEVICE explicit RowInChunks(SoftmaxPlan const& plan)
        : mPlan(plan)
        , mBase(dynamicSharedMemory())
        , mShare(shareOf<Work>(plan))
        , mFactor(exponentFactor(plan))
    { }

    ATTNGRAFT_DEVICE void run()
    {
        int64_t const r = mPlan.blocks.quotient(blockIdx.x);
        mRow.find(mPlan, mShare, r, false);
        Exchange const exchange{mShare.blocks, mShare.block};
        if (threadIdx.x == 0)
        {
            exchange.makeBarriers();
            makeBarriers();
            publishCountingBarriers();
            publishToAsyncProxy();
            fill();
        }
        exchange.meet();
        RowState const whole = exchange(joinLanes<kWarpThreads>(sumUp(), mFactor), mFactor, 0);
        if (mPlan.emptyRows == EmptyRows::kUnmasked && whole.sum == 0.F)
        {
            writeUnmasked<Work>(mPlan, r);
        }
        else
        {
            write(whole);
        }
    }

private:
    using Exchange = LongExchange<Work::kThreads, Work::kIsCluster>;
    using Masks = MaskUnits<Work>;
    using SomeUnits = ChunkUnits<Work, UnitRange<Work::kThreads>>;
    using AllUnits = ChunkUnits<Work, EveryUnit<false>>;
    using CutUnits = ChunkUnits<Work, EveryUnit<true>>;
    static constexpr bool kReadsMasksAgain = !AllUnits::kIsKept;

    ATTNGRAFT_DEVICE SharedAddress full(int chunk) const
    {
        return mBase + static_cast<SharedAddress>(kChunkBarriers + chunk * kBarrierBytes);
    }

    ATTNGRAFT_DEVICE SharedAddress place(int chunk) const
    {
        return mBase + static_cast<SharedAddress>(kChunksBegin + chunk * kChunkBytes);
    }

    ATTNGRAFT_DEVICE void makeBarriers() const
    {
        for (int chunk = mRow.allowed.begin; chunk < mRow.allowed.end; ++chunk)
        {
            makeCountingBarrier(full(chunk), 1);
        }
    }

    //! Has all chunks with allowed keys brought.
    ATTNGRAFT_DEVICE void fill() const
    {
        for (int chunk = mRow.allowed.begin; chunk < mRow.allowed.end; ++chunk)
        {
            UnitSpan const span = mRow.readableUnits(mShare.firstUnit(chunk));
            if (span.count > 0)
            {
                int const bytes = span.count * kVectorBytes;
                arriveExpecting(full(chunk), bytes);
                copyBulk(place(chunk) + static_cast<SharedAddress>(span.begin * kVectorBytes), span.from, bytes,
                    full(chunk));
            }
            else
            {
                arrive(full(chunk));
            }
        }
    }

    ATTNGRAFT_DEVICE RowState sumUp() const
    {
        RowState state;
        Masks ahead = fetchMasks(mRow.allowed.begin);
#pragma unroll 1
        for (int chunk = mRow.allowed.begin; chunk < mRow.allowed.end; ++chunk)
        {
            Masks const masks = ahead;
            ahead = fetchMasks(chunk + 1);
            waitForPhase(full(chunk), 0);
            int const first = mShare.firstUnit(chunk);
            if (mRow.allows(first))
            {
                add(AllUnits(mRow, first), chunk, masks, state);
            }
            else if (mRow.holdsWhole(first))
            {
                // What no key is allowed of was not copied, and is masked whatever it is.
                addCut(CutUnits(mRow, first), chunk, masks, state);
            }
            else
            {
                addCut(SomeUnits(mRow, first), chunk, masks, state);
            }
        }
        return state;
    }

    template <typename Units>
    ATTNGRAFT_DEVICE void addCut(Units const& units, int chunk, Masks const& masks, RowState& state) const
    {
        units.bringEdges(mPlan, place(chunk));
        add(units, chunk, masks, state);
    }

    template <typename Units>
    ATTNGRAFT_DEVICE void add(Units units, int chunk, Masks const& masks, RowState& state) const
    {
        units.masks = masks;
        units.takeScores(place(chunk));
        float largest;
        if (Work::kTensors == MaskTensors::kKeepBytes && units.areAllAllowed())
        {
            largest = units.largestRaw();
        }
        else
        {
            largest = units.applyMasks(mPlan);
            units.keepMasked(place(chunk));
        }
        state.raise(fmaxf(largest, state.maximum), mFactor);
        state.sum += units.exponentiate(Exponent(finiteMaximum(state.maximum), mFactor));
    }

    ATTNGRAFT_DEVICE void write(RowState const& whole) const
    {
        Exponent const exponent(finiteMaximum(whole.maximum), mFactor);
        Normalisation const normalisation(mPlan, whole, whole, mFactor);
        Masks ahead = fetchMasks(kReadsMasksAgain ? 0 : mRow.chunks);
#pragma unroll 1
        for (int chunk = 0; chunk < mRow.chunks; ++chunk)
        {
            Masks const masks = ahead;
            ahead = fetchMasks(kReadsMasksAgain ? chunk + 1 : mRow.chunks);
            int const first = mShare.firstUnit(chunk);
            bool const isThere = mRow.allowed.has(chunk);
            if (isThere && mRow.storesWhole(first) && mRow.allows(first))
            {
                writeChunk(AllUnits(mRow, first), chunk, masks, exponent, normalisation);
            }
            else if (isThere && mRow.storesWhole(first))
            {
                writeChunk(CutUnits(mRow, first), chunk, masks, exponent, normalisation);
            }
            else if (isThere)
            {
                writeChunk(SomeUnits(mRow, first), chunk, masks, exponent, normalisation);
            }
            else
            {
                SomeUnits(mRow, first).write(exponent, normalisation);
            }
        }
    }

    template <typename Units>
    ATTNGRAFT_DEVICE void writeChunk(
        Units units, int chunk, Masks const& masks, Exponent const& exponent, Normalisation const& normalisation) const
    {
        units.masks = masks;
        units.takeScores(place(chunk));
        units.maskAgain(mPlan);
        if constexpr (!Work::kRecomputes)
        {
            units.exponentiate(exponent);
        }
        units.write(exponent, normalisation);
    }

    //! Of a chunk, on their way while there is something else to do.
    ATTNGRAFT_DEVICE Masks fetchMasks(int chunk) const
    {
        if (mPlan.maskIsWhole && mRow.allows(mShare.firstUnit(chunk)))
        {
            AllUnits units(mRow, mShare.firstUnit(chunk));
            units.loadWholeMasks();
            return units.masks;
        }
        SomeUnits units(mRow, mShare.firstUnit(chunk));
        units.loadMasks(mPlan);
        return units.masks;
    }

    SoftmaxPlan const& mPlan;
    SharedAddress mBase;
    ChunkShare mShare;
    float mFactor;
    ChunkedRow<Work> mRow;
};

template <typename Work>
__global__ void __launch_bounds__(Work::kBlockThreads, Work::kBlocksOfMultiprocessor)
    softmaxOfLongRow(__grid_constant__ SoftmaxPlan const plan)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    RowInChunks<Work>(plan).run();
#endif
}

} // namespace attngraft
