// A row's mask on the device: its interval of keys, its bias and keep values, and s of a unit of scores.
#pragma once

#include "mask.h"
#include "row_units.cuh"
#include "softmax_plan.h"

namespace attngraft
{

//! Calls use(e, value) with elements first + e of a row, e < N, that lie in [0, keys).
//! `stride` is 1, or 0 where one value serves all keys.
template <typename U, int N, typename Index, typename Use>
ATTNGRAFT_DEVICE void forRun(void const* row, int64_t stride, Index first, Index keys, Use use)
{
    auto const* const start = static_cast<U const*>(row);
#pragma unroll
    for (int e = 0; e < N; ++e)
    {
        if (first + e >= 0 && first + e < keys)
        {
            use(e, loadShareable<U>(start + (stride == 0 ? 0 : first + e)));
        }
    }
}

//! `kBytes` neighbouring bytes of a mask, from any address on.
template <int kBytes>
ATTNGRAFT_DEVICE void loadRun(uint8_t const* from, Extent const& extent, uint32_t (&to)[kBytes / 4])
{
    auto const past = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 4);
    uint8_t const* const words = from - past;
    if (words < extent.low || words + kBytes + (past != 0 ? 4 : 0) > extent.high)
    {
        loadWithin<kBytes>(from, extent, to);
        return;
    }
    uint32_t low = loadShareable<uint32_t>(words);
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i)
    {
        uint32_t high = 0;
        if (past != 0 || i + 1 < kBytes / 4)
        {
            high = loadShareable<uint32_t>(words + 4 * (i + 1));
        }
        to[i] = bitsFrom(low, high, 8 * past);
        low = high;
    }
}

//! The same where `from` is aligned to them.
template <int kBytes>
ATTNGRAFT_DEVICE void loadAlignedRun(uint8_t const* from, uint32_t (&to)[kBytes / 4])
{
    if constexpr (kBytes == 16)
    {
        uint4 const found = loadShareable<uint4>(from);
        to[0] = found.x;
        to[1] = found.y;
        to[2] = found.z;
        to[3] = found.w;
    }
    else if constexpr (kBytes == 8)
    {
        uint2 const found = loadShareable<uint2>(from);
        to[0] = found.x;
        to[1] = found.y;
    }
    else
    {
        to[0] = loadShareable<uint32_t>(from);
    }
}

//! A row's interval of keys as elements counted from unit 0, and where its bias and keep values begin.
template <typename T, int N, MaskTensors kTensors, typename Index>
struct RowMaskValues
{
    using Position = Index;
    Index begin{0}; //!< begin == end == 0: no key
    Index end{0};
    uint8_t const* bias{nullptr}; //!< of key 0
    uint8_t const* keep{nullptr};
    bool ignoresKeep{false};

    //! `isIgnored`: every key is allowed, for a row that would be empty.
    ATTNGRAFT_DEVICE void findInterval(SoftmaxPlan const& plan, int64_t row, Index shift, bool isIgnored)
    {
        ignoresKeep = isIgnored;
        IntervalMask const& interval = plan.interval;
        bool const hasBatches = interval.dependsOnBatch() && !isIgnored;
        bool const hasQueries = interval.dependsOnQuery() && !isIgnored;
        begin = shift;
        end = shift + static_cast<Index>(plan.keys);
        if (!hasBatches && !hasQueries)
        {
            return;
        }
        bool const isShort = plan.rows <= kShortDividends;
        int64_t const batch = hasBatches ? divide(row, plan.rowsPerBatch, isShort) : 0;
        int64_t const query = hasQueries ? row - divide(row, plan.queries, isShort) * interval.queries : 0;
        KeyInterval const keys = interval.row(batch, query);
        bool const isEmpty = keys.begin >= keys.end;
        begin = isEmpty ? 0 : static_cast<Index>(keys.begin) + shift;
        end = isEmpty ? 0 : static_cast<Index>(keys.end) + shift;
    }

