// Maximum and sum of exponentials over the threads of a row: within a warp, a block and a cluster of blocks. Sums are
// relative to the maximum of those who made them, so that one exchange serves for both.
#pragma once

#include "row_words.cuh"
#include "softmax_chunks.h"

namespace attngraft
{

constexpr int kWarpThreads = 32;

//! A finite stand-in for the maximum of scores none of which is above -inf, so that no -inf is subtracted from itself.
ATTNGRAFT_DEVICE float finiteMaximum(float maximum)
{
    return maximum == -INFINITY ? 0.F : maximum;
}

//! exp2((s - maximum) * factor) as exp2(s * factor - shift): one multiply-add for each s.
struct Exponent
{
    float factor;
    float shift;

    ATTNGRAFT_DEVICE Exponent(float maximum, float wanted)
        : factor(wanted)
        , shift(maximum * wanted)
    {
        // Products near the end of fp32's range, such as of the lowest number, which exporters add to mask a row. There
        // the next s below the maximum is so far below it that its power is 0; any factor serves by which the product
        // with the maximum is exact, such as a power of 2.
        constexpr float kFoldable = 1e37F;
        constexpr uint32_t kExponentOfProduct = 354; // with two biases of 127: 2^100
        constexpr uint32_t kLargestExponent = 254;
        if (!(fabsf(shift) < kFoldable))
        {
            uint32_t const exponent = kExponentOfProduct - (floatAsBits(maximum) >> 23 & 0xffU);
            factor = bitsAsFloat((exponent < kLargestExponent ? exponent : kLargestExponent) << 23);
            shift = maximum * factor;
        }
    }

    ATTNGRAFT_DEVICE float operator()(float s) const
    {
        return exp2Fast(fmaf(s, factor, -shift));
    }

    //! Exponentials in place of s, added to two sums in turn, so that additions wait less for each other.
    template <int N>
    ATTNGRAFT_DEVICE void addPowers(float (&s)[N], float (&sums)[2]) const
    {
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            s[e] = (*this)(s[e]);
            sums[e % 2] += s[e];
        }
    }
};

//! Of some of a row's scores: their maximum, and the sum of exp2((s - finiteMaximum(maximum)) * factor).
struct RowState
{
    float maximum{-INFINITY};
    float sum{0.F};

    //! What exponentials relative to this maximum are multiplied with when `whole` is the row's.
    ATTNGRAFT_DEVICE float weight(float whole, float factor) const
    {
        return maximum == -INFINITY ? 0.F : exp2Fast((maximum - finiteMaximum(whole)) * factor);
    }

    //! Where the maxima are equal the weight is 1, also where their difference is not a number.
    ATTNGRAFT_DEVICE void raise(float whole, float factor)
    {
        sum *= whole == maximum ? 1.F : weight(whole, factor);
        maximum = whole;
    }

    //! Of other scores beside these.
    ATTNGRAFT_DEVICE void add(RowState other, float factor)
    {
        float const larger = fmaxf(maximum, other.maximum);
        raise(larger, factor);
        other.raise(larger, factor);
        sum += other.sum;
    }
};

template <int lanes>
ATTNGRAFT_DEVICE float maximumOfLanes(float value)
{
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2)
    {
        value = fmaxf(value, shuffleXor(value, offset));
    }
    return value;
}

template <int lanes>
ATTNGRAFT_DEVICE float sumOfLanes(float value)
{
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2)
    {
        value += shuffleXor(value, offset);
    }
    return value;
}

//! The state of `lanes` neighbouring lanes' scores together, for each of them.
template <int lanes>
ATTNGRAFT_DEVICE RowState joinLanes(RowState state, float factor)
{
    state.raise(maximumOfLanes<lanes>(state.maximum), factor);
    state.sum = sumOfLanes<lanes>(state.sum);
    return state;
}

ATTNGRAFT_DEVICE uint2 bitsOf(RowState const& state)
{
    return {floatAsBits(state.maximum), floatAsBits(state.sum)};
}

ATTNGRAFT_DEVICE RowState stateOf(uint2 const& bits)
{
    RowState state;
    state.maximum = bitsAsFloat(bits.x);
    state.sum = bitsAsFloat(bits.y);
    return state;
}

//! The state of `count` parts of a row together, for each lane of a warp; `load(i)`: the bits of part i.
template <typename Load>
ATTNGRAFT_DEVICE RowState joinStates(int count, int lane, float factor, Load load)
{
    RowState mine;
    for (int i = lane; i < count; i += kWarpThreads)
    {
        mine.add(stateOf(load(i)), factor);
    }
    return joinLanes<kWarpThreads>(mine, factor);
}

//! Joins what the warps of a row found, in a block or in a cluster of blocks.
template <int threads, int groups, bool isCluster>
struct RowExchange
{
    static constexpr int kWarps = threads / kWarpThreads;
    static constexpr int kBytes = groups * kWarps * kStateBytes;

    int group;  //!< of the block's, that holds the row
    int blocks; //!< of the cluster

    //! `round`: each has shared memory of its own, so that nobody waits before the next one.
    ATTNGRAFT_DEVICE RowState operator()(RowState const& ofWarp, float factor, int round) const
    {
        if (isCluster && round > 0)
        {
            waitForCluster(); // for those who still read what the round before left
        }
        int const thread = static_cast<int>(threadIdx.x) % threads;
        int const begin = round * kBytes + group * kWarps * kStateBytes;
        SharedAddress const states = dynamicSharedMemory() + static_cast<SharedAddress>(begin);
        if (thread % kWarpThreads == 0)
        {
            auto const place = static_cast<SharedAddress>(thread / kWarpThreads * kStateBytes);
            storeShared(states + place, bitsOf(ofWarp));
        }
        if constexpr (isCluster)
        {
            return joinBlocks(states, thread % kWarpThreads, factor);
        }
        return joinWarps(states, thread, factor);
    }

    //! To be called last: others may still read this block's shared memory.
    static ATTNGRAFT_DEVICE void leave()
    {
        if constexpr (isCluster)
        {
            waitForCluster();
        }
    }

private:
    template <int index>
    ATTNGRAFT_DEVICE void meetGroup() const
    {
        if constexpr (index + 1 < groups)
        {
            if (group != index)
            {
                meetGroup<index + 1>();
                return;
            }
        }
        meetRow<index, threads>();
    }

    ATTNGRAFT_DEVICE RowState joinWarps(SharedAddress states, int thread, float factor) const
    {
        meetGroup<0>();
        auto const place = static_cast<SharedAddress>(thread % kWarps * kStateBytes);
        return joinLanes<kWarps>(stateOf(loadSharedPair(states + place)), factor);
    }

    ATTNGRAFT_DEVICE RowState joinBlocks(SharedAddress states, int lane, float factor) const
    {
        arriveAtCluster();
        waitForCluster();
        RowState const whole = joinStates(blocks * kWarps, lane, factor, [states](int i) {
            return loadFromBlock(states + static_cast<SharedAddress>(i % kWarps * kStateBytes), i / kWarps);
        });
        arriveAtCluster();
        return whole;
    }
};

} // namespace attngraft
