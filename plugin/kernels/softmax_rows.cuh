// The kernels: rows held in registers, and rows that are read twice. One skeleton for all types and masks:
// read s, maximum over the row, exp2 and sum over the row, write.
#pragma once

#include "device_math.cuh"
#include "row_mask.cuh"
#include "softmax_plan.h"

namespace attngraft
{

//! A row as units of N elements. The first unit may begin before the row, on the vector that holds the row's first element.
template <typename T, int N, typename Index>
struct RowSpan
{
    T const* scores;
    T* probabilities;
    Index keys;
    Index shift; //!< elements of the first unit that lie before the row

    __device__ __forceinline__ RowSpan(SoftmaxPlan const& plan, int64_t row)
    {
        int64_t const offset = row * plan.keys;
        scores = static_cast<T const*>(plan.scores) + offset;
        probabilities = static_cast<T*>(plan.probabilities) + offset;
        keys = static_cast<Index>(plan.keys);
        shift = N == 1 ? 0 : static_cast<Index>(reinterpret_cast<uintptr_t>(scores) % kVectorBytes / sizeof(T));
    }

    __device__ __forceinline__ Index firstKey(Index unit) const
    {
        return unit * N - shift;
    }

    __device__ __forceinline__ bool isWhole(Index first) const
    {
        return first >= 0 && first + N <= keys;
    }

    __device__ __forceinline__ bool holds(Index key) const
    {
        return key >= 0 && key < keys;
    }

    //! Raw scores of the unit at `first` as fp32; elements outside the row are 0.
    __device__ __forceinline__ void read(Index first, float (&out)[N]) const
    {
        T const* const from = scores + first; // one address for all elements, which then are immediate offsets
        if (isWhole(first))
        {
            Pack<T, N> pack;
            pack.loadStreaming(from);
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                out[e] = toFloat(pack.values[e]);
            }
            return;
        }
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            out[e] = holds(first + e) ? toFloat(from[e]) : 0.F;
        }
    }

    __device__ __forceinline__ void write(Index first, float const (&values)[N]) const
    {
        T* const to = probabilities + first;
        if (isWhole(first))
        {
            Pack<T, N> pack;
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                pack.values[e] = fromFloat<T>(values[e]);
            }
            pack.storeStreaming(to);
            return;
        }
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            if (holds(first + e))
            {
                to[e] = fromFloat<T>(values[e]);
            }
        }
    }
};

//! Reads the unit at `first` and masks it. A unit without any allowed key is not read.
template <typename T, int N, bool readsTensors, typename Index>
__device__ __forceinline__ void readScores(SoftmaxPlan const& plan, RowSpan<T, N, Index> const& span,
    RowContext<T, readsTensors, Index> const& context, Index first, bool ignoreMask, float (&scores)[N])
{
    bool const isOutside = first >= span.keys || first + N <= 0;
    if (isOutside || (!ignoreMask && context.mask.excludes(first, first + N)))
    {
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            scores[e] = -INFINITY;
        }
        return;
    }
    span.read(first, scores);
    context.template apply<N>(plan, first, ignoreMask, scores);
}

//! What s - max(s) is multiplied with before exp2.
template <bool readsTensors>
__device__ __forceinline__ float exponentFactor(SoftmaxPlan const& plan)
{
    return readsTensors ? kLog2E : plan.scoreMap.scale * kLog2E;
}

//! A finite stand-in for the maximum of a row without any score above -inf, so that no -inf is subtracted from itself.
__device__ __forceinline__ float finiteMaximum(float maximum)
{
    return maximum == -INFINITY ? 0.F : maximum;
}

//! What every key of an empty row gets, once `unmasked` has had its second reading.
__device__ __forceinline__ float emptyProbability(SoftmaxPlan const& plan)
{
    return plan.emptyRows == EmptyRows::kUniform ? 1.F / static_cast<float>(plan.keys) : 0.F;
}

template <int threads, int units>
constexpr int kBlockThreads = Rung{threads, units}.blockThreads();
template <int threads, int units>
constexpr int kRowsPerBlock = Rung{threads, units}.rowsPerBlock();

template <int N, int units>
__device__ __forceinline__ float maximumOf(float const (&scores)[units][N])
{
    float maximum = -INFINITY;
#pragma unroll
    for (int u = 0; u < units; ++u)
    {
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            maximum = fmaxf(maximum, scores[u][e]);
        }
    }
    return maximum;
}

//! +inf where a score is NaN, which the maximum overlooks, else the maximum: -inf means that the row is empty.
template <int N, int units>
__device__ __forceinline__ float evidenceOfKeys(float const (&scores)[units][N], float maximum)
{
#pragma unroll
    for (int u = 0; u < units; ++u)
    {
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            maximum = isnan(scores[u][e]) ? INFINITY : maximum;
        }
    }
    return maximum;
}

