// Rows in registers, read once, of which each is written as soon as it is read. Blocks are small, one warp where a row
// needs no more, and there are as many as rows need: the device hands them out in the rows' order, so that what is read
// and written at one time lies close together, and no multiprocessor is left with work while others have none. On an
// H200 blocks that stay and take one row after another reach 92% of the bandwidth, larger blocks 90 to 97%, these all.
#pragma once

#include "row_mask.cuh"
#include "row_reduction.cuh"
#include "softmax_plan.h"
#include "softmax_work.cuh"

namespace attngraft
{

//! `threads` threads hold a row, `units` vectors each. Exponentials stay in registers, which suffice for that.
//! `isWhole`: rows begin and end on vectors, and so do their masks. `hasInterval`: not all of a row's keys are allowed,
//! beside what mask tensors say; so it is as well for rows that are not whole, whose vectors hold neighbours' elements.
template <typename T_, MaskTensors tensors, bool isWhole, bool hasInterval, int threads, int units>
struct EvenWork
{
    using T = T_;
    static constexpr MaskTensors kTensors = tensors;
    static constexpr bool kIsWhole = isWhole;
    static constexpr bool kHasInterval = hasInterval;
    static constexpr int kElements = kVectorBytes / static_cast<int>(sizeof(T)); //!< of a unit
    static constexpr int kThreads = threads;
    static constexpr int kUnits = units;
    static constexpr int kRows = 1;
    static constexpr int kBlockThreads = evenBlockThreads(threads, hasInterval);
    static constexpr int kGroups = kBlockThreads / threads;
    static constexpr bool kIsCluster = false;
    static constexpr bool kIsRaw = isRaw(tensors);
    static constexpr int kResidentThreads = evenResidentThreads(units, kIsRaw, isWhole, hasInterval);
    static constexpr int kResidentBlocks = kResidentThreads / kBlockThreads > 0 ? kResidentThreads / kBlockThreads : 1;
    static_assert(isWhole || hasInterval, "vectors at the ends hold other rows' elements");
};

template <typename Work>
class EvenRow
{
public:
    ATTNGRAFT_DEVICE explicit EvenRow(SoftmaxPlan const& plan)
        : mPlan(plan)
        , mLane(static_cast<int>(threadIdx.x) % Work::kThreads)
        , mRow(blockIdx.x * Work::kGroups + threadIdx.x / Work::kThreads)
        , mKeys(mRow < static_cast<uint32_t>(plan.rows) ? static_cast<int>(plan.keys) : 0)
    { }

    ATTNGRAFT_DEVICE void run()
    {
        find();
        read();
        float const factor = exponentFactor(mPlan);
        RowState mine;
        mine.maximum = maximumOfLanes<kLanes>(applyMasks());
        Exponent const exponent(finiteMaximum(mine.maximum), factor);
        mine.sum = sumOfLanes<kLanes>(sumUp(exponent));
        RowState whole = mine;
        if constexpr (Work::kThreads > kWarpThreads)
        {
            int const group = static_cast<int>(threadIdx.x) / Work::kThreads;
            whole = RowExchange<Work::kThreads, Work::kGroups, false>{group, 1}(mine, factor, 0);
        }
        write(Normalisation(mPlan, mine, whole, factor));
    }

private:
    using T = typename Work::T;
    using Mask = MaskUnit<T, Work::kElements, Work::kTensors>;
    static constexpr int N = Work::kElements;
    static constexpr int kUnits = Work::kUnits;
    static constexpr int kStep = Work::kThreads * N; //!< elements from one of a thread's units to the next
    static constexpr int kMaskStep = Work::kThreads * Mask::kBytes;
    static constexpr int kStepBytes = Work::kThreads * kVectorBytes;
    static constexpr int kLanes = Work::kThreads < kWarpThreads ? Work::kThreads : kWarpThreads;
    static constexpr int kWordBytes = static_cast<int>(sizeof(uint32_t));
    static constexpr int kPerVector = kVectorBytes / kWordBytes;
    static constexpr int kMaskWords = Mask::kBytes / kWordBytes;
    static constexpr uint32_t kNothing = kMinusInfinities<T>;

