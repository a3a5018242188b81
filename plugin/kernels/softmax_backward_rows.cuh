// The backward kernels: rows held in registers, and rows that are read twice. For both: read p and g, sum p * g over
// the row, write scale * p * (g - sum).
#pragma once

#include "softmax_backward_empty.cuh"
#include "softmax_backward_vectors.cuh"

namespace attngraft
{

//! 1 - tanh(t)^2 = 4a / (1 + a)^2 with a = exp(-2|t|): nothing cancels out.
ATTNGRAFT_DEVICE float slopeOfTanh(float t)
{
    constexpr float kTwoLog2E = 2.8853900817779268F;
    float const a = exp2Fast(-kTwoLog2E * fabsf(t));
    float const inverse = reciprocalFast(1.F + a);
    return 4.F * a * inverse * inverse;
}

//! Some vectors of a row that a thread holds, of all tensors: every `threads`-th.
template <typename T, int threads, int units, SoftmaxBackwardRows kKind, typename Index>
struct RowPart
{
    static constexpr bool kIsVectorwise = kKind == SoftmaxBackwardRows::kVectorwise;
    static constexpr bool kIsGeneral = kKind == SoftmaxBackwardRows::kGeneral;
    using Vector = RowVector<T>;
    using Row = RowOfVectors<T, kIsVectorwise, Index>;

    static constexpr int kStep = threads * Vector::kElements; //!< in keys

    Vector probabilities[units];
    Vector gradient[units];
    Vector scores[kIsGeneral ? units : 1];

    //! From the vector of the key `first` on. All loads start here, before anything waits for one.
    ATTNGRAFT_DEVICE void load(SoftmaxBackwardPlan const& plan, Row const& row, Index first)
    {
        T const* const p = row.at(plan.probabilities, first);
        T const* const g = row.at(plan.gradient, first);
        [[maybe_unused]] T const* const x = row.at(plan.scores, first);
#pragma unroll
        for (int u = 0; u < units; ++u)
        {
            Index const key = first + u * kStep;
            if (!row.isOutside(key))
            {
                row.load(probabilities[u], p + u * kStep, true, key);
                row.load(gradient[u], g + u * kStep, plan.gradientIsInStep, key);
                if constexpr (kIsGeneral)
                {
                    if (plan.isCapped)
                    {
                        row.load(scores[u], x + u * kStep, plan.scoresAreInStep, key);
                    }
                }
            }
        }
        if constexpr (!kIsVectorwise)
        {
            leaveOthers(row, first);
        }
    }

    //! The sum of p * g.
    ATTNGRAFT_DEVICE float dotProduct() const
    {
        float sum = 0.F;
#pragma unroll
        for (int u = 0; u < units; ++u)
        {
#pragma unroll
            for (int word = 0; word < Vector::kWords; ++word)
            {
                float p[Vector::kOfWord];
                float g[Vector::kOfWord];
                probabilities[u].floats(word, p);
                gradient[u].floats(word, g);
#pragma unroll
                for (int i = 0; i < Vector::kOfWord; ++i)
                {
                    sum = fmaf(p[i], p[i] != 0.F ? g[i] : 0.F, sum);
                }
            }
        }
        return sum;
    }

    //! Whether a probability differs from `even`.
    ATTNGRAFT_DEVICE bool isUneven(Row const& row, Index first, float even) const
    {
        bool found = false;
#pragma unroll
        for (int u = 0; u < units; ++u)
        {
            Index const key = first + u * kStep;
#pragma unroll
            for (int word = 0; word < Vector::kWords; ++word)
            {
                float p[Vector::kOfWord];
                probabilities[u].floats(word, p);
#pragma unroll
                for (int i = 0; i < Vector::kOfWord; ++i)
                {
                    found = found || (row.holds(key + word * Vector::kOfWord + i) && p[i] != even);
                }
            }
        }
        return found;
    }

