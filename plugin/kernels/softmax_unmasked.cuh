// The rare second reading of a row that passed through shared memory: it turned out empty, and counts as if nothing
// were masked.
#pragma once

#include "softmax_streamed_row.cuh"

namespace attngraft
{

//! An empty row, without its mask, from global memory: of what it would have been without it nothing is in shared
//! memory. `number`: of the exchange.
template <typename Work>
ATTNGRAFT_DEVICE_CALL void writeUnmasked(SoftmaxPlan const& plan, int64_t r, unsigned number)
{
    using Units = StreamedUnits<Work, UnitRange<Work::kThreads>>;
    ChunkShare const share{plan.policy.blocks, blockInCluster()};
    float const factor = exponentFactor(plan);
    StreamedRow<Work> row;
    row.find(plan, share, r, true);
    RowState state;
#pragma unroll 1
    for (int chunk = 0; chunk < row.chunks; ++chunk)
    {
        Units units(row, share.firstUnit(chunk));
        units.loadScores(plan);
        units.loadMasks(plan);
        state.raise(fmaxf(units.applyMasks(plan), state.maximum), factor);
        state.sum += units.exponentiate(Exponent(finiteMaximum(state.maximum), factor));
    }
    RingExchange const exchange{{plan.policy.chunks, plan.policy.blocks}, dynamicSharedMemory(), share.block, 1};
    exchange.send(number, joinLanes<kWarpThreads>(state, factor));
    RowState const whole = exchange.receive(number, factor);
    Exponent const exponent(finiteMaximum(whole.maximum), factor);
    Normalisation const normalisation(plan, whole, whole, factor);
#pragma unroll 1
    for (int chunk = 0; chunk < row.chunks; ++chunk)
    {
        Units units(row, share.firstUnit(chunk));
        units.loadScores(plan);
        units.loadMasks(plan);
        units.applyMasks(plan);
        units.exponentiate(exponent);
        units.write(exponent, normalisation);
    }
}

} // namespace attngraft
