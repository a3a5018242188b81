// What a thread does with 16 bytes: loads, conversions to and from fp32, reductions over the threads of a row.
#pragma once

#include "softmax_policy.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace attngraft
{

//! exp(x) = exp2(x * log2(e)), and exp2 is what the hardware has.
constexpr float kLog2E = 1.4426950408889634F;

constexpr int kWarpThreads = 32;

//! 2^x within 2 units in the last place; results below 2^-126 are 0.
__device__ __forceinline__ float fastExp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename T>
constexpr int kElementsPerVector = kVectorBytes / static_cast<int>(sizeof(T));

__device__ __forceinline__ float toFloat(float x)
{
    return x;
}

__device__ __forceinline__ float toFloat(__half x)
{
    return __half2float(x);
}

__device__ __forceinline__ float toFloat(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <typename T>
__device__ __forceinline__ T fromFloat(float x)
{
    if constexpr (std::is_same_v<T, __half>)
    {
        return __float2half_rn(x);
    }
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    {
        return __float2bfloat16_rn(x);
    }
    else
    {
        return x;
    }
}

//! The largest chunk that divides `bytes`: what one load instruction moves.
template <int bytes>
using ChunkOf = std::conditional_t<bytes % 16 == 0, uint4,
    std::conditional_t<bytes % 8 == 0, uint2,
        std::conditional_t<bytes % 4 == 0, uint32_t, std::conditional_t<bytes % 2 == 0, uint16_t, uint8_t>>>>;

//! N neighbouring elements that move together.
template <typename T, int N>
struct Pack
{
    using Chunk = ChunkOf<N* static_cast<int>(sizeof(T))>;
    static constexpr int kChunks = N * static_cast<int>(sizeof(T)) / static_cast<int>(sizeof(Chunk));
    alignas(Chunk) T values[N];

    __device__ __forceinline__ Chunk* chunks()
    {
        return reinterpret_cast<Chunk*>(values);
    }

    static __device__ __forceinline__ bool isAligned(T const* from)
    {
        return reinterpret_cast<uintptr_t>(from) % sizeof(Chunk) == 0;
    }

    //! Data that is read again soon: masks, shared by many rows.
    __device__ __forceinline__ void load(T const* from)
    {
#pragma unroll
        for (int i = 0; i < kChunks; ++i)
        {
            chunks()[i] = __ldg(reinterpret_cast<Chunk const*>(from) + i);
        }
    }

    //! Data that is read once: scores. Not through the read-only path, since the output may be the same tensor.
    __device__ __forceinline__ void loadStreaming(T const* from)
    {
#pragma unroll
        for (int i = 0; i < kChunks; ++i)
        {
            chunks()[i] = __ldcs(reinterpret_cast<Chunk const*>(from) + i);
        }
    }

    __device__ __forceinline__ void storeStreaming(T* to)
    {
#pragma unroll
        for (int i = 0; i < kChunks; ++i)
        {
            __stcs(reinterpret_cast<Chunk*>(to) + i, chunks()[i]);
        }
    }
};

struct Maximum
{
    static constexpr float kIdentity = -INFINITY;

    //! NaN loses here; it comes back in the sum.
    __device__ __forceinline__ float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
};

struct Sum
{
    static constexpr float kIdentity = 0.F;

    __device__ __forceinline__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

//! Reduces over groups of `threads` neighbouring threads; every thread gets the result. Up to a warp by shuffles; a
//! group of more than a warp is a whole block and exchanges through `scratch` (one float a warp), which the next call
//! must not share.
template <int threads, typename Op>
__device__ __forceinline__ float reduceOverRow(float value, Op op, float* scratch)
{
    constexpr int kLanes = threads < kWarpThreads ? threads : kWarpThreads;
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
    {
        value = op(value, __shfl_xor_sync(0xffffffffU, value, offset));
    }
    if constexpr (threads > kWarpThreads)
    {
        constexpr int kWarps = threads / kWarpThreads;
        if (threadIdx.x % kWarpThreads == 0)
        {
            scratch[threadIdx.x / kWarpThreads] = value;
        }
        __syncthreads();
        value = Op::kIdentity;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp)
        {
            value = op(value, scratch[warp]);
        }
    }
    return value;
}

} // namespace attngraft
