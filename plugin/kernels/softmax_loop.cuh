// Whole rows in registers, one after another: while one is used, all loads of the next are on their way, so that memory
// does not wait for arithmetic. For rows that begin and end on vectors and lie equally far apart. Nothing is asked of a
// row that is known before, and no register is spilled, for a spilled one of those that are read ahead would be waited
// for.
#pragma once

#include "row_mask.cuh"
#include "row_reduction.cuh"
#include "softmax_plan.h"
#include "softmax_work.cuh"

namespace attngraft
{

//! `threads` threads hold a row, `units` vectors each, and as much of the next one. Exponentials of raw scores are made
//! twice: half the registers. `hasInterval`: rows may have an interval of allowed keys each.
template <typename T_, MaskTensors tensors, bool hasInterval, int threads, int units, int blockThreads>
struct LoopWork
{
    using T = T_;
    static constexpr MaskTensors kTensors = tensors;
    static constexpr bool kHasInterval = hasInterval;
    static constexpr int kElements = kVectorBytes / static_cast<int>(sizeof(T)); //!< of a unit
    static constexpr int kThreads = threads;
    static constexpr int kUnits = units;
    static constexpr int kBlockThreads = blockThreads;
    static constexpr int kGroups = blockThreads / threads;
    static constexpr bool kIsCluster = false;
    static constexpr bool kIsRaw = isRaw(tensors);
    static constexpr int kResidentThreads = loopResidentThreads(threads, units, kIsRaw);
    static constexpr int kResidentBlocks = kResidentThreads / blockThreads > 0 ? kResidentThreads / blockThreads : 1;
};

//! What a thread holds of a row, as it was read. Units without an allowed key are -inf.
template <typename Work>
struct LoopRow
{
    static constexpr int N = Work::kElements;
    Words<typename Work::T, N> words[Work::kUnits];
    MaskUnit<typename Work::T, N, Work::kTensors> masks[Work::kUnits];
    UnitRange<1> allowed; //!< elements, counted from the thread's first one; of no use where all are
};

template <typename Work>
class RowsInLoop
{
public:
    ATTNGRAFT_DEVICE explicit RowsInLoop(SoftmaxPlan const& plan)
        : mPlan(plan)
        , mExchange{static_cast<int>(threadIdx.x) / Work::kThreads, 1}
        , mLane(static_cast<int>(threadIdx.x) % Work::kThreads)
        , mRows(static_cast<uint32_t>(plan.rows))
        , mUnits(static_cast<int>(plan.keys) / N)
        , mFactor(exponentFactor(plan))
    { }

    ATTNGRAFT_DEVICE void run()
    {
        uint32_t const step = gridDim.x * Work::kGroups;
        uint32_t first = blockIdx.x * Work::kGroups; // of the block's rows, the same for all its threads
        uint32_t row = first + threadIdx.x / Work::kThreads;
        Row ahead;
        read(ahead, row);
#pragma unroll 1
        for (; first < mRows; first += step)
        {
            Row now = ahead;
            read(ahead, row + step);
            finish(now, row);
            row += step;
        }
    }

private:
    using T = typename Work::T;
    using Row = LoopRow<Work>;
    using Mask = MaskUnit<T, Work::kElements, Work::kTensors>;
    using Exchange = RowExchange<Work::kThreads, Work::kGroups, false>;
    static constexpr int N = Work::kElements;
    static constexpr int kUnits = Work::kUnits;
    static constexpr int kStep = Work::kThreads * N; //!< elements from one of a thread's units to the next
    static constexpr int kLanes = Work::kThreads < kWarpThreads ? Work::kThreads : kWarpThreads;

    //! Where the mask of a unit lies, for whoever asks; kinds of masks that are read do not.
    struct Anywhere
    {
        using Position = int;
    };

    //! Elements of a row with allowed keys.
    ATTNGRAFT_DEVICE KeyInterval allowedOf(uint32_t r) const
    {
        uint32_t const query = r - mPlan.queries.quotient(r) * static_cast<uint32_t>(mPlan.queries.value);
        KeyInterval const keys = mPlan.interval.row(mPlan.rowsPerBatch.quotient(r), query);
        return keys.begin < keys.end ? keys : KeyInterval{};
    }

    //! Units of a row that are this thread's, none of one beyond the last row.
    ATTNGRAFT_DEVICE int unitsOf(uint32_t r) const
    {
        return r < mRows ? mUnits - mLane : 0;
    }

    ATTNGRAFT_DEVICE void read(Row& row, uint32_t r)
    {
        int count = unitsOf(r);
        int begin = 0; // units before it have no allowed key
        if constexpr (Work::kHasInterval)
        {
            KeyInterval const keys = count > 0 ? allowedOf(r) : KeyInterval{};
            row.allowed = UnitRange<1>(static_cast<int>(keys.begin), static_cast<int>(keys.end), mLane * N);
            begin = static_cast<int>(keys.begin) / N - mLane;
            count = (static_cast<int>(keys.end) + (N - 1)) / N - mLane;
        }
        auto const* const scores = static_cast<uint8_t const*>(mPlan.scores)
            + (static_cast<int64_t>(r) * mPlan.places.firstStrides[0] + mLane * N) * static_cast<int64_t>(sizeof(T));
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            row.words[u] = {{kNothing, kNothing, kNothing, kNothing}};
            if (u * Work::kThreads < count && (!Work::kHasInterval || u * Work::kThreads >= begin))
            {
                RowUnits<T, N, int>::load(scores + u * kStep * sizeof(T), row.words[u]);
            }
        }
        if constexpr (Mask::kIsRead)
        {
            readMasks(row, count, r);
        }
    }

