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
        return start<Work>(softmaxInRegisters<Work>, plan);
    }

    template <typename Work>
    cudaError_t inPasses(SoftmaxPlan const& plan) const
    {
        return start<Work>(softmaxInPasses<Work>, plan);
    }

private:
    template <typename Work>
    cudaError_t start(void (*kernel)(SoftmaxPlan), SoftmaxPlan const& plan) const
    {
        unsigned const blocks = softmaxBlocks<Work>(plan);
        if (blocks == 0)
        {
            return cudaErrorInvalidConfiguration;
        }
        cudaLaunchConfig_t config{};
        config.gridDim = dim3(blocks);
        config.blockDim = dim3(Work::kBlockThreads);
        config.dynamicSmemBytes = kSoftmaxSharedBytes<Work>;
        config.stream = stream;
        cudaLaunchAttribute cluster{};
        if (Work::kIsCluster)
        {
            cluster.id = cudaLaunchAttributeClusterDimension;
            cluster.val.clusterDim.x = static_cast<unsigned>(plan.policy.blocks);
            cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
            config.attrs = &cluster;
            config.numAttrs = 1;
        }
        return cudaLaunchKernelEx(&config, kernel, plan);
    }
};

template <typename T>
cudaError_t launchSoftmax(SoftmaxPlan const& plan, cudaStream_t stream)
{
    return dispatchSoftmax<T>(plan, SoftmaxLaunch{stream});
}

} // namespace attngraft
