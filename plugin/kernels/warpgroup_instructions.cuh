// The instructions of compute capability 9.0 that attention is made of: matrix products of warp groups (four warps, the
// first a multiple of four) that read shared memory by themselves and run beside other work, copies of boxes of a
// tensor, and registers that go from one warp group to another. For code compiled for sm_90a.
#pragma once

#include "bulk_instructions.cuh"
#include "tensor_core.cuh"

namespace attngraft
{

constexpr int kWarpgroupThreads = 128;
constexpr int kWarpgroupRows = 64; //!< of a product

//! Where a product finds a factor: panels of 128 bytes a row, swizzled (see PanelLayout), groups of 8 rows one after
//! another. `panelBytes`: from one panel to the next, for a factor whose rows lie along the product's inner dimension.
ATTNGRAFT_DEVICE uint64_t matrixDescriptor(SharedAddress from, int panelBytes)
{
    constexpr uint64_t kGroupBytes = 1024;
    constexpr uint64_t kSwizzle128 = 1;
    return (from & 0x3ffffU) >> 4 | static_cast<uint64_t>(panelBytes >> 4) << 16 | (kGroupBytes >> 4) << 32
        | kSwizzle128 << 62;
}

//! What to add to a descriptor for a factor so many bytes on, a multiple of 16.
ATTNGRAFT_DEVICE constexpr uint64_t descriptorSteps(int bytes)
{
    return static_cast<uint64_t>(bytes) / 16;
}

} // namespace attngraft

#if defined(ATTNGRAFT_WARPGROUP_INSTRUCTIONS) // something else that has them: a test's, on the CPU
#include ATTNGRAFT_WARPGROUP_INSTRUCTIONS
#else

namespace attngraft
{

//! A warp group's index, known to the compiler to be the same in all threads of a warp.
ATTNGRAFT_DEVICE int warpgroupOfThread()
{
    return __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0);
}

//! Before the first product, and before one whose accumulator or left factor the threads wrote.
ATTNGRAFT_DEVICE void fenceProducts()
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

ATTNGRAFT_DEVICE void commitProducts()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

//! Waits until at most `pending` of the commits are under way.
template <int pending>
ATTNGRAFT_DEVICE void waitForProducts()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
}

//! Keeps the compiler from moving work on an accumulator across products under way.
template <int columns>
ATTNGRAFT_DEVICE void pinRegisters(float (&c)[columns][4])
{
#pragma unroll
    for (int n = 0; n < columns; ++n)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            asm volatile("" : "+f"(c[n][i])::"memory");
        }
    }
}

// The operands of an accumulator of 8 * n columns, as the assembler counts them.
#define ATTNGRAFT_C1(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define ATTNGRAFT_C4(n) ATTNGRAFT_C1(n), ATTNGRAFT_C1(n + 1), ATTNGRAFT_C1(n + 2), ATTNGRAFT_C1(n + 3)
#define ATTNGRAFT_C8(n) ATTNGRAFT_C4(n), ATTNGRAFT_C4(n + 4)
#define ATTNGRAFT_C16(n) ATTNGRAFT_C8(n), ATTNGRAFT_C8(n + 8)
#define ATTNGRAFT_C32(n) ATTNGRAFT_C16(n), ATTNGRAFT_C16(n + 16)
#define ATTNGRAFT_R16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define ATTNGRAFT_R32 ATTNGRAFT_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ATTNGRAFT_R48 ATTNGRAFT_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define ATTNGRAFT_R64 ATTNGRAFT_R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ATTNGRAFT_R96                                                                                                  \
    ATTNGRAFT_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"                   \
                  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define ATTNGRAFT_R128                                                                                                 \
    ATTNGRAFT_R96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"       \
                  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

//! Both factors from shared memory, each row along the inner dimension; `p` says whether c counts.
#define ATTNGRAFT_SHARED_PRODUCT(width, type, registers, a, b, p, ...)                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" p ", 0;\n"                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" width "k16.f32." type "." type " {" registers "}, %" a ", %" b    \
                 ", p, 1, 1, 0, 0;\n}\n"                                                                               \
        : __VA_ARGS__                                                                                                  \
        : "l"(left), "l"(right), "r"(static_cast<int>(accumulates)))

//! The left factor from registers, the right one's rows across the inner dimension.
#define ATTNGRAFT_REGISTER_PRODUCT(width, type, registers, a0, a1, a2, a3, b, ...)                                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" width "k16.f32." type "." type " {" registers "}, {%" a0 ", %" a1 \
                 ", %" a2 ", %" a3 "}, %" b ", 1, 1, 1, 1;\n"                                                          \
        : __VA_ARGS__                                                                                                  \
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right))

//! The same for TF32, of which the rows of both factors lie along the inner dimension wherever they are.
#define ATTNGRAFT_SHARED_TF32_PRODUCT(width, registers, a, b, p, ...)                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" p ", 0;\n"                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" width "k8.f32.tf32.tf32 {" registers "}, %" a ", %" b             \
                 ", p, 1, 1;\n}\n"                                                                                     \
        : __VA_ARGS__                                                                                                  \
        : "l"(left), "l"(right), "r"(static_cast<int>(accumulates)))

#define ATTNGRAFT_REGISTER_TF32_PRODUCT(width, registers, a0, a1, a2, a3, b, p, ...)                                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" p ", 0;\n"                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" width "k8.f32.tf32.tf32 {" registers "}, {%" a0 ", %" a1 ", %" a2 \
                 ", %" a3 "}, %" b ", p, 1, 1;\n}\n"                                                                   \
        : __VA_ARGS__                                                                                                  \
        : "r"(floatAsBits(left[0])), "r"(floatAsBits(left[1])), "r"(floatAsBits(left[2])), "r"(floatAsBits(left[3])),  \
        "l"(right), "r"(static_cast<int>(accumulates)))

