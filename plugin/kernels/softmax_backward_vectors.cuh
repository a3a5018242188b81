// A row of a tensor in vectors of 16 bytes: where they begin, reading and writing them, whole or in part, and sums over
// the threads that hold a row.
#pragma once

#include "softmax_backward_instructions.cuh"
#include "softmax_backward_plan.h"

#include <cstring>

namespace attngraft
{

template <typename T>
ATTNGRAFT_DEVICE float widened(T value)
{
    if constexpr (std::is_same_v<T, __half>)
    {
        return __half2float(value);
    }
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    {
        return __bfloat162float(value);
    }
    else
    {
        return value;
    }
}

template <typename T>
ATTNGRAFT_DEVICE T rounded(float value)
{
    if constexpr (std::is_same_v<T, __half>)
    {
        return __float2half_rn(value);
    }
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    {
        return __float2bfloat16_rn(value);
    }
    else
    {
        return value;
    }
}

//! Elements as they lie in memory, two in a word or one.
template <typename T>
struct RowVector
{
    static constexpr int kElements = kVectorBytes / static_cast<int>(sizeof(T));
    static constexpr int kWords = kVectorBytes / 4;
    static constexpr int kOfWord = kElements / kWords;
    static constexpr int kBits = 8 * static_cast<int>(sizeof(T));
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;

    uint32_t words[kWords]{};

    ATTNGRAFT_DEVICE void load(T const* from)
    {
        uint4 const vector = loadStreaming16(from);
        words[0] = vector.x;
        words[1] = vector.y;
        words[2] = vector.z;
        words[3] = vector.w;
    }

    //! Where the element is 0 so far.
    ATTNGRAFT_DEVICE void loadElement(int e, T const* from)
    {
        words[e / kOfWord] |= uint32_t{loadStreamingBits<Bits>(from)} << (e % kOfWord * kBits);
    }

    ATTNGRAFT_DEVICE void store(T* to) const
    {
        storeStreaming16(to, uint4{words[0], words[1], words[2], words[3]});
    }

    ATTNGRAFT_DEVICE void storeElement(int e, T* to) const
    {
        storeStreamingBits<Bits>(to, static_cast<Bits>(words[e / kOfWord] >> (e % kOfWord * kBits)));
    }

    ATTNGRAFT_DEVICE void clear(int e)
    {
        uint32_t const element = static_cast<Bits>(~UINT32_C(0));
        words[e / kOfWord] &= ~(element << (e % kOfWord * kBits));
    }

    //! With a `zero` that compilers do not know to be one, what was computed from the elements before is computed
    //! again, and occupies no registers in between.
    ATTNGRAFT_DEVICE void forget(uint32_t zero)
    {
#pragma unroll
        for (int i = 0; i < kWords; ++i)
        {
            words[i] ^= zero;
        }
    }

    //! The elements of a word: kOfWord numbers.
    ATTNGRAFT_DEVICE void floats(int word, float (&to)[kOfWord]) const
    {
        if constexpr (kOfWord == 1)
        {
            std::memcpy(to, &words[word], sizeof(float));
        }
        else if constexpr (std::is_same_v<T, __half>)
        {
            __half2 pair;
            std::memcpy(&pair, &words[word], sizeof(pair));
            float2 const both = __half22float2(pair);
            to[0] = both.x;
            to[1] = both.y;
        }
        else
        {
            to[0] = bitsAsFloat(words[word] << 16);
            to[1] = bitsAsFloat(words[word] & 0xffff0000U);
        }
    }

    ATTNGRAFT_DEVICE void set(int word, float const (&from)[kOfWord])
    {
        if constexpr (kOfWord == 1)
        {
            std::memcpy(&words[word], from, sizeof(float));
        }
        else
        {
            words[word] = packPair<T>(from[0], from[1]);
        }
    }
};

//! A row as vectors of the probabilities' memory. Unless they are `isVectorwise`, the first vector may begin before the
//! row and the last one end behind it.
template <typename T, bool isVectorwise, typename Index>
struct RowOfVectors
{
    static constexpr int kElements = RowVector<T>::kElements;

    int64_t offset;
    Index keys;
    Index shift{0};  //!< elements of the first vector that lie before the row
    Index before{0}; //!< elements of the tensors before the row, a vector of them at most
    Index behind{0}; //!< and behind it

    //! Where not `isReal`, a row without keys in the same place.
    ATTNGRAFT_DEVICE RowOfVectors(SoftmaxBackwardPlan const& plan, int64_t row, bool isReal)
        : offset(row * plan.keys)
        , keys(isReal ? static_cast<Index>(plan.keys) : 0)
    {
        if constexpr (!isVectorwise)
        {
            T const* const first = static_cast<T const*>(plan.probabilities) + offset;
            shift = static_cast<Index>(reinterpret_cast<uintptr_t>(first) % kVectorBytes / sizeof(T));
            int64_t const rest = (plan.rows - row - 1) * plan.keys;
            before = static_cast<Index>(offset < kElements ? offset : kElements);
            behind = static_cast<Index>(rest < kElements ? rest : kElements);
        }
    }

