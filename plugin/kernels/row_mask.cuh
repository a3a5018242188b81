// A row's mask on the device: where its bias and keep values lie, and the scores of a run of neighbouring keys.
#pragma once

#include "device_math.cuh"
#include "mask.h"
#include "softmax_plan.h"

namespace attngraft
{

//! Offsets of row `row` in bias and keep, in elements. Rows below 2^32 take 32-bit divisions, which are far cheaper.
template <typename Unsigned>
__device__ __forceinline__ void rowOffsets(RowOffsets const& map, Unsigned row, int64_t& bias, int64_t& keep)
{
    bias = 0;
    keep = 0;
    for (int d = map.rank - 1; d > 0; --d)
    {
        auto const dim = static_cast<Unsigned>(map.dims[d]);
        Unsigned const rest = row / dim;
        auto const index = static_cast<int64_t>(row - rest * dim);
        bias += index * map.biasStrides[d];
        keep += index * map.keepStrides[d];
        row = rest;
    }
    if (map.rank > 0)
    {
        bias += static_cast<int64_t>(row) * map.biasStrides[0];
        keep += static_cast<int64_t>(row) * map.keepStrides[0];
    }
}

//! Elements first .. first + N - 1 of a row as fp32 (bias) or truth (keep); those outside [0, keys) are left as they
//! were. `stride` is 1, or 0 where one value serves all keys.
template <typename U, int N, typename Index, typename Convert, typename Out>
__device__ __forceinline__ void loadRun(
    void const* row, int64_t stride, Index first, Index keys, Convert convert, Out (&out)[N])
{
    U const* const from = static_cast<U const*>(row) + (stride == 0 ? 0 : first);
    if (stride == 0)
    {
        Out const value = convert(__ldg(from));
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            out[e] = value;
        }
        return;
    }
    if (first >= 0 && first + N <= keys && Pack<U, N>::isAligned(from))
    {
        Pack<U, N> pack;
        pack.load(from);
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            out[e] = convert(pack.values[e]);
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < N; ++e)
    {
        if (first + e >= 0 && first + e < keys)
        {
            out[e] = convert(__ldg(from + e));
        }
    }
}

//! What a row needs beside its raw scores. `readsTensors` false: nothing but the interval, and s is the raw score.
template <typename T, bool readsTensors, typename Index>
struct RowContext
{
    RowMask<Index> mask;
    void const* bias{nullptr};
    void const* keep{nullptr};

    __device__ __forceinline__ RowContext(SoftmaxPlan const& plan, int64_t row)
    {
        IntervalMask const& interval = plan.interval;
        bool const isSmall = plan.rows <= INT64_C(0xffffffff);
        int64_t batch = 0;
        int64_t query = 0;
        if (interval.dependsOnBatch())
        {
            batch = divide(row, plan.rowsPerBatch, isSmall);
        }
        if (interval.dependsOnQuery())
        {
            query = row - divide(row, interval.queries, isSmall) * interval.queries;
        }
        KeyInterval const keys = interval.row(batch, query);
        mask = RowMask<Index>{static_cast<Index>(keys.begin), static_cast<Index>(keys.end)};
        if constexpr (readsTensors)
        {
            locate(plan, row, isSmall);
        }
    }

    //! Turns raw scores of keys first .. first + N - 1 into s, -inf where not allowed. Keys outside [0, keys) give -inf.
    //! `ignoreMask`: every key is allowed, for rows that would be empty.
    template <int N>
    __device__ __forceinline__ void apply(SoftmaxPlan const& plan, Index first, bool ignoreMask, float (&scores)[N]) const
    {
        auto const keys = static_cast<Index>(plan.keys);
        float biases[N] = {};
        bool keeps[N];
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            keeps[e] = true;
        }
        if constexpr (readsTensors)
        {
            readTensors<N>(plan, first, keys, biases, keeps);
        }
        RowMask<Index> const allowed = ignoreMask ? RowMask<Index>{0, keys} : mask;
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            float const score = readsTensors ? plan.scoreMap(scores[e], biases[e]) : scores[e];
            scores[e] = allowed.allows(first + e, keeps[e] || ignoreMask) ? score : -INFINITY;
        }
    }

private:
    static __device__ __forceinline__ int64_t divide(int64_t value, int64_t by, bool isSmall)
    {
        return isSmall ? static_cast<int64_t>(static_cast<uint32_t>(value) / static_cast<uint32_t>(by)) : value / by;
    }

    __device__ __forceinline__ void locate(SoftmaxPlan const& plan, int64_t row, bool isSmall)
    {
        int64_t biasOffset = 0;
        int64_t keepOffset = 0;
        if (isSmall)
        {
            rowOffsets(plan.offsets, static_cast<uint32_t>(row), biasOffset, keepOffset);
        }
        else
        {
            rowOffsets(plan.offsets, static_cast<uint64_t>(row), biasOffset, keepOffset);
        }
        int64_t const biasBytes = plan.biasIsFloat32 ? sizeof(float) : sizeof(T);
        int64_t const keepBytes = plan.keepType == KeepType::kInt8 ? 1 : plan.keepType == KeepType::kInt32 ? 4 : 8;
        bias = static_cast<char const*>(plan.bias) + biasOffset * biasBytes;
        keep = static_cast<char const*>(plan.keep) + keepOffset * keepBytes;
    }

    template <int N>
    __device__ __forceinline__ void readTensors(
        SoftmaxPlan const& plan, Index first, Index keys, float (&biases)[N], bool (&keeps)[N]) const
    {
        if (plan.bias != nullptr)
        {
            auto const convert = [](auto value) { return toFloat(value); };
            if (plan.biasIsFloat32)
            {
                loadRun<float, N>(bias, plan.biasKeyStride, first, keys, convert, biases);
            }
            else
            {
                loadRun<T, N>(bias, plan.biasKeyStride, first, keys, convert, biases);
            }
        }
        if (plan.keep != nullptr)
        {
            auto const convert = [](auto value) { return value != 0; };
            switch (plan.keepType)
            {
            case KeepType::kInt8: loadRun<int8_t, N>(keep, plan.keepKeyStride, first, keys, convert, keeps); break;
            case KeepType::kInt32: loadRun<int32_t, N>(keep, plan.keepKeyStride, first, keys, convert, keeps); break;
            case KeepType::kInt64: loadRun<long long, N>(keep, plan.keepKeyStride, first, keys, convert, keeps); break;
            }
        }
    }
};

} // namespace attngraft
