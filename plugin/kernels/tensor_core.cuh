// The instructions that attention is made of, one function each: copies to shared memory that do not wait, matrix
// fragments, matrix products. Compute capability 8.0 and later.
//
// Shared memory is addressed in bytes from the beginning of the block's dynamic shared memory window, as the
// instructions do it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace attngraft
{

//! How products are computed: the elements' type, and in what.
struct HalfMath
{
    using Element = __half;
};

struct BFloat16Math
{
    using Element = __nv_bfloat16;
};

//! fp32 elements, of whose 24 bits the products see 11.
struct Tf32Math
{
    using Element = float;
};

//! fp32 elements, products of all but the last bits: the left factor as the sum of two TF32 numbers, the right one of
//! three, which is all of it (a value whose weight is 1 comes out as it was); four products.
struct Fp32Math
{
    using Element = float;
};

} // namespace attngraft

#if defined(ATTNGRAFT_DEVICE_INSTRUCTIONS) // something else that has them: a test's, on the CPU
#include ATTNGRAFT_DEVICE_INSTRUCTIONS
#else

#define ATTNGRAFT_DEVICE __device__ __forceinline__
#define ATTNGRAFT_DEVICE_CALL __device__ __noinline__ // for what is rare and would take registers from the rest

namespace attngraft
{

using SharedAddress = uint32_t;

//! Where the block's dynamic shared memory begins.
ATTNGRAFT_DEVICE SharedAddress dynamicSharedMemory()
{
    extern __shared__ __align__(1024) unsigned char attngraftSharedMemory[];
    return static_cast<SharedAddress>(__cvta_generic_to_shared(attngraftSharedMemory));
}

//! Waits until the kernels before this one are done and what they wrote is there: before any access to global memory.
//! Kernels that wait may begin while the one before them runs, see startKernel. Nothing before compute capability 9.0.
ATTNGRAFT_DEVICE void waitForEarlierKernels()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

//! Lets a kernel begin that waits for this one by itself, once all blocks have said so or ended. Its blocks gather
//! where this one's end first; under causal masks, where the first blocks have the most to do, they are uneven then. So
//! kernels of many such blocks (mma.sync) say it when they are nearly done.
ATTNGRAFT_DEVICE void letNextKernelBegin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

//! Asks for the line of memory around an address that may be read, so that it is near when it is.
ATTNGRAFT_DEVICE void prefetchLine(void const* from)
{
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from));
}

//! Starts a copy of 16 bytes, of which those beyond `bytes` become 0. `from` is aligned to 16 bytes.
ATTNGRAFT_DEVICE void copyAsync16(SharedAddress to, void const* from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

ATTNGRAFT_DEVICE void commitCopies()
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

//! Waits until at most `pending` of this thread's commits are under way.
template <int pending>
ATTNGRAFT_DEVICE void waitForCopies()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

//! Four 8x8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8, and receives of each
//! matrix the elements 2 * (l % 4) and the next of row l / 4.
ATTNGRAFT_DEVICE void loadMatrices(uint32_t (&to)[4], SharedAddress from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"(from)
        : "memory");
}

//! The same, each matrix transposed.
ATTNGRAFT_DEVICE void loadMatricesTransposed(uint32_t (&to)[4], SharedAddress from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"(from)
        : "memory");
}

//! The nearest TF32 number.
ATTNGRAFT_DEVICE uint32_t roundToTf32(float x)
{
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return rounded;
}

//! c += a * b in fp32, for 16-bit types a 16x16, b 16x8, for TF32 a 16x8, b 8x8.
template <typename Math>
ATTNGRAFT_DEVICE void multiplyFragments(float (&c)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (std::is_same_v<Math, HalfMath>)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    else if constexpr (std::is_same_v<Math, BFloat16Math>)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    else
    {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

//! Two elements of T in one register, `low` first in memory.
template <typename T>
ATTNGRAFT_DEVICE uint32_t packPair(float low, float high)
{
    uint32_t pair;
    if constexpr (std::is_same_v<T, __half>)
    {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    else
    {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

ATTNGRAFT_DEVICE void storeShared(SharedAddress to, uint32_t value)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

ATTNGRAFT_DEVICE void storeShared(SharedAddress to, uint2 value)
{
    asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(to), "r"(value.x), "r"(value.y) : "memory");
}

ATTNGRAFT_DEVICE void storeShared(SharedAddress to, uint4 value)
{
    asm volatile(
        "st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
        : "memory");
}

template <typename Value>
ATTNGRAFT_DEVICE Value loadShared(SharedAddress from)
{
    Value value;
    if constexpr (std::is_same_v<Value, uint4>)
    {
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
            : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
            : "r"(from)
            : "memory");
    }
    else
    {
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    }
    return value;
}

ATTNGRAFT_DEVICE float shuffleXor(float value, int lanes)
{
    return __shfl_xor_sync(0xffffffffU, value, lanes);
}

//! What a lane has.
ATTNGRAFT_DEVICE float shuffleFrom(float value, int lane)
{
    return __shfl_sync(0xffffffffU, value, lane);
}

ATTNGRAFT_DEVICE bool anyInWarp(bool condition)
{
    return __any_sync(0xffffffffU, condition);
}

//! Bit l is lane l's condition.
ATTNGRAFT_DEVICE uint32_t ballot(bool condition)
{
    return __ballot_sync(0xffffffffU, condition);
}

ATTNGRAFT_DEVICE bool anyInBlock(bool condition)
{
    return __syncthreads_or(condition) != 0;
}

ATTNGRAFT_DEVICE void synchronizeBlock()
{
    __syncthreads();
}

ATTNGRAFT_DEVICE void synchronizeWarp()
{
    __syncwarp();
}

//! Loads 16 bytes of global memory at once, where this stands: what waits for something else later waits for both.
ATTNGRAFT_DEVICE uint4 loadGlobal16(void const* from)
{
    uint4 vector;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
        : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
        : "l"(__cvta_generic_to_global(from))
        : "memory");
    return vector;
}

//! Stores 16 bytes of global memory at once. An assignment of a uint4 may become four stores.
ATTNGRAFT_DEVICE void storeGlobal16(void* to, uint4 vector)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(__cvta_generic_to_global(to)), "r"(vector.x),
        "r"(vector.y), "r"(vector.z), "r"(vector.w)
        : "memory");
}

