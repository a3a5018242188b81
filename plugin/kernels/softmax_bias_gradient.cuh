// The gradient of the bias: ds = p * (g - sum of the row), summed over the rows that share an element of the bias.
// In: p and g, and what softmax_backward_rows.cuh left of every row. Every sum has one order, whatever runs when.
#pragma once

#include "softmax_backward_vectors.cuh"

namespace attngraft
{

constexpr int kBiasWarps = 8; //!< of a block
constexpr int kBiasThreads = kBiasWarps * kThreadsOfWarp;
constexpr int kBiasBatch = 4; //!< rows that a warp has under way

//! Keys of a row that a thread sums, of p and g in vectors or in single elements.
template <typename T, bool isVectorwise>
constexpr int kBiasKeysOfThread = isVectorwise ? RowVector<T>::kElements : 4;

template <typename T, bool isVectorwise>
constexpr int kBiasTileKeys = kThreadsOfWarp * kBiasKeysOfThread<T, isVectorwise>;

//! Where the index-th row of a walk is: in rows of the scores, and in elements of the result.
struct WalkedRow
{
    int64_t row{0};
    int64_t out{0};

    ATTNGRAFT_DEVICE WalkedRow(RowWalk const& walk, int64_t index)
    {
        for (int dim = walk.rank - 1; dim >= 0; --dim)
        {
            int64_t const at = index % walk.dims[dim];
            index /= walk.dims[dim];
            row += at * walk.rowSteps[dim];
            out += at * walk.outSteps[dim];
        }
    }
};

//! A walk in equal steps, without divisions on the way.
class RowStepper
{
public:
    ATTNGRAFT_DEVICE RowStepper(RowWalk const& walk, int64_t index, int64_t step)
        : mWalk(walk)
    {
#pragma unroll
        for (int dim = kMostSummed - 1; dim >= 0; --dim)
        {
            int64_t const size = dim < walk.rank ? walk.dims[dim] : 1;
            mAt[dim] = index % size;
            mSteps[dim] = step % size;
            index /= size;
            step /= size;
        }
    }

    ATTNGRAFT_DEVICE int64_t row() const
    {
        int64_t found = 0;
#pragma unroll
        for (int dim = 0; dim < kMostSummed; ++dim)
        {
            found += dim < mWalk.rank ? mAt[dim] * mWalk.rowSteps[dim] : 0;
        }
        return found;
    }

    ATTNGRAFT_DEVICE void advance()
    {
        int64_t carry = 0;
#pragma unroll
        for (int dim = kMostSummed - 1; dim >= 0; --dim)
        {
            int64_t const size = dim < mWalk.rank ? mWalk.dims[dim] : 1;
            int64_t const at = mAt[dim] + mSteps[dim] + carry;
            carry = at >= size ? 1 : 0;
            mAt[dim] = carry != 0 ? at - size : at;
        }
    }

private:
    static constexpr int kMostSummed = (kMaxOuterRank + 1) / 2; //!< neighbours are one dimension

    RowWalk const& mWalk;
    int64_t mAt[kMostSummed];
    int64_t mSteps[kMostSummed];
};

//! A thread's keys of a row of p and g, on their way from memory.
template <typename T, bool isVectorwise>
struct BiasRow
{
    static constexpr int kKeys = kBiasKeysOfThread<T, isVectorwise>;
    static constexpr int kVectors = isVectorwise ? 1 : kKeys;
    static constexpr int kOfWord = RowVector<T>::kOfWord;
    static constexpr int kKeyStep = isVectorwise ? 1 : kThreadsOfWarp; //!< from one key of the thread to the next

    RowVector<T> probabilities[kVectors];
    RowVector<T> gradient[kVectors];
    SoftmaxRowSum found{0.F, 0.F};

    ATTNGRAFT_DEVICE void load(BiasGradientPlan const& plan, int64_t row, int64_t firstKey)
    {
        found = plan.rowSums[row];
        T const* const p = static_cast<T const*>(plan.probabilities) + row * plan.keys + firstKey;
        T const* const g = static_cast<T const*>(plan.gradient) + row * plan.keys + firstKey;
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
        {
            if (firstKey + i * kKeyStep >= plan.keys)
            {
                continue;
            }
            if constexpr (isVectorwise)
            {
                probabilities[i].load(p);
                gradient[i].load(g);
            }
            else
            {
                probabilities[i].loadElement(0, p + i * kKeyStep);
                gradient[i].loadElement(0, g + i * kKeyStep);
            }
        }
    }

