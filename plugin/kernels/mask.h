// Which keys a query row may attend to, and what a raw score becomes: the contract's s_ij and allowed(i,j).
// In: parameters and a row's coordinates. Out: an interval of keys, and scores.
// The one place with this logic: every kernel calls it, and the tests run it on the CPU.
#pragma once

#include "operands.h"

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define ATTNGRAFT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ATTNGRAFT_HOST_DEVICE inline
#endif

namespace attngraft
{

//! Keys begin <= j < end. Empty when begin == end.
struct KeyInterval
{
    int64_t begin{0};
    int64_t end{0};
};

//! The part of the mask that is an interval of keys for each row: lengths, starts, causal and window.
//! Scores outside the interval need not be read.
struct IntervalMask
{
    int64_t queries{0};
    int64_t keys{0};
    Causal causal{Causal::kNone};
    int64_t windowLeft{-1};
    int64_t windowRight{-1};
    int32_t const* kvLengths{nullptr};
    int32_t const* kvStarts{nullptr};

    ATTNGRAFT_HOST_DEVICE bool dependsOnBatch() const
    {
        return kvLengths != nullptr || kvStarts != nullptr;
    }

    ATTNGRAFT_HOST_DEVICE bool dependsOnQuery() const
    {
        return causal != Causal::kNone || windowLeft >= 0 || windowRight >= 0;
    }

    //! Whether rows may have fewer keys than all, beside what mask tensors say.
    ATTNGRAFT_HOST_DEVICE bool excludesKeys() const
    {
        return dependsOnBatch() || dependsOnQuery();
    }

    //! What starts and lengths leave of a batch element's keys; end < begin is possible.
    ATTNGRAFT_HOST_DEVICE KeyInterval ofBatch(int64_t batch) const
    {
        KeyInterval interval{0, keys};
        if (kvStarts != nullptr)
        {
            raise(interval.begin, kvStarts[batch]);
        }
        if (kvLengths != nullptr)
        {
            lower(interval.end, kvLengths[batch]);
        }
        return interval;
    }

    //! The keys that a row may attend to.
    ATTNGRAFT_HOST_DEVICE KeyInterval row(int64_t batch, int64_t query) const
    {
        KeyInterval interval = bounds(ofBatch(batch), query);
        if (interval.end <= interval.begin)
        {
            interval = KeyInterval{};
        }
        return interval;
    }

    //! The same of the keys that `ofBatch` gives, but with end < begin possible where a row has none. Both bounds never
    //! fall from one query to the next, so those of the first and the last query bound all between.
    ATTNGRAFT_HOST_DEVICE KeyInterval bounds(KeyInterval const& batchKeys, int64_t query) const
    {
        KeyInterval interval = batchKeys;
        if (!dependsOnQuery())
        {
            return interval;
        }
        // A window without `causal` lies on the diagonal that ends at the last key, as in FlashAttention.
        int64_t const diagonal = query + (causal == Causal::kTopLeft ? 0 : keys - queries);
        if (causal != Causal::kNone)
        {
            lower(interval.end, diagonal + 1);
        }
        if (windowLeft >= 0)
        {
            raise(interval.begin, diagonal - windowLeft);
        }
        if (windowRight >= 0)
        {
            lower(interval.end, diagonal + windowRight + 1);
        }
        return interval;
    }

private:
    ATTNGRAFT_HOST_DEVICE static void raise(int64_t& bound, int64_t value)
    {
        bound = value > bound ? value : bound;
    }

    ATTNGRAFT_HOST_DEVICE static void lower(int64_t& bound, int64_t value)
    {
        bound = value < bound ? value : bound;
    }
};

//! The interval of `params` over so many queries and keys.
inline IntervalMask intervalMask(MaskParams const& params, int64_t queries, int64_t keys)
{
    return {queries, keys, params.causal, params.windowLeft, params.windowRight, params.kvLengths, params.kvStarts};
}

//! Whether what `params` say is in the contract. `keyDim` is the index of the keys among the masks' strides.
inline bool areMasksInContract(MaskParams const& params, int keyDim)
{
    return std::isfinite(params.scale) && std::isfinite(params.softcap) && params.softcap >= 0.F
        && params.windowLeft >= -1 && params.windowRight >= -1 && hasKeysTogether(params.bias, keyDim)
        && hasKeysTogether(params.keep, keyDim);
}

//! s_ij from a raw score and its bias, in fp32: cap(score) * slope() + bias.
struct ScoreMap
{
    float scale{1.F};
    float softcap{0.F};
    float innerScale{0.F}; //!< scale / softcap
    float largestSmall{-1.F};
    float smallTerms[4]{}; //!< of score, score^3, and so on