    ATTNGRAFT_DEVICE Index vectors() const
    {
        return (keys + shift + kElements - 1) / kElements;
    }

    ATTNGRAFT_DEVICE Index firstKey(Index vector) const
    {
        return vector * kElements - shift;
    }

    //! Where a key of the row is in a tensor.
    template <typename Element>
    ATTNGRAFT_DEVICE auto at(Element* tensor, Index key) const
    {
        using Typed = std::conditional_t<std::is_const_v<Element>, T const, T>;
        return static_cast<Typed*>(tensor) + (offset + key);
    }

    ATTNGRAFT_DEVICE bool isOutside(Index first) const
    {
        return first >= keys;
    }

    ATTNGRAFT_DEVICE bool isWhole(Index first) const
    {
        return isVectorwise || (first >= 0 && first + kElements <= keys);
    }

    ATTNGRAFT_DEVICE bool holds(Index key) const
    {
        return key >= 0 && key < keys;
    }

    //! The vector of the key `first`, which is `from`, and not outside the row. It brings elements of the rows beside
    //! this one along, never any from outside the tensor. `vector` is 0 so far.
    ATTNGRAFT_DEVICE void load(RowVector<T>& vector, T const* from, bool isInStep, Index first) const
    {
        if constexpr (isVectorwise)
        {
            vector.load(from);
        }
        else if (isInStep && first >= -before && first + kElements <= keys + behind)
        {
            vector.load(from);
        }
        else
        {
#pragma unroll
            for (int e = 0; e < kElements; ++e)
            {
                if (holds(first + e))
                {
                    vector.loadElement(e, from + e);
                }
            }
        }
    }

    ATTNGRAFT_DEVICE void store(RowVector<T> const& vector, T* to, bool isInStep, Index first) const
    {
        if constexpr (isVectorwise)
        {
            vector.store(to);
        }
        else if (isInStep && isWhole(first))
        {
            vector.store(to);
        }
        else
        {
#pragma unroll
            for (int e = 0; e < kElements; ++e)
            {
                if (holds(first + e))
                {
                    vector.storeElement(e, to + e);
                }
            }
        }
    }
};

constexpr int kThreadsOfWarp = 32;

//! Sums over a row that a kernel makes, one after another: each has its own places in shared memory, since the next may
//! begin before all have read it.
enum RowSum : int
{
    kDotProduct,
    kUnequal,
    kAllowed,
    kTotal,
    kRowSums
};

constexpr int kScratchOfSum = kThreadsOfWarp + 1; //!< one of every warp, and that of the block
constexpr int kRowScratch = kRowSums * kScratchOfSum;

ATTNGRAFT_DEVICE float sumOverLanes(float value, int lanes)
{
#pragma unroll
    for (int offset = kThreadsOfWarp / 2; offset > 0; offset /= 2)
    {
        if (offset < lanes)
        {
            value += shuffleXor(value, offset);
        }
    }
    return value;
}

//! Over `threads` neighbouring threads, which are a power of two, and more than a warp only if they are the whole
//! block; where `isClustered`, over all blocks of the cluster, of which there are `blocks`. All threads get the same.
template <int threads, bool isClustered>
ATTNGRAFT_DEVICE float sumOverRow(float value, RowSum sum, [[maybe_unused]] int blocks)
{
    int const place = sum * kScratchOfSum;
    value = sumOverLanes(value, threads < kThreadsOfWarp ? threads : kThreadsOfWarp);
    if constexpr (threads > kThreadsOfWarp)
    {
        constexpr int kWarps = threads / kThreadsOfWarp;
        int const lane = threadOfBlock() % kThreadsOfWarp;
        if (lane == 0)
        {
            storeScratch<kRowScratch>(place + threadOfBlock() / kThreadsOfWarp, value);
        }
        synchronizeThreads();
        value = lane < kWarps ? loadScratch<kRowScratch>(place + lane) : 0.F;
        value = sumOverLanes(value, kThreadsOfWarp);
    }
    if constexpr (isClustered)
    {
        if (threadOfBlock() == 0)
        {
            storeScratch<kRowScratch>(place + kScratchOfSum - 1, value);
        }
        synchronizeCluster();
        value = 0.F;
        for (int block = 0; block < blocks; ++block)
        {
            value += loadScratchOf<kRowScratch>(block, place + kScratchOfSum - 1);
        }
    }
    return value;
}

} // namespace attngraft
