// What the CUDA runtime says of the emulated device, where the kernels' planning asks it.
#include "emulated_grid.h"

using attngraft::emulation::Device;
using attngraft::emulation::grids;

extern "C" cudaError_t cudaGetDevice(int* index)
{
    *index = 0;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int)
{
    Device const& device = grids().device;
    switch (attribute)
    {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = device.sharedBytes; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = device.hasWarpgroups != 0 ? 9 : 8; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = device.multiprocessors; return cudaSuccess;
    case cudaDevAttrClusterLaunch: *value = device.hasClusters; return cudaSuccess;
    default: return cudaErrorInvalidValue;
    }
}