//! Starts c (+)= left * right, 64 rows, `width` columns, 16 steps of the inner dimension, of TF32 8.
template <typename Math, int width>
struct WarpgroupProduct;

// The products of one width. `operands` are the accumulator's; those that follow are numbered from n0 on.
#define ATTNGRAFT_PRODUCT(width, registers, operands, n0, n1, n2, n3, n4, n5)                                          \
    template <>                                                                                                        \
    struct WarpgroupProduct<Tf32Math, width>                                                                           \
    {                                                                                                                  \
        static ATTNGRAFT_DEVICE void ofShared(                                                                         \
            float (&c)[width / 8][4], uint64_t left, uint64_t right, bool accumulates)                                 \
        {                                                                                                              \
            ATTNGRAFT_SHARED_TF32_PRODUCT(#width, registers, n0, n1, n2, operands);                                    \
        }                                                                                                              \
                                                                                                                       \
        static ATTNGRAFT_DEVICE void ofRegisters(                                                                      \
            float (&c)[width / 8][4], float const (&left)[4], uint64_t right, bool accumulates)                        \
        {                                                                                                              \
            ATTNGRAFT_REGISTER_TF32_PRODUCT(#width, registers, n0, n1, n2, n3, n4, n5, operands);                      \
        }                                                                                                              \
    };                                                                                                                 \
                                                                                                                       \
    template <typename Math>                                                                                           \
    struct WarpgroupProduct<Math, width>                                                                               \
    {                                                                                                                  \
        static ATTNGRAFT_DEVICE void ofShared(                                                                         \
            float (&c)[width / 8][4], uint64_t left, uint64_t right, bool accumulates)                                 \
        {                                                                                                              \
            if constexpr (std::is_same_v<Math, HalfMath>)                                                              \
            {                                                                                                          \
                ATTNGRAFT_SHARED_PRODUCT(#width, "f16", registers, n0, n1, n2, operands);                              \
            }                                                                                                          \
            else                                                                                                       \
            {                                                                                                          \
                ATTNGRAFT_SHARED_PRODUCT(#width, "bf16", registers, n0, n1, n2, operands);                             \
            }                                                                                                          \
        }                                                                                                              \
                                                                                                                       \
        static ATTNGRAFT_DEVICE void ofRegisters(float (&c)[width / 8][4], uint32_t const (&left)[4], uint64_t right)  \
        {                                                                                                              \
            if constexpr (std::is_same_v<Math, HalfMath>)                                                              \
            {                                                                                                          \
                ATTNGRAFT_REGISTER_PRODUCT(#width, "f16", registers, n0, n1, n2, n3, n4, operands);                    \
            }                                                                                                          \
            else                                                                                                       \
            {                                                                                                          \
                ATTNGRAFT_REGISTER_PRODUCT(#width, "bf16", registers, n0, n1, n2, n3, n4, operands);                   \
            }                                                                                                          \
        }                                                                                                              \
    }

ATTNGRAFT_PRODUCT(32, ATTNGRAFT_R16, ATTNGRAFT_C4(0), "16", "17", "18", "19", "20", "21");
ATTNGRAFT_PRODUCT(64, ATTNGRAFT_R32, ATTNGRAFT_C8(0), "32", "33", "34", "35", "36", "37");
ATTNGRAFT_PRODUCT(128, ATTNGRAFT_R64, ATTNGRAFT_C16(0), "64", "65", "66", "67", "68", "69");
ATTNGRAFT_PRODUCT(256, ATTNGRAFT_R128, ATTNGRAFT_C32(0), "128", "129", "130", "131", "132", "133");

//! Starts the copy of a box of a tensor whose first element has these coordinates; the barrier is told its bytes.
ATTNGRAFT_DEVICE void copyBox(
    SharedAddress to, void const* map, SharedAddress barrier, int column, int row, int head, int batch)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

//! The same of a tensor of one dimension more.
ATTNGRAFT_DEVICE void copyBox(
    SharedAddress to, void const* map, SharedAddress barrier, int column, int row, int head, int group, int batch)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6, %7}], [%2];\n" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(group), "r"(batch)
        : "memory");
}

//! Fetches a map, so that the first copy with it need not wait for it.
ATTNGRAFT_DEVICE void prefetchMap(void const* map)
{
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

//! Arrives at a meeting without waiting for it.
ATTNGRAFT_DEVICE void arriveThreads(int barrier, int threads)
{
    asm volatile("barrier.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

//! A meeting of `threads` threads of the block, wherever in the code they are. 0 is that of all.
ATTNGRAFT_DEVICE void synchronizeThreads(int barrier, int threads)
{
    asm volatile("barrier.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

//! The same, and whether the condition holds in any of them.
ATTNGRAFT_DEVICE bool anyOfThreads(int barrier, int threads, bool condition)
{
    int any;
    asm volatile("{\n.reg .pred in, out;\nsetp.ne.b32 in, %3, 0;\nbarrier.red.or.pred out, %1, %2, in;\n"
                 "selp.b32 %0, 1, 0, out;\n}\n"
        : "=r"(any)
        : "r"(barrier), "r"(threads), "r"(static_cast<int>(condition))
        : "memory");
    return any != 0;
}

//! The warp group's threads give up registers beyond `count`, or wait for so many.
template <int count>
ATTNGRAFT_DEVICE void releaseRegisters()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(count));
}

template <int count>
ATTNGRAFT_DEVICE void acquireRegisters()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(count));
}

} // namespace attngraft

#endif
