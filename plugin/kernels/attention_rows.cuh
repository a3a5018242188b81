// The rows of a warp in registers: scores against a tile of keys, and the online softmax that turns them into sums and
// a context. Shared by the kernels of all tensor cores, whose products leave fragments of the same shape.
//
// The softmax is the online one of Milakov and Gimelshein (arXiv:1805.02867) in the arrangement of FlashAttention-2
// (Dao, arXiv:2307.08691): a warp owns whole rows, so rows are reduced by shuffles alone.
#pragma once

#include "attention_block.cuh"
#include "tensor_core.cuh"

namespace attngraft
{

//! Scores may exceed the row's reference by this power of two before sums and context are scaled to a new one: exp2
//! then stays far below the largest half, and few tiles pay for scaling (FlashAttention-4 does the same).
constexpr float kRescaleThreshold = 8.F;

//! Powers of two from here on lie so far from 0 that a product which is rounded on its own and one which is rounded
//! with a sum differ by what 16 bits show. Then all are rounded alike, so that the largest weight of a row is
//! exactly 1.
constexpr float kFarOffset = 256.F;

//! exp(x) = exp2(x * log2(e)).
constexpr float kPowersPerExp = 1.4426950408889634F;

//! `slices` times 16 rows of a warp. A thread has, of each slice, rows lane / 4 and 8 below it, and of every 8 columns
//! 2 * (lane % 4) and the next.
template <int slices, int keys, int values>
struct AttentionRows
{
    float scores[slices][keys / 8][4];
    float context[slices][values / 8][4];
    float sum[slices][2];       //!< of this thread's columns only, until finishSums
    float reference[slices][2]; //!< in units of the scores; -inf before any key is allowed
    float bound[slices][2];     //!< a score beyond it raises the reference; -inf before any key is allowed
    bool isFar;                 //!< whether a reference of the warp is beyond kFarOffset

    //! What to multiply sums and context with once a reference has risen.
    using Shrink = float[slices][2];

    ATTNGRAFT_DEVICE void clear()
    {
#pragma unroll
        for (int m = 0; m < slices; ++m)
        {
#pragma unroll
            for (int n = 0; n < values / 8; ++n)
            {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
                    context[m][n][i] = 0.F;
                }
            }
            sum[m][0] = sum[m][1] = 0.F;
            reference[m][0] = reference[m][1] = -INFINITY;
            bound[m][0] = bound[m][1] = -INFINITY;
        }
        isFar = false;
    }

    //! Brings the rows' references up to the tile's maxima where these exceed the bounds, and scales the sums.
    //! `factor` turns units of the scores into powers of two. Returns whether the context is to be scaled too: for all
    //! threads of the warp alike.
    ATTNGRAFT_DEVICE bool raiseReferences(float factor, Shrink& shrink)
    {
        float top[slices][2];
        bool isExceeded = false;
#pragma unroll
        for (int m = 0; m < slices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                float even = scores[m][0][2 * half];
                float odd = scores[m][0][2 * half + 1];
#pragma unroll
                for (int n = 1; n < keys / 8; ++n)
                {
                    even = fmaxf(even, scores[m][n][2 * half]);
                    odd = fmaxf(odd, scores[m][n][2 * half + 1]);
                }
                top[m][half] = fmaxf(even, odd);
                // -inf exceeds nothing: a row without a key so far needs no reference.
                isExceeded = isExceeded || top[m][half] > bound[m][half];
            }
        }
        if (!anyInWarp(isExceeded))
        {
            return false;
        }
        bool isBeyond = false;
#pragma unroll
        for (int m = 0; m < slices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                float best = top[m][half];
                best = fmaxf(best, shuffleXor(best, 1));
                best = fmaxf(best, shuffleXor(best, 2));
                best = fmaxf(best, reference[m][half]);
                shrink[m][half] = exp2Fast((reference[m][half] - finite(best)) * factor);
                reference[m][half] = best;
                sum[m][half] *= shrink[m][half];
                isBeyond = isBeyond || fabsf(finite(best) * factor) > kFarOffset;
            }
        }
        isFar = anyInWarp(isBeyond);
        return true;
    }

    //! Sets the bounds for the next tile, once the sums have taken up one: while there is time, since a tile's first
    //! exponentials wait for nothing but the comparison.
    ATTNGRAFT_DEVICE void setBounds(float factor)
    {
        constexpr float kLargest = 3e38F; // for the smallest factors
        float const unit = fminf(reciprocalFast(factor), kLargest);
#pragma unroll
        for (int m = 0; m < slices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                // A weight that is more than half of its row must be exactly 1, or rounding it to 16 bits would show.
                float const powers = fminf(log2Fast(fmaxf(sum[m][half], 1.F)), kRescaleThreshold);
                bound[m][half] = fmaf(powers, unit, reference[m][half]);
            }
        }
    }

    ATTNGRAFT_DEVICE void scaleContext(Shrink const& shrink)
    {
#pragma unroll
        for (int m = 0; m < slices; ++m)
        {
#pragma unroll
            for (int n = 0; n < values / 8; ++n)
            {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
                    context[m][n][i] *= shrink[m][i / 2];
                }
            }
        }
    }

    //! Finds what weightOf is to be given with the scores. What is a large number in the scores' units would overflow
    //! as a power of two where a bias may be as large: then it is subtracted first.
    template <bool subtractFirst>
    ATTNGRAFT_DEVICE void prepareWeights(float& factor, float (&offset)[slices][2])
    {
#pragma unroll
        for (int m = 0; m < slices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                float const from = finite(reference[m][half]);
                offset[m][half] = subtractFirst ? from : multiplyAlone(from, factor);
            }
        }
        if (!subtractFirst && isFar)
        {
            subtractOffsets(factor, offset);
            factor = 1.F;
        }
    }

    //! exp(score - reference).
    template <bool subtractFirst>
    static ATTNGRAFT_DEVICE float weightOf(float score, float offset, float factor)
    {
        return exp2Fast(subtractFirst ? (score - offset) * factor : fmaf(score, factor, -offset));
    }

    //! The rows' whole sums, in every thread of a row.
    ATTNGRAFT_DEVICE void finishSums()
    {
#pragma unroll
        for (int m = 0; m < slices; ++m)
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
    //! Scores become powers of two, each product rounded as that of the reference was.
    ATTNGRAFT_DEVICE void subtractOffsets(float factor, float (&offset)[slices][2])
    {
#pragma unroll
        for (int m = 0; m < slices; ++m)
        {
#pragma unroll
            for (int n = 0; n < keys / 8; ++n)
            {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
                    scores[m][n][i] = multiplyAlone(scores[m][n][i], factor) - offset[m][i / 2];
                }
            }
            offset[m][0] = offset[m][1] = 0.F;
        }
    }

    //! A reference that is subtracted from -inf must not be -inf itself.
    static ATTNGRAFT_DEVICE float finite(float reference)
    {
        return reference == -INFINITY ? 0.F : reference;
    }
};

} // namespace attngraft