//! A value that is computed where this stands and no earlier, so that paths which are rarely taken cost nothing before.
ATTNGRAFT_DEVICE int computedHere(int value)
{
    asm volatile("" : "+r"(value));
    return value;
}

//! A product that is rounded by itself, not together with a sum that takes it up.
ATTNGRAFT_DEVICE float multiplyAlone(float a, float b)
{
    return __fmul_rn(a, b);
}

//! 1 / x within 1 unit in the last place, for 1 / x of at least 2^-126.
ATTNGRAFT_DEVICE float reciprocalFast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

//! The logarithm to the base of 2, within 2^-22 or so.
ATTNGRAFT_DEVICE float log2Fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

//! 2^x within 2 units in the last place; results below 2^-126 are 0.
ATTNGRAFT_DEVICE float exp2Fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

} // namespace attngraft

#endif

namespace attngraft
{

ATTNGRAFT_DEVICE float bitsAsFloat(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

ATTNGRAFT_DEVICE uint32_t floatAsBits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

//! Of the last bit that the tensor cores see of an fp32 number.
constexpr uint32_t kHalfTf32Step = 0x1000;

//! What the tensor cores, which cut off the last 13 bits, see as the nearest TF32 number: roundToTf32 but for those
//! bits, in half of its instructions.
ATTNGRAFT_DEVICE uint32_t roundForTf32(uint32_t bits)
{
    return fabsf(bitsAsFloat(bits)) < INFINITY ? bits + kHalfTf32Step : bits; // a NaN might become a number
}

ATTNGRAFT_DEVICE uint4 roundForTf32(uint4 vector)
{
    return uint4{roundForTf32(vector.x), roundForTf32(vector.y), roundForTf32(vector.z), roundForTf32(vector.w)};
}

//! The same for a weight, which is not negative. One that is NaN may become a number: the sum of its row is NaN.
ATTNGRAFT_DEVICE float roundWeightForTf32(float weight)
{
    return bitsAsFloat(floatAsBits(weight) + kHalfTf32Step);
}

//! c += a * b for fragments as they come from memory: a 16x16 and b 16x8 of 16-bit types, 16x8 and 8x8 of fp32.
template <typename Math>
ATTNGRAFT_DEVICE void multiplyAdd(float (&c)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (sizeof(typename Math::Element) == 2)
    {
        multiplyFragments<Math>(c, a, b0, b1);
        return;
    }
    uint32_t const b[2] = {b0, b1};
    uint32_t left[4];
    uint32_t right[2];
#pragma unroll
    for (int i = 0; i < 4; ++i)
    {
        left[i] = roundToTf32(bitsAsFloat(a[i]));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
    {
        right[i] = roundToTf32(bitsAsFloat(b[i]));
    }
    if constexpr (std::is_same_v<Math, Fp32Math>)
    {
        // The small parts first, so that the large sum is rounded once; and the accumulator apart, since the tensor
        // cores cut off what they add where fp32 rounds.
        uint32_t leftRest[4];
        uint32_t rightRest[2];
        uint32_t rightLast[2];
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            leftRest[i] = roundToTf32(bitsAsFloat(a[i]) - bitsAsFloat(left[i]));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
        {
            float const rest = bitsAsFloat(b[i]) - bitsAsFloat(right[i]);
            rightRest[i] = roundToTf32(rest);
            rightLast[i] = roundToTf32(rest - bitsAsFloat(rightRest[i]));
        }
        float product[4] = {0.F, 0.F, 0.F, 0.F};
        multiplyFragments<Math>(product, left, rightLast[0], rightLast[1]);
        multiplyFragments<Math>(product, leftRest, right[0], right[1]);
        multiplyFragments<Math>(product, left, rightRest[0], rightRest[1]);
        multiplyFragments<Math>(product, left, right[0], right[1]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            c[i] += product[i];
        }
    }
    else
    {
        multiplyFragments<Math>(c, left, right[0], right[1]);
    }
}

} // namespace attngraft
