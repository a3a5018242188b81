// The instructions of warpgroup_instructions.cuh for the kernels' own source on the CPU, in the threads of an emulated
// block. Bulk copies arrive at once or when somebody waits for them, products read their factors when they are
// committed or when they are waited for, as chance has it.
#pragma once

#include "emulated_block.h"

#include <type_traits>

namespace attngraft
{

inline int warpgroupOfThread()
{
    return static_cast<int>(threadIdx.x) / emulation::kGroupThreads;
}

inline void fenceProducts()
{
    emulation::block().products().fence(emulation::block().lane());
}

inline void commitProducts()
{
    emulation::Block& block = emulation::block();
    block.products().commit(block.lane(), block.tossCoin());
}

template <int pending>
void waitForProducts()
{
    emulation::WarpProducts& products = emulation::block().products();
    emulation::block().meet(products.due(emulation::block().lane(), pending), [&](int const* ends) {
        products.finish(*std::min_element(ends, ends + emulation::kWarpThreads));
        return 0;
    });
}

//! The compiler moves nothing across what the emulation does.
template <int columns>
void pinRegisters(float (&)[columns][4])
{ }

template <typename Math, int width>
struct WarpgroupProduct
{
    static_assert(width % 8 == 0 && width <= 256, "the instructions have no others");
    static constexpr emulation::FactorType kType = std::is_same_v<Math, HalfMath> ? emulation::FactorType::kHalf
        : std::is_same_v<Math, BFloat16Math>                                      ? emulation::FactorType::kBFloat16
                                                                                  : emulation::FactorType::kTf32;

    static void ofShared(float (&c)[width / 8][4], uint64_t left, uint64_t right, bool accumulates)
    {
        start({left, right, width, kType, false, accumulates}, c, nullptr);
    }

    static void ofRegisters(float (&c)[width / 8][4], uint32_t const (&left)[4], uint64_t right)
    {
        start({0, right, width, kType, true, true}, c, left);
    }

    //! TF32.
    static void ofRegisters(float (&c)[width / 8][4], float const (&left)[4], uint64_t right, bool accumulates)
    {
        start({0, right, width, kType, true, accumulates}, c, left);
    }

private:
    static void start(emulation::Product const& product, float (&c)[width / 8][4], void const* left)
    {
        emulation::block().products().start(emulation::block().lane(), product, &c[0][0], left);
    }
};

namespace emulation
{
//! `map`: a CUtensorMap with a BoxedTensor in it.
inline void startBox(BoxCopy copy, void const* map, int dims)
{
    block().expectEarlierKernelsDone();
    std::memcpy(&copy.tensor, map, sizeof(copy.tensor));
    block().copyEngine.start(copy, dims, block().tossCoin());
}
} // namespace emulation

inline void copyBox(SharedAddress to, void const* map, SharedAddress barrier, int column, int row, int head, int batch)
{
    emulation::startBox({{}, to, barrier, {column, row, head, batch, 0}}, map, 4);
}

inline void copyBox(
    SharedAddress to, void const* map, SharedAddress barrier, int column, int row, int head, int group, int batch)
{
    emulation::startBox({{}, to, barrier, {column, row, head, group, batch}}, map, 5);
}

//! There is nothing to wait for.
inline void prefetchMap(void const*)
{ }

inline void arriveThreads(int barrier, int threads)
{
    emulation::block().arriveAt(barrier, threads);
}

inline bool anyOfThreads(int barrier, int threads, bool condition)
{
    return emulation::block().meetAt(barrier, threads, condition);
}

inline void synchronizeThreads(int barrier, int threads)
{
    anyOfThreads(barrier, threads, false);
}

template <int>
void releaseRegisters()
{ }

template <int>
void acquireRegisters()
{ }

} // namespace attngraft
