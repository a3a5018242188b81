// The products of attention for one tile of queries, with the scores in registers, on the tensor cores through
// mma.sync.
#pragma once

#include "attention_rows.cuh"
#include "tensor_core.cuh"

namespace attngraft
{

//! A warp's rows of scores against one tile of keys, and what they become.
template <typename Math, typename Tile>
struct AttentionWarp : AttentionRows<Tile::kSlices, Tile::kKeys, Tile::kValue>
{
    using T = typename Math::Element;
    using Rows = AttentionRows<Tile::kSlices, Tile::kKeys, Tile::kValue>;
    static constexpr int kSlices = Tile::kSlices;
    static constexpr int kHeadSteps = Tile::kHead * static_cast<int>(sizeof(T)) / 32; //!< two vectors each
    static constexpr int kKeyPairs = Tile::kKeys / 16;

    using Rows::context;
    using Rows::scores;
    using Rows::sum;
    uint32_t queries[kSlices][Tile::kKeepsQuery ? kHeadSteps : 1][4];

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

    //! context += exp(scores - reference) * values, sum += exp(scores - reference).
    template <bool subtractFirst>
    ATTNGRAFT_DEVICE void multiplyValues(SharedAddress valueTile, float factor)
    {
        float offset[kSlices][2];
        this->template prepareWeights<subtractFirst>(factor, offset);
        auto const weigh = [&](int m, int n, int half, float (&weight)[2]) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
            {
                weight[i] = Rows::template weightOf<subtractFirst>(scores[m][n][2 * half + i], offset[m][half], factor);
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
                    values[i] = loadShared<uint32_t>(
                        valueTile + (row + i) * Tile::kValueBytes + swizzled(2 * n + lane / 16, row + i) + column);
                }
#pragma unroll
                for (int m = 0; m < kSlices; ++m)
                {
                    multiplyAdd<Math>(context[m][n], weights[m], values[0], values[1]);
                }
            }
        }
    }
};

} // namespace attngraft
