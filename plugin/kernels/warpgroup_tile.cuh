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
    static constexpr int kHeadSteps = Tile::kHead / 16;
    static constexpr int kKeySteps = Tile::kKeys / 16;
    static constexpr int kStepBytes = 32; //!< of 16 columns
    static constexpr int kStepsOfPanel = 4;
    static constexpr int kRowBytes = 128;  //!< of a panel
    static constexpr int kWidest = 256;    //!< columns of one product
    static constexpr int kUnusedStep = 16; //!< between panels, where a product lies within one

    using Rows::context;
    using Rows::scores;
    using Rows::sum;
    uint32_t weights[kKeySteps][4];

    //! Starts scores = queries * keys^T.
    ATTNGRAFT_DEVICE void startScores(SharedAddress queryTile, int warpgroup, SharedAddress keyTile)
    {
        uint64_t const queries = matrixDescriptor(queryTile + warpgroup * kWarpgroupRows * kRowBytes, kUnusedStep);
        uint64_t const keys = matrixDescriptor(keyTile, kUnusedStep);
#pragma unroll
        for (int k = 0; k < kHeadSteps; ++k)
        {
            int const panel = k / kStepsOfPanel;
            int const step = k % kStepsOfPanel * kStepBytes;
            WarpgroupProduct<Math, Tile::kKeys>::ofShared(scores[0],
                queries + descriptorSteps(panel * TileLayouts<Tile>::Query::kPanelBytes + step),
                keys + descriptorSteps(panel * TileLayouts<Tile>::Key::kPanelBytes + step), k > 0);
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
            addProduct<0>(k, values + descriptorSteps(k * 16 * kRowBytes));
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
#pragma unroll
            for (int i = 0; i < 4; ++i)
            {
                float const(&from)[4] = scores[0][2 * k + i / 2];
                weights[k][i] = packPair<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
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

private:
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
