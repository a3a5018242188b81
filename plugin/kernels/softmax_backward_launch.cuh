// The kernels on a CUDA stream: grids, and clusters.
#pragma once

#include "softmax_backward_dispatch.h"
#include "softmax_backward_rows.cuh"
#include "softmax_bias_gradient.cuh"

#include <algorithm>
#include <limits>

namespace attngraft
{

//! The grid's limit in x.
constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();

//! See dispatchSoftmaxBackward.
struct SoftmaxBackwardLaunch
{
    cudaStream_t stream;

    template <typename T, int threads, int units, SoftmaxBackwardRows kKind, bool isClustered>
    cudaError_t inRegisters(SoftmaxBackwardPlan const& plan) const
    {
        constexpr SoftmaxBackwardRung kRung{threads, units};
        constexpr int kRows = isClustered ? 1 : kRung.rowsPerBlock();
        return startRows(
            softmaxBackwardInRegisters<T, threads, units, kKind, isClustered>, plan, kRows, kRung.blockThreads());
    }

    template <typename T, SoftmaxBackwardRows kKind, bool isClustered>
    cudaError_t inPasses(SoftmaxBackwardPlan const& plan) const
    {
        return startRows(softmaxBackwardInPasses<T, kKind, isClustered>, plan, 1, kSoftmaxBackwardPasses.threads);
    }

    template <typename T, bool isVectorwise>
    cudaError_t biasOfKeys(BiasGradientPlan const& plan) const
    {
        int64_t const blocks = biasBlocks(plan, kBiasTileKeys<T, isVectorwise>);
        return start(biasGradientOfKeys<T, isVectorwise>, plan, std::min(blocks, kMostBlocks), kBiasThreads, 1);
    }

    template <typename T>
    cudaError_t joinSplits(BiasGradientPlan const& plan) const
    {
        int64_t const blocks = (plan.resultRows * plan.keys + kBiasThreads - 1) / kBiasThreads;
        return start(joinBiasSplits<T>, plan, std::min(blocks, kMostBlocks), kBiasThreads, 1);
    }

    template <typename T>
    cudaError_t biasOfRows(BiasGradientPlan const& plan) const
    {
        int64_t const blocks = (plan.resultRows + kBiasWarps - 1) / kBiasWarps;
        return start(biasGradientOfRows<T>, plan, std::min(blocks, kMostBlocks), kBiasThreads, 1);
    }

private:
    template <typename Kernel>
    cudaError_t startRows(Kernel kernel, SoftmaxBackwardPlan const& plan, int rowsPerBlock, int threads) const
    {
        int const cluster = plan.policy.clusterBlocks;
        int64_t const blocks = (plan.rows + rowsPerBlock - 1) / rowsPerBlock * cluster;
        return blocks > kMostBlocks ? cudaErrorInvalidConfiguration : start(kernel, plan, blocks, threads, cluster);
    }

    template <typename Kernel, typename Plan>
    cudaError_t start(Kernel kernel, Plan const& plan, int64_t blocks, int threads, int cluster) const
    {
        cudaLaunchAttribute attribute{};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
        attribute.val.clusterDim.y = 1;
        attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = dim3(static_cast<unsigned>(blocks));
        config.blockDim = dim3(static_cast<unsigned>(threads));
        config.stream = stream;
        config.attrs = &attribute;
        config.numAttrs = cluster > 1 ? 1 : 0;
        return cudaLaunchKernelEx(&config, kernel, plan);
    }
};

} // namespace attngraft
