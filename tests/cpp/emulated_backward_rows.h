// The instructions of softmax_backward_instructions.cuh for the kernels' own source on the CPU. A cluster is one
// emulated block with the threads of all its blocks, and with shared memory for each.
//
// What it finds beyond what emulated_block.h finds: reads and writes outside the tensors, vectors that are not aligned,
// and blocks of a cluster whose shared memory others read when they may have ended.
#pragma once

#include "emulated_block.h"

#include <cstdint>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace attngraft
{

namespace emulation
{

//! What one launch has: the tensors that it may touch, and the form of its blocks.
struct RowLaunch
{
    struct Range
    {
        uintptr_t begin;
        uintptr_t end;
        bool isWritten;
    };

    std::vector<Range> ranges;
    int blockThreads{0};
    int scratchFloats{0}; //!< of a block of the cluster
    int64_t cluster{-1};  //!< the one that runs
    std::set<int> ending; //!< its blocks of which a thread has ended

    //! What every thread runs.
    template <typename Kernel>
    void runThread(Kernel const& kernel)
    {
        if (cluster != block().blockIndex.x)
        {
            cluster = block().blockIndex.x;
            ending.clear();
        }
        kernel();
        ending.insert(block().threadNumber() / blockThreads);
    }

    void allow(void const* data, size_t bytes, bool isWritten)
    {
        auto const begin = reinterpret_cast<uintptr_t>(data);
        ranges.push_back({begin, begin + bytes, isWritten});
    }

    void check(void const* data, size_t bytes, bool isWritten) const
    {
        auto const begin = reinterpret_cast<uintptr_t>(data);
        if (begin % bytes != 0)
        {
            throw std::out_of_range("a vector of " + std::to_string(bytes) + " bytes is not aligned");
        }
        for (Range const& range : ranges)
        {
            if (begin >= range.begin && begin + bytes <= range.end && isWritten == range.isWritten)
            {
                return;
            }
        }
        throw std::out_of_range(
            std::to_string(bytes) + " bytes outside every tensor that may be " + (isWritten ? "written" : "read"));
    }
};

inline RowLaunch& rowLaunch()
{
    static RowLaunch launch;
    return launch;
}

} // namespace emulation

inline int threadOfBlock()
{
    return emulation::block().threadNumber() % emulation::rowLaunch().blockThreads;
}

inline int blockOfCluster()
{
    return emulation::block().threadNumber() / emulation::rowLaunch().blockThreads;
}

inline int64_t clusterOfGrid()
{
    return emulation::block().blockIndex.x;
}

inline int64_t blockOfGrid()
{
    return emulation::block().blockIndex.x;
}

inline int64_t blocksOfGrid()
{
    return emulation::block().gridSize.x;
}

inline void synchronizeThreads()
{
    emulation::block().meetAt(1 + blockOfCluster(), emulation::rowLaunch().blockThreads, false);
}

inline void synchronizeCluster()
{
    emulation::block().meetAt(0, emulation::block().threadCount, false);
}

namespace emulation
{
template <int floats>
SharedAddress scratchAddress(int block, int place)
{
    if (place < 0 || place >= floats || floats > rowLaunch().scratchFloats)
    {
        throw std::out_of_range("scratch " + std::to_string(place) + " of " + std::to_string(floats));
    }
    return static_cast<SharedAddress>(4 * (block * rowLaunch().scratchFloats + place));
}
} // namespace emulation

template <int floats>
void storeScratch(int place, float value)
{
    SharedAddress const to = emulation::scratchAddress<floats>(blockOfCluster(), place);
    std::memcpy(emulation::block().shared.atForWriting(to, 4, emulation::block().threadNumber()), &value, 4);
}

template <int floats>
float loadScratchOf(int block, int place)
{
    if (emulation::rowLaunch().ending.count(block) != 0 && block != blockOfCluster())
    {
        throw std::logic_error("the shared memory of a block that may have ended is read");
    }
    float value;
    std::memcpy(&value, emulation::block().shared.at(emulation::scratchAddress<floats>(block, place), 4), 4);
    return value;
}

template <int floats>
float loadScratch(int place)
{
    return loadScratchOf<floats>(blockOfCluster(), place);
}

inline uint4 loadStreaming16(void const* from)
{
    emulation::rowLaunch().check(from, 16, false);
    uint4 vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
}

inline void storeStreaming16(void* to, uint4 vector)
{
    emulation::rowLaunch().check(to, 16, true);
    std::memcpy(to, &vector, sizeof(vector));
}

template <typename Bits>
Bits loadStreamingBits(void const* from)
{
    emulation::rowLaunch().check(from, sizeof(Bits), false);
    Bits bits;
    std::memcpy(&bits, from, sizeof(bits));
    return bits;
}

template <typename Bits>
void storeStreamingBits(void* to, Bits bits)
{
    emulation::rowLaunch().check(to, sizeof(Bits), true);
    std::memcpy(to, &bits, sizeof(bits));
}

} // namespace attngraft
