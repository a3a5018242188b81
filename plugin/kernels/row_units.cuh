// A row in memory, unit by unit: where units begin, reading and writing them, whole or in part. The first unit is the
// vector that holds the row's first element, so that it may begin before the row, and the last one may end behind it.
#pragma once

#include "row_words.cuh"
#include "softmax_plan.h"

namespace attngraft
{

ATTNGRAFT_DEVICE int64_t divide(int64_t value, Divisor const& by, bool isShort)
{
    return isShort ? by.quotient(static_cast<uint32_t>(value)) : by.quotientOfLong(value);
}

struct RowOffsets
{
    int64_t first;
    int64_t second;
};

ATTNGRAFT_DEVICE RowOffsets findRow(RowMap const& map, int64_t row, bool isShort)
{
    RowOffsets offsets{0, 0};
#pragma unroll 1
    for (int d = map.rank - 1; d > 0; --d)
    {
        int64_t const rest = divide(row, map.dims[d], isShort);
        int64_t const index = row - rest * map.dims[d].value;
        offsets.first += index * map.firstStrides[d];
        offsets.second += index * map.secondStrides[d];
        row = rest;
    }
    offsets.first += row * map.firstStrides[0];
    offsets.second += row * map.secondStrides[0];
    return offsets;
}

//! `kBytes` bytes at any address, those of them that lie in the extent; the others are 0. A loop, since only a tensor's
//! first and last vectors are read so.
template <int kBytes>
ATTNGRAFT_DEVICE void loadWithin(uint8_t const* from, Extent const& extent, uint32_t (&words)[kBytes / 4])
{
    constexpr int kCount = kBytes / 4;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
    {
        words[i] = 0;
    }
#pragma unroll 1
    for (int byte = kBytes - 1; byte >= 0; --byte)
    {
#pragma unroll
        for (int i = kCount - 1; i > 0; --i)
        {
            words[i] = words[i] << 8 | words[i - 1] >> 24;
        }
        bool const isInside = from + byte >= extent.low && from + byte < extent.high;
        words[0] = words[0] << 8 | (isInside ? loadOnce<uint8_t>(from + byte) : 0U);
    }
}

//! One row's elements. Index: int, or int64_t for rows that may be as long as memory.
template <typename T, int N, typename Index>
struct RowUnits
{
    static constexpr int kUnitBytes = Words<T, N>::kBytes;

    uint8_t const* from{nullptr}; //!< of unit 0
    uint8_t* to{nullptr};         //!< of unit 0; the elements before the row are another row's
    Index begin{0};               //!< the row's first element, counted from unit 0
    Index end{0};                 //!< behind its last one
    Index readableBegin{0};       //!< units from here on
    Index readableEnd{0};         //!< to here can be read whole
    int pieceBytes{kUnitBytes};   //!< what one store can write: less than a unit where scores and probabilities differ
                                  //!< in their alignment

    RowUnits() = default;

    ATTNGRAFT_DEVICE RowUnits(SoftmaxPlan const& plan, int64_t row)
    {
        RowOffsets const offsets = findRow(plan.places, row, plan.rows <= kShortDividends);
        from = static_cast<uint8_t const*>(plan.scores) + offsets.first * static_cast<int64_t>(sizeof(T));
        to = static_cast<uint8_t*>(plan.probabilities) + offsets.second * static_cast<int64_t>(sizeof(T));
        end = static_cast<Index>(plan.keys);
        readableEnd = unitCount();
        if (N > 1 && !plan.isWhole)
        {
            beginOnVector(plan.scoresExtent);
        }
    }

    //! Units that the row touches.
    ATTNGRAFT_DEVICE Index unitCount() const
    {
        return (end + (N - 1)) / N;
    }

    //! Whether whole vectors are read of every unit.
    ATTNGRAFT_DEVICE bool isReadable() const
    {
        return readableBegin == 0 && readableEnd == unitCount();
    }

    //! A unit that is readable.
    static ATTNGRAFT_DEVICE void load(uint8_t const* place, Words<T, N>& words)
    {
        if constexpr (N == 1)
        {
            using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
            words.values[0] = loadOnce<Bits>(place);
        }
        else
        {
            auto const vector = loadOnce<uint4>(place);
            words.values[0] = vector.x;
            words.values[1] = vector.y;
            words.values[2] = vector.z;
            words.values[3] = vector.w;
        }
    }

