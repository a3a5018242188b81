// launchMaskedSoftmaxBackward over the emulated device, with C linkage: Python's tests run the kernels' own source on
// the CPU, and the same cases again on a GPU.
#define ATTNGRAFT_DEVICE_INSTRUCTIONS "emulated_device.h"
#define ATTNGRAFT_ROW_INSTRUCTIONS "emulated_backward_rows.h"

#include "emulated_grid.h"
#include "masked_softmax_backward.h"
#include "softmax_backward_dispatch.h"
#include "softmax_backward_kernels.h"
#include "softmax_backward_rows.cuh"
#include "softmax_bias_gradient.cuh"

namespace
{

using attngraft::emulation::Device;
using attngraft::emulation::rowLaunch;

template <typename Kernel>
cudaError_t runBlocks(int64_t blocks, int threads, int cluster, int scratchFloats, Kernel const& kernel)
{
    rowLaunch().blockThreads = threads;
    rowLaunch().scratchFloats = scratchFloats;
    rowLaunch().cluster = -1;
    return attngraft::emulation::runGrid(dim3(static_cast<unsigned>(blocks)), threads * cluster,
        cluster * scratchFloats * static_cast<int>(sizeof(float)), [&] { rowLaunch().runThread(kernel); });
}

struct EmulatedLaunch
{
    template <typename T, int threads, int units, attngraft::SoftmaxBackwardRows kKind, bool isClustered>
    cudaError_t inRegisters(attngraft::SoftmaxBackwardPlan const& plan) const
    {
        constexpr attngraft::SoftmaxBackwardRung kRung{threads, units};
        constexpr int kRows = isClustered ? 1 : kRung.rowsPerBlock();
        return runBlocks((plan.rows + kRows - 1) / kRows, kRung.blockThreads(), plan.policy.clusterBlocks,
            attngraft::kRowScratch,
            [&] { attngraft::softmaxBackwardInRegisters<T, threads, units, kKind, isClustered>(plan); });
    }

    template <typename T, attngraft::SoftmaxBackwardRows kKind, bool isClustered>
    cudaError_t inPasses(attngraft::SoftmaxBackwardPlan const& plan) const
    {
        return runBlocks(plan.rows, attngraft::kSoftmaxBackwardPasses.threads, plan.policy.clusterBlocks,
            attngraft::kRowScratch, [&] { attngraft::softmaxBackwardInPasses<T, kKind, isClustered>(plan); });
    }

    template <typename T, bool isVectorwise>
    cudaError_t biasOfKeys(attngraft::BiasGradientPlan const& plan) const
    {
        return runBlocks(attngraft::biasBlocks(plan, attngraft::kBiasTileKeys<T, isVectorwise>),
            attngraft::kBiasThreads, 1, attngraft::kBiasKeysOfThread<T, isVectorwise> * attngraft::kBiasThreads,
            [&] { attngraft::biasGradientOfKeys<T, isVectorwise>(plan); });
    }

    template <typename T>
    cudaError_t joinSplits(attngraft::BiasGradientPlan const& plan) const
    {
        return runBlocks(kFewBlocks, attngraft::kBiasThreads, 1, 0, [&] { attngraft::joinBiasSplits<T>(plan); });
    }

    template <typename T>
    cudaError_t biasOfRows(attngraft::BiasGradientPlan const& plan) const
    {
        return runBlocks(kFewBlocks, attngraft::kBiasThreads, 1, 0, [&] { attngraft::biasGradientOfRows<T>(plan); });
    }

private:
    static constexpr int64_t kFewBlocks = 2; //!< so that they have to come round again
};

//! What the launch may read and write in vectors or as elements of a row.
void allowTensors(attngraft::MaskedSoftmaxBackwardParams const& params)
{
    size_t bytes = attngraft::elementSize(params.type);
    for (int64_t const dim : params.dims)
    {
        bytes *= static_cast<size_t>(dim);
    }
    rowLaunch().ranges.clear();
    rowLaunch().allow(params.probabilities, bytes, false);
    rowLaunch().allow(params.gradient, bytes, false);
    rowLaunch().allow(params.scores, bytes, false);
    rowLaunch().allow(params.scoresGradient, bytes, true);
}

} // namespace

namespace attngraft
{

cudaError_t launchSoftmaxBackwardFloat32(SoftmaxBackwardPlans const& plans, cudaStream_t)
{
    return dispatchSoftmaxBackward<float>(plans, EmulatedLaunch{});
}

cudaError_t launchSoftmaxBackwardFloat16(SoftmaxBackwardPlans const& plans, cudaStream_t)
{
    return dispatchSoftmaxBackward<__half>(plans, EmulatedLaunch{});
}

cudaError_t launchSoftmaxBackwardBFloat16(SoftmaxBackwardPlans const& plans, cudaStream_t)
{
    return dispatchSoftmaxBackward<__nv_bfloat16>(plans, EmulatedLaunch{});
}

} // namespace attngraft

//! Size of MaskedSoftmaxBackwardParams in bytes.
ATTNGRAFT_TEST_EXPORT size_t attngraft_test_softmax_backward_params_size()
{
    return sizeof(attngraft::MaskedSoftmaxBackwardParams);
}

ATTNGRAFT_TEST_EXPORT size_t attngraft_test_softmax_backward_workspace(
    attngraft::MaskedSoftmaxBackwardParams const* params)
{
    return attngraft::softmaxBackwardWorkspaceBytes(*params);
}

//! Runs on host memory, on `device` (nullptr: one without clusters), threads in an order that `seed` decides. Returns
//! the cudaError_t; what went wrong on the device is then in `message`.
ATTNGRAFT_TEST_EXPORT int attngraft_test_softmax_backward(attngraft::MaskedSoftmaxBackwardParams const* params,
    Device const* device, unsigned seed, char* message, size_t messageBytes)
{
    allowTensors(*params);
    return attngraft::emulation::launchOn(device != nullptr ? *device : Device{}, seed, message, messageBytes,
        [&] { return attngraft::launchMaskedSoftmaxBackward(*params, nullptr); });
}
