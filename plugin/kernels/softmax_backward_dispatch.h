// From plans to kernels: the one place that turns a policy's numbers into template arguments. In: plans, and a Launch,
// which runs the kernels that are named to it. Out: what it returned.
#pragma once

#include "rung_dispatch.h"
#include "softmax_backward_plan.h"

#include <iterator>

namespace attngraft
{

//! The rung that the policy chose from `rungs`, one of the two tables.
template <typename T, SoftmaxBackwardRows kKind, bool isClustered, auto const& rungs, typename Launch>
cudaError_t dispatchSoftmaxBackwardRung(SoftmaxBackwardPlan const& plan, Launch const& launch)
{
    return withRung<static_cast<int>(std::size(rungs))>(plan.policy.rung, [&](auto index) {
        constexpr SoftmaxBackwardRung kRung = rungs[decltype(index)::value];
        return launch.template inRegisters<T, kRung.threads, kRung.units, kKind, isClustered>(plan);
    });
}

template <typename T, SoftmaxBackwardRows kKind, typename Launch>
cudaError_t dispatchSoftmaxBackwardStrategy(SoftmaxBackwardPlan const& plan, Launch const& launch)
{
    // Long rows lose nothing by the partial vectors at their ends.
    constexpr bool kIsVectorwise = kKind == SoftmaxBackwardRows::kVectorwise;
    constexpr SoftmaxBackwardRows kLongKind = kIsVectorwise ? SoftmaxBackwardRows::kShifted : kKind;
    switch (plan.policy.strategy)
    {
    case SoftmaxBackwardStrategy::kRegisters:
        return dispatchSoftmaxBackwardRung<T, kKind, false, kSoftmaxBackwardRungs>(plan, launch);
    case SoftmaxBackwardStrategy::kCluster:
        return dispatchSoftmaxBackwardRung<T, kLongKind, true, kSoftmaxBackwardClusterRungs>(plan, launch);
    case SoftmaxBackwardStrategy::kPasses:
        return plan.policy.clusterBlocks > 1 ? launch.template inPasses<T, kLongKind, true>(plan)
                                             : launch.template inPasses<T, kLongKind, false>(plan);
    }
    return cudaErrorInvalidValue;
}

template <typename T, typename Launch>
cudaError_t dispatchSoftmaxBackwardRows(SoftmaxBackwardPlan const& plan, Launch const& launch)
{
    if (plan.rows == 0)
    {
        return cudaSuccess;
    }
    switch (plan.kind)
    {
    case SoftmaxBackwardRows::kVectorwise:
        return dispatchSoftmaxBackwardStrategy<T, SoftmaxBackwardRows::kVectorwise>(plan, launch);
    case SoftmaxBackwardRows::kShifted:
        return dispatchSoftmaxBackwardStrategy<T, SoftmaxBackwardRows::kShifted>(plan, launch);
    case SoftmaxBackwardRows::kGeneral:
        return dispatchSoftmaxBackwardStrategy<T, SoftmaxBackwardRows::kGeneral>(plan, launch);
    }
    return cudaErrorInvalidValue;
}

template <typename T, typename Launch>
cudaError_t dispatchBiasGradient(BiasGradientPlan const& plan, Launch const& launch)
{
    if (plan.result == nullptr || plan.resultRows * plan.keys == 0)
    {
        return cudaSuccess;
    }
    if (!plan.hasKeys)
    {
        return launch.template biasOfRows<T>(plan);
    }
    cudaError_t const status =
        plan.isVectorwise ? launch.template biasOfKeys<T, true>(plan) : launch.template biasOfKeys<T, false>(plan);
    return status != cudaSuccess || plan.splits == 1 ? status : launch.template joinSplits<T>(plan);
}

template <typename T, typename Launch>
cudaError_t dispatchSoftmaxBackward(SoftmaxBackwardPlans const& plans, Launch const& launch)
{
    cudaError_t const status = dispatchSoftmaxBackwardRows<T>(plans.rows, launch);
    return status != cudaSuccess ? status : dispatchBiasGradient<T>(plans.bias, launch);
}

} // namespace attngraft
