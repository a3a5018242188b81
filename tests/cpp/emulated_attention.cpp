// launchFusedAttention over the emulated device, with C linkage: Python's tests run the kernels' own source on the CPU,
// for as long as they like, and the same cases again on a GPU.
#define ATTNGRAFT_DEVICE_INSTRUCTIONS "emulated_device.h"

#include "attention_dispatch.h"
#include "attention_kernel.cuh"
#include "attention_splits.cuh"
#include "attention_kernels.h"
#include "emulated_grid.h"
#include "fused_attention.h"

namespace
{

using attngraft::emulation::Device;
using attngraft::emulation::grids;
using attngraft::emulation::runGrid;

//! What is asked for with a null pointer.
constexpr Device kPlainDevice{attngraft::kSharedBytesAnywhere};

Device const& chosen(Device const* device)
{
    return device != nullptr ? *device : kPlainDevice;
}

template <typename Math>
struct EmulatedLaunch
{
    template <typename Tile, attngraft::AttentionMask kMask, bool kMayCap, bool kVectorwise>
    cudaError_t run(attngraft::AttentionPlan const& plan) const
    {
        return runGrid(attngraft::attentionGrid<Tile>(plan), Tile::kThreads, attngraft::sharedBytes<Tile>(plan),
            [&] { attngraft::attentionKernel<Math, Tile, kMask, kMayCap, kVectorwise>(plan); });
    }
};

template <typename Math>
cudaError_t emulate(attngraft::AttentionPlan const& plan)
{
    using Element = typename Math::Element;
    cudaError_t const status = attngraft::dispatchAttention<sizeof(Element), false>(plan, EmulatedLaunch<Math>{});
    if (status != cudaSuccess || plan.splits == 1)
    {
        return status;
    }
    constexpr int kThreads = 128;
    dim3 const grid(static_cast<unsigned>((attngraft::combineWarps(plan) * 32 + kThreads - 1) / kThreads));
    return runGrid(grid, kThreads, 0, [&] { attngraft::combineSplits<Element>(plan); });
}

} // namespace

namespace attngraft
{

cudaError_t launchAttentionFloat32(AttentionPlan const& plan, cudaStream_t)
{
    return emulate<Fp32Math>(plan);
}

cudaError_t launchAttentionTf32(AttentionPlan const& plan, cudaStream_t)
{
    return emulate<Tf32Math>(plan);
}

cudaError_t launchAttentionFloat16(AttentionPlan const& plan, cudaStream_t)
{
    return emulate<HalfMath>(plan);
}

cudaError_t launchAttentionBFloat16(AttentionPlan const& plan, cudaStream_t)
{
    return emulate<BFloat16Math>(plan);
}

} // namespace attngraft

//! Size of FusedAttentionParams in bytes.
ATTNGRAFT_TEST_EXPORT size_t attngraft_test_attention_params_size()
{
    return sizeof(attngraft::FusedAttentionParams);
}

//! As attentionVariants, on `device`.
ATTNGRAFT_TEST_EXPORT int attngraft_test_attention_variants(
    attngraft::FusedAttentionParams const* params, int32_t* variants, int capacity, Device const* device)
{
    grids().device = chosen(device);
    return attngraft::attentionVariants(*params, variants, capacity);
}

ATTNGRAFT_TEST_EXPORT size_t attngraft_test_attention_workspace(attngraft::FusedAttentionParams const* params)
{
    return attngraft::attentionWorkspaceBytes(*params);
}

//! Runs on host memory, on `device`, threads in an order that `seed` decides. Returns the cudaError_t; what went wrong
//! on the device is then in `message`.
ATTNGRAFT_TEST_EXPORT int attngraft_test_fused_attention(attngraft::FusedAttentionParams const* params,
    Device const* device, unsigned seed, char* message, size_t messageBytes)
{
    return attngraft::emulation::launchOn(
        chosen(device), seed, message, messageBytes, [&] { return attngraft::launchFusedAttention(*params, nullptr); });
}
