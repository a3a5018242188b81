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
    cudaError_t inLoop(SoftmaxPlan const& plan) const
    {
        return start<Work>(softmaxInLoop<Work>, loopBlocks<Work>(plan), plan);
    }

    template <typename Work>
    cudaError_t inTiles(SoftmaxPlan const& plan) const
    {
        auto const kernel = softmaxInTiles<Work>;
        int const bytes = tileLayout<typename Work::T>(plan).bytes();
        cudaError_t const status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        Launch const launch(dim3(tileBlocks(plan)), Work::kBlockThreads, bytes, 0, stream);
        return status == cudaSuccess ? launch.start(kernel, plan) : status;
    }

    template <typename Work>
    cudaError_t throughRing(SoftmaxPlan const& plan) const
    {
        auto const kernel = softmaxThroughRing<Work>;
        int const bytes = RingLayout{plan.policy.chunks, plan.policy.blocks}.bytes();
        // For each device and each launch, as for attention.
        cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        int blocksAtOnce = plan.multiprocessors;
        Launch launch(dim3(static_cast<unsigned>(plan.policy.blocks)), Work::kBlockThreads + kLoadingThreads, bytes,
            plan.policy.blocks, stream);
        if (status == cudaSuccess && plan.policy.blocks > 1)
        {
            // Fewer than the multiprocessors would suggest, since a cluster's lie together.
            int clusters = 0;
            status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config);
            blocksAtOnce = clusters * plan.policy.blocks;
        }
        launch.config.gridDim = dim3(streamBlocks(plan, blocksAtOnce));
        return status == cudaSuccess ? launch.start(kernel, plan) : status;
    }

private:
    struct Launch
    {
        cudaLaunchConfig_t config{};
        cudaLaunchAttribute cluster{};

        //! `clusterBlocks`: 0 where there are no clusters.
        Launch(dim3 grid, int threads, int sharedBytes, int clusterBlocks, cudaStream_t stream)
        {
            config.gridDim = grid;
            config.blockDim = dim3(static_cast<unsigned>(threads));
            config.dynamicSmemBytes = static_cast<size_t>(sharedBytes);
            config.stream = stream;
            cluster.id = cudaLaunchAttributeClusterDimension;
            cluster.val.clusterDim.x = static_cast<unsigned>(clusterBlocks);
            cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
            config.attrs = &cluster;
            config.numAttrs = clusterBlocks > 0 ? 1 : 0;
        }

        Launch(Launch const&) = delete;
        Launch& operator=(Launch const&) = delete;

        cudaError_t start(void (*kernel)(SoftmaxPlan), SoftmaxPlan const& plan) const
        {
            return config.gridDim.x == 0 ? cudaErrorInvalidConfiguration : cudaLaunchKernelEx(&config, kernel, plan);
        }
    };

    template <typename Work>
    cudaError_t start(void (*kernel)(SoftmaxPlan), unsigned blocks, SoftmaxPlan const& plan) const
    {
        int const clusterBlocks = Work::kIsCluster ? plan.policy.blocks : 0;
        return Launch(dim3(blocks), Work::kBlockThreads, kSoftmaxSharedBytes<Work>, clusterBlocks, stream)
            .start(kernel, plan);
    }
};

template <typename T>
cudaError_t launchSoftmax(SoftmaxPlan const& plan, cudaStream_t stream)
{
    return dispatchSoftmax<T>(plan, SoftmaxLaunch{stream});
}

} // namespace attngraft
