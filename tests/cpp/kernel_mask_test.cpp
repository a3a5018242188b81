// The mask functor on the CPU, against the contract's formulas written out key by key.
#include "mask.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace attngraft
{
namespace
{

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool allowedByFormula(IntervalMask const& mask, int64_t batch, int64_t query, int64_t key)
{
    int64_t const offset = mask.causal == Causal::kTopLeft ? 0 : mask.keys - mask.queries;
    bool allowed = key >= 0 && key < mask.keys;
    allowed = allowed && (mask.kvLengths == nullptr || key < mask.kvLengths[batch]);
    allowed = allowed && (mask.kvStarts == nullptr || key >= mask.kvStarts[batch]);
    allowed = allowed && (mask.causal == Causal::kNone || key <= query + offset);
    allowed = allowed && (mask.windowLeft < 0 || key >= query + offset - mask.windowLeft);
    allowed = allowed && (mask.windowRight < 0 || key <= query + offset + mask.windowRight);
    return allowed;
}

void expectFormula(IntervalMask const& mask, int64_t batches)
{
    for (int64_t batch = 0; batch < batches; ++batch)
    {
        for (int64_t query = 0; query < mask.queries; ++query)
        {
            KeyInterval const interval = mask.row(batch, query);
            RowMask<int> const row{static_cast<int>(interval.begin), static_cast<int>(interval.end)};
            for (int key = -9; key < mask.keys + 9; ++key)
            {
                ASSERT_EQ(row.allows(key, true), allowedByFormula(mask, batch, query, key))
                    << "batch " << batch << " query " << query << " key " << key;
                ASSERT_FALSE(row.allows(key, false));
            }
        }
    }
}

TEST(IntervalMask, EveryMixOfCausalWindowAndLengthsFollowsTheFormula)
{
    std::vector<int32_t> const lengths{0, 3, 7, 5, 100, -4};
    std::vector<int32_t> const starts{0, 1, 7, 6, -3, 100};
    auto const batches = static_cast<int64_t>(lengths.size());
    for (int64_t const queries : {1, 4, 7, 9})
    {
        for (Causal const causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight})
        {
            for (int64_t const left : {-1, 0, 2, 50})
            {
                for (int64_t const right : {-1, 0, 3})
                {
                    expectFormula({queries, 7, causal, left, right, nullptr, nullptr}, 1);
                    expectFormula({queries, 7, causal, left, right, lengths.data(), starts.data()}, batches);
                }
            }
        }
    }
}

TEST(IntervalMask, SaysWhatItDependsOn)
{
    int32_t const length = 3;
    EXPECT_FALSE(IntervalMask{}.dependsOnBatch());
    EXPECT_FALSE(IntervalMask{}.dependsOnQuery());
    EXPECT_TRUE((IntervalMask{1, 1, Causal::kNone, -1, -1, &length, nullptr}).dependsOnBatch());
    EXPECT_TRUE((IntervalMask{1, 1, Causal::kNone, -1, -1, nullptr, &length}).dependsOnBatch());
    EXPECT_TRUE((IntervalMask{1, 1, Causal::kTopLeft, -1, -1, nullptr, nullptr}).dependsOnQuery());
    EXPECT_TRUE((IntervalMask{1, 1, Causal::kNone, 0, -1, nullptr, nullptr}).dependsOnQuery());
    EXPECT_TRUE((IntervalMask{1, 1, Causal::kNone, -1, 0, nullptr, nullptr}).dependsOnQuery());
}

TEST(RowMask, ExcludesRunsWithoutAnyAllowedKeyOnly)
{
    RowMask<int> const row{5, 9};
    EXPECT_TRUE(row.excludes(0, 5));
    EXPECT_FALSE(row.excludes(0, 6));
    EXPECT_FALSE(row.excludes(8, 16));
    EXPECT_TRUE(row.excludes(9, 16));
}

TEST(RowMask, CoversRunsOfAllowedKeysOnly)
{
    RowMask<int> const row{5, 9};
    EXPECT_TRUE(row.covers(5, 9));
    EXPECT_FALSE(row.covers(4, 9));
    EXPECT_FALSE(row.covers(5, 10));
}

TEST(ScoreMap, ScalesThenCapsThenAddsTheBias)
{
    EXPECT_FLOAT_EQ((ScoreMap{0.5F, 0.F})(3.F, 0.25F), 1.75F);
    EXPECT_FLOAT_EQ((ScoreMap{0.5F, 2.F})(3.F, 0.25F), 2.F * std::tanh(0.75F) + 0.25F);
    EXPECT_FLOAT_EQ((ScoreMap{1.F, 30.F})(kInfinity, 0.F), 30.F);
    EXPECT_EQ((ScoreMap{1.F, 0.F})(5.F, -kInfinity), -kInfinity);
}

TEST(ScoreMap, CapsSmallScoresByAPolynomialAsByTheHyperbolicTangent)
{
    for (float const scale : {0.125F, 1.F, -0.5F})
    {
        ScoreMap const map{scale, 50.F};
        for (float score = -map.largestSmall; map.isSmall(std::fabs(score)); score += map.largestSmall / 100.F)
        {
            EXPECT_NEAR(map.capSmall(score), 50. * std::tanh(double{scale} * score / 50.), 50. * 2e-7);
        }
        EXPECT_FALSE(map.isSmall(std::numeric_limits<float>::quiet_NaN()));
        EXPECT_FALSE(map.isSmall(kInfinity));
    }
}

TEST(ScoreMap, TakesNoScoreForSmallWhereTermsWouldBeInfinite)
{
    EXPECT_FALSE((ScoreMap{1.F, 1e-20F}).isSmall(0.F));
    EXPECT_FALSE((ScoreMap{1.F, 0.F}).isSmall(0.F));
}

TEST(ScoreMap, TheLowestBiasAbsorbsTheScoreWithoutBecomingInfinite)
{
    float const lowest = std::numeric_limits<float>::lowest();
    EXPECT_EQ((ScoreMap{1.F, 0.F})(-20.F, lowest), lowest);
    EXPECT_EQ((ScoreMap{1.F, 0.F})(20.F, lowest), lowest);
}

TEST(ScoreMap, KnowsWhenTheScaleMayWait)
{
    EXPECT_TRUE((ScoreMap{0.125F, 0.F}).isPositiveFactor());
    EXPECT_FALSE((ScoreMap{-0.125F, 0.F}).isPositiveFactor());
    EXPECT_FALSE((ScoreMap{0.F, 0.F}).isPositiveFactor());
    EXPECT_FALSE((ScoreMap{0.125F, 30.F}).isPositiveFactor());
}

TEST(BroadcastTensor, HasPairsOfKeysWhereEveryRowBeginsAtOne)
{
    constexpr int kKeyDim = 3;
    auto const tensorAt = [](uintptr_t address, int64_t heads, int64_t queries, int64_t keys) {
        return BroadcastTensor{reinterpret_cast<void const*>(address), {0, heads, queries, keys}};
    };
    EXPECT_TRUE(hasKeysInPairs(tensorAt(0x1000, 40, 8, 1), kKeyDim, 8, 2));
    EXPECT_TRUE(hasKeysInPairs(tensorAt(0x1004, 0, 0, 1), kKeyDim, 8, 2));
    EXPECT_FALSE(hasKeysInPairs(tensorAt(0x1002, 0, 0, 1), kKeyDim, 8, 2));
    EXPECT_FALSE(hasKeysInPairs(tensorAt(0x1004, 0, 0, 1), kKeyDim, 8, 4));
    EXPECT_FALSE(hasKeysInPairs(tensorAt(0x1000, 45, 8, 1), kKeyDim, 8, 2));
    EXPECT_FALSE(hasKeysInPairs(tensorAt(0x1000, 40, 9, 1), kKeyDim, 8, 2));
    EXPECT_FALSE(hasKeysInPairs(tensorAt(0x1000, 40, 8, 0), kKeyDim, 8, 2));
    EXPECT_FALSE(hasKeysInPairs(tensorAt(0x1000, 40, 8, 1), kKeyDim, 7, 2)); // the last would be half outside
}

} // namespace
} // namespace attngraft
