// The mask of a tile of scores: intervals of keys by row, bits of scanned keys, bias and keep element by element.
#pragma once

#include "attention_bias.cuh"
#include "attention_keys.cuh"

#include <type_traits>

namespace attngraft
{

//! What masks the rows of one warp. A thread has, of each 16-row slice, the rows lane / 4 and 8 below it.
template <typename T, typename Tile, AttentionMask kMask, bool kMayCap>
struct WarpMask
{
    using Place = BlockPlace<Tile::kPacks>;
    static constexpr int kSlices = Tile::kSlices;
    static constexpr int kPairs = Tile::kKeys / 8; //!< of a row of a tile, in each thread

    int firstCovered; //!< the keys that all rows of the warp may attend to, as far as intervals go
    int endCovered;
    int64_t biasRow[kSlices][2];
    int64_t keepRow[kSlices][2];
    //! kBias: of the tile that is masked next.
    Pair<T> biases[kSlices][2][kMask == AttentionMask::kBias ? kPairs : 1];

    ATTNGRAFT_DEVICE void locate(AttentionPlan const& plan, Place const& place, int firstRow, MaskPass pass)
    {
        if constexpr (kScalesScores<kMask>)
        {
#pragma unroll
            for (int m = 0; m < kSlices; ++m)
            {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                {
                    int const row = rowOf(place, firstRow, m, half);
                    int64_t const query = place.query(plan, row);
                    int64_t const head = place.headOf(plan, row);
                    biasRow[m][half] = offsetOf(plan.bias, place.batch, head, query);
                    keepRow[m][half] = offsetOf(plan.keep, place.batch, head, query);
                }
            }
        }
        int const last = firstRow + Tile::kRowsPerWarp - 1;
        cover(plan, place, firstRow < place.rows ? firstRow : place.rows - 1, last < place.rows ? last : place.rows - 1,
            pass);
    }

    //! Starts to read the bias of the keys from `firstKey`: it comes while the scores are waited for and computed.
    ATTNGRAFT_DEVICE void fetch(AttentionPlan const& plan, int firstKey)
    {
        if constexpr (kMask == AttentionMask::kBias)
        {
            auto const* const bias = static_cast<T const*>(plan.bias.data) + firstKey + laneOfThread() % 4 * 2;
#pragma unroll
            for (int m = 0; m < kSlices; ++m)
            {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                {
                    loadPairs(bias + biasRow[m][half], plan.keys - firstKey, biases[m][half]);
                }
                prefetch(plan, firstKey + Tile::kKeys, biasRow[m]);
            }
        }
    }

    //! Masks the scores against the keys from `firstKey`. `s` becomes -inf where a key is not allowed; else, where
    //! there is a bias or a softcap, it becomes what the contract calls s_ij.
    ATTNGRAFT_DEVICE void apply(AttentionPlan const& plan, Place const& place, KeyBits const& bits, int firstRow,
        int firstKey, MaskPass pass, float (&scores)[kSlices][Tile::kKeys / 8][4]) const
    {
        if ((kMask == AttentionMask::kAny || kMayCap) && plan.scoreMap.isCapped())
        {
            capScores(plan.scoreMap, scores);
        }
        if constexpr (kMask == AttentionMask::kAny)
        {
            addTensors(plan, firstKey, pass, scores);
        }
        if constexpr (kMask == AttentionMask::kBias)
        {
            addFetched(plan.scoreMap.slope(), scores);
        }
        if constexpr (kMask == AttentionMask::kKeyBits)
        {
            if (pass == MaskPass::kMasked)
            {
                applyBits(bits, firstKey, scores);
            }
        }
        if (firstKey < firstCovered || firstKey + Tile::kKeys > endCovered || pass == MaskPass::kUniform)
        {
            applyIntervals(plan, place, firstRow, firstKey, pass, scores);
        }
    }

private:
    //! Asks for the biases from `firstKey` on, the two rows of a thread by the four threads that share them.
    static ATTNGRAFT_DEVICE void prefetch(AttentionPlan const& plan, int firstKey, int64_t const (&rows)[2])
    {
        constexpr int kKeysOfLine = 128 / static_cast<int>(sizeof(T));
        constexpr int kLines = (Tile::kKeys + kKeysOfLine - 1) / kKeysOfLine;
        int const line = laneOfThread() % 4;
        int const key = firstKey + line % kLines * kKeysOfLine;
        if (line < 2 * kLines && key < plan.keys)
        {
            prefetchLine(static_cast<T const*>(plan.bias.data) + (line < kLines ? rows[0] : rows[1]) + key);
        }
    }

