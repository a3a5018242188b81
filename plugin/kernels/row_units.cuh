// A row of scores in memory, unit by unit: where units begin, reading and writing them, whole or partial.
#pragma once

#include "device_math.cuh"
#include "row_mask.cuh"
#include "softmax_plan.h"

namespace attngraft
{

//! A row as units of N elements. `isAligned`: rows consist of whole units. Else the first unit may begin before the
//! row, on the vector that holds the row's first element, and the last one may end behind it.
template <typename T, int N, bool isAligned, typename Index>
struct RowSpan
{
    T const* scores;
    T* probabilities;
    Index keys;
    Index shift{0}; //!< elements of the first unit that lie before the row

    __device__ __forceinline__ RowSpan(SoftmaxPlan const& plan, int64_t row)
    {
        int64_t const offset = row * plan.keys;
        scores = static_cast<T const*>(plan.scores) + offset;
        probabilities = static_cast<T*>(plan.probabilities) + offset;
        keys = static_cast<Index>(plan.keys);
        if constexpr (!isAligned)
        {
            shift = static_cast<Index>(reinterpret_cast<uintptr_t>(scores) % kVectorBytes / sizeof(T));
        }
    }

    __device__ __forceinline__ Index firstKey(Index unit) const
    {
        return unit * N - shift;
    }

    __device__ __forceinline__ bool isOutside(Index first) const
    {
        return first >= keys || (!isAligned && first + N <= 0);
    }

    __device__ __forceinline__ bool isWhole(Index first) const
    {
        return isAligned || (first >= 0 && first + N <= keys);
    }

    __device__ __forceinline__ bool holds(Index key) const
    {
        return key >= 0 && key < keys;
    }

    //! The unit at `first`, not outside the row. Elements outside the row are left as they were.
    __device__ __forceinline__ void read(Index first, Pack<T, N>& pack) const
    {
        T const* const from = scores + first; // one address for all elements, which then are immediate offsets
        if (isWhole(first))
        {
            pack.loadStreaming(from);
            return;
        }
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            if (holds(first + e))
            {
                pack.values[e] = from[e];
            }
        }
    }

    __device__ __forceinline__ void write(Index first, Pack<T, N>& pack) const
    {
        T* const to = probabilities + first;
        if (isWhole(first))
        {
            pack.storeStreaming(to);
            return;
        }
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            if (holds(first + e))
            {
                to[e] = pack.values[e];
            }
        }
    }
};

//! One unit of a row: its raw scores and its mask values, on their way from memory.
template <typename T, int N, MaskTensors tensors>
struct Unit
{
    Pack<T, N> pack;
    MaskUnit<T, N, tensors> mask;
    bool isRead; //!< false outside the row, and where no key is allowed: nothing is loaded then

    template <typename Span, typename Row, typename Index>
    __device__ __forceinline__ void readScores(Span const& span, Row const& row, Index first)
    {
        isRead = !span.isOutside(first) && !row.mask.excludes(first, first + N);
        if (isRead)
        {
            span.read(first, pack);
        }
    }

    template <typename Row, typename Index>
    __device__ __forceinline__ void readMask(Row const& row, Index first)
    {
        if (isRead)
        {
            mask.read(row, first);
        }
    }

    //! s of every key, -inf where not allowed.
    template <typename Row, typename Index>
    __device__ __forceinline__ void scores(SoftmaxPlan const& plan, Row const& row, Index first, float (&out)[N]) const
    {
        if (!isRead)
        {
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                out[e] = -INFINITY;
            }
            return;
        }
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            out[e] = toFloat(pack.values[e]);
        }
        mask.apply(plan, row, first, out);
        if (!row.mask.covers(first, first + N))
        {
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                out[e] = row.mask.allows(first + e, true) ? out[e] : -INFINITY;
            }
        }
    }
};

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> toPack(float const (&values)[N])
{
    Pack<T, N> pack;
#pragma unroll
    for (int e = 0; e < N; ++e)
    {
        pack.values[e] = fromFloat<T>(values[e]);
    }
    return pack;
}

} // namespace attngraft
