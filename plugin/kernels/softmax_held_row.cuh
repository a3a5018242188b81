// What a thread does with the units of one row that it holds: it reads them, finds their maximum, makes exponentials of
// them and writes probabilities.
#pragma once

#include "softmax_work.cuh"

namespace attngraft
{

//! The mask values of a thread's units.
template <typename Work>
struct MaskUnits
{
    MaskUnit<typename Work::T, Work::kElements, Work::kTensors> units[Work::kUnits];
};

//! A row, and the units of it that a block holds.
template <typename Work, typename Index>
class FoundRow
{
public:
    //! The row's units from `from` to `to` are this block's.
    ATTNGRAFT_DEVICE void find(SoftmaxPlan const& plan, int64_t row, Index from, Index to, bool ignoresMask)
    {
        mUnits = RowUnits<T, N, Index>(plan, row);
        mMask.findInterval(plan, row, mUnits.begin, ignoresMask);
        Index const count = mUnits.unitCount();
        limit = count < to ? count : to;
        Index const begin = mMask.begin / N;
        Index const end = (mMask.end + (N - 1)) / N;
        allowedBegin = begin > from ? begin : from;
        allowedEnd = end < limit ? end : limit;
    }

    ATTNGRAFT_DEVICE void findMasks(SoftmaxPlan const& plan, int64_t row)
    {
        mMask.findTensors(plan, row);
    }

    Index limit{0};        //!< behind the last unit that this block holds
    Index allowedBegin{0}; //!< units with allowed keys, of those
    Index allowedEnd{0};

protected:
    using T = typename Work::T;
    static constexpr int N = Work::kElements;

    RowUnits<T, N, Index> mUnits;
    RowMaskValues<T, N, Work::kTensors, Index> mMask;
};

//! A thread's part of one row. Range: UnitRange, or EveryUnit where each unit lies in the row and in its interval of
//! keys.
template <typename Work, typename Index, typename Range = UnitRange<Work::kThreads>>
class HeldRow : public FoundRow<Work, Index>
{
public:
    using FoundRow<Work, Index>::allowedBegin;
    using FoundRow<Work, Index>::allowedEnd;
    using FoundRow<Work, Index>::limit;

    MaskUnits<Work> masks;

    HeldRow() = default;

    //! Of a row that was found.
    ATTNGRAFT_DEVICE explicit HeldRow(FoundRow<Work, Index> const& row)
        : FoundRow<Work, Index>(row)
    { }

    //! From here on of units first, first + kThreads, and so on.
    ATTNGRAFT_DEVICE void moveTo(Index first)
    {
        mFirst = first;
        mAllowed = Range(allowedBegin, allowedEnd, first);
        mHeld = Range(Index{0}, limit, first);
        mInRow = Range((mUnits.begin + (N - 1)) / N, mUnits.end / N, first);
    }

    ATTNGRAFT_DEVICE void loadScores(SoftmaxPlan const& plan)
    {
        uint8_t const* const from = mUnits.from + static_cast<int64_t>(mFirst) * kUnitBytes;
        Range const readable(mUnits.readableBegin, mUnits.readableEnd, mFirst);
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            if (mAllowed.has(u) && readable.has(u))
            {
                mUnits.load(from + u * kStepBytes, mWords[u]);
            }
        }
        if (!mUnits.isReadable())
        {
            loadEdge(plan, 0, readable);
            loadEdge(plan, mUnits.unitCount() - 1, readable);
        }
    }

    ATTNGRAFT_DEVICE void loadMasks(SoftmaxPlan const& plan)
    {
        if constexpr (MaskUnit<T, N, Work::kTensors>::kIsRead)
        {
#pragma unroll
            for (int u = 0; u < kUnits; ++u)
            {
                if (mAllowed.has(u))
                {
                    masks.units[u].load(plan, mMask, firstKey() + u * kStep);
                }
            }
        }
    }