    ATTNGRAFT_DEVICE void readMasks(Row& row, int count, uint32_t r)
    {
        if (r >= mRunEnd && r < mRows)
        {
            RowMaskValues<T, N, Work::kTensors, int> mask;
            mask.findTensors(mPlan, r);
            mMask = (Mask::kIsKeep ? mask.keep : mask.bias) + mLane * Mask::kBytes;
            mRunEnd = (mPlan.maskRun.quotient(r) + 1) * static_cast<uint32_t>(mPlan.maskRun.value);
        }
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            for (uint32_t& word : row.masks[u].words)
            {
                word = 0; // no bias, so that -inf stays -inf
            }
            if (u * Work::kThreads < count)
            {
                loadAlignedRun<Mask::kBytes>(mMask + u * Work::kThreads * Mask::kBytes, row.masks[u].words);
            }
        }
    }

    ATTNGRAFT_DEVICE void finish(Row& row, uint32_t r)
    {
        float values[Work::kIsRaw ? 1 : kUnits][N];
        RowState mine;
        mine.maximum = maximumOfLanes<kLanes>(applyMasks(row, values));
        Exponent const exponent(finiteMaximum(mine.maximum), mFactor);
        mine.sum = sumOfLanes<kLanes>(sumUp(row, values, exponent));
        RowState whole = mine;
        if constexpr (Work::kThreads > kWarpThreads)
        {
            whole = mExchange(mine, mFactor, static_cast<int>(mRound));
            mRound ^= 1U;
        }
        write(row, values, unitsOf(r), r, exponent, Normalisation(mPlan, mine, whole, mFactor));
    }

    template <int count>
    ATTNGRAFT_DEVICE float applyMasks(Row& row, float (&values)[count][N]) const
    {
        Largest<T, N> ofRaw;
        float maximum = -INFINITY;
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            if constexpr (Work::kIsRaw)
            {
                int const begin = Work::kHasInterval ? row.allowed.begin - u * kStep : 0;
                int const end = Work::kHasInterval ? row.allowed.end - u * kStep : N;
                row.masks[u].applyToRaw(false, begin, end, row.words[u]);
                ofRaw.add(row.words[u]);
            }
            else
            {
                unpack(row.words[u], values[u]);
                row.masks[u].applyInFloat(mPlan, Anywhere{}, 0, 0, N, values[u]);
                maximum = largest(values[u], maximum);
            }
        }
        return Work::kIsRaw ? ofRaw.value() : maximum;
    }

    //! The sum of the exponentials, which numbers that are held become.
    template <int count>
    ATTNGRAFT_DEVICE float sumUp(Row const& row, float (&values)[count][N], Exponent const& exponent) const
    {
        float sums[2] = {0.F, 0.F};
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            float (&powers)[N] = values[Work::kIsRaw ? 0 : u];
            if constexpr (Work::kIsRaw)
            {
                unpack(row.words[u], powers);
            }
            exponent.addPowers(powers, sums);
        }
        return sums[0] + sums[1];
    }

    template <int count>
    ATTNGRAFT_DEVICE void write(Row const& row, float (&values)[count][N], int units, uint32_t r,
        Exponent const& exponent, Normalisation const& normalisation) const
    {
        auto* const to = static_cast<uint8_t*>(mPlan.probabilities)
            + (static_cast<int64_t>(r) * mPlan.places.secondStrides[0] + mLane * N) * static_cast<int64_t>(sizeof(T));
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            float (&made)[N] = values[Work::kIsRaw ? 0 : u];
            if constexpr (Work::kIsRaw)
            {
                unpack(row.words[u], made);
            }
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                made[e] = normalisation(Work::kIsRaw ? exponent(made[e]) : made[e]);
            }
            if (u * Work::kThreads < units)
            {
                Words<T, N> const packed = pack<T, N>(made);
                uint32_t const(&w)[4] = packed.values;
                storeOnce(to + u * kStep * sizeof(T), uint4{w[0], w[1], w[2], w[3]});
            }
        }
    }

    static constexpr uint32_t kNothing = kMinusInfinities<T>;

    SoftmaxPlan const& mPlan;
    Exchange mExchange;
    int mLane;
    uint32_t mRows;
    int mUnits; //!< of a row
    float mFactor;
    unsigned mRound{0};            //!< of the exchange, 0 or 1
    uint8_t const* mMask{nullptr}; //!< of the thread's first unit
    uint32_t mRunEnd{0};           //!< rows before this one have these mask values
};

template <typename Work>
__global__ void __launch_bounds__(Work::kBlockThreads, Work::kResidentBlocks)
    softmaxInLoop(__grid_constant__ SoftmaxPlan const plan)
{
    RowsInLoop<Work>(plan).run();
}

} // namespace attngraft
