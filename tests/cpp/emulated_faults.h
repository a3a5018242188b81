// What the tests of the emulated device have in common: running a few lines as a kernel, and what the device says of
// them.
#pragma once

#define ATTNGRAFT_DEVICE_INSTRUCTIONS "emulated_device.h"
#define ATTNGRAFT_BULK_INSTRUCTIONS "emulated_bulk.h"
#define ATTNGRAFT_WARPGROUP_INSTRUCTIONS "emulated_warpgroups.h"

#include "warpgroup_instructions.cuh"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace attngraft::faults
{

constexpr int kSeeds = 20;         //!< of which some show what depends on the order of threads
constexpr SharedAddress kLeft = 0; //!< two tiles, and a barrier behind them
constexpr SharedAddress kRight = 8192;
constexpr SharedAddress kBarrier = 16384;
constexpr size_t kSharedBytes = 16384 + 64;

using Kernel = std::function<void()>;

//! What running a block says, empty where all is well.
inline std::string complaint(Kernel const& kernel, unsigned seed = 0, int threads = kWarpgroupThreads)
{
    try
    {
        emulation::Block block(dim3(1), uint3{0, 0, 0}, threads, kSharedBytes, seed);
        block.run(kernel);
    }
    catch (std::exception const& error)
    {
        return error.what();
    }
    return "";
}

inline void expectComplaint(Kernel const& kernel, std::string const& part, int threads = kWarpgroupThreads)
{
    std::string const said = complaint(kernel, 0, threads);
    EXPECT_NE(said.find(part), std::string::npos) << "said: " << said;
}

//! The kernel stores a result for each thread; whether all are as expected, for each seed.
inline int countRight(std::function<float()> const& kernel, float expected)
{
    int right = 0;
    for (unsigned seed = 0; seed < kSeeds; ++seed)
    {
        bool isRight = true;
        std::string const said = complaint([&] { isRight = (kernel() == expected) && isRight; }, seed);
        EXPECT_EQ(said, "");
        right += isRight ? 1 : 0;
    }
    return right;
}

inline int thread()
{
    return static_cast<int>(threadIdx.x);
}

inline bool isFirstThread()
{
    return thread() == 0;
}

} // namespace attngraft::faults
