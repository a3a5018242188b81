// The rare second reading of a row in shared memory: it turned out empty, and counts as if nothing were masked.
#pragma once

#include "softmax_chunked_row.cuh"
#include "softmax_long_exchange.cuh"

namespace attngraft
{

//! An empty row, without its mask, from global memory: of what it would have been without it nothing is in shared
//! memory.
template <typename Work>
ATTNGRAFT_DEVICE_CALL void writeUnmasked(SoftmaxPlan const& plan, int64_t r)
{
    using Units = ChunkUnits<Work, UnitRange<Work::kThreads>>;
    ChunkShare const share = shareOf<Work>(plan);
    float const factor = exponentFactor(plan);
    ChunkedRow<Work> row;
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
    LongExchange<Work::kThreads, Work::kIsCluster> const exchange{share.blocks, share.block};
    RowState const whole = exchange(joinLanes<kWarpThreads>(state, factor), factor, 1);
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
