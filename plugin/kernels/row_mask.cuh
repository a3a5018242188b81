// A row's mask on the device: where its bias and keep values lie, and the scores of a run of neighbouring keys.
#pragma once

#include "device_math.cuh"
#include "mask.h"
#include "softmax_plan.h"

namespace attngraft
{

//! Out of line, since no thread takes it unless there are 2^31 rows or more.
static __device__ __noinline__ int64_t divideLong(int64_t value, int64_t by)
{
    return value / by;
}

__device__ __forceinline__ int64_t divide(int64_t value, Divisor const& by, bool isShort)
{
    return isShort ? by.quotient(static_cast<uint32_t>(value)) : divideLong(value, by.value);
}

//! Calls use(e, value) with elements first + e of a row, e < N, that lie in [0, keys).
//! `stride` is 1, or 0 where one value serves all keys.
template <typename U, int N, typename Index, typename Use>
__device__ __forceinline__ void forRun(void const* row, int64_t stride, Index first, Index keys, Use use)
{
    auto const* const start = static_cast<U const*>(row);
    if (stride == 0)
    {
        U const value = __ldg(start);
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            use(e, value);
        }
        return;
    }
    U const* const from = start + first;
    if (first >= 0 && first + N <= keys && Pack<U, N>::isAligned(from))
    {
        Pack<U, N> pack;
        pack.load(from);
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            use(e, pack.values[e]);
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < N; ++e)
    {
        if (first + e >= 0 && first + e < keys)
        {
            use(e, __ldg(from + e));
        }
    }
}

//! A row's interval of keys and where its bias and keep values begin.
template <typename T, MaskTensors tensors, typename Index>
struct RowContext
{
    RowMask<Index> mask;
    void const* bias{nullptr};
    void const* keep{nullptr};
    bool ignoresKeep{false};

    __device__ __forceinline__ RowContext(SoftmaxPlan const& plan, int64_t row)
    {
        IntervalMask const& interval = plan.interval;
        bool const isShort = plan.rows <= kShortDividends;
        int64_t batch = 0;
        int64_t query = 0;
        if (interval.dependsOnBatch())
        {
            batch = divide(row, plan.rowsPerBatch, isShort);
        }
        if (interval.dependsOnQuery())
        {
            query = row - divide(row, plan.queries, isShort) * interval.queries;
        }
        KeyInterval const keys = interval.row(batch, query);
        mask = RowMask<Index>{static_cast<Index>(keys.begin), static_cast<Index>(keys.end)};
    }

    //! Finds the row in bias and keep. Apart from the constructor so that it can wait until the scores are on their
    //! way.
    __device__ __forceinline__ void locateTensors(SoftmaxPlan const& plan, int64_t row)
    {
        if constexpr (tensors == MaskTensors::kNone)
        {
            return;
        }
        RowOffsets const& map = plan.offsets;
        bool const isShort = plan.rows <= kShortDividends;
        int64_t biasOffset = 0;
        int64_t keepOffset = 0;
        for (int d = map.rank - 1; d >= 0; --d)
        {
            int64_t const rest = d > 0 ? divide(row, map.dims[d], isShort) : 0;
            int64_t const index = row - rest * map.dims[d].value;
            biasOffset += index * map.biasStrides[d];
            keepOffset += index * map.keepStrides[d];
            row = rest;
        }
        if (plan.bias != nullptr)
        {
            int64_t const bytes = plan.biasIsFloat32 ? sizeof(float) : sizeof(T);
            bias = static_cast<char const*>(plan.bias) + biasOffset * bytes;
        }
        if (plan.keep != nullptr)
        {
            int64_t const bytes = plan.keepType == KeepType::kInt8 ? 1 : plan.keepType == KeepType::kInt32 ? 4 : 8;
            keep = static_cast<char const*>(plan.keep) + keepOffset * bytes;
        }
    }

    //! From here on every key is allowed: for a row that would be empty.
    __device__ __forceinline__ void ignoreMask(SoftmaxPlan const& plan)
    {
        mask = RowMask<Index>{0, static_cast<Index>(plan.keys)};
        ignoresKeep = true;
    }
};

