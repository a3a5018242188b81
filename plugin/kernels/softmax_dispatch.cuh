// From a plan to the template arguments of the kernel that serves it, for whoever runs it: a launch, or a test.
#pragma once

#include "softmax_loop.cuh"
#include "softmax_passes.cuh"
#include "softmax_plan.h"
#include "softmax_rows.cuh"
#include "softmax_stream.cuh"
#include "softmax_tiles.cuh"

#include <cuda_runtime_api.h>

#include <limits>
#include <type_traits>

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

//! The same of a kernel that takes one row after another: as many as run at once.
template <typename Work>
unsigned loopBlocks(SoftmaxPlan const& plan)
{
    int64_t const tiles = (plan.rows + Work::kGroups - 1) / Work::kGroups;
    int64_t const atOnce = int64_t{plan.multiprocessors} * Work::kResidentBlocks;
    return static_cast<unsigned>(tiles < atOnce ? tiles : atOnce);
}

//! use(index) with the rung as a constant of the type std::integral_constant, among the first `count` of a table.
template <int count, int index = 0, typename Use>
cudaError_t withRung(int rung, Use const& use)
{
    if constexpr (index < count)
    {
        return rung == index ? use(std::integral_constant<int, index>{}) : withRung<count, index + 1>(rung, use);
    }
    return cudaErrorInvalidValue;
}

//! Shared memory of a block: two rounds of exchange.
template <typename Work>
constexpr int kSoftmaxSharedBytes = 2 * Work::kGroups * (Work::kThreads / kWarpThreads) * kStateBytes;

//! Blocks of a plan's kernel through which rows pass, where so many of them run at once.
inline unsigned streamBlocks(SoftmaxPlan const& plan, int64_t blocksAtOnce)
{
    int64_t const clusters = blocksAtOnce / plan.policy.blocks;
    return static_cast<unsigned>((clusters < plan.rows ? clusters : plan.rows) * plan.policy.blocks);
}

//! Blocks of a plan's kernel that takes tiles: one a multiprocessor, fewer where they would have none.
inline unsigned tileBlocks(SoftmaxPlan const& plan)
{
    int64_t const rowsOfBlock = int64_t{plan.policy.tileRows} * kTileWarps;
    int64_t const blocks = (plan.rows + rowsOfBlock - 1) / rowsOfBlock;
    return static_cast<unsigned>(blocks < plan.multiprocessors ? blocks : plan.multiprocessors);
}

//! Calls the launch's inRegisters<RowWork>, inPasses<RowWork>, throughRing<StreamWork>, inLoop<LoopWork> or
//! inTiles<TileWork> for the plan's policy and masks.
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
        case Strategy::kStream: return runStream();
        case Strategy::kLoop: return runLoop();
        case Strategy::kTiles: return runTiles();
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

    cudaError_t runStream() const
    {
        if constexpr (mayStream(tensors))
        {
            return launch.template throughRing<StreamWork<T, tensors>>(plan);
        }
        return cudaErrorInvalidValue;
    }

    cudaError_t runLoop() const
    {
        return withRung<kReadsAhead ? kLoopRungCount : 0>(plan.policy.rung, [this](auto index) {
            constexpr LoopRung kRung = kLoopRungs[decltype(index)::value];
            if constexpr (tensors == MaskTensors::kNone)
            {
                if (plan.interval.excludesKeys())
                {
                    return launch
                        .template inLoop<LoopWork<T, tensors, true, kRung.threads, kRung.units, kRung.blockThreads>>(
                            plan);
                }
            }
            if constexpr (kRung.serves(tensors))
            {
                return launch
                    .template inLoop<LoopWork<T, tensors, false, kRung.threads, kRung.units, kRung.blockThreads>>(plan);
            }
            return cudaErrorInvalidValue;
        });
    }

    cudaError_t runTiles() const
    {
        return withRung < kHasTiles && isRaw(tensors) ? kTileRungCount : 0 > (plan.policy.rung, [this](auto index) {
            constexpr TileRung kRung = kTileRungs[decltype(index)::value];
            return launch.template inTiles<TileWork<T, tensors, kRung.threads, kRung.units>>(plan);
        });
    }

    cudaError_t runPasses() const
    {
        constexpr int kThreads = ATTNGRAFT_SOFTMAX_PASS_THREADS;
        constexpr int kUnits = ATTNGRAFT_SOFTMAX_PASS_UNITS;
        return plan.policy.blocks > 1
            ? launch.template inPasses<RowWork<T, tensors, kPerVector, kThreads, kUnits, 1, kThreads, true>>(plan)
            : launch.template inPasses<RowWork<T, tensors, kPerVector, kThreads, kUnits, 1, kThreads, false>>(plan);
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