    //! Apart from the interval so that it can wait until the scores are on their way.
    ATTNGRAFT_DEVICE void findTensors(SoftmaxPlan const& plan, int64_t row)
    {
        if constexpr (kTensors != MaskTensors::kNone)
        {
            RowOffsets const offsets = findRow(plan.masks, row, plan.rows <= kShortDividends);
            int64_t const biasBytes = plan.biasIsFloat32 ? 4 : static_cast<int64_t>(sizeof(T));
            int64_t const keepBytes = plan.keepType == KeepType::kInt8 ? 1 : plan.keepType == KeepType::kInt32 ? 4 : 8;
            bias = static_cast<uint8_t const*>(plan.bias) + offsets.first * biasBytes;
            keep = static_cast<uint8_t const*>(plan.keep) + offsets.second * keepBytes;
        }
    }
};

//! The mask values of one unit, on their way from memory beside its scores.
template <typename T, int N, MaskTensors kTensors>
struct MaskUnit
{
    static constexpr bool kIsKeep = kTensors == MaskTensors::kKeepBytes;
    static constexpr bool kIsRead = kIsKeep || kTensors == MaskTensors::kBias;
    static constexpr int kBytes = kIsKeep ? N : N * static_cast<int>(sizeof(T));
    uint32_t words[kIsRead ? kBytes / 4 : 1];

    //! The unit whose first key is `key`, which may lie before the row.
    template <typename Row>
    ATTNGRAFT_DEVICE void load(SoftmaxPlan const& plan, Row const& row, int64_t key)
    {
        if constexpr (kIsRead)
        {
            uint8_t const* const from = (kIsKeep ? row.keep : row.bias) + key * (kBytes / N);
            if (plan.maskIsWhole)
            {
                loadAlignedRun<kBytes>(from, words);
            }
            else
            {
                loadRun<kBytes>(from, plan.maskExtent, words);
            }
        }
    }

    //! Whether `keep` drops no key of the unit.
    ATTNGRAFT_DEVICE bool keepsAll() const
    {
        Dropped dropped;
#pragma unroll
        for (int i = 0; kIsKeep && i < kBytes / 4; ++i)
        {
            dropped.addZeros(words[i], i);
        }
        return ((dropped.bytes[0] | dropped.bytes[1]) & 0x80808080U) == 0;
    }

    //! Raw scores that are not allowed become -inf: those before element `begin`, from `end` on, and those that `keep`
    //! says.
    ATTNGRAFT_DEVICE void applyToRaw(bool ignoresKeep, int begin, int end, Words<T, N>& scores) const
    {
        if constexpr (N > 1)
        {
            Dropped dropped;
            bool const isCut = begin > 0 || end < N;
            if (isCut)
            {
                dropped = Dropped::outside(begin, end);
            }
            if constexpr (kIsKeep)
            {
#pragma unroll
                for (int i = 0; i < kBytes / 4; ++i)
                {
                    dropped.addZeros(ignoresKeep ? kAllBits : words[i], i);
                }
                dropped.apply<T>(scores.values);
            }
            else if (isCut)
            {
                dropped.apply<T>(scores.values);
            }
        }
    }

    //! s of the scores, -inf where not allowed. `key`: the unit's first one.
    template <typename Row>
    ATTNGRAFT_DEVICE void applyInFloat(
        SoftmaxPlan const& plan, Row const& row, int64_t key, int begin, int end, float (&scores)[N]) const
    {
        if constexpr (kTensors == MaskTensors::kBias)
        {
            addWords(plan, scores);
        }
        else
        {
            applyAny(plan, row, static_cast<typename Row::Position>(key), scores);
        }
        if (begin > 0 || end < N)
        {
            Dropped const dropped = Dropped::outside(begin, end);
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                scores[e] = dropped.has(e) ? -INFINITY : scores[e];
            }
        }
    }