//! The mask values of one unit of N keys. `read` starts their loads, beside those of the scores; `apply` turns raw
//! scores into s, -inf where `keep` says so. The interval is applied by the caller.
template <typename T, int N, MaskTensors tensors>
struct MaskUnit
{
    template <typename Row, typename Index>
    __device__ __forceinline__ void read(Row const&, Index)
    { }

    template <typename Row, typename Index>
    __device__ __forceinline__ void apply(SoftmaxPlan const&, Row const&, Index, float (&)[N]) const
    { }
};

template <typename T, int N>
struct MaskUnit<T, N, MaskTensors::kKeepBytes>
{
    Pack<int8_t, N> pack;

    template <typename Row, typename Index>
    __device__ __forceinline__ void read(Row const& row, Index first)
    {
        pack.load(static_cast<int8_t const*>(row.keep) + first);
    }

    template <typename Row, typename Index>
    __device__ __forceinline__ void apply(SoftmaxPlan const&, Row const& row, Index, float (&scores)[N]) const
    {
        if (row.ignoresKeep)
        {
            return;
        }
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            scores[e] = pack.values[e] != 0 ? scores[e] : -INFINITY;
        }
    }
};

template <typename T, int N>
struct MaskUnit<T, N, MaskTensors::kBias>
{
    Pack<T, N> pack;

    template <typename Row, typename Index>
    __device__ __forceinline__ void read(Row const& row, Index first)
    {
        pack.load(static_cast<T const*>(row.bias) + first);
    }

    template <typename Row, typename Index>
    __device__ __forceinline__ void apply(SoftmaxPlan const& plan, Row const&, Index, float (&scores)[N]) const
    {
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            scores[e] = fmaf(scores[e], plan.scoreMap.slope(), toFloat(pack.values[e]));
        }
    }
};

template <typename T, int N>
struct MaskUnit<T, N, MaskTensors::kAny>
{
    template <typename Row, typename Index>
    __device__ __forceinline__ void read(Row const&, Index)
    { }

    template <typename Row, typename Index>
    __device__ __forceinline__ void apply(
        SoftmaxPlan const& plan, Row const& row, Index first, float (&scores)[N]) const
    {
        if (!plan.scaleIsDeferred)
        {
            addBias(plan, row.bias, first, scores);
        }
        if (row.keep != nullptr && !row.ignoresKeep)
        {
            applyKeep(plan, row.keep, first, scores);
        }
    }

private:
    template <typename Index>
    static __device__ __forceinline__ void addBias(
        SoftmaxPlan const& plan, void const* bias, Index first, float (&scores)[N])
    {
        ScoreMap const& map = plan.scoreMap;
        if (map.isCapped())
        {
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                scores[e] = map.cap(scores[e]);
            }
        }
        float const slope = map.slope();
        auto const keys = static_cast<Index>(plan.keys);
        auto const add = [&scores, slope](int e, auto value) { scores[e] = fmaf(scores[e], slope, toFloat(value)); };
        if (bias == nullptr)
        {
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                scores[e] *= slope;
            }
        }
        else if (plan.biasIsFloat32)
        {
            forRun<float, N>(bias, plan.biasKeyStride, first, keys, add);
        }
        else
        {
            forRun<T, N>(bias, plan.biasKeyStride, first, keys, add);
        }
    }

    template <typename Index>
    static __device__ __forceinline__ void applyKeep(
        SoftmaxPlan const& plan, void const* keep, Index first, float (&scores)[N])
    {
        auto const keys = static_cast<Index>(plan.keys);
        auto const drop = [&scores](int e, auto value) { scores[e] = value != 0 ? scores[e] : -INFINITY; };
        switch (plan.keepType)
        {
        case KeepType::kInt8: forRun<int8_t, N>(keep, plan.keepKeyStride, first, keys, drop); break;
        case KeepType::kInt32: forRun<int32_t, N>(keep, plan.keepKeyStride, first, keys, drop); break;
        case KeepType::kInt64: forRun<long long, N>(keep, plan.keepKeyStride, first, keys, drop); break;
        }
    }
};

} // namespace attngraft
