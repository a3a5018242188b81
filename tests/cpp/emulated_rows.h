// The instructions of row_instructions.cuh for the kernels' own source on the CPU, in the threads of an emulated block.
// A cluster of blocks is one block of as many threads. Loads and stores of global memory are checked against what the
// test says that there is, and counted.
#pragma once

#include "emulated_block.h"
#include "emulated_global.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace attngraft
{

template <typename Chunk>
Chunk loadShareable(void const* from)
{
    emulation::globalMemory().read(from, sizeof(Chunk));
    Chunk chunk;
    std::memcpy(&chunk, from, sizeof(chunk));
    return chunk;
}

template <typename Chunk>
Chunk loadOnce(void const* from)
{
    return loadShareable<Chunk>(from);
}

template <typename Chunk>
void storeOnce(void* to, Chunk chunk)
{
    emulation::globalMemory().write(to, sizeof(Chunk));
    std::memcpy(to, &chunk, sizeof(chunk));
}

template <typename T>
uint32_t largerPair(uint32_t a, uint32_t b)
{
    auto const larger = [](uint32_t x, uint32_t y) {
        bool const isHalf = std::is_same_v<T, __half>;
        float const left = emulation::toFloat(static_cast<uint16_t>(x), isHalf);
        float const right = emulation::toFloat(static_cast<uint16_t>(y), isHalf);
        return left > right || right != right ? x & 0xffffU : y & 0xffffU;
    };
    return larger(a, b) | larger(a >> 16, b >> 16) << 16;
}

template <uint32_t selector>
uint32_t spreadSigns(uint32_t word)
{
    uint32_t spread = 0;
    for (int i = 0; i < 4; ++i)
    {
        uint32_t const nibble = selector >> (4 * i) & 0xfU;
        if (nibble < 8)
        {
            throw std::logic_error("spreadSigns: a nibble that takes a byte as it is");
        }
        bool const isSet = (word >> ((nibble & 3U) * 8 + 7) & 1U) != 0;
        spread |= (isSet ? 0xffU : 0U) << (8 * i);
    }
    return spread;
}

inline uint32_t bitsFrom(uint32_t low, uint32_t high, uint32_t shift)
{
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> shift);
}

inline uint2 loadSharedPair(SharedAddress from)
{
    return loadShared<uint2>(from);
}

template <int barrier, int threads>
void meetRow()
{
    emulation::block().meetAt(barrier, threads, false);
}

inline int blockInCluster()
{
    return emulation::block().blockOfThread();
}

inline void arriveAtCluster()
{
    emulation::block().arriveAtCluster();
}

inline void arriveAtClusterWithBarriers()
{
    emulation::block().arriveAtCluster();
}

inline void waitForCluster()
{
    emulation::block().waitForCluster();
}

inline uint2 loadFromBlock(SharedAddress from, int block)
{
    emulation::Block const& cluster = emulation::block();
    return loadShared<uint2>(from - cluster.sharedWindow() + cluster.sharedWindowOf(block));
}

} // namespace attngraft