private:
    ATTNGRAFT_DEVICE void addWords(SoftmaxPlan const& plan, float (&scores)[N]) const
    {
        if constexpr (kTensors == MaskTensors::kBias)
        {
            Words<T, N> packed;
            float bias[N];
#pragma unroll
            for (int i = 0; i < Words<T, N>::kCount; ++i)
            {
                packed.values[i] = words[i];
            }
            unpack(packed, bias);
#pragma unroll
            for (int e = 0; e < N; ++e)
            {
                scores[e] = fmaf(scores[e], plan.scoreMap.slope(), bias[e]);
            }
        }
    }

    template <typename Row, typename Index>
    static ATTNGRAFT_DEVICE void applyAny(SoftmaxPlan const& plan, Row const& row, Index first, float (&scores)[N])
    {
        if (!plan.scaleIsDeferred)
        {
            addBias(plan, row.bias, first, scores);
        }
        if (plan.keep != nullptr && !row.ignoresKeep)
        {
            applyKeep(plan, row.keep, first, scores);
        }
    }

    template <typename Index>
    static ATTNGRAFT_DEVICE void addBias(SoftmaxPlan const& plan, void const* bias, Index first, float (&scores)[N])
    {
        ScoreMap const& map = plan.scoreMap;
        float const slope = map.slope();
        auto const keys = static_cast<Index>(plan.keys);
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            scores[e] = map.isCapped() ? map.cap(scores[e]) : scores[e];
            scores[e] *= plan.bias == nullptr ? slope : 1.F;
        }
        auto const add = [&scores, slope](int e, float value) { scores[e] = fmaf(scores[e], slope, value); };
        if (plan.bias != nullptr && plan.biasIsFloat32)
        {
            forRun<float, N>(bias, plan.biasKeyStride, first, keys, add);
        }
        else if (plan.bias != nullptr)
        {
            using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
            forRun<Bits, N>(
                bias, plan.biasKeyStride, first, keys, [&add](int e, Bits bits) { add(e, lowToFloat<T>(bits)); });
        }
    }

    template <typename Index>
    static ATTNGRAFT_DEVICE void applyKeep(SoftmaxPlan const& plan, void const* keep, Index first, float (&scores)[N])
    {
        auto const keys = static_cast<Index>(plan.keys);
        auto const drop = [&scores](int e, auto value) { scores[e] = value != 0 ? scores[e] : -INFINITY; };
        switch (plan.keepType)
        {
        case KeepType::kInt8: forRun<int8_t, N>(keep, plan.keepKeyStride, first, keys, drop); break;
        case KeepType::kInt32: forRun<int32_t, N>(keep, plan.keepKeyStride, first, keys, drop); break;
        case KeepType::kInt64: forRun<long long, N>(keep, plan.keepKeyStride, first, keys, drop); break;
        }
    }
};

//! The largest s of many units, each masked before. Where the kind of mask leaves scores raw they stay packed, else s
//! is in `values`.
template <typename T, int N, MaskTensors kTensors>
class LargestMasked
{
public:
    //! `key`, `begin`, `end`: as applyToRaw and applyInFloat have them.
    template <typename Row>
    ATTNGRAFT_DEVICE void add(SoftmaxPlan const& plan, MaskUnit<T, N, kTensors> const& mask, Row const& row,
        int64_t key, int begin, int end, Words<T, N>& words, float (&values)[N])
    {
        if constexpr (kIsRaw)
        {
            mask.applyToRaw(row.ignoresKeep, begin, end, words);
            mRaw.add(words);
        }
        else
        {
            unpack(words, values);
            mask.applyInFloat(plan, row, key, begin, end, values);
            mValue = largest(values, mValue);
        }
    }

    ATTNGRAFT_DEVICE float value() const
    {
        return kIsRaw ? mRaw.value() : mValue;
    }

private:
    static constexpr bool kIsRaw = isRaw(kTensors);
    Largest<T, N> mRaw;
    float mValue{-INFINITY};
};

} // namespace attngraft
