// The instructions of tensor_core.cuh for the kernels' own source on the CPU, in the threads of an emulated block.
// Copies arrive when they are waited for, no earlier.
#pragma once

#include "emulated_block.h"
#include "emulated_numbers.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define ATTNGRAFT_DEVICE inline
#define ATTNGRAFT_DEVICE_CALL inline
#if !defined(__launch_bounds__)
#define __launch_bounds__(...)
#endif
#if !defined(__grid_constant__)
#define __grid_constant__
#endif
#define threadIdx (::attngraft::emulation::block().thread().index)
#define blockIdx (::attngraft::emulation::block().indexOfBlock())
#define gridDim (::attngraft::emulation::block().gridSize)
#define blockDim (dim3(static_cast<unsigned>(::attngraft::emulation::block().threadCount)))

namespace attngraft
{

inline SharedAddress dynamicSharedMemory()
{
    return emulation::block().sharedWindow();
}

inline void waitForEarlierKernels()
{
    emulation::block().thread().hasWaited = true;
}

//! There is no other kernel.
inline void letNextKernelBegin()
{ }

inline void copyAsync16(SharedAddress to, void const* from, int bytes)
{
    emulation::block().expectEarlierKernelsDone();
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
    {
        throw std::out_of_range("copyAsync16: the source is not aligned");
    }
    emulation::block().thread().uncommitted.push_back({to, from, bytes});
}

inline void commitCopies()
{
    emulation::Thread& thread = emulation::block().thread();
    thread.groups.push_back(std::move(thread.uncommitted));
    thread.uncommitted.clear();
}

template <int pending>
void waitForCopies()
{
    auto& groups = emulation::block().thread().groups;
    while (groups.size() > pending)
    {
        for (emulation::Copy const& copy : groups.front())
        {
            emulation::block().copy(copy);
        }
        groups.erase(groups.begin());
    }
}

namespace emulation
{
template <bool isTransposed>
void loadFourMatrices(uint32_t (&to)[4], SharedAddress from)
{
    int const lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    block().meet(from, [&](SharedAddress const* rows) {
        for (int matrix = 0; matrix < 4; ++matrix)
        {
            auto const element = [&](int row, int column) {
                uint16_t bits;
                std::memcpy(&bits, block().shared.at(rows[8 * matrix + row], 16) + 2 * column, 2);
                return bits;
            };
            int const major = lane / 4;
            int const minor = lane % 4 * 2;
            uint32_t const low = isTransposed ? element(minor, major) : element(major, minor);
            uint32_t const high = isTransposed ? element(minor + 1, major) : element(major, minor + 1);
            to[matrix] = low | high << 16;
        }
        return 0;
    });
}
} // namespace emulation

inline void loadMatrices(uint32_t (&to)[4], SharedAddress from)
{
    emulation::loadFourMatrices<false>(to, from);
}

inline void loadMatricesTransposed(uint32_t (&to)[4], SharedAddress from)
{
    emulation::loadFourMatrices<true>(to, from);
}

inline uint32_t roundToTf32(float x)
{
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bool const isFinite = (bits & 0x7f800000U) != 0x7f800000U;
    return isFinite ? (bits + 0x1000U) & ~0x1fffU : bits;
}

template <typename Math>
void multiplyFragments(float (&c)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1)
{
    struct Fragments
    {
        uint32_t a[4];
        uint32_t b[2];
    };
    Fragments const mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
    int const lane = static_cast<int>(threadIdx.x) % emulation::kWarpThreads;
    emulation::block().meet(mine, [&](Fragments const* all) {
        constexpr int kPerRegister = 4 / static_cast<int>(sizeof(typename Math::Element));
        auto const value = [](uint32_t bits, int i) {
            if constexpr (kPerRegister == 1)
            {
                uint32_t const seen = bits & ~0x1fffU; // the tensor cores read no more
                float x;
                std::memcpy(&x, &seen, 4);
                return static_cast<double>(x);
            }
            else
            {
                constexpr bool kIsHalf = std::is_same_v<Math, HalfMath>;
                return static_cast<double>(emulation::toFloat(static_cast<uint16_t>(bits >> (16 * i)), kIsHalf));
            }
        };
        for (int i = 0; i < 4; ++i)
        {
            int const row = lane / 4;
            int const column = lane % 4 * 2 + i % 2;
            double sum = c[i];
            for (int k = 0; k < 8 * kPerRegister; ++k)
            {
                int const part = k / (4 * kPerRegister);
                int const owner = k / kPerRegister % 4;
                Fragments const& left = all[row * 4 + owner];
                Fragments const& right = all[column * 4 + owner];
                sum += value(left.a[2 * part + i / 2], k % kPerRegister) * value(right.b[part], k % kPerRegister);
            }
            c[i] = static_cast<float>(sum);
        }
        return 0;
    });
}

template <typename T>
uint32_t packPair(float low, float high)
{
    auto const bits = [](float x) {
        uint16_t made;
        T const value = static_cast<T>(x);
        std::memcpy(&made, &value, 2);
        return static_cast<uint32_t>(made);
    };
    return bits(low) | bits(high) << 16;
}

template <typename Value>
void storeShared(SharedAddress to, Value value)
{
    std::memcpy(emulation::block().shared.atForWriting(to, sizeof(Value), emulation::block().threadNumber()), &value,
        sizeof(Value));
}

template <typename Value>
Value loadShared(SharedAddress from)
{
    Value value;
    std::memcpy(&value, emulation::block().shared.at(from, sizeof(Value)), sizeof(Value));
    return value;
}

inline float shuffleXor(float value, int lanes)
{
    int const lane = static_cast<int>(threadIdx.x) % emulation::kWarpThreads;
    return emulation::block().meet(value, [&](float const* all) { return all[lane ^ lanes]; });
}

inline float shuffleFrom(float value, int lane)
{
    return emulation::block().meet(value, [&](float const* all) { return all[lane]; });
}

inline uint32_t ballot(bool condition)
{
    return emulation::block().meet(condition, [](bool const* all) {
        uint32_t bits = 0;
        for (int lane = 0; lane < emulation::kWarpThreads; ++lane)
        {
            bits |= static_cast<uint32_t>(all[lane]) << lane;
        }
        return bits;
    });
}

inline bool anyInWarp(bool condition)
{
    return ballot(condition) != 0;
}

inline bool anyInBlock(bool condition)
{
    return emulation::block().meetAt(0, emulation::block().threadCount, condition);
}

inline void synchronizeBlock()
{
    anyInBlock(false);
}

inline void synchronizeWarp()
{
    ballot(false);
}

inline uint4 loadGlobal16(void const* from)
{
    if (reinterpret_cast<uintptr_t>(from) % sizeof(uint4) != 0)
    {
        throw std::out_of_range("loadGlobal16: the source is not aligned");
    }
    uint4 vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
}

inline void storeGlobal16(void* to, uint4 vector)
{
    emulation::block().expectEarlierKernelsDone();
    std::memcpy(to, &vector, sizeof(vector));
}

inline int computedHere(int value)
{
    return value;
}

//! There is nothing to wait for.
inline void prefetchLine(void const*)
{ }

inline float multiplyAlone(float a, float b)
{
    float const volatile product = a * b;
    return product;
}

inline float reciprocalFast(float x)
{
    return 1.F / x;
}

inline float log2Fast(float x)
{
    return std::log2(x);
}

inline float exp2Fast(float x)
{
    return std::exp2(x);
}

} // namespace attngraft
