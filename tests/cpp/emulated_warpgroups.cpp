// The kernels of warp groups on the emulated device. See emulated_attention.cpp.
#define ATTNGRAFT_DEVICE_INSTRUCTIONS "emulated_device.h"
#define ATTNGRAFT_BULK_INSTRUCTIONS "emulated_bulk.h"
#define ATTNGRAFT_WARPGROUP_INSTRUCTIONS "emulated_warpgroups.h"

#include "attention_dispatch.h"
#include "attention_kernels.h"
#include "bulk_copies.h"
#include "emulated_grid.h"
#include "warpgroup_kernel.cuh"
#include "warpgroup_specialised.cuh"

#include <cstring>

namespace attngraft
{
namespace
{

using emulation::BoxedTensor;
using emulation::runGrid;

void store(CUtensorMap& map, BoxedTensor boxed)
{
    static_assert(sizeof(BoxedTensor) <= sizeof(CUtensorMap), "what is opaque to kernels has room for it");
    constexpr int64_t kElementBytes = 2;
    for (int64_t& stride : boxed.strides)
    {
        stride *= kElementBytes;
    }
    std::memcpy(&map, &boxed, sizeof(boxed));
}

void describeQueries(CUtensorMap& map, AttentionPlan const& plan, int tileRows)
{
    HeadTensor<void const*> const& tensor = plan.query;
    store(map,
        {static_cast<uint8_t const*>(tensor.data), 5, tileRows,
            {plan.headSize, plan.queries, plan.headsOfGroup.value, plan.kvHeads, plan.batch},
            {1, tensor.rowStride, tensor.headStride, plan.queryGroupStride, tensor.batchStride}});
}

void describeKeys(
    CUtensorMap& map, HeadTensor<void const*> const& tensor, AttentionPlan const& plan, int size, int tileKeys)
{
    store(map,
        {static_cast<uint8_t const*>(tensor.data), 4, tileKeys, {size, plan.keys, plan.kvHeads, plan.batch, 1},
            {1, tensor.rowStride, tensor.headStride, tensor.batchStride, 0}});
}

template <typename Math>
struct EmulatedLaunch
{
    template <typename Tile, AttentionMask kMask, bool kMayCap, bool kVectorwise>
    cudaError_t run(AttentionPlan const& plan) const
    {
        bool const isFloat = sizeof(typename Math::Element) == 4; // the kernel's threads bring the tiles
        BulkCopies const copies = isFloat ? BulkCopies{} : makeBulkCopies(plan, Tile::kRows, Tile::kKeys);
        return runGrid(attentionGrid<Tile>(plan), Tile::kThreads, sharedBytes<Tile>(plan), [&] {
            if constexpr (Tile::kTile.engine == AttentionEngine::kSpecialised)
            {
                specialisedAttentionKernel<Math, Tile, kMask, kMayCap>(plan, copies);
            }
            else
            {
                warpgroupAttentionKernel<Math, Tile, kMask, kMayCap>(plan, copies);
            }
        });
    }
};

template <typename Math>
cudaError_t emulate(AttentionPlan const& plan)
{
    return dispatchAttention<sizeof(typename Math::Element), true>(plan, EmulatedLaunch<Math>{});
}

} // namespace

BulkCopies makeBulkCopies(AttentionPlan const& plan, int tileRows, int tileKeys)
{
    emulation::Device const& device = emulation::grids().device;
    BulkCopies copies;
    copies.areQueriesUsable = device.hasQueryCopies != 0;
    copies.isUsable = device.hasBulkCopies != 0 && plan.keys > 0;
    describeQueries(copies.queries, plan, tileRows);
    describeKeys(copies.keys, plan.key, plan, plan.headSize, tileKeys);
    describeKeys(copies.values, plan.value, plan, plan.valueSize, tileKeys);
    return copies;
}

cudaError_t launchWarpgroupAttentionFloat16(AttentionPlan const& plan, cudaStream_t)
{
    return emulate<HalfMath>(plan);
}

cudaError_t launchWarpgroupAttentionBFloat16(AttentionPlan const& plan, cudaStream_t)
{
    return emulate<BFloat16Math>(plan);
}

cudaError_t launchWarpgroupAttentionTf32(AttentionPlan const& plan, cudaStream_t)
{
    return emulate<Tf32Math>(plan);
}

} // namespace attngraft