    //! A unit that lies in the row.
    ATTNGRAFT_DEVICE void store(uint8_t* place, Words<T, N> const& words) const
    {
        if constexpr (N == 1)
        {
            storeElement(place, words.values[0]);
        }
        else
        {
            uint32_t const(&w)[4] = words.values;
            switch (pieceBytes)
            {
            case 16: storeOnce(place, uint4{w[0], w[1], w[2], w[3]}); break;
            case 8:
                storeOnce(place, uint2{w[0], w[1]});
                storeOnce(place + 8, uint2{w[2], w[3]});
                break;
            case 4:
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
                    storeOnce(place + 4 * i, w[i]);
                }
                break;
            default: storeElements(place, words, 0, N); break;
            }
        }
    }

    //! The elements of a unit from `begins` to `ends`.
    ATTNGRAFT_DEVICE void storePart(uint8_t* place, Words<T, N> const& words, int begins, int ends) const
    {
        if constexpr (N > 1)
        {
            if (pieceBytes < kUnitBytes || (begins > 0 && ends < N))
            {
                storeElements(place, words, begins, ends);
            }
            else if (begins == 0)
            {
                storeBeginning(place, words.values, ends);
            }
            else
            {
                storeEnding(place, words.values, begins);
            }
        }
    }

private:
    static constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));

    ATTNGRAFT_DEVICE void beginOnVector(Extent const& extent)
    {
        auto const past = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from) % kUnitBytes);
        from -= past;
        to -= past;
        begin = static_cast<Index>(past / sizeof(T));
        end += begin;
        auto const apart = static_cast<unsigned>(reinterpret_cast<uintptr_t>(to) % kUnitBytes);
        pieceBytes = apart == 0 ? kUnitBytes : static_cast<int>(apart & (0U - apart));
        readableBegin = from < extent.low ? 1 : 0;
        Index const units = unitCount();
        readableEnd = from + static_cast<int64_t>(units) * kUnitBytes > extent.high ? units - 1 : units;
    }

    static ATTNGRAFT_DEVICE void storeElement(uint8_t* to, uint32_t word)
    {
        using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
        storeOnce(to, static_cast<Bits>(word));
    }

    static ATTNGRAFT_DEVICE void storeElements(uint8_t* to, Words<T, N> const& words, int begin, int end)
    {
#pragma unroll
        for (int e = 0; e < N; ++e)
        {
            if (e >= begin && e < end)
            {
                storeElement(to + e * sizeof(T), words.values[e / kPerWord] >> (e % kPerWord * 16));
            }
        }
    }

    //! Fewer than N elements from the first one on.
    static ATTNGRAFT_DEVICE void storeBeginning(uint8_t* to, uint32_t const (&words)[4], int elements)
    {
        int const whole = elements / kPerWord;
        bool const hasTwo = (whole & 2) != 0;
        uint32_t const third = hasTwo ? words[2] : words[0];
        if (hasTwo)
        {
            storeOnce(to, uint2{words[0], words[1]});
        }
        if ((whole & 1) != 0)
        {
            storeOnce(to + (whole - 1) * 4, third);
        }
        if (elements % kPerWord != 0)
        {
            uint32_t const next = hasTwo ? words[3] : words[1];
            storeElement(to + whole * 4, (whole & 1) != 0 ? next : third);
        }
    }

    //! Those from element `begin` > 0 on.
    static ATTNGRAFT_DEVICE void storeEnding(uint8_t* to, uint32_t const (&words)[4], int begin)
    {
        int const whole = (begin + kPerWord - 1) / kPerWord; // the first word that is
        bool const hasTwo = whole <= 2;
        if (begin % kPerWord != 0)
        {
            uint32_t const early = begin / kPerWord == 0 ? words[0] : words[1];
            uint32_t const late = begin / kPerWord == 2 ? words[2] : words[3];
            storeElement(to + begin * sizeof(T), (begin / kPerWord < 2 ? early : late) >> 16);
        }
        if ((whole & 1) != 0)
        {
            storeOnce(to + whole * 4, whole == 1 ? words[1] : words[3]);
        }
        if (hasTwo)
        {
            storeOnce(to + 8, uint2{words[2], words[3]});
        }
    }
};

} // namespace attngraft
