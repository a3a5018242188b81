// The launch itself, the same for every attention kernel.
#pragma once

#include "attention_dispatch.h"

namespace attngraft
{

//! Whether attention kernels may begin while the kernel before them ends, and wait for it by themselves (CUDA's
//! "programmatic dependent launch"). Their first instructions then cost no time of their own.
constexpr bool kUsesDependentLaunch = true;

//! CUDA, driver and runtime, from which on such launches can be captured into graphs.
constexpr int kDependentLaunchSince = 12030;

//! Whether code for devices of compute capability `major` is among what was compiled, `compiledFor`, and waits: else
//! the driver would have made it from code for older ones, which does not.
template <int... compiledFor>
constexpr bool waitsByItself(int major)
{
    constexpr int kWaitSince = 900;
    return ((compiledFor >= kWaitSince && compiledFor / 100 == major) || ...);
}

static_assert(waitsByItself<800, 900>(9) && waitsByItself<800, 900, 1000>(10));
static_assert(!waitsByItself<800, 900>(8) && !waitsByItself<800>(9) && !waitsByItself<800, 900>(10));

//! Whether the current device and its driver know such launches.
template <int... compiledFor>
bool canBeginEarly()
{
    static int const driver = [] {
        int version = 0;
        return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
    }();
    int device = 0;
    int major = 0;
    return kUsesDependentLaunch && CUDART_VERSION >= kDependentLaunchSince && driver >= kDependentLaunchSince
        && cudaGetDevice(&device) == cudaSuccess
        && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess
        && waitsByItself<compiledFor...>(major);
}

//! Launches a kernel that waits for those before it by itself.
template <typename... Parameters, typename... Arguments>
cudaError_t startEarly(void (*kernel)(Parameters...), dim3 grid, int threads, int sharedBytes, cudaStream_t stream,
    Arguments const&... with)
{
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch{};
    launch.gridDim = grid;
    launch.blockDim = dim3(static_cast<unsigned>(threads));
    launch.dynamicSmemBytes = static_cast<size_t>(sharedBytes);
    launch.stream = stream;
    launch.attrs = &early;
    launch.numAttrs = canBeginEarly<__CUDA_ARCH_LIST__>() ? 1 : 0;
    cudaLaunchKernelEx(&launch, kernel, with...);
    return cudaGetLastError();
}

//! Launches `kernel` over the plan's grid. `more` are its parameters behind the plan.
template <typename Tile, typename... More>
cudaError_t startKernel(
    void (*kernel)(AttentionPlan, More...), AttentionPlan const& plan, cudaStream_t stream, More const&... more)
{
    int const bytes = sharedBytes<Tile>(plan);
    // For each device and each launch: the attribute belongs to the device's copy of the kernel, and setting it costs
    // less than remembering on which devices it was set.
    cudaError_t const status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess)
    {
        return status;
    }
    return startEarly(kernel, attentionGrid<Tile>(plan), Tile::kThreads, bytes, stream, plan, more...);
}

} // namespace attngraft