    //! Writes dx, and returns the sum of ds.
    ATTNGRAFT_DEVICE float write(SoftmaxBackwardPlan const& plan, Row const& row, Index first, SoftmaxRowSum found)
    {
        T* const to = row.at(plan.result, first);
        float total = 0.F;
#pragma unroll
        for (int u = 0; u < units; ++u)
        {
            probabilities[u].forget(plan.zero);
            gradient[u].forget(plan.zero);
            Vector result;
#pragma unroll
            for (int word = 0; word < Vector::kWords; ++word)
            {
                float x[Vector::kOfWord];
                slopes(plan, u, word, x);
                total += finish(u, word, found, x);
                result.set(word, x);
            }
            Index const key = first + u * kStep;
            if (!row.isOutside(key))
            {
                row.store(result, to + u * kStep, plan.resultIsInStep, key);
            }
        }
        return total;
    }

private:
    //! Elements of the rows beside this one become keys without weight.
    ATTNGRAFT_DEVICE void leaveOthers(Row const& row, Index first)
    {
#pragma unroll
        for (int u = 0; u < units; ++u)
        {
            Index const key = first + u * kStep;
            if (!row.isWhole(key))
            {
#pragma unroll
                for (int e = 0; e < Vector::kElements; ++e)
                {
                    if (!row.holds(key + e))
                    {
                        probabilities[u].clear(e);
                    }
                }
            }
        }
    }

    //! How much of ds each score gets.
    ATTNGRAFT_DEVICE void slopes(SoftmaxBackwardPlan const& plan, [[maybe_unused]] int u, [[maybe_unused]] int word,
        float (&to)[Vector::kOfWord])
    {
        if constexpr (kIsGeneral)
        {
            scores[u].floats(word, to);
        }
#pragma unroll
        for (int i = 0; i < Vector::kOfWord; ++i)
        {
            bool const isCapped = kIsGeneral && plan.isCapped;
            to[i] = isCapped ? plan.scale * slopeOfTanh(to[i] * plan.innerScale) : plan.scale;
        }
    }

