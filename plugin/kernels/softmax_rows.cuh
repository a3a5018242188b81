// The kernels: rows held in registers, and rows that are read twice. One skeleton for all types and masks:
// read s, maximum over the row, exp2 and sum over the row, write.
#pragma once

#include "device_math.cuh"
#include "row_mask.cuh"
#include "row_units.cuh"
#include "softmax_plan.h"

namespace attngraft
{

//! What s - max(s) is multiplied with before exp2.
__device__ __forceinline__ float exponentFactor(SoftmaxPlan const& plan)
{
    return plan.scaleIsDeferred ? plan.scoreMap.scale * kLog2E : kLog2E;
}

//! Where maximum * factor stays finite, exp2((s - maximum) * factor) is one multiply-add for each s; the lowest fp32
//! number, which exporters add to mask a row, is beyond it.
constexpr float kFoldableMaximum = 1e37F;

//! scores := exp2((scores - maximum) * factor); their sum.
template <int N, int units>
__device__ __forceinline__ float exponentiate(float (&scores)[units][N], float maximum, float factor)
{
    float sum = 0.F;
    float const shift = maximum * factor;
    bool const isFoldable = fabsf(shift) < kFoldableMaximum;
#pragma unroll
    for (int u = 0; u < units; ++u)
    {
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            float& score = scores[u][e];
            score = fastExp2(isFoldable ? fmaf(score, factor, -shift) : (score - maximum) * factor);
            sum += score;
        }
    }
    return sum;
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

//! Blocks that should fit on a multiprocessor, which bounds the registers of a thread: with this many, the loads of
//! some rows overlap the arithmetic of others. Where a bias is read too, the bound costs more than it brings
//! (measured).
constexpr int residentBlocks(Rung rung, MaskTensors tensors)
{
    bool const readsBias = tensors == MaskTensors::kBias || tensors == MaskTensors::kAny;
    int const residentThreads = rung.blockThreads() <= 256 ? 768 : 1024;
    return readsBias ? 1 : residentThreads / rung.blockThreads();
}

template <int threads, int units, MaskTensors tensors>
constexpr int kResidentBlocks = residentBlocks(Rung{threads, units}, tensors);

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
template <typename T, int N, int threads, int units, bool isAligned, MaskTensors tensors>
__global__ void __launch_bounds__(kBlockThreads<threads, units>, kResidentBlocks<threads, units, tensors>)
    softmaxInRegisters(__grid_constant__ SoftmaxPlan const plan)
{
    constexpr int kRows = kRowsPerBlock<threads, units>;
    __shared__ float scratch[3][kBlockThreads<threads, units> / kWarpThreads];
    int const lane = static_cast<int>(threadIdx.x) % threads;
    int const rowInBlock = static_cast<int>(threadIdx.x) / threads;
    float const factor = exponentFactor(plan);

    for (int64_t base = int64_t{blockIdx.x} * kRows; base < plan.rows; base += int64_t{gridDim.x} * kRows)
    {
        // Threads past the last row work on it too, without storing, since shuffles need whole warps.
        bool const isReal = base + rowInBlock < plan.rows;
        int64_t const row = isReal ? base + rowInBlock : plan.rows - 1;
        RowSpan<T, N, isAligned, int> const span(plan, row);
        RowContext<T, tensors, int> context(plan, row);
        float scores[units][N];
        float maximum;
        // Twice at most: an empty row is read again without its mask where the contract says `unmasked`.
#pragma unroll 1
        for (int reading = 0;; ++reading)
        {
            Unit<T, N, tensors> loaded[units];
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                loaded[u].readScores(span, context, span.firstKey(lane + u * threads));
            }
            context.locateTensors(plan, row);
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                loaded[u].readMask(context, span.firstKey(lane + u * threads));
            }
#pragma unroll
            for (int u = 0; u < units; ++u)
            {
                loaded[u].scores(plan, context, span.firstKey(lane + u * threads), scores[u]);
            }
            maximum = maximumOf<N, units>(scores);
            if (plan.emptyRows != EmptyRows::kUnmasked || reading == 1)
            {
                break;
            }
            float const best = reduceOverRow<threads>(evidenceOfKeys<N, units>(scores, maximum), Maximum{}, scratch[2]);
            bool const isEmpty = best == -INFINITY;
            if (__syncthreads_or(isEmpty) == 0)
            {
                break;
            }
            if (isEmpty)
            {
                context.ignoreMask(plan);
            }
        }
        maximum = finiteMaximum(reduceOverRow<threads>(maximum, Maximum{}, scratch[0]));
        float sum = exponentiate<N, units>(scores, maximum, factor);
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
            Pack<T, N> pack = toPack<T, N>(scores[u]);
            int const first = span.firstKey(lane + u * threads);
            if (isReal && !span.isOutside(first))
            {
                span.write(first, pack);
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
template <typename T, int N, MaskTensors tensors>
__global__ void __launch_bounds__(kMultiPassThreads) softmaxMultiPass(__grid_constant__ SoftmaxPlan const plan)
{
    constexpr bool kIsAligned = N == 1; // single elements always are whole units
    __shared__ float scratch[2][kMultiPassThreads / kWarpThreads];
    float const factor = exponentFactor(plan);
    for (int64_t row = blockIdx.x; row < plan.rows; row += gridDim.x)
    {
        RowSpan<T, N, kIsAligned, int64_t> const span(plan, row);
        RowContext<T, tensors, int64_t> context(plan, row);
        context.locateTensors(plan, row);
        int64_t const unitCount = (span.keys + span.shift + N - 1) / N;
        Unit<T, N, tensors> loaded;
        float scores[N];
        float maximum;
        float sum;
#pragma unroll 1
        for (int reading = 0; reading < 2; ++reading)
        {
            OnlineSum mine;
            for (int64_t unit = threadIdx.x; unit < unitCount; unit += kMultiPassThreads)
            {
                loaded.readScores(span, context, span.firstKey(unit));
                loaded.readMask(context, span.firstKey(unit));
                loaded.scores(plan, context, span.firstKey(unit), scores);
                mine.add<N>(scores, factor);
            }
            maximum = finiteMaximum(reduceOverRow<kMultiPassThreads>(mine.maximum, Maximum{}, scratch[0]));
            sum = reduceOverRow<kMultiPassThreads>(
                mine.sum * fastExp2((mine.maximum - maximum) * factor), Sum{}, scratch[1]);
            __syncthreads(); // the scratch is free again
            if (sum != 0.F || plan.emptyRows != EmptyRows::kUnmasked)
            {
                break;
            }
            context.ignoreMask(plan);
        }
        bool const isEmpty = sum == 0.F;
        float const inverse = isEmpty ? 0.F : 1.F / sum;
        float const offset = isEmpty ? emptyProbability(plan) : 0.F;
        for (int64_t unit = threadIdx.x; unit < unitCount; unit += kMultiPassThreads)
        {
            loaded.readScores(span, context, span.firstKey(unit));
            loaded.readMask(context, span.firstKey(unit));
            loaded.scores(plan, context, span.firstKey(unit), scores);
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                scores[e] = fmaf(fastExp2((scores[e] - maximum) * factor), inverse, offset);
            }
            Pack<T, N> result = toPack<T, N>(scores);
            span.write(span.firstKey(unit), result);
        }
    }
}

} // namespace attngraft