    static constexpr int kBeforeAll = -(1 << 30); //!< of elements

    //! Units without an allowed key are passed over where their arithmetic is more than what asking costs (on an H200
    //! odd rows with a bias take a tenth less time, raw scores a twentieth more).
    static constexpr bool kPassesOver = Work::kHasInterval && !Work::kIsRaw;

    //! Where the mask of a unit lies, for whoever asks; kinds of masks that are read do not.
    struct Anywhere
    {
        using Position = int;
        static constexpr bool ignoresKeep = false;
    };

    //! Of a row beyond the last there are no elements.
    ATTNGRAFT_DEVICE void find()
    {
        constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
        mFrom = static_cast<uint8_t const*>(mPlan.scores) + mRow * mPlan.places.firstStrides[0] * kBytes;
        mTo = static_cast<uint8_t*>(mPlan.probabilities) + mRow * mPlan.places.secondStrides[0] * kBytes;
        if constexpr (!Work::kIsWhole)
        {
            mPast = static_cast<int>(reinterpret_cast<uintptr_t>(mFrom) % kVectorBytes);
            mFrom -= mPast;
            mTo -= mPast;
        }
        mBegin = mPast / static_cast<int>(kBytes) - mLane * N;
        mEnd = mKeys > 0 ? mBegin + mKeys : mBegin;
        mAllowedBegin = mBegin;
        mAllowedEnd = mKeys > 0 ? mEnd : kBeforeAll;
        if (Work::kHasInterval && mPlan.interval.excludesKeys() && mKeys > 0)
        {
            uint32_t const query = mRow - mPlan.queries.quotient(mRow) * static_cast<uint32_t>(mPlan.queries.value);
            KeyInterval const keys = mPlan.interval.row(mPlan.rowsPerBatch.quotient(mRow), query);
            bool const isEmpty = keys.begin >= keys.end;
            mAllowedBegin = mBegin + static_cast<int>(keys.begin);
            mAllowedEnd = isEmpty ? kBeforeAll : mBegin + static_cast<int>(keys.end);
        }
    }

    //! Whether some key of the unit is allowed.
    ATTNGRAFT_DEVICE bool isAllowed(int u) const
    {
        if constexpr (Work::kHasInterval)
        {
            return u * kStep < mAllowedEnd && u * kStep + N > mAllowedBegin;
        }
        return u * kStep < mEnd;
    }

    //! Units without an allowed key become -inf.
    ATTNGRAFT_DEVICE void read()
    {
        uint8_t const* const from = mFrom + mLane * kVectorBytes;
        // Rows lie in the order of their numbers: the others' vectors lie in the tensor.
        bool const isInside = Work::kIsWhole || (mRow > 0 && mRow + 1 < static_cast<uint32_t>(mPlan.rows));
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            mWords[u] = {{kNothing, kNothing, kNothing, kNothing}};
            if (isAllowed(u) && isInside)
            {
                RowUnits<T, N, int>::load(from + u * kStepBytes, mWords[u]);
            }
        }
        if (!isInside)
        {
#pragma unroll
            for (int u = 0; u < kUnits; ++u)
            {
                if (isAllowed(u))
                {
                    uint4 const found = vectorWithin(from + u * kStepBytes, mPlan.scoresExtent);
                    mWords[u] = {{found.x, found.y, found.z, found.w}};
                }
            }
        }
        if constexpr (Mask::kIsRead)
        {
            readMasks();
        }
    }

    ATTNGRAFT_DEVICE void readMasks()
    {
        RowMaskValues<T, N, Work::kTensors, int> values;
        if (mKeys > 0)
        {
            values.findTensors(mPlan, mRow);
        }
        uint8_t const* const row = Mask::kIsKeep ? values.keep : values.bias;
        if constexpr (Work::kIsWhole)
        {
#pragma unroll
            for (int u = 0; u < kUnits; ++u)
            {
                if (!kPassesOver)
                {
                    clearMask(u);
                }
                if (isAllowed(u))
                {
                    loadAlignedRun<Mask::kBytes>(row + (mLane + u * Work::kThreads) * Mask::kBytes, mMasks[u].words);
                }
            }
        }
        else
        {
            readMaskPieces(row - mBegin * (Mask::kBytes / N));
        }
    }