    ScoreMap() = default;

    ScoreMap(float scale_, float softcap_)
        : scale(scale_)
        , softcap(softcap_)
        , innerScale(softcap_ > 0.F ? scale_ / softcap_ : 0.F)
    {
        // tanh(t) / t in powers of t^2, the least largest error for |t| up to 0.5.
        constexpr double kTerms[] = {0.9999976754, -0.3332065642, 0.1314514577, -0.0433724858};
        constexpr float kLargest = 0.5F;
        if (!isCapped())
        {
            return;
        }
        double power = scale;
        for (int i = 0; i < 4; ++i)
        {
            smallTerms[i] = static_cast<float>(kTerms[i] * power);
            power *= static_cast<double>(innerScale) * innerScale;
        }
        // Terms that fp32 cannot hold belong to caps that no score is small beside.
        bool const isFinite = std::isfinite(smallTerms[3]);
        largestSmall = isFinite ? kLargest / std::fabs(innerScale) : -1.F;
    }

    ATTNGRAFT_HOST_DEVICE bool isCapped() const
    {
        return softcap > 0.F;
    }

    //! softcap(scale * score), scale included. tanh(t) = 1 - 2 / (1 + exp(2t)): its absolute error of 1e-7 is that of
    //! fp32 at 1, so softcap times it is no more than s_ij's own rounding near the cap.
    ATTNGRAFT_HOST_DEVICE float cap(float score) const
    {
        constexpr float kTwoLog2E = 2.8853900817779268F;
        float const power = exp2f(score * innerScale * kTwoLog2E);
#if defined(__CUDA_ARCH__)
        float const fraction = __fdividef(2.F, 1.F + power);
        return softcap * (power > kLargestDividend ? 1.F : 1.F - fraction);
#else
        return softcap * (1.F - 2.F / (1.F + power));
#endif
    }

    //! The same for scores of at most largestSmall, by an odd polynomial within 2e-7 of the tanh.
    ATTNGRAFT_HOST_DEVICE float capSmall(float score) const
    {
        float const u = score * score;
        return score * fmaf(fmaf(fmaf(smallTerms[3], u, smallTerms[2]), u, smallTerms[1]), u, smallTerms[0]);
    }

    //! False for NaN.
    ATTNGRAFT_HOST_DEVICE bool isSmall(float magnitude) const
    {
        return magnitude <= largestSmall;
    }

    //! What the score, capped before where isCapped(), is multiplied with.
    ATTNGRAFT_HOST_DEVICE float slope() const
    {
        return isCapped() ? 1.F : scale;
    }

    ATTNGRAFT_HOST_DEVICE float operator()(float score, float bias) const
    {
        return fmaf(isCapped() ? cap(score) : score, slope(), bias);
    }

    //! True where, without a bias, s_ij grows with the score and in proportion to it: the maximum of the raw scores is
    //! then found first, and the scale multiplies differences only.
    ATTNGRAFT_HOST_DEVICE bool isPositiveFactor() const
    {
        return !isCapped() && scale > 0.F;
    }

private:
    static constexpr float kLargestDividend = 8e37F; //!< __fdividef gives 0 or NaN for divisors above 2^126
};

//! One row's mask: what `allowed(i, j)` is for this i.
template <typename Index>
struct RowMask
{
    Index begin{0};
    Index end{0};

    ATTNGRAFT_HOST_DEVICE bool allows(Index key, bool keep) const
    {
        return key >= begin && key < end && keep;
    }

    //! True when the interval allows every key of [first, last).
    ATTNGRAFT_HOST_DEVICE bool covers(Index first, Index last) const
    {
        return first >= begin && last <= end;
    }

    //! True when no key of [first, last) is allowed, whatever `keep` says.
    ATTNGRAFT_HOST_DEVICE bool excludes(Index first, Index last) const
    {
        return last <= begin || first >= end;
    }
};

} // namespace attngraft
