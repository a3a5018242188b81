// Joins what the blocks that share a row's keys found.
#pragma once

#include "attention_rows.cuh"

namespace attngraft
{

constexpr int kCombineColumns = 32; //!< of a warp's part of a row

//! Threads of one warp for each row, and for each 32 columns of it.
ATTNGRAFT_HOST_DEVICE int64_t combineWarps(AttentionPlan const& plan)
{
    int64_t const columns = (plan.valueSize + kCombineColumns - 1) / kCombineColumns;
    return plan.batch * plan.heads * plan.queries * columns;
}

ATTNGRAFT_DEVICE float maximumOfWarp(float value)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
    {
        value = fmaxf(value, shuffleXor(value, lanes));
    }
    return value;
}

ATTNGRAFT_DEVICE float sumOfWarp(float value)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
    {
        value += shuffleXor(value, lanes);
    }
    return value;
}

//! One warp's columns of a row. A lane weighs every 32nd split, and owns a column of the context.
template <typename T>
struct SplitsOfRow
{
    AttentionPlan const& plan;
    int64_t const rows;
    int64_t const row;
    int const column; //!< of this lane

    ATTNGRAFT_DEVICE SplitsOfRow(AttentionPlan const& plan_, int64_t warp)
        : plan(plan_)
        , rows(plan_.batch * plan_.heads * plan_.queries)
        , row(warp % rows)
        , column(static_cast<int>(warp / rows) * kCombineColumns + laneOfThread())
    { }

    ATTNGRAFT_DEVICE void combine() const
    {
        float top = -INFINITY;
        for (int split = laneOfThread(); split < plan.splits; split += 32)
        {
            top = fmaxf(top, plan.partial.maximum[split * rows + row]);
        }
        top = maximumOfWarp(top);
        float const reference = top == -INFINITY ? 0.F : top;
        float sum = 0.F;
        float context = 0.F;
        for (int first = 0; first < plan.splits; first += 32)
        {
            int const split = first + laneOfThread();
            float weight = 0.F;
            if (split < plan.splits)
            {
                int64_t const index = split * rows + row;
                weight = exp2Fast((plan.partial.maximum[index] - reference) * kPowersPerExp);
                sum += plan.partial.sum[index] * weight;
            }
            context += weighed(first, weight);
        }
        sum = sumOfWarp(sum);
        store(context * (sum == 0.F ? 0.F : 1.F / sum), top, sum);
    }

private:
    //! The column's sum over 32 splits, whose weights the lanes hold. Loads that do not wait for each other.
    ATTNGRAFT_DEVICE float weighed(int first, float weight) const
    {
        float sum = 0.F;
        int64_t const step = rows * plan.valueSize;
        float const* from = plan.partial.context + first * step + row * plan.valueSize + column;
        bool const hasColumn = column < plan.valueSize;
#pragma unroll 8
        for (int i = 0; i < 32; ++i)
        {
            float const ofSplit = shuffleFrom(weight, i);
            if (hasColumn && first + i < plan.splits)
            {
                sum += from[i * step] * ofSplit;
            }
        }
        return sum;
    }

    ATTNGRAFT_DEVICE void store(float value, float top, float sum) const
    {
        if (column < plan.valueSize)
        {
            int64_t const query = row % plan.queries;
            int64_t const head = row / plan.queries % plan.heads;
            int64_t const batch = row / plan.queries / plan.heads;
            static_cast<T*>(plan.context.data)[batch * plan.context.batchStride + head * plan.context.headStride
                + query * plan.context.rowStride + column] = static_cast<T>(value);
        }
        if (plan.logSumExp != nullptr && column == 0)
        {
            plan.logSumExp[row] = sum == 0.F ? -INFINITY : top + logf(sum);
        }
    }
};

template <typename T>
__global__ void combineSplits(__grid_constant__ AttentionPlan const plan)
{
    int64_t const warp = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warpOfThread();
    waitForEarlierKernels();
    letNextKernelBegin();
    if (warp < combineWarps(plan))
    {
        SplitsOfRow<T>(plan, warp).combine();
    }
}

} // namespace attngraft
