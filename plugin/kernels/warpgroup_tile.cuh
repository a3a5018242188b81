// The products of attention for one tile of queries on the tensor cores of compute capability 9.0: a warp group has 64
// rows, each of its warps 16 of them.
#pragma once

#include "attention_work.cuh"
#include "attention_rows.cuh"
#include "warpgroup_instructions.cuh"

namespace attngraft
{

//! A warp's rows, whose products the warp group computes together.
template <typename Math, typename Tile>
struct WarpgroupRows : AttentionRows<1, Tile::kKeys, Tile::kValue>
{
    using T = typename Math::Element;
    using Rows = AttentionRows<1, Tile::kKeys, Tile::kValue>;
    static constexpr bool kIsFloat = sizeof(T) == 4;
    static constexpr int kStepBytes = 32; //!< of 16 columns, of TF32 8
    static constexpr int kColumnsOfStep = kStepBytes / static_cast<int>(sizeof(T));
    static constexpr int kHeadSteps = Tile::kHead / kColumnsOfStep;
    static constexpr int kKeySteps = Tile::kKeys / kColumnsOfStep;
    static constexpr bool kInPlace = Tile::kWeighsInPlace;
    static constexpr int kStepsOfPanel = 4;
    static constexpr int kRowBytes = 128;  //!< of a panel
    static constexpr int kWidest = 256;    //!< columns of one product
    static constexpr int kUnusedStep = 16; //!< between panels, where a product lies within one

    using Rows::context;
    using Rows::scores;
    using Rows::sum;
    //! A thread's part of a left factor: rows lane / 4 and 8 below it, of columns 2 * (lane % 4) and the next, which
    //! are one register, and those 8 behind; of TF32 columns lane % 4 and that 4 behind.
    using Fragment = std::conditional_t<kIsFloat, float, uint32_t>[4];
    Fragment weights[kInPlace ? 1 : kKeySteps];
    Fragment queries[Tile::kKeepsQuery ? kHeadSteps : 1];

    //! Starts scores = queries * keys^T.
    ATTNGRAFT_DEVICE void startScores(SharedAddress queryTile, int warpgroup, SharedAddress keyTile)
    {
        uint64_t const tile = matrixDescriptor(queryTile + warpgroup * kWarpgroupRows * kRowBytes, kUnusedStep);
        uint64_t const keys = matrixDescriptor(keyTile, kUnusedStep);
#pragma unroll
        for (int k = 0; k < kHeadSteps; ++k)
        {
            int const panel = k / kStepsOfPanel;
            int const step = k % kStepsOfPanel * kStepBytes;
            uint64_t const right = keys + descriptorSteps(panel * TileLayouts<Tile>::Key::kPanelBytes + step);
            if constexpr (Tile::kKeepsQuery)
            {
                WarpgroupProduct<Math, Tile::kKeys>::ofRegisters(scores[0], queries[k], right, k > 0);
            }
            else
            {
                uint64_t const left = tile + descriptorSteps(panel * TileLayouts<Tile>::Query::kPanelBytes + step);
                WarpgroupProduct<Math, Tile::kKeys>::ofShared(scores[0], left, right, k > 0);
            }
        }
        commitProducts();
    }

    //! Starts context += weights * values.
    ATTNGRAFT_DEVICE void startContext(SharedAddress valueTile)
    {
        uint64_t const values = matrixDescriptor(valueTile, TileLayouts<Tile>::Value::kPanelBytes);
#pragma unroll
        for (int k = 0; k < kKeySteps; ++k)
        {
            if constexpr (kIsFloat)
            {
                int const step =
                    k / kStepsOfPanel * TileLayouts<Tile>::Value::kPanelBytes + k % kStepsOfPanel * kStepBytes;
                WarpgroupProduct<Math, Tile::kValue>::ofRegisters(
                    context[0], weightsOf(k), values + descriptorSteps(step), true);
            }
            else
            {
                addProduct<0>(k, values + descriptorSteps(k * 16 * kRowBytes));
            }
        }
        commitProducts();
    }

