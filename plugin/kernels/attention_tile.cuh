// Attention of one tile of queries: scores, softmax and context of a block's rows, a tile of keys at a time, with the
// scores in registers and the products on the tensor cores through mma.sync.
//
// The softmax is the online one of Milakov and Gimelshein (arXiv:1805.02867) in the arrangement of FlashAttention-2
// (Dao, arXiv:2307.08691): a warp owns whole rows, so rows are reduced by shuffles alone.
#pragma once

#include "attention_block.cuh"
#include "attention_mask.cuh"
#include "attention_plan.h"
#include "tensor_core.cuh"

namespace attngraft
{

//! Scores may exceed the row's reference by this power of two before sums and context are scaled to a new one: exp2
//! then stays far below the largest half, and few tiles pay for scaling (FlashAttention-4 does the same).
constexpr float kRescaleThreshold = 8.F;

//! A warp's rows of scores against one tile of keys, and what they become.
template <typename Math, typename Tile>
struct AttentionWarp
{
    using T = typename Math::Element;
    static constexpr int kSlices = Tile::kSlices;
    static constexpr int kHeadSteps = Tile::kHead * static_cast<int>(sizeof(T)) / 32; //!< two vectors each
    static constexpr int kKeyPairs = Tile::kKeys / 16;

    float scores[kSlices][Tile::kKeys / 8][4];
    float context[kSlices][Tile::kValue / 8][4];
    float sum[kSlices][2];       //!< of this thread's columns only
    float reference[kSlices][2]; //!< in units of the scores; -inf before any key is allowed
    uint32_t queries[kSlices][Tile::kKeepsQuery ? kHeadSteps : 1][4];

    ATTNGRAFT_DEVICE void clear()
    {
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int n = 0; n < Tile::kValue / 8; ++n)
            {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
                    context[m][n][i] = 0.F;
                }
            }
            sum[m][0] = sum[m][1] = 0.F;
            reference[m][0] = reference[m][1] = -INFINITY;
        }
    }

    //! Fragments of the queries: rows firstRow + 16 m of the block, columns 16 k of the head.
    ATTNGRAFT_DEVICE void loadQueries(SharedAddress tile, int firstRow, int m, int k, uint32_t (&to)[4])
    {
        int const lane = laneOfThread();
        int const row = firstRow + kMmaRows * m + lane % 16;
        loadMatrices(to, tile + row * Tile::kHeadBytes + swizzled(2 * k + lane / 16, row));
    }

    ATTNGRAFT_DEVICE void keepQueries(SharedAddress tile, int firstRow)
    {
        if constexpr (Tile::kKeepsQuery)
        {
#pragma unroll
            for (int m = 0; m < kSlices; ++m)
            {
#pragma unroll
                for (int k = 0; k < kHeadSteps; ++k)
                {
                    loadQueries(tile, firstRow, m, k, queries[m][k]);
                }
            }
        }
    }

    //! scores = queries * keys^T.
    ATTNGRAFT_DEVICE void multiplyKeys(SharedAddress queryTile, int firstRow, SharedAddress keyTile)
    {
        int const lane = laneOfThread();
        int const key = lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int n = 0; n < Tile::kKeys / 8; ++n)
            {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
                    scores[m][n][i] = 0.F;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < kHeadSteps; ++k)
        {
            if constexpr (!Tile::kKeepsQuery)
            {
#pragma unroll
                for (int m = 0; m < kSlices; ++m)
                {
                    loadQueries(queryTile, firstRow, m, k, queries[m][0]);
                }
            }
            SharedAddress const from = keyTile + key * Tile::kHeadBytes + swizzled(2 * k + lane / 8 % 2, key);
#pragma unroll
            for (int n = 0; n < kKeyPairs; ++n)
            {
                uint32_t keys[4];
                loadMatrices(keys, from + n * 16 * Tile::kHeadBytes);
#pragma unroll
                for (int m = 0; m < kSlices; ++m)
                {
                    auto const& query = queries[m][Tile::kKeepsQuery ? k : 0];
                    multiplyAdd<Math>(scores[m][2 * n], query, keys[0], keys[1]);
                    multiplyAdd<Math>(scores[m][2 * n + 1], query, keys[2], keys[3]);
                }
            }
        }
    }

    //! Brings the rows' references up to the tile's maxima where these exceed them by too much. `factor` turns units of
    //! the scores into powers of two.
    ATTNGRAFT_DEVICE void updateReferences(float factor)
    {
        float top[kSlices][2];
        bool isExceeded = false;
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                float even = scores[m][0][2 * half];
                float odd = scores[m][0][2 * half + 1];
#pragma unroll
                for (int n = 1; n < Tile::kKeys / 8; ++n)
                {
                    even = fmaxf(even, scores[m][n][2 * half]);
                    odd = fmaxf(odd, scores[m][n][2 * half + 1]);
                }
                top[m][half] = fmaxf(even, odd);
                // -inf - -inf is NaN, which exceeds nothing: a row without a key so far needs no reference.
                isExceeded = isExceeded || (top[m][half] - reference[m][half]) * factor > kRescaleThreshold;
            }
        }
        if (!anyInWarp(isExceeded))
        {
            return;
        }
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                float best = top[m][half];
                best = fmaxf(best, shuffleXor(best, 1));
                best = fmaxf(best, shuffleXor(best, 2));
                best = fmaxf(best, reference[m][half]);
                float const shrink = exp2Fast((reference[m][half] - finite(best)) * factor);
                reference[m][half] = best;
                sum[m][half] *= shrink;