    //! The aligned pieces that a unit's mask lies in, wherever in them the mask of this thread's first unit begins:
    //! none is waited for here.
    ATTNGRAFT_DEVICE void readMaskPieces(uint8_t const* from)
    {
        mMaskPast = static_cast<int>(reinterpret_cast<uintptr_t>(from) % Mask::kBytes);
        from -= mMaskPast;
        auto const low = static_cast<int>(mPlan.maskExtent.low - from); // masks are small enough, see isEven()
        auto const high = static_cast<int>(mPlan.maskExtent.high - from) - Mask::kBytes;
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            clearMask(u);
            int const at = u * kMaskStep;
            if (isAllowed(u) && at >= low && at <= high)
            {
                loadAlignedRun<Mask::kBytes>(from + at, mMasks[u].words);
            }
            if (isAllowed(u) && at + Mask::kBytes >= low && at + Mask::kBytes <= high)
            {
                loadAlignedRun<Mask::kBytes>(from + at + Mask::kBytes, mMaskEnds[u].words);
            }
        }
        bool const isInside = low <= 0 && high >= kUnits * kMaskStep;
        if (!mPlan.maskEndsInPieces && !isInside)
        {
            readCutPieces(from, low, high);
        }
    }

    //! Pieces that belong to the mask tensor in part.
    ATTNGRAFT_DEVICE void readCutPieces(uint8_t const* from, int low, int high)
    {
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            int const at = u * kMaskStep;
            if (isAllowed(u) && (at < low || at > high))
            {
                takeWithin(from + at, mMasks[u]);
            }
            if (isAllowed(u) && (at + Mask::kBytes < low || at + Mask::kBytes > high))
            {
                takeWithin(from + at + Mask::kBytes, mMaskEnds[u]);
            }
        }
    }

    ATTNGRAFT_DEVICE void takeWithin(uint8_t const* from, Mask& mask) const
    {
        uint4 const found = vectorWithin(from, mPlan.maskExtent);
        uint32_t const words[kPerVector] = {found.x, found.y, found.z, found.w};
#pragma unroll
        for (int i = 0; i < kMaskWords; ++i)
        {
            mask.words[i] = words[i];
        }
    }

    static ATTNGRAFT_DEVICE_CALL uint4 vectorWithin(uint8_t const* from, Extent const& extent)
    {
        uint32_t words[kPerVector];
        loadWithin<kVectorBytes>(from, extent, words);
        return {words[0], words[1], words[2], words[3]};
    }

    //! No bias, so that -inf stays -inf.
    ATTNGRAFT_DEVICE void clearMask(int u)
    {
#pragma unroll
        for (int i = 0; i < kMaskWords; ++i)
        {
            mMasks[u].words[i] = 0;
            mMaskEnds[Work::kIsWhole ? 0 : u].words[i] = 0;
        }
    }

    //! What readMaskPieces() read becomes the mask of the unit.
    ATTNGRAFT_DEVICE void moveMask(int u)
    {
        uint32_t words[2 * kMaskWords];
#pragma unroll
        for (int i = 0; i < kMaskWords; ++i)
        {
            words[i] = mMasks[u].words[i];
            words[kMaskWords + i] = mMaskEnds[u].words[i];
        }
#pragma unroll
        for (int step = kMaskWords / 2; step > 0; step /= 2)
        {
            bool const isFurther = (mMaskPast / kWordBytes & step) != 0;
#pragma unroll
            for (int i = 0; i < kMaskWords + step; ++i)
            {
                words[i] = isFurther ? words[i + step] : words[i];
            }
        }
        auto const shift = static_cast<uint32_t>(mMaskPast % kWordBytes * 8);
#pragma unroll
        for (int i = 0; i < kMaskWords; ++i)
        {
            mMasks[u].words[i] = bitsFrom(words[i], words[i + 1], shift);
        }
    }

    //! Returns the largest s.
    ATTNGRAFT_DEVICE float applyMasks()
    {
        LargestMasked<T, N, Work::kTensors> largest;
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            if (kPassesOver && !isAllowed(u))
            {
                continue;
            }
            int const begin = Work::kHasInterval ? mAllowedBegin - u * kStep : 0;
            int const end = Work::kHasInterval ? mAllowedEnd - u * kStep : N;
            if constexpr (Mask::kIsRead && !Work::kIsWhole)
            {
                moveMask(u);
            }
            largest.add(mPlan, mMasks[u], Anywhere{}, 0, begin, end, mWords[u], mValues[u]);
        }
        return largest.value();
    }

    //! The sum of the exponentials, which scores become.
    ATTNGRAFT_DEVICE float sumUp(Exponent const& exponent)
    {
        float sums[2] = {0.F, 0.F};
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            if (kPassesOver && !isAllowed(u))
            {
                clearValues(u);
                continue;
            }
            if constexpr (Work::kIsRaw)
            {
                unpack(mWords[u], mValues[u]);
            }
            exponent.addPowers(mValues[u], sums);
        }
        return sums[0] + sums[1];
    }

    ATTNGRAFT_DEVICE void clearValues(int u)
    {
#pragma unroll
        for (float& value : mValues[u])
        {
            value = 0.F;
        }
    }

    ATTNGRAFT_DEVICE void write(Normalisation const& normalisation)
    {
        uint8_t* const to = mTo + mLane * kVectorBytes;
        Words<T, N> last; // of the unit that ends behind the row
        int lastUnit = -1;
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            if (kPassesOver && u * kStep >= mEnd)
            {
                continue;
            }
#pragma unroll
            for (float& value : mValues[u])
            {
                value = normalisation(value);
            }
            Words<T, N> const words = pack<T, N>(mValues[u]);
            uint32_t const(&w)[4] = words.values;
            int const end = mEnd - u * kStep;
            bool const beginsBefore = Work::kIsWhole || u > 0 || mBegin <= 0;
            if (beginsBefore && end >= N)
            {
                storeOnce(to + u * kStepBytes, uint4{w[0], w[1], w[2], w[3]});
            }
            else if (!beginsBefore)
            {
                RowUnits<T, N, int>{}.storePart(to, words, mBegin, end < N ? end : N);
            }
            else if (!Work::kIsWhole && end > 0)
            {
                last = words;
                lastUnit = u;
            }
        }
        if (!Work::kIsWhole && lastUnit >= 0)
        {
            RowUnits<T, N, int>{}.storePart(to + lastUnit * kStepBytes, last, 0, mEnd - lastUnit * kStep);
        }
    }

    SoftmaxPlan const& mPlan;
    int mLane;
    uint32_t mRow;
    int mKeys;                     //!< 0 of a row beyond the last
    uint8_t const* mFrom{nullptr}; //!< of the row's first vector
    uint8_t* mTo{nullptr};
    int mPast{0};         //!< bytes of that vector before the row
    int mBegin{0};        //!< the row's first element, counted from this thread's first unit
    int mEnd{0};          //!< behind its last one
    int mAllowedBegin{0}; //!< elements of it with allowed keys
    int mAllowedEnd{0};
    Words<T, N> mWords[kUnits];
    Mask mMasks[kUnits];
    Mask mMaskEnds[Work::kIsWhole ? 1 : kUnits]; //!< the pieces behind those of masks
    int mMaskPast{0};                            //!< bytes of masks' pieces before the unit
    float mValues[kUnits][N];                    //!< s, and then its exponential
};

template <typename Work>
__global__ void __launch_bounds__(Work::kBlockThreads, Work::kResidentBlocks)
    softmaxOfEvenRow(__grid_constant__ SoftmaxPlan const plan)
{
    EvenRow<Work>(plan).run();
}

} // namespace attngraft
