// From a plan to a launch: the one place that turns the policy's numbers into template arguments.
#pragma once

#include "softmax_rows.cuh"

#include <algorithm>
#include <iterator>
#include <limits>

namespace attngraft
{

//! The grid's limit in x; kernels loop over the rows that are left.
constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

template <typename Kernel>
cudaError_t launchRows(Kernel kernel, SoftmaxPlan const& plan, int rowsPerBlock, int threads, cudaStream_t stream)
{
    int64_t const blocks = std::min((plan.rows + rowsPerBlock - 1) / rowsPerBlock, kMaxBlocks);
    kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(plan);
    return cudaGetLastError();
}

//! The kernel of the rung that the policy chose from `rungs`, one of its two tables, with units of N elements.
template <typename T, int N, bool isAligned, MaskTensors tensors, auto const& rungs, int index = 0>
cudaError_t launchRung(SoftmaxPlan const& plan, cudaStream_t stream)
{
    if constexpr (index < static_cast<int>(std::size(rungs)))
    {
        if (plan.policy.rung != index)
        {
            return launchRung<T, N, isAligned, tensors, rungs, index + 1>(plan, stream);
        }
        constexpr Rung kRung = rungs[index];
        return launchRows(softmaxInRegisters<T, N, kRung.threads, kRung.units, isAligned, tensors>, plan,
            kRung.rowsPerBlock(), kRung.blockThreads(), stream);
    }
    return cudaErrorInvalidValue;
}

template <typename T, bool isAligned, MaskTensors tensors>
cudaError_t launchVectors(SoftmaxPlan const& plan, cudaStream_t stream)
{
    return launchRung<T, kElementsPerVector<T>, isAligned, tensors, kVectorRungs>(plan, stream);
}

//! The strategies that serve every mask.
template <typename T, MaskTensors tensors>
cudaError_t launchAnyStrategy(SoftmaxPlan const& plan, cudaStream_t stream)
{
    switch (plan.policy.strategy)
    {
    case Strategy::kVectors: return launchVectors<T, true, tensors>(plan, stream);
    case Strategy::kShiftedVectors: return launchVectors<T, false, tensors>(plan, stream);
    case Strategy::kElements: return launchRung<T, 1, true, tensors, kElementRungs>(plan, stream);
    case Strategy::kMultiPassVectors:
        return launchRows(softmaxMultiPass<T, kElementsPerVector<T>, tensors>, plan, 1, kMultiPassThreads, stream);
    case Strategy::kMultiPassElements:
        return launchRows(softmaxMultiPass<T, 1, tensors>, plan, 1, kMultiPassThreads, stream);
    }
    return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launchSoftmax(SoftmaxPlan const& plan, cudaStream_t stream)
{
    switch (plan.tensors)
    {
    case MaskTensors::kNone: return launchAnyStrategy<T, MaskTensors::kNone>(plan, stream);
    case MaskTensors::kKeepBytes: return launchVectors<T, true, MaskTensors::kKeepBytes>(plan, stream);
    case MaskTensors::kBias: return launchVectors<T, true, MaskTensors::kBias>(plan, stream);
    case MaskTensors::kAny: return launchAnyStrategy<T, MaskTensors::kAny>(plan, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace attngraft