    //! Scores become exp(scores - reference), which the sums take up.
    template <bool subtractFirst>
    ATTNGRAFT_DEVICE void exponentiate(float factor)
    {
        float offset[1][2];
        this->template prepareWeights<subtractFirst>(factor, offset);
#pragma unroll
        for (int n = 0; n < Tile::kKeys / 8; ++n)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                float& low = scores[0][n][2 * half];
                float& high = scores[0][n][2 * half + 1];
                low = Rows::template weightOf<subtractFirst>(low, offset[0][half], factor);
                high = Rows::template weightOf<subtractFirst>(high, offset[0][half], factor);
                sum[0][half] += low + high;
            }
        }
    }

    //! Exponentials to the fragments that startContext multiplies with.
    ATTNGRAFT_DEVICE void packWeights()
    {
#pragma unroll
        for (int k = 0; k < kKeySteps; ++k)
        {
            if constexpr (kIsFloat)
            {
                roundWeights(k);
            }
            else
            {
                packPairs(k);
            }
        }
    }

    //! The same products, done when the functions return.
    ATTNGRAFT_DEVICE void multiplyKeys(SharedAddress queryTile, int warpgroup, SharedAddress keyTile)
    {
        pinRegisters(scores[0]);
        fenceProducts();
        startScores(queryTile, warpgroup, keyTile);
        waitForProducts<0>();
        pinRegisters(scores[0]);
    }

    ATTNGRAFT_DEVICE void multiplyValues(SharedAddress valueTile)
    {
        pinRegisters(context[0]);
        fenceProducts();
        startContext(valueTile);
        waitForProducts<0>();
        pinRegisters(context[0]);
    }

    //! The queries' fragments to registers, rounded.
    ATTNGRAFT_DEVICE void keepQueries(SharedAddress queryTile, int firstRow)
    {
        using Layout = typename TileLayouts<Tile>::Query;
        int const lane = laneOfThread();
        int const row = firstRow + lane / 4;
#pragma unroll
        for (int k = 0; k < kHeadSteps; ++k)
        {
#pragma unroll
            for (int i = 0; i < 4; ++i)
            {
                SharedAddress const vector = queryTile + Layout::at(row + i % 2 * 8, 2 * k + i / 2);
                auto const bits = loadShared<uint32_t>(vector + lane % 4 * static_cast<int>(sizeof(T)));
                queries[k][i] = bitsAsFloat(roundForTf32(bits));
            }
        }
    }

private:
    ATTNGRAFT_DEVICE float (&weightsOf(int k))[4]
    {
        if constexpr (kInPlace)
        {
            return scores[0][k];
        }
        else
        {
            return weights[k];
        }
    }

    ATTNGRAFT_DEVICE void packPairs(int k)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            float const(&from)[4] = scores[0][2 * k + i / 2];
            weights[k][i] = packPair<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
        }
    }

    //! A thread has the weights of keys 2 t and 2 t + 1 where the product wants t and t + 4: so the keys change places,
    //! in the values too (see RoundingLoader).
    ATTNGRAFT_DEVICE void roundWeights(int k)
    {
        float const from[4] = {scores[0][k][0], scores[0][k][1], scores[0][k][2], scores[0][k][3]};
#pragma unroll
        for (int i = 0; i < 4; ++i)
        {
            weightsOf(k)[i] = roundWeightForTf32(from[i % 2 * 2 + i / 2]);
        }
    }

    //! One step of 16 keys, as many columns at once as a product may have.
    template <int column>
    ATTNGRAFT_DEVICE void addProduct(int k, uint64_t values)
    {
        if constexpr (column < Tile::kValue)
        {
            constexpr int kLeft = Tile::kValue - column;
            constexpr int kWidth = kLeft < kWidest ? kLeft : kWidest;
            auto& part = reinterpret_cast<float (&)[kWidth / 8][4]>(context[0][column / 8]);
            constexpr int kPanel = column / (kRowBytes / static_cast<int>(sizeof(T)));
            WarpgroupProduct<Math, kWidth>::ofRegisters(
                part, weights[k], values + descriptorSteps(kPanel * TileLayouts<Tile>::Value::kPanelBytes));
            addProduct<column + kWidth>(k, values);
        }
    }
};

} // namespace attngraft
