// Which keys a block reads: the interval of its rows, and bits of the keys that a mask of keys lets through.
#pragma once

#include "attention_block.cuh"
#include "mask.h"

namespace attngraft
{

ATTNGRAFT_DEVICE bool keeps(void const* keep, KeepType type, int64_t offset)
{
    switch (type)
    {
    case KeepType::kInt8: return static_cast<int8_t const*>(keep)[offset] != 0;
    case KeepType::kInt32: return static_cast<int32_t const*>(keep)[offset] != 0;
    case KeepType::kInt64: return static_cast<int64_t const*>(keep)[offset] != 0;
    }
    return false;
}

//! How a block masks its scores: as the contract says, or not at all for rows that would be empty.
enum class MaskPass : int32_t
{
    kMasked,
    kUnmasked, //!< only the bias counts
    kUniform,  //!< every key counts the same
};

//! The keys that any of the block's rows may attend to, within the block's split where keys may be split.
template <bool maySplit, typename Place>
ATTNGRAFT_DEVICE KeyRange keysOfBlock(AttentionPlan const& plan, Place const& place, MaskPass pass)
{
    KeyInterval all{0, plan.keys};
    if (pass == MaskPass::kMasked)
    {
        all.begin = place.keysOf(plan, 0).begin;
        all.end = place.keysOf(plan, place.rows - 1).end;
    }
    if constexpr (!maySplit)
    {
        return all.end > all.begin ? KeyRange{static_cast<int>(all.begin), static_cast<int>(all.end)} : KeyRange{0, 0};
    }
    int64_t const splitBegin = static_cast<int64_t>(place.split) * plan.keysPerSplit;
    int64_t const splitEnd = plan.splits > 1 ? splitBegin + plan.keysPerSplit : plan.keys;
    int64_t const begin = all.begin > splitBegin ? all.begin : splitBegin;
    int64_t const end = all.end < splitEnd ? all.end : splitEnd;
    return end > begin ? KeyRange{static_cast<int>(begin), static_cast<int>(end)} : KeyRange{0, 0};
}

//! Bits of the keys that `keep` lets through, in shared memory, for the tiles that a block may read.
struct KeyBits
{
    SharedAddress words{0};

    //! Fills the words of the keys from `begin`, a multiple of 32, to `end`. The block must synchronise before they are
    //! read.
    template <typename Place>
    ATTNGRAFT_DEVICE void scan(AttentionPlan const& plan, Place const& place, int begin, int end, int threads) const
    {
        int64_t const row = place.batch * plan.keep.strides[0] + place.head * plan.keep.strides[1];
        for (int word = begin / 32 + warpOfThread(); word * 32 < end; word += threads / 32)
        {
            int const key = word * 32 + laneOfThread();
            bool const isKept =
                key < plan.keys && keeps(plan.keep.data, plan.keepType, row + key * plan.keep.strides[3]);
            uint32_t const bits = ballot(isKept);
            if (laneOfThread() == 0)
            {
                storeShared(words + word * 4, bits);
            }
        }
    }

    ATTNGRAFT_DEVICE uint32_t word(int index) const
    {
        return loadShared<uint32_t>(words + index * 4);
    }

    //! Whether all of a tile's keys are kept.
    template <int keys>
    ATTNGRAFT_DEVICE bool all(int first) const
    {
        uint32_t bits = 0xffffffffU;
#pragma unroll
        for (int i = 0; i < keys / 32; ++i)
        {
            bits &= word(first / 32 + i);
        }
        return bits == 0xffffffffU;
    }

    //! Whether any of a tile's keys is kept.
    template <int keys>
    ATTNGRAFT_DEVICE bool any(int first) const
    {
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < keys / 32; ++i)
        {
            bits |= word(first / 32 + i);
        }
        return bits != 0;
    }
};

} // namespace attngraft