    //! slope := dx. Returns the sum of ds.
    ATTNGRAFT_DEVICE float finish(int u, int word, SoftmaxRowSum found, float (&slope)[Vector::kOfWord]) const
    {
        float p[Vector::kOfWord];
        float g[Vector::kOfWord];
        probabilities[u].floats(word, p);
        gradient[u].floats(word, g);
        float total = 0.F;
#pragma unroll
        for (int i = 0; i < Vector::kOfWord; ++i)
        {
            bool const isWeighed = p[i] != 0.F && (!kIsGeneral || found.weigh != 0.F);
            float const ds = isWeighed ? p[i] * (g[i] - found.sum) : 0.F;
            slope[i] = isWeighed ? ds * slope[i] : 0.F;
            total += ds;
        }
        return total;
    }
};

//! What the bias's gradient needs of a row. `total`: this thread's sum of ds.
template <int threads, bool isClustered>
ATTNGRAFT_DEVICE void leaveForBias(
    SoftmaxBackwardPlan const& plan, int64_t row, SoftmaxRowSum found, float total, bool isFirst)
{
    if (plan.rowSums != nullptr && isFirst)
    {
        plan.rowSums[row] = found;
    }
    if (plan.rowTotals != nullptr)
    {
        total = sumOverRow<threads, isClustered>(total, kTotal, plan.policy.clusterBlocks);
        if (isFirst)
        {
            plan.rowTotals[row] = total;
        }
    }
}

//! Threads of a multiprocessor that registers should suffice for: enough loads under way, and none spilt.
constexpr int softmaxBackwardResident(int units, SoftmaxBackwardRows kind)
{
#if defined(ATTNGRAFT_SOFTMAX_BACKWARD_RESIDENT)
    static_cast<void>(units);
    static_cast<void>(kind);
    return ATTNGRAFT_SOFTMAX_BACKWARD_RESIDENT;
#else
    if (kind == SoftmaxBackwardRows::kGeneral)
    {
        return units <= 2 ? 1024 : units <= 4 ? 640 : 512;
    }
    return units <= 2 ? 1536 : units <= 4 ? 1024 : 512;
#endif
}

constexpr int softmaxBackwardResidentBlocks(SoftmaxBackwardRung rung, SoftmaxBackwardRows kind)
{
    int const blocks = softmaxBackwardResident(rung.units, kind) / rung.blockThreads();
    return blocks > 0 ? blocks : 1;
}

template <int threads, int units>
constexpr int kSoftmaxBackwardBlock = SoftmaxBackwardRung{threads, units}.blockThreads();

template <int threads, int units, SoftmaxBackwardRows kKind>
constexpr int kSoftmaxBackwardBlocks = softmaxBackwardResidentBlocks({threads, units}, kKind);

//! `threads` threads hold a row, or the threads of all blocks of a cluster, `units` vectors each.
template <typename T, int threads, int units, SoftmaxBackwardRows kKind, bool isClustered>
__global__ void __launch_bounds__(kSoftmaxBackwardBlock<threads, units>, kSoftmaxBackwardBlocks<threads, units, kKind>)
    softmaxBackwardInRegisters(__grid_constant__ SoftmaxBackwardPlan const plan)
{
    constexpr int kRows = kSoftmaxBackwardBlock<threads, units> / threads;
    using Part = RowPart<T, threads, units, kKind, int>;
    int const blocks = isClustered ? plan.policy.clusterBlocks : 1;
    int const block = isClustered ? blockOfCluster() : 0;
    int const lane = threadOfBlock() % threads;
    int64_t row = isClustered ? clusterOfGrid() : blockOfGrid() * kRows + threadOfBlock() / threads;
    // Threads past the last row take part without keys, since shuffles need whole warps.
    bool const isReal = row < plan.rows;
    row = isReal ? row : plan.rows - 1;

    typename Part::Row const vectors(plan, row, isReal);
    int const first = vectors.firstKey(block * threads * units + lane);
    Part part;
    part.load(plan, vectors, first);
    SoftmaxRowSum found{sumOverRow<threads, isClustered>(part.dotProduct(), kDotProduct, blocks), 1.F};
    if constexpr (Part::kIsGeneral)
    {
        if (plan.searchesKeys)
        {
            bool const isUneven = part.isUneven(vectors, first, evenProbability<T>(plan));
            found.weigh = weighOfRow<T, threads, isClustered>(plan, row, isUneven, block * threads + lane, blocks);
        }
    }
    float const total = part.write(plan, vectors, first, found);
    leaveForBias<threads, isClustered>(plan, row, found, total, isReal && block + lane == 0);
    if constexpr (isClustered)
    {
        synchronizeCluster(); // others may still read what this block stored
    }
}

//! A block a row, or a cluster: once for the sum, once more to write. 64-bit keys: a row may be as long as memory.
template <typename T, SoftmaxBackwardRows kKind, bool isClustered>
__global__ void __launch_bounds__(kSoftmaxBackwardPasses.threads)
    softmaxBackwardInPasses(__grid_constant__ SoftmaxBackwardPlan const plan)
{
    constexpr int kThreads = kSoftmaxBackwardPasses.threads;
    constexpr int kVectors = kThreads * kSoftmaxBackwardPasses.units;
    using Part = RowPart<T, kThreads, kSoftmaxBackwardPasses.units, kKind, int64_t>;
    int const blocks = isClustered ? plan.policy.clusterBlocks : 1;
    int const block = isClustered ? blockOfCluster() : 0;
    int64_t const row = isClustered ? clusterOfGrid() : blockOfGrid();
    int64_t const begin = int64_t{block} * kVectors + threadOfBlock();
    int64_t const stride = int64_t{blocks} * kVectors;

    typename Part::Row const vectors(plan, row, true);
    float sum = 0.F;
    [[maybe_unused]] bool isUneven = false;
    for (int64_t vector = begin; vector < vectors.vectors(); vector += stride)
    {
        Part part;
        part.load(plan, vectors, vectors.firstKey(vector));
        sum += part.dotProduct();
        if constexpr (Part::kIsGeneral)
        {
            isUneven = isUneven || part.isUneven(vectors, vectors.firstKey(vector), evenProbability<T>(plan));
        }
    }
    SoftmaxRowSum found{sumOverRow<kThreads, isClustered>(sum, kDotProduct, blocks), 1.F};
    if constexpr (Part::kIsGeneral)
    {
        if (plan.searchesKeys)
        {
            int const lane = block * kThreads + threadOfBlock();
            found.weigh = weighOfRow<T, kThreads, isClustered>(plan, row, isUneven, lane, blocks);
        }
    }
    float total = 0.F;
    for (int64_t vector = begin; vector < vectors.vectors(); vector += stride)
    {
        Part part;
        part.load(plan, vectors, vectors.firstKey(vector));
        total += part.write(plan, vectors, vectors.firstKey(vector), found);
    }
    leaveForBias<kThreads, isClustered>(plan, row, found, total, block + threadOfBlock() == 0);
    if constexpr (isClustered)
    {
        synchronizeCluster(); // others may still read what this block stored
    }
}

} // namespace attngraft
