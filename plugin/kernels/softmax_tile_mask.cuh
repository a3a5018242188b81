// The keys of a row that are allowed, as bits in registers: they serve all rows that have the same mask, wherever in a
// vector a row begins.
#pragma once

#include "row_mask.cuh"

namespace attngraft
{

//! Those of a thread's units. A unit's bits are a window: its keys where rows begin on a vector, and before them those
//! of the vector before, which move into the unit where rows begin later.
template <typename Work>
class KeptKeys
{
public:
    //! The mask of this row and of those that have the same; `lane`: the thread's number among the row's.
    ATTNGRAFT_DEVICE void find(SoftmaxPlan const& plan, uint32_t row, int lane)
    {
        if (row < mRunEnd)
        {
            return;
        }
        RowMaskValues<T, N, Work::kTensors, int> mask;
        mask.findTensors(plan, row);
        if constexpr (kIsKeep)
        {
            mRunEnd = (plan.maskRun.quotient(row) + 1) * static_cast<uint32_t>(plan.maskRun.value);
        }
        else
        {
            mRunEnd = kAllBits;
        }
#pragma unroll
        for (uint32_t& word : mWords)
        {
            word = 0;
        }
#pragma unroll
        for (int u = 0; u < Work::kUnits; ++u)
        {
            int const first = (lane + u * Work::kThreads - 1) * N;
            mWords[u / kPerWord] |= bitsOf(plan, mask.keep, first) << (u % kPerWord * kWindow);
        }
    }

    //! Elements of unit `u` of a row that begins `phase` elements behind a vector's beginning.
    ATTNGRAFT_DEVICE uint32_t of(int u, int phase) const
    {
        return mWords[u / kPerWord] >> (u % kPerWord * kWindow + N - phase) & kEveryElement;
    }

    //! Those of a unit that are not kept, one at least, become -inf.
    static ATTNGRAFT_DEVICE void drop(uint32_t kept, Words<typename Work::T, Work::kElements>& scores)
    {
        constexpr uint32_t kSpread = 0x10204080U; // bit i of 4 to the sign of byte i, and to places that do not matter
        uint32_t const dropped = ~kept & kEveryElement;
        Dropped signs;
        signs.bytes[0] = (dropped & 0xfU) * kSpread;
        signs.bytes[1] = (dropped >> 4) * kSpread;
        signs.template apply<T>(scores.values);
    }

    static constexpr uint32_t kEveryElement = (1U << Work::kElements) - 1U;

private:
    using T = typename Work::T;
    static constexpr int N = Work::kElements;
    static constexpr bool kIsKeep = Work::kTensors == MaskTensors::kKeepBytes;
    static constexpr int kWindow = 2 * N; //!< bits of a unit
    static constexpr int kPerWord = 32 / kWindow;
    static constexpr int kWords = (Work::kUnits + kPerWord - 1) / kPerWord;

    //! The window whose first key is `first`; no key beyond the row is allowed.
    static ATTNGRAFT_DEVICE uint32_t bitsOf(SoftmaxPlan const& plan, uint8_t const* keep, int first)
    {
        int const left = static_cast<int>(plan.keys) - first;
        uint32_t const inside = left <= 0 ? 0U : left >= kWindow ? kWholeWindow : (1U << left) - 1U;
        uint32_t const allowed = first < 0 ? inside & ~kEveryElement : inside;
        if constexpr (kIsKeep)
        {
            if (allowed != 0)
            {
                uint32_t values[kWindow / 4];
                loadRun<kWindow>(keep + first, plan.maskExtent, values);
                return allowed & nonZeros(values);
            }
        }
        return allowed;
    }

    //! Bit i: whether byte i is not 0.
    static ATTNGRAFT_DEVICE uint32_t nonZeros(uint32_t const (&values)[kWindow / 4])
    {
        constexpr uint32_t kGather = 0x00204081U; // the signs of 4 bytes to the highest bits
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < kWindow / 4; ++i)
        {
            uint32_t const signs = (((values[i] & 0x7f7f7f7fU) + 0x7f7f7f7fU) | values[i]) & 0x80808080U;
            bits |= (signs * kGather >> 28) << (4 * i);
        }
        return bits;
    }

    static constexpr uint32_t kWholeWindow = (1U << kWindow) - 1U;

    uint32_t mWords[kWords]{};
    uint32_t mRunEnd{0}; //!< rows before this one have this mask
};

} // namespace attngraft