    //! Applies the masks. Returns the largest s.
    ATTNGRAFT_DEVICE float applyMasks(SoftmaxPlan const& plan)
    {
        LargestMasked<T, N, Work::kTensors> largest;
        Cut const cut = allowedElements();
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            if (!mAllowed.has(u))
            {
                continue;
            }
            largest.add(plan, masks.units[u], mMask, firstKey() + u * kStep, cut.begin - u * kStep, cut.end - u * kStep,
                mWords[u], mValues[Work::kRecomputes ? 0 : u]);
        }
        return largest.value();
    }

    //! The sum of the exponentials, which are kept where they are not made again.
    ATTNGRAFT_DEVICE float exponentiate(Exponent const& exponent)
    {
        float sums[2] = {0.F, 0.F};
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            if (!mAllowed.has(u))
            {
                continue;
            }
            float (&powers)[N] = mValues[Work::kRecomputes ? 0 : u];
            if constexpr (Work::kIsRaw)
            {
                unpack(mWords[u], powers);
            }
            exponent.addPowers(powers, sums);
        }
        return sums[0] + sums[1];
    }

    ATTNGRAFT_DEVICE void write(Exponent const& exponent, Normalisation const& normalisation) const
    {
        uint8_t* const to = mUnits.to + static_cast<int64_t>(mFirst) * kUnitBytes;
        Words<T, N> last; // of the unit that ends behind the row
        int lastUnit = -1;
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
        {
            if (!mHeld.has(u))
            {
                continue;
            }
            Words<T, N> const result = probabilities(exponent, normalisation, u);
            if (N == 1 || mInRow.has(u))
            {
                mUnits.store(to + u * kStepBytes, result);
            }
            else if (u == 0 && mFirst == 0)
            {
                int const end = mUnits.end < N ? static_cast<int>(mUnits.end) : N;
                mUnits.storePart(to, result, static_cast<int>(mUnits.begin), end);
            }
            else
            {
                last = result;
                lastUnit = u;
            }
        }
        if (N > 1 && lastUnit >= 0)
        {
            mUnits.storePart(to + lastUnit * kStepBytes, last, 0, static_cast<int>(mUnits.end % N));
        }
    }

protected:
    using typename FoundRow<Work, Index>::T;
    using FoundRow<Work, Index>::N;
    using FoundRow<Work, Index>::mMask;
    using FoundRow<Work, Index>::mUnits;
    static constexpr int kUnits = Work::kUnits;
    static constexpr int kUnitBytes = Words<T, N>::kBytes;
    static constexpr int kStep = Work::kThreads * N; //!< elements from one of this thread's units to the next
    static constexpr int kStepBytes = Work::kThreads * kUnitBytes;

    Index mFirst{0};
    Range mAllowed;
    Range mHeld;
    Range mInRow; //!< whole
    Words<T, N> mWords[kUnits];
    float mValues[Work::kRecomputes ? 1 : kUnits][N];

private:
    struct Cut
    {
        int begin;
        int end;
    };

    //! Allowed elements, counted from the first unit's first one.
    ATTNGRAFT_DEVICE Cut allowedElements() const
    {
        if constexpr (std::is_same_v<Range, EveryUnit<false>>)
        {
            return {0, kUnits * kStep};
        }
        UnitRange<1> const range(mMask.begin, mMask.end, mFirst * N);
        return {range.begin, range.end};
    }

    //! Of the first unit.
    ATTNGRAFT_DEVICE int64_t firstKey() const
    {
        return static_cast<int64_t>(mFirst * N - mUnits.begin);
    }

    //! A unit of the row that may reach beyond the tensor, if this thread holds it.
    ATTNGRAFT_DEVICE void loadEdge(SoftmaxPlan const& plan, Index unit, Range const& readable)
    {
        if constexpr (N > 1)
        {
            Words<T, N> edge{};
            bool const isRead = unit >= allowedBegin && unit < allowedEnd;
            if (isRead && (unit - mFirst) % Work::kThreads == 0)
            {
                loadWithin<kUnitBytes>(
                    mUnits.from + static_cast<int64_t>(unit) * kUnitBytes, plan.scoresExtent, edge.values);
            }
#pragma unroll
            for (int u = 0; u < kUnits; ++u)
            {
                if (unit == mFirst + u * Work::kThreads && !readable.has(u))
                {
                    mWords[u] = edge;
                }
            }
        }
    }

    ATTNGRAFT_DEVICE Words<T, N> probabilities(
        Exponent const& exponent, Normalisation const& normalisation, int u) const
    {
        float made[N];
        if constexpr (Work::kRecomputes)
        {
            unpack(mWords[u], made);
        }
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            float const power = Work::kRecomputes ? exponent(made[e]) : mValues[Work::kRecomputes ? 0 : u][e];
            made[e] = normalisation(mAllowed.has(u) ? power : 0.F);
        }
        return pack<T, N>(made);
    }
};

} // namespace attngraft