#pragma unroll
                for (int n = 0; n < Tile::kValue / 8; ++n)
                {
                    context[m][n][2 * half] *= shrink;
                    context[m][n][2 * half + 1] *= shrink;
                }
            }
        }
    }

    //! context += exp(scores - reference) * values, sum += exp(scores - reference). What is a large number in the
    //! scores' units would overflow as a power of two where a bias may be as large: `subtractFirst`.
    template <bool subtractFirst>
    ATTNGRAFT_DEVICE void multiplyValues(SharedAddress valueTile, float factor)
    {
        float offset[kSlices][2];
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                float const from = finite(reference[m][half]);
                offset[m][half] = subtractFirst ? from : from * factor;
            }
        }
        auto const weigh = [&](int m, int n, int half, float (&weight)[2]) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
            {
                float const score = scores[m][n][2 * half + i];
                weight[i] = exp2Fast(subtractFirst ? (score - offset[m][half]) * factor
                                                   : fmaf(score, factor, -offset[m][half]));
            }
            sum[m][half] += weight[0] + weight[1];
        };
        if constexpr (sizeof(T) == 2)
        {
            multiplyPairs(valueTile, weigh);
        }
        else
        {
            multiplySingles(valueTile, weigh);
        }
    }

    //! The rows' whole sums, in every thread of a row.
    ATTNGRAFT_DEVICE void finishSums()
    {
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                sum[m][half] += shuffleXor(sum[m][half], 1);
                sum[m][half] += shuffleXor(sum[m][half], 2);
            }
        }
    }

private:
    //! context += weights * values for 16-bit types: 16 keys at a time, whose weights lie in the threads as the
    //! product wants its left factor.
    template <typename Weigh>
    ATTNGRAFT_DEVICE void multiplyPairs(SharedAddress valueTile, Weigh weigh)
    {
        int const lane = laneOfThread();
#pragma unroll
        for (int k = 0; k < Tile::kKeys / 16; ++k)
        {
            uint32_t weights[kSlices][4];
#pragma unroll
            for (int m = 0; m < kSlices; ++m)
            {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
                    float weight[2];
                    weigh(m, 2 * k + i / 2, i % 2, weight);
                    weights[m][i] = packPair<T>(weight[0], weight[1]);
                }
            }
            int const row = 16 * k + lane % 16;
#pragma unroll
            for (int n = 0; n < Tile::kValue / 16; ++n)
            {
                uint32_t values[4];
                loadMatricesTransposed(values, valueTile + row * Tile::kValueBytes + swizzled(2 * n + lane / 16, row));
#pragma unroll
                for (int m = 0; m < kSlices; ++m)
                {
                    multiplyAdd<Math>(context[m][2 * n], weights[m], values[0], values[1]);
                    multiplyAdd<Math>(context[m][2 * n + 1], weights[m], values[2], values[3]);
                }
            }
        }
    }

    //! The same for fp32: 8 keys at a time. A thread has the weights of keys 2 t and 2 t + 1 where the product wants t
    //! and t + 4; so the keys change places, in the values too.
    template <typename Weigh>
    ATTNGRAFT_DEVICE void multiplySingles(SharedAddress valueTile, Weigh weigh)
    {
        int const lane = laneOfThread();
#pragma unroll
        for (int k = 0; k < Tile::kKeys / 8; ++k)
        {
            uint32_t weights[kSlices][4];
#pragma unroll
            for (int m = 0; m < kSlices; ++m)
            {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                {
                    float weight[2];
                    weigh(m, k, half, weight);
                    weights[m][half] = floatAsBits(weight[0]);
                    weights[m][2 + half] = floatAsBits(weight[1]);
                }
            }
            int const row = 8 * k + lane % 4 * 2;
            int const column = lane / 4 % 4 * 4; // bytes within the vector
#pragma unroll
            for (int n = 0; n < Tile::kValue / 8; ++n)
            {
                uint32_t values[2];
#pragma unroll
                for (int i = 0; i < 2; ++i)
                {
                    values[i] = loadShared<uint32_t>(valueTile + (row + i) * Tile::kValueBytes
                        + swizzled(2 * n + lane / 16, row + i) + column);
                }
#pragma unroll
                for (int m = 0; m < kSlices; ++m)
                {
                    multiplyAdd<Math>(context[m][n], weights[m], values[0], values[1]);
                }
            }
        }
    }

    //! A reference that is subtracted from -inf must not be -inf itself.
    static ATTNGRAFT_DEVICE float finite(float reference)
    {
        return reference == -INFINITY ? 0.F : reference;
    }
};

} // namespace attngraft
