// launchMaskedSoftmax over the emulated device, with C linkage: Python's tests run the kernels' own source on the CPU,
// and the same cases again on a GPU.
#define ATTNGRAFT_DEVICE_INSTRUCTIONS "emulated_device.h"
#define ATTNGRAFT_BULK_INSTRUCTIONS "emulated_bulk.h"
#define ATTNGRAFT_ROW_INSTRUCTIONS "emulated_rows.h"

#include "masked_softmax.h"
#include "softmax_dispatch.cuh"
#include "softmax_kernels.h"
#include "softmax_plan.h"

#include "emulated_grid.h"

namespace
{

using attngraft::SoftmaxPlan;
using attngraft::emulation::Device;
using attngraft::emulation::globalMemory;
using attngraft::emulation::MemoryRange;
using attngraft::emulation::runGrid;

//! tests/python/softmax_abi.py mirrors it.
struct EmulatedRun
{
    Device device;
    uint32_t seed;
    MemoryRange const* readable; //!< the first one is the scores
    MemoryRange const* writable;
    int32_t readableCount;
    int32_t writableCount;
    int64_t scoresRead; //!< bytes, to be filled in
    int64_t stored;
    char message[500];
};

struct EmulatedLaunch
{
    template <typename Work>
    cudaError_t inRegisters(SoftmaxPlan const& plan) const
    {
        return run<Work>(plan, [&] { attngraft::softmaxInRegisters<Work>(plan); });
    }

    template <typename Work>
    cudaError_t inPasses(SoftmaxPlan const& plan) const
    {
        return run<Work>(plan, [&] { attngraft::softmaxInPasses<Work>(plan); });
    }

    template <typename Work>
    cudaError_t even(SoftmaxPlan const& plan) const
    {
        return run<Work>(plan, [&] { attngraft::softmaxOfEvenRow<Work>(plan); });
    }

    template <typename Work>
    cudaError_t inChunks(SoftmaxPlan const& plan) const
    {
        return runGrid(
            dim3(attngraft::softmaxBlocks<Work>(plan)), Work::kBlockThreads, attngraft::longSharedBytes(plan),
            [&] { attngraft::softmaxOfLongRow<Work>(plan); }, plan.policy.blocks);
    }

private:
    template <typename Work, typename Kernel>
    static cudaError_t run(SoftmaxPlan const& plan, Kernel const& kernel)
    {
        return runGrid(dim3(attngraft::softmaxBlocks<Work>(plan)), Work::kBlockThreads,
            attngraft::kSoftmaxSharedBytes<Work>, kernel, plan.policy.blocks);
    }
};

} // namespace

namespace attngraft
{

cudaError_t launchSoftmaxFloat32(SoftmaxPlan const& plan, cudaStream_t)
{
    return dispatchSoftmax<float>(plan, EmulatedLaunch{});
}

cudaError_t launchSoftmaxFloat16(SoftmaxPlan const& plan, cudaStream_t)
{
    return dispatchSoftmax<__half>(plan, EmulatedLaunch{});
}

cudaError_t launchSoftmaxBFloat16(SoftmaxPlan const& plan, cudaStream_t)
{
    return dispatchSoftmax<__nv_bfloat16>(plan, EmulatedLaunch{});
}

} // namespace attngraft

ATTNGRAFT_TEST_EXPORT size_t attngraft_test_params_size()
{
    return sizeof(attngraft::MaskedSoftmaxParams);
}

//! Strategy, rung and blocks of the policy, then the mask's kind. False for parameters outside the contract.
ATTNGRAFT_TEST_EXPORT bool attngraft_test_softmax_policy(
    attngraft::MaskedSoftmaxParams const* params, Device const* on, int32_t* found)
{
    SoftmaxPlan plan;
    if (!attngraft::makeSoftmaxPlan(*params, {on->multiprocessors, on->hasClusters != 0, on->sharedBytes}, plan))
    {
        return false;
    }
    found[0] = static_cast<int32_t>(plan.policy.strategy);
    found[1] = plan.policy.rung;
    found[2] = plan.policy.blocks;
    found[3] = static_cast<int32_t>(plan.tensors);
    return true;
}

//! Threads and units of a rung of vectors. False where there are no more.
ATTNGRAFT_TEST_EXPORT bool attngraft_test_softmax_rung(int32_t index, int32_t tensors, int32_t* threadsAndUnits)
{
    if (index >= attngraft::kVectorRungCount)
    {
        return false;
    }
    attngraft::Rung const& rung = attngraft::kVectorRungs[index];
    bool const serves = rung.serves(static_cast<attngraft::MaskTensors>(tensors));
    threadsAndUnits[0] = serves ? rung.threads : 0;
    threadsAndUnits[1] = serves ? rung.units : 0;
    return true;
}

//! Runs on host memory, threads in an order that the seed decides. Returns the cudaError_t; what went wrong on the
//! device is then in the message.
ATTNGRAFT_TEST_EXPORT int attngraft_test_emulated_softmax(
    attngraft::MaskedSoftmaxParams const* params, EmulatedRun* run)
{
    globalMemory() = {};
    globalMemory().readable.assign(run->readable, run->readable + run->readableCount);
    globalMemory().writable.assign(run->writable, run->writable + run->writableCount);
    globalMemory().counted = run->readable[0];
    int const status = attngraft::emulation::launchOn(run->device, run->seed, run->message, sizeof(run->message),
        [&] { return attngraft::launchMaskedSoftmax(*params, nullptr); });
    run->scoresRead = globalMemory().bytesRead;
    run->stored = globalMemory().bytesStored;
    return status;
}
