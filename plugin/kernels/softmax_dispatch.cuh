// From a plan to the template arguments of the kernel that serves it, for whoever runs it: a launch, or a test.
#pragma once

#include "rung_dispatch.h"
#include "softmax_even.cuh"
#include "softmax_long.cuh"
#include "softmax_passes.cuh"
#include "softmax_plan.h"
#include "softmax_rows.cuh"

#include <cuda_runtime_api.h>

#include <limits>

namespace attngraft
{

//! The grid's limit in x.
constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

//! Blocks of a plan's kernel, 0 where they are more than a grid has. That takes more rows than memory holds, unless
//! rows of scores lie on top of each other.
template <typename Work>
unsigned softmaxBlocks(SoftmaxPlan const& plan)
{
    constexpr int kRowsPerBlock = Work::kGroups * Work::kRows;
    int64_t const tiles = (plan.rows + kRowsPerBlock - 1) / kRowsPerBlock;
    return tiles > kMaxBlocks / plan.policy.blocks ? 0U : static_cast<unsigned>(tiles * plan.policy.blocks);
}

//! Shared memory of a block: two rounds of exchange.
template <typename Work>
constexpr int kSoftmaxSharedBytes = 2 * Work::kGroups * (Work::kThreads / kWarpThreads) * kStateBytes;

//! The same of a block that holds a long row, or a part of one.
inline int longSharedBytes(SoftmaxPlan const& plan)
{
    return static_cast<int>(ChunkLayout{plan.unitsPerBlock * plan.policy.blocks, plan.policy.blocks}.bytes());
}

//! Calls the launch's inRegisters<RowWork>, inPasses<RowWork>, inChunks<LongWork> or even<EvenWork> for the plan's
//! policy and masks.
template <typename T, MaskTensors tensors, typename Launch>
struct SoftmaxDispatch
{
    static constexpr int kPerVector = kVectorBytes / static_cast<int>(sizeof(T));

    SoftmaxPlan const& plan;
    Launch const& launch;

    cudaError_t run() const
    {
        switch (plan.policy.strategy)
        {
        case Strategy::kVectors: return runVectors();
        case Strategy::kElements: return runElements();
        case Strategy::kPasses: return runPasses();
        case Strategy::kLong: return runLong();
        case Strategy::kEven: return runEven();
        case Strategy::kUneven: return runUneven();
        }
        return cudaErrorInvalidValue;
    }

private:
    cudaError_t runVectors() const
    {
        return withRung<kVectorRungCount>(plan.policy.rung, [this](auto index) {
            constexpr Rung kRung = kVectorRungs[decltype(index)::value];
            if constexpr (kRung.serves(tensors) && kRung.mayBeShared())
            {
                if (plan.policy.blocks > 1)
                {
                    return launch.template inRegisters<
                        RowWork<T, tensors, kPerVector, kRung.threads, kRung.units, 1, kRung.blockThreads, true>>(plan);
                }
            }
            if constexpr (kRung.serves(tensors))
            {
                return launch.template inRegisters<
                    RowWork<T, tensors, kPerVector, kRung.threads, kRung.units, kRung.rows, kRung.blockThreads, false>>(
                    plan);
            }
            return cudaErrorInvalidValue;
        });
    }

    cudaError_t runElements() const
    {
        return withRung<kElementRungCount>(plan.policy.rung, [this](auto index) {
            constexpr Rung kRung = kElementRungs[decltype(index)::value];
            if constexpr (kRung.serves(tensors))
            {
                return launch.template inRegisters<
                    RowWork<T, tensors, 1, kRung.threads, kRung.units, kRung.rows, kRung.blockThreads, false>>(plan);
            }
            return cudaErrorInvalidValue;
        });
    }

    cudaError_t runLong() const
    {
        if constexpr (isLongServed(tensors))
        {
            return plan.policy.blocks > 1 ? launch.template inChunks<LongWork<T, tensors, true>>(plan)
                                          : launch.template inChunks<LongWork<T, tensors, false>>(plan);
        }
        return cudaErrorInvalidValue;
    }

    cudaError_t runEven() const
    {
        return withRung<kEvenRungCount>(plan.policy.rung, [this](auto index) {
            constexpr EvenRung kRung = kEvenRungs[decltype(index)::value];
            if constexpr (kRung.serves(tensors))
            {
                return plan.interval.excludesKeys()
                    ? launch.template even<EvenWork<T, tensors, true, true, kRung.threads, kRung.units>>(plan)
                    : launch.template even<EvenWork<T, tensors, true, false, kRung.threads, kRung.units>>(plan);
            }
            return cudaErrorInvalidValue;
        });
    }

    cudaError_t runUneven() const
    {
        return withRung<kUnevenRungCount>(plan.policy.rung, [this](auto index) {
            constexpr EvenRung kRung = kUnevenRungs[decltype(index)::value];
            if constexpr (kRung.serves(tensors))
            {
                return launch.template even<EvenWork<T, tensors, false, true, kRung.threads, kRung.units>>(plan);
            }
            return cudaErrorInvalidValue;
        });
    }

    cudaError_t runPasses() const
    {
        return plan.policy.blocks > 1
            ? launch
                  .template inPasses<RowWork<T, tensors, kPerVector, kPassThreads, kPassUnits, 1, kPassThreads, true>>(
                      plan)
            : launch
                  .template inPasses<RowWork<T, tensors, kPerVector, kPassThreads, kPassUnits, 1, kPassThreads, false>>(
                      plan);
    }
};

template <typename T, typename Launch>
cudaError_t dispatchSoftmax(SoftmaxPlan const& plan, Launch const& launch)
{
    switch (plan.tensors)
    {
    case MaskTensors::kNone: return SoftmaxDispatch<T, MaskTensors::kNone, Launch>{plan, launch}.run();
    case MaskTensors::kKeepBytes: return SoftmaxDispatch<T, MaskTensors::kKeepBytes, Launch>{plan, launch}.run();
    case MaskTensors::kBias: return SoftmaxDispatch<T, MaskTensors::kBias, Launch>{plan, launch}.run();
    case MaskTensors::kAny: return SoftmaxDispatch<T, MaskTensors::kAny, Launch>{plan, launch}.run();
    }
    return cudaErrorInvalidValue;
}

} // namespace attngraft
