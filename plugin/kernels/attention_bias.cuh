// A bias read two keys at a time: what a thread has of a row of scores lies in pairs, 8 keys apart.
#pragma once

#include "attention_block.cuh"

#include <cstring>
#include <type_traits>

namespace attngraft
{

//! Two neighbouring elements.
template <typename T>
struct alignas(2 * sizeof(T)) Pair
{
    T values[2];

    ATTNGRAFT_DEVICE float asFloat(int i) const
    {
        return static_cast<float>(values[i]);
    }
};

//! `from` is aligned to two elements.
template <typename T>
ATTNGRAFT_DEVICE Pair<T> loadPair(T const* from)
{
    using Word = std::conditional_t<sizeof(T) == 4, uint64_t, uint32_t>;
    Word const word = *reinterpret_cast<Word const*>(from);
    Pair<T> pair;
    memcpy(&pair, &word, sizeof(pair));
    return pair;
}

//! The thread's pairs of a row of a tile, of which `first` is one, zeros where no keys are left. `keysLeft`, an even
//! number, counts from the first key of the tile.
template <typename T, int count>
ATTNGRAFT_DEVICE void loadPairs(T const* first, int keysLeft, Pair<T> (&pairs)[count])
{
    if (keysLeft >= 8 * count)
    {
#pragma unroll
        for (int n = 0; n < count; ++n)
        {
            pairs[n] = loadPair(first + 8 * n);
        }
        return;
    }
    int const column = laneOfThread() % 4 * 2;
#pragma unroll
    for (int n = 0; n < count; ++n)
    {
        pairs[n] = column + 8 * n < keysLeft ? loadPair(first + 8 * n) : Pair<T>{};
    }
}

//! Scores of the upper or lower of a thread's two rows become score * slope + bias.
template <typename T, int count>
ATTNGRAFT_DEVICE void addPairs(float slope, Pair<T> const (&pairs)[count], int half, float (&scores)[count][4])
{
#pragma unroll
    for (int n = 0; n < count; ++n)
    {
#pragma unroll
        for (int i = 0; i < 2; ++i)
        {
            float& s = scores[n][2 * half + i];
            s = fmaf(s, slope, pairs[n].asFloat(i));
        }
    }
}

} // namespace attngraft