    //! Calls use(slice, half, column, score) for each of the thread's scores and stores what it returns.
    template <typename Use>
    static ATTNGRAFT_DEVICE void forEach(float (&scores)[kSlices][Tile::kKeys / 8][4], Use use)
    {
        int const pair = laneOfThread() % 4 * 2;
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int n = 0; n < Tile::kKeys / 8; ++n)
            {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
                    scores[m][n][i] = use(m, i / 2, 8 * n + pair + i % 2, scores[m][n][i]);
                }
            }
        }
    }

    //! Most scores lie far below the cap, where a polynomial does.
    static ATTNGRAFT_DEVICE void capScores(ScoreMap const& map, float (&scores)[kSlices][Tile::kKeys / 8][4])
    {
        float largest = 0.F;
        forEach(scores, [&](int, int, int, float s) {
            largest = fmaxf(largest, fabsf(s));
            return s;
        });
        if (anyInWarp(!map.isSmall(largest)))
        {
            forEach(scores, [&](int, int, int, float s) { return map.cap(s); });
        }
        else
        {
            forEach(scores, [&](int, int, int, float s) { return map.capSmall(s); });
        }
    }

    //! A row of the block; those that do not exist do as the last one does.
    static ATTNGRAFT_DEVICE int rowOf(Place const& place, int firstRow, int m, int half)
    {
        int const row = firstRow + kMmaRows * m + 8 * half + laneOfThread() / 4;
        return row < place.rows ? row : place.rows - 1;
    }

    //! The intervals are found anew for the few tiles that they cut: registers are dearer. The uniform pass is here
    //! too, off the path of most tiles.
    static ATTNGRAFT_DEVICE void applyIntervals(AttentionPlan const& plan, Place const& place, int firstRow,
        int firstKey, MaskPass pass, float (&scores)[kSlices][Tile::kKeys / 8][4])
    {
        int begin[kSlices][2];
        int end[kSlices][2];
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                KeyInterval keys{0, plan.keys};
                if (pass == MaskPass::kMasked)
                {
                    keys = place.keysOf(plan, rowOf(place, firstRow, m, half));
                }
                begin[m][half] = static_cast<int>(keys.begin);
                end[m][half] = static_cast<int>(keys.end);
            }
        }
        forEach(scores, [&](int m, int half, int column, float s) {
            int const key = firstKey + column;
            float const score = pass == MaskPass::kUniform ? 0.F : s;
            return key >= begin[m][half] && key < end[m][half] ? score : -INFINITY;
        });
    }

    static ATTNGRAFT_DEVICE int64_t offsetOf(BroadcastTensor const& tensor, int64_t batch, int64_t head, int64_t query)
    {
        return batch * tensor.strides[0] + head * tensor.strides[1] + query * tensor.strides[2];
    }

    ATTNGRAFT_DEVICE void cover(AttentionPlan const& plan, Place const& place, int firstRow, int lastRow, MaskPass pass)
    {
        KeyInterval covered{0, plan.keys};
        if (pass == MaskPass::kMasked)
        {
            covered.begin = place.keysOf(plan, lastRow).begin;
            covered.end = place.keysOf(plan, firstRow).end;
        }
        firstCovered = static_cast<int>(covered.begin);
        endCovered = static_cast<int>(covered.end < 0 ? 0 : covered.end);
    }

    static ATTNGRAFT_DEVICE void applyBits(
        KeyBits const& bits, int firstKey, float (&scores)[kSlices][Tile::kKeys / 8][4])
    {
        uint32_t words[Tile::kKeys / 32];
        bool isPartial = false;
#pragma unroll
        for (int i = 0; i < Tile::kKeys / 32; ++i)
        {
            words[i] = bits.word(firstKey / 32 + i);
            isPartial = isPartial || words[i] != 0xffffffffU;
        }
        if (!isPartial)
        {
            return;
        }
        // A pair of columns lies in one word, and which one is known to the compiler by n only.
        int const shift = laneOfThread() % 4 * 2;
#pragma unroll
        for (int n = 0; n < Tile::kKeys / 8; ++n)
        {
            uint32_t const own = words[n / 4] >> (8 * (n % 4) + shift);
#pragma unroll
            for (int m = 0; m < kSlices; ++m)
            {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                {
                    scores[m][n][i] = (own >> (i % 2) & 1U) != 0 ? scores[m][n][i] : -INFINITY;
                }
            }
        }
    }

    ATTNGRAFT_DEVICE void addTensors(
        AttentionPlan const& plan, int firstKey, MaskPass pass, float (&scores)[kSlices][Tile::kKeys / 8][4]) const
    {
        if (plan.bias.data == nullptr)
        {
            float const slope = plan.scoreMap.slope();
            forEach(scores, [&](int, int, int, float s) { return s * slope; });
        }
        else if (std::is_same_v<T, float> || plan.biasIsFloat32)
        {
            addBias<float>(plan, firstKey, scores);
        }
        else
        {
            addBias<T>(plan, firstKey, scores);
        }
        if (pass == MaskPass::kMasked && plan.keep.data != nullptr)
        {
            forEach(scores, [&](int m, int half, int column, float s) {
                int const key = firstKey + column;
                bool const isKept = key < plan.keys
                    && keeps(plan.keep.data, plan.keepType, keepRow[m][half] + key * plan.keep.strides[3]);
                return isKept ? s : -INFINITY;
            });
        }
        else if (firstKey + Tile::kKeys > plan.keys)
        {
            forEach(
                scores, [&](int, int, int column, float s) { return firstKey + column < plan.keys ? s : -INFINITY; });
        }
    }

    //! Multiplies by the slope and adds the bias. What becomes of scores beyond the last key does not matter.
    template <typename Bias>
    ATTNGRAFT_DEVICE void addBias(
        AttentionPlan const& plan, int firstKey, float (&scores)[kSlices][Tile::kKeys / 8][4]) const
    {
        float const slope = plan.scoreMap.slope();
        auto const* const bias = static_cast<Bias const*>(plan.bias.data);
        if (!plan.isBiasPaired)
        {
            forEach(scores, [&](int m, int half, int column, float s) {
                int const key = firstKey + column;
                int64_t const offset = biasRow[m][half] + key * plan.bias.strides[3];
                return fmaf(s, slope, key < plan.keys ? static_cast<float>(bias[offset]) : 0.F);
            });
            return;
        }
        int const firstPair = firstKey + laneOfThread() % 4 * 2;
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                // All loads of a row before its first use, so that they wait together.
                Pair<Bias> pairs[kPairs];
                loadPairs(bias + biasRow[m][half] + firstPair, plan.keys - firstKey, pairs);
                addPairs(slope, pairs, half, scores[m]);
            }
        }
    }

    ATTNGRAFT_DEVICE void addFetched(float slope, float (&scores)[kSlices][Tile::kKeys / 8][4]) const
    {
#pragma unroll
        for (int m = 0; m < kSlices; ++m)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half)
            {
                addPairs(slope, biases[m][half], half, scores[m]);
            }
        }
    }
};

} // namespace attngraft
