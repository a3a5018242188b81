// What a thread holds of a row: a unit of neighbouring elements in registers, as they lie in memory. A unit is a vector
// of 16 bytes, or a single element.
#pragma once

#include "row_instructions.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

namespace attngraft
{

constexpr float kLog2E = 1.4426950408889634F; //!< exp(x) = exp2(x * log2(e)), and exp2 is what the hardware has

//! N elements of T: a vector, or one element in the lower bits.
template <typename T, int N>
struct Words
{
    static constexpr int kBytes = N * static_cast<int>(sizeof(T));
    static constexpr int kCount = (kBytes + 3) / 4;
    static_assert(kBytes == 16 || N == 1, "a vector, or an element");
    uint32_t values[kCount];
};

constexpr uint32_t kAllBits = ~uint32_t{0};

template <typename T>
constexpr uint32_t kMinusInfinities = sizeof(T) == 4 ? 0xff800000U
    : std::is_same_v<T, __half>                      ? 0xfc00fc00U
                                                     : 0xff80ff80U;

template <typename T>
ATTNGRAFT_DEVICE float lowToFloat(uint32_t word)
{
    if constexpr (std::is_same_v<T, __half>)
    {
        auto const bits = static_cast<uint16_t>(word);
        __half value;
        memcpy(&value, &bits, sizeof(value));
        return __half2float(value);
    }
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    {
        return bitsAsFloat(word << 16);
    }
    else
    {
        return bitsAsFloat(word);
    }
}

template <typename T>
ATTNGRAFT_DEVICE float highToFloat(uint32_t word)
{
    return std::is_same_v<T, __nv_bfloat16> ? bitsAsFloat(word & 0xffff0000U) : lowToFloat<T>(word >> 16);
}

template <typename T, int N>
ATTNGRAFT_DEVICE void unpack(Words<T, N> const& words, float (&to)[N])
{
#pragma unroll
    for (int e = 0; e < N; ++e)
    {
        constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
        uint32_t const word = words.values[e / kPerWord];
        to[e] = e % kPerWord == 0 ? lowToFloat<T>(word) : highToFloat<T>(word);
    }
}

template <typename T, int N>
ATTNGRAFT_DEVICE Words<T, N> pack(float const (&from)[N])
{
    Words<T, N> words;
#pragma unroll
    for (int i = 0; i < Words<T, N>::kCount; ++i)
    {
        if constexpr (sizeof(T) == 4)
        {
            words.values[i] = floatAsBits(from[i]);
        }
        else if constexpr (N == 1)
        {
            words.values[i] = packPair<T>(from[i], 0.F);
        }
        else
        {
            words.values[i] = packPair<T>(from[2 * i], from[2 * i + 1]);
        }
    }
    return words;
}

//! The largest of N elements and `maximum`. NaN loses here; it comes back in the sum.
template <int N>
ATTNGRAFT_DEVICE float largest(float const (&values)[N], float maximum)
{
#pragma unroll
    for (int e = 0; e < N; ++e)
    {
        maximum = fmaxf(maximum, values[e]);
    }
    return maximum;
}

//! The largest elements of many units, in pairs where a register holds two.
template <typename T, int N>
class Largest
{
public:
    ATTNGRAFT_DEVICE void add(Words<T, N> const& words)
    {
        if constexpr (kInPairs)
        {
#pragma unroll
            for (int i = 0; i < Words<T, N>::kCount; ++i)
            {
                mPair = largerPair<T>(mPair, words.values[i]);
            }
        }
        else
        {
            float values[N];
            unpack(words, values);
            mValue = largest(values, mValue);
        }
    }

    ATTNGRAFT_DEVICE float value() const
    {
        return kInPairs ? fmaxf(lowToFloat<T>(mPair), highToFloat<T>(mPair)) : mValue;
    }

private:
    static constexpr bool kInPairs = sizeof(T) == 2 && N > 1;
    uint32_t mPair{kMinusInfinities<T>};
    float mValue{-INFINITY};
};

//! The lowest `count` bytes of a word, any count.
ATTNGRAFT_DEVICE uint32_t lowestBytes(int count)
{
    return count <= 0 ? 0U : count >= 4 ? kAllBits : (1U << (8 * count)) - 1U;
}

//! Elements of a unit that are not allowed: the sign of byte e says so of element e.
struct Dropped
{
    uint32_t bytes[2]{0, 0};

    //! Those before element `begin`, and from element `end` on.
    static ATTNGRAFT_DEVICE Dropped outside(int begin, int end)
    {
        Dropped dropped;
#pragma unroll
        for (int i = 0; i < 2; ++i)
        {
            dropped.bytes[i] = lowestBytes(begin - 4 * i) | ~lowestBytes(end - 4 * i);
        }
        return dropped;
    }

    //! Adds those whose byte in `keep` is 0.
    ATTNGRAFT_DEVICE void addZeros(uint32_t keep, int half)
    {
        bytes[half] |= ~(((keep & 0x7f7f7f7fU) + 0x7f7f7f7fU) | keep);
    }

    ATTNGRAFT_DEVICE bool has(int element) const
    {
        return (bytes[element / 4] >> (element % 4 * 8 + 7) & 1U) != 0;
    }

    //! Makes them -inf.
    template <typename T>
    ATTNGRAFT_DEVICE void apply(uint32_t (&words)[4]) const
    {
        if constexpr (sizeof(T) == 4)
        {
            drop<T>(words[0], spreadSigns<0x8888>(bytes[0]));
            drop<T>(words[1], spreadSigns<0x9999>(bytes[0]));
            drop<T>(words[2], spreadSigns<0xaaaa>(bytes[0]));
            drop<T>(words[3], spreadSigns<0xbbbb>(bytes[0]));
        }
        else
        {
            drop<T>(words[0], spreadSigns<0x9988>(bytes[0]));
            drop<T>(words[1], spreadSigns<0xbbaa>(bytes[0]));
            drop<T>(words[2], spreadSigns<0x9988>(bytes[1]));
            drop<T>(words[3], spreadSigns<0xbbaa>(bytes[1]));
        }
    }

private:
    template <typename T>
    static ATTNGRAFT_DEVICE void drop(uint32_t& word, uint32_t mask)
    {
        word = (word & ~mask) | (kMinusInfinities<T> & mask);
    }
};

} // namespace attngraft