//! `threads` threads hold a row, `units` units of N elements each.
template <typename T, int N, int threads, int units, bool readsTensors>
__global__ void __launch_bounds__(kBlockThreads<threads, units>)
    softmaxInRegisters(__grid_constant__ SoftmaxPlan const plan)
{
    constexpr int kRows = kRowsPerBlock<threads, units>;
    __shared__ float scratch[3][kBlockThreads<threads, units> / kWarpThreads];
    int const lane = static_cast<int>(threadIdx.x) % threads;
    int const rowInBlock = static_cast<int>(threadIdx.x) / threads;

    for (int64_t base = int64_t{blockIdx.x} * kRows; base < plan.rows; base += int64_t{gridDim.x} * kRows)
    {
        // Threads past the last row work on it too, without storing, since shuffles need whole warps.
        bool const isReal = base + rowInBlock < plan.rows;
        int64_t const row = isReal ? base + rowInBlock : plan.rows - 1;
        RowSpan<T, N, int> const span(plan, row);
        RowContext<T, readsTensors, int> const context(plan, row);
        float scores[units][N];
        float maximum;
        bool ignoreMask = false;
        // Twice at most: an empty row is read again without its mask where the contract says `unmasked`.
#pragma unroll 1
        for (int reading = 0;; ++reading)
        {
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                readScores<T, N, readsTensors>(plan, span, context, span.firstKey(lane + u * threads), ignoreMask, scores[u]);
            }
            maximum = maximumOf<N, units>(scores);
            if (plan.emptyRows != EmptyRows::kUnmasked || reading == 1)
            {
                break;
            }
            float const best
                = reduceOverRow<threads>(evidenceOfKeys<N, units>(scores, maximum), Maximum{}, scratch[2]);
            ignoreMask = best == -INFINITY;
            if (__syncthreads_or(ignoreMask) == 0)
            {
                break;
            }
        }
        maximum = finiteMaximum(reduceOverRow<threads>(maximum, Maximum{}, scratch[0]));
        float const factor = exponentFactor<readsTensors>(plan);
        float sum = 0.F;
#pragma unroll
        for (int u = 0; u < units; ++u)
        {
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                scores[u][e] = fastExp2((scores[u][e] - maximum) * factor);
                sum += scores[u][e];
            }
        }
        sum = reduceOverRow<threads>(sum, Sum{}, scratch[1]);
        bool const isEmpty = sum == 0.F;
        float const inverse = isEmpty ? 0.F : 1.F / sum;
        float const offset = isEmpty ? emptyProbability(plan) : 0.F;
#pragma unroll
        for (int u = 0; u < units; ++u)
        {
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                scores[u][e] = fmaf(scores[u][e], inverse, offset);
            }
            if (isReal)
            {
                span.write(span.firstKey(lane + u * threads), scores[u]);
            }
        }
    }
}

//! Running maximum and sum of a thread over the units that it reads.
struct OnlineSum
{
    float maximum{-INFINITY};
    float sum{0.F};

    template <int N>
    __device__ __forceinline__ void add(float const (&scores)[N], float factor)
    {
        float best = maximum;
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            best = fmaxf(best, scores[e]);
        }
        float const from = finiteMaximum(best);
        sum *= fastExp2((maximum - from) * factor);
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            sum += fastExp2((scores[e] - from) * factor);
        }
        maximum = best;
    }
};

//! A block a row: once for maximum and sum, once more to write. 64-bit keys: a row may be as long as memory.
template <typename T, int N, bool readsTensors>
__global__ void __launch_bounds__(kMultiPassThreads) softmaxMultiPass(__grid_constant__ SoftmaxPlan const plan)
{
    __shared__ float scratch[2][kMultiPassThreads / kWarpThreads];
    float const factor = exponentFactor<readsTensors>(plan);
    for (int64_t row = blockIdx.x; row < plan.rows; row += gridDim.x)
    {
        RowSpan<T, N, int64_t> const span(plan, row);
        RowContext<T, readsTensors, int64_t> const context(plan, row);
        int64_t const unitCount = (span.keys + span.shift + N - 1) / N;
        float scores[N];
        float maximum;
        float sum;
        bool ignoreMask = false;
#pragma unroll 1
        for (int reading = 0; reading < 2; ++reading)
        {
            OnlineSum mine;
            for (int64_t unit = threadIdx.x; unit < unitCount; unit += kMultiPassThreads)
            {
                readScores<T, N, readsTensors>(plan, span, context, span.firstKey(unit), ignoreMask, scores);
                mine.add<N>(scores, factor);
            }
            maximum = finiteMaximum(reduceOverRow<kMultiPassThreads>(mine.maximum, Maximum{}, scratch[0]));
            sum = reduceOverRow<kMultiPassThreads>(
                mine.sum * fastExp2((mine.maximum - maximum) * factor), Sum{}, scratch[1]);
            // The scratch is free again, and every thread has read what a later row, written in place, may not change.
            __syncthreads();
            if (sum != 0.F || plan.emptyRows != EmptyRows::kUnmasked)
            {
                break;
            }
            ignoreMask = true;
        }
        bool const isEmpty = sum == 0.F;
        float const inverse = isEmpty ? 0.F : 1.F / sum;
        float const offset = isEmpty ? emptyProbability(plan) : 0.F;
        for (int64_t unit = threadIdx.x; unit < unitCount; unit += kMultiPassThreads)
        {
            readScores<T, N, readsTensors>(plan, span, context, span.firstKey(unit), ignoreMask, scores);
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                scores[e] = fmaf(fastExp2((scores[e] - maximum) * factor), inverse, offset);
            }
            span.write(span.firstKey(unit), scores);
        }
    }
}

} // namespace attngraft
