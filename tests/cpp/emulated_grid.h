// The emulated device as a whole: what it says of itself, its grids, and what went wrong on it.
#pragma once

#include "emulated_block.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <exception>
#include <random>

namespace attngraft::emulation
{

//! tests/python/attention_abi.py mirrors it.
struct Device
{
    int32_t sharedBytes; //!< that a block can have
    int32_t hasWarpgroups;
    int32_t hasBulkCopies;  //!< of keys and values
    int32_t hasQueryCopies; //!< bulk ones
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

} // namespace attngraft::emulation
