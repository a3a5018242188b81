// The launch itself, the same for every softmax kernel.
#pragma once

#include "softmax_dispatch.cuh"

namespace attngraft
{

struct SoftmaxLaunch
{
    cudaStream_t stream;

    template <typename Work>
    cudaError_t inRegisters(SoftmaxPlan const& plan) const
    {
        return start<Work>(softmaxInRegisters<Work>, softmaxBlocks<Work>(plan), plan);
    }

    template <typename Work>
    cudaError_t inPasses(SoftmaxPlan const& plan) const
    {
        return start<Work>(softmaxInPasses<Work>, softmaxBlocks<Work>(plan), plan);
    }

    template <typename Work>
    cudaError_t even(SoftmaxPlan const& plan) const
    {
        return start<Work>(softmaxOfEvenRow<Work>, softmaxBlocks<Work>(plan), plan);
    }

    template <typename Work>
    cudaError_t inChunks(SoftmaxPlan const& plan) const
    {
        return start(softmaxOfLongRow<Work>, softmaxBlocks<Work>(plan), Work::kBlockThreads, longSharedBytes(plan),
            Work::kIsCluster ? plan.policy.blocks : 0, plan);
    }

private:
    template <typename Work>
    cudaError_t start(void (*kernel)(SoftmaxPlan), unsigned blocks, SoftmaxPlan const& plan) const
    {
        return start(kernel, blocks, Work::kBlockThreads, kSoftmaxSharedBytes<Work>,
            Work::kIsCluster ? plan.policy.blocks : 0, plan);
    }

    //! `clusterBlocks`: 0 where there are no clusters.
    cudaError_t start(void (*kernel)(SoftmaxPlan), unsigned blocks, int threads, int sharedBytes, int clusterBlocks,
        SoftmaxPlan const& plan) const
    {
        constexpr int kBytesOfAnyKernel = 48 * 1024; // more must be asked for, on each device and at each launch
        if (blocks == 0)
        {
            return cudaErrorInvalidConfiguration;
        }
        if (sharedBytes > kBytesOfAnyKernel)
        {
            cudaError_t const status =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sharedBytes);
            if (status != cudaSuccess)
            {
                return status;
            }
        }
        cudaLaunchConfig_t config{};
        config.gridDim = dim3(blocks);
        config.blockDim = dim3(static_cast<unsigned>(threads));
        config.dynamicSmemBytes = static_cast<size_t>(sharedBytes);
        config.stream = stream;
        cudaLaunchAttribute cluster{};
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim.x = static_cast<unsigned>(clusterBlocks);
        cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
        config.attrs = &cluster;
        config.numAttrs = clusterBlocks > 0 ? 1 : 0;
        return cudaLaunchKernelEx(&config, kernel, plan);
    }
};

template <typename T>
cudaError_t launchSoftmax(SoftmaxPlan const& plan, cudaStream_t stream)
{
    return dispatchSoftmax<T>(plan, SoftmaxLaunch{stream});
}

} // namespace attngraft
