// The emulated device as a whole: what it says of itself, its grids, and what went wrong on it.
#pragma once

#include "emulated_block.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <random>

//! What Python's ctypes call.
#define ATTNGRAFT_TEST_EXPORT extern "C" __attribute__((visibility("default")))

namespace attngraft::emulation
{

//! tests/python/emulated_device.py mirrors it.
struct Device
{
    int32_t sharedBytes{0}; //!< that a block can have
    int32_t hasWarpgroups{0};
    int32_t hasBulkCopies{0};  //!< of keys and values
    int32_t hasQueryCopies{0}; //!< bulk ones
    int32_t multiprocessors{0};
    int32_t hasClusters{0};
};

struct Grids
{
    Device device;
    std::mt19937 random;
    std::exception_ptr error;
};

inline Grids& grids()
{
    static Grids state;
    return state;
}

//! Runs `kernel` in every thread of every block, one block after another, or one cluster of `blocks` in x after
//! another.
template <typename Kernel>
cudaError_t runGrid(dim3 grid, int threads, int sharedBytes, Kernel const& kernel, int blocks = 1)
{
    try
    {
        for (unsigned z = 0; z < grid.z; ++z)
        {
            for (unsigned y = 0; y < grid.y; ++y)
            {
                for (unsigned x = 0; x < grid.x; x += static_cast<unsigned>(blocks))
                {
                    Block block(
                        grid, uint3{x, y, z}, threads, static_cast<size_t>(sharedBytes), grids().random(), blocks);
                    block.run(kernel);
                }
            }
        }
    }
    catch (...)
    {
        grids().error = std::current_exception();
        return cudaErrorLaunchFailure;
    }
    return cudaSuccess;
}

//! Runs `launch` on `device`, threads in an order that `seed` decides. Returns the cudaError_t; what went wrong on the
//! device is then in `message`.
template <typename Launch>
int launchOn(Device const& device, unsigned seed, char* message, size_t messageBytes, Launch const& launch)
{
    grids().device = device;
    grids().error = nullptr;
    grids().random.seed(seed);
    cudaError_t const status = launch();
    if (grids().error)
    {
        try
        {
            std::rethrow_exception(grids().error);
        }
        catch (std::exception const& error)
        {
            std::snprintf(message, messageBytes, "%s", error.what());
        }
    }
    return status;
}

} // namespace attngraft::emulation
