// Division by a number that is known at launch: one multiplication and a shift instead of some twenty instructions.
#pragma once

#include "mask.h"

#include <cstdint>

namespace attngraft
{

//! Dividends below this take the short way.
constexpr int64_t kShortDividends = INT64_C(1) << 31;

//! Quotients of 0 <= n < 2^31 by 1 <= divisor < 2^31, after Granlund and Montgomery, "Division by invariant integers
//! using multiplication", 1994: with 2^k >= divisor, ceil(2^(31 + k) / divisor) * n / 2^(31 + k) is exact.
struct Divisor
{
    int64_t value{1};
    double inverse{1.0};
    uint32_t multiplier{UINT32_C(1) << 31};
    uint32_t shift{0}; //!< k

    Divisor() = default;

    explicit Divisor(int64_t value_)
        : value(value_)
        , inverse(1.0 / static_cast<double>(value_))
    {
        if (value >= kShortDividends)
        {
            return; // every short dividend is smaller; never asked, since then there are as many rows
        }
        while ((INT64_C(1) << shift) < value)
        {
            ++shift;
        }
        uint64_t const power = UINT64_C(1) << (31 + shift);
        multiplier = static_cast<uint32_t>((power + static_cast<uint64_t>(value) - 1) / static_cast<uint64_t>(value));
    }

    ATTNGRAFT_HOST_DEVICE uint32_t quotient(uint32_t n) const
    {
#if defined(__CUDA_ARCH__)
        uint32_t const high = __umulhi(2U * n, multiplier);
#else
        auto const high = static_cast<uint32_t>((uint64_t{2U * n} * multiplier) >> 32);
#endif
        return high >> shift;
    }

    //! Of 0 <= n < 2^52: the product is within one of the quotient.
    ATTNGRAFT_HOST_DEVICE int64_t quotientOfLong(int64_t n) const
    {
        auto const near = static_cast<int64_t>(static_cast<double>(n) * inverse);
        int64_t const rest = n - near * value;
        return near + (rest >= value ? 1 : 0) - (rest < 0 ? 1 : 0);
    }
};

} // namespace attngraft