    ATTNGRAFT_DEVICE void addTo(float (&sums)[kKeys]) const
    {
#pragma unroll
        for (int key = 0; key < kKeys; ++key)
        {
            float p[kOfWord];
            float g[kOfWord];
            int const vector = isVectorwise ? 0 : key;
            int const word = isVectorwise ? key / kOfWord : 0;
            int const element = isVectorwise ? key % kOfWord : 0;
            probabilities[vector].floats(word, p);
            gradient[vector].floats(word, g);
            bool const isWeighed = p[element] != 0.F && found.weigh != 0.F;
            sums[key] += isWeighed ? p[element] * (g[element] - found.sum) : 0.F;
        }
    }
};

template <typename T>
ATTNGRAFT_DEVICE void storeBiasGradient(BiasGradientPlan const& plan, int64_t index, float value)
{
    if (plan.resultIsFloat32)
    {
        static_cast<float*>(plan.result)[index] = value;
    }
    else
    {
        static_cast<T*>(plan.result)[index] = rounded<T>(value);
    }
}

//! One task: a tile of keys of a row of the result, and a part of the rows that it is the sum of.
struct BiasTask
{
    int64_t resultRow;
    int64_t firstKey; //!< of the tile
    int64_t split;

    ATTNGRAFT_DEVICE BiasTask(BiasGradientPlan const& plan, int64_t task, int tileKeys)
    {
        int64_t const tiles = (plan.keys + tileKeys - 1) / tileKeys;
        firstKey = task % tiles * tileKeys;
        resultRow = task / tiles % plan.resultRows;
        split = task / tiles / plan.resultRows;
    }
};

//! sums := those over every `step`-th of the summed rows, from the first-th on.
template <typename T, bool isVectorwise, int kKeys>
ATTNGRAFT_DEVICE void sumBiasRows(
    BiasGradientPlan const& plan, int64_t keptRow, int64_t firstKey, int64_t first, int64_t step, float (&sums)[kKeys])
{
    RowStepper stepper(plan.summed, first, step);
    for (int64_t index = first; index < plan.summedRows; index += kBiasBatch * step)
    {
        BiasRow<T, isVectorwise> rows[kBiasBatch];
#pragma unroll
        for (int i = 0; i < kBiasBatch; ++i)
        {
            if (index + i * step < plan.summedRows)
            {
                rows[i].load(plan, keptRow + stepper.row(), firstKey);
            }
            stepper.advance();
        }
#pragma unroll
        for (int i = 0; i < kBiasBatch; ++i)
        {
            rows[i].addTo(sums);
        }
    }
}

//! Warps that share a task bring their sums together: the first of them has all. Called by all threads of the block.
template <int kKeys>
ATTNGRAFT_DEVICE void joinPartners(int partners, float (&sums)[kKeys])
{
    constexpr int kFloats = kKeys * kBiasThreads;
    int const thread = threadOfBlock();
    synchronizeThreads(); // what was stored for the task before is read
#pragma unroll
    for (int key = 0; key < kKeys; ++key)
    {
        storeScratch<kFloats>(key * kBiasThreads + thread, sums[key]);
    }
    synchronizeThreads();
    if (thread / kThreadsOfWarp % partners == 0)
    {
        for (int partner = 1; partner < partners; ++partner)
        {
#pragma unroll
            for (int key = 0; key < kKeys; ++key)
            {
                sums[key] += loadScratch<kFloats>(key * kBiasThreads + thread + partner * kThreadsOfWarp);
            }
        }
    }
}

//! Blocks whose warps do a task each, or a part of one.
inline int64_t biasBlocks(BiasGradientPlan const& plan, int tileKeys)
{
    int64_t const tasks = (plan.keys + tileKeys - 1) / tileKeys * plan.resultRows * plan.splits;
    int const tasksOfBlock = kBiasWarps / plan.partners;
    return (tasks + tasksOfBlock - 1) / tasksOfBlock;
}

template <typename T, bool isVectorwise>
__global__ void __launch_bounds__(kBiasThreads) biasGradientOfKeys(__grid_constant__ BiasGradientPlan const plan)
{
    constexpr int kKeys = kBiasKeysOfThread<T, isVectorwise>;
    constexpr int kTileKeys = kBiasTileKeys<T, isVectorwise>;
    constexpr int kKeyStep = BiasRow<T, isVectorwise>::kKeyStep;
    int const warp = threadOfBlock() / kThreadsOfWarp;
    int const lane = threadOfBlock() % kThreadsOfWarp;
    int const part = warp % plan.partners;
    int const tasksOfBlock = kBiasWarps / plan.partners;
    int64_t const tasks = (plan.keys + kTileKeys - 1) / kTileKeys * plan.resultRows * plan.splits;
    for (int64_t base = blockOfGrid() * tasksOfBlock; base < tasks; base += blocksOfGrid() * tasksOfBlock)
    {
        int64_t const number = base + warp / plan.partners;
        bool const isReal = number < tasks;
        BiasTask const task(plan, isReal ? number : tasks - 1, kTileKeys);
        WalkedRow const kept(plan.kept, task.resultRow);
        int64_t const firstKey = task.firstKey + (isVectorwise ? lane * kKeys : lane);
        float sums[kKeys]{};
        if (isReal && firstKey < plan.keys)
        {
            sumBiasRows<T, isVectorwise>(plan, kept.row, firstKey, task.split * plan.partners + part,
                int64_t{plan.splits} * plan.partners, sums);
        }
        if (plan.partners > 1)
        {
            joinPartners(plan.partners, sums);
        }
#pragma unroll
        for (int i = 0; i < kKeys; ++i)
        {
            int64_t const key = firstKey + i * kKeyStep;
            if (!isReal || part != 0 || key >= plan.keys)
            {
                continue;
            }
            if (plan.splits > 1)
            {
                plan.partials[(task.split * plan.resultRows + task.resultRow) * plan.keys + key] = sums[i];
            }
            else
            {
                storeBiasGradient<T>(plan, kept.out + key, sums[i]);
            }
        }
    }
}

//! The splits' sums, in their order: a thread for each element of the result.
template <typename T>
__global__ void __launch_bounds__(kBiasThreads) joinBiasSplits(__grid_constant__ BiasGradientPlan const plan)
{
    int64_t const elements = plan.resultRows * plan.keys;
    int64_t const step = blocksOfGrid() * kBiasThreads;
    for (int64_t at = blockOfGrid() * kBiasThreads + threadOfBlock(); at < elements; at += step)
    {
        float sum = 0.F;
#pragma unroll 4
        for (int split = 0; split < plan.splits; ++split)
        {
            sum += plan.partials[split * elements + at];
        }
        storeBiasGradient<T>(plan, WalkedRow(plan.kept, at / plan.keys).out + at % plan.keys, sum);
    }
}

//! Of a bias without keys, whose rows' sums of ds are there: a warp for each row of the result.
template <typename T>
__global__ void __launch_bounds__(kBiasThreads) biasGradientOfRows(__grid_constant__ BiasGradientPlan const plan)
{
    int const lane = threadOfBlock() % kThreadsOfWarp;
    int64_t const step = blocksOfGrid() * kBiasWarps;
    for (int64_t at = blockOfGrid() * kBiasWarps + threadOfBlock() / kThreadsOfWarp; at < plan.resultRows; at += step)
    {
        WalkedRow const kept(plan.kept, at);
        RowStepper stepper(plan.summed, lane, kThreadsOfWarp);
        float sum = 0.F;
        for (int64_t index = lane; index < plan.summedRows; index += kThreadsOfWarp)
        {
            sum += plan.rowTotals[kept.row + stepper.row()];
            stepper.advance();
        }
        sum = sumOverLanes(sum, kThreadsOfWarp);
        if (lane == 0)
        {
            storeBiasGradient<T>(plan, kept.out, sum);
        }
    }
}

} // namespace attngraft
