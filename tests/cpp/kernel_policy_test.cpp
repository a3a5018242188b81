// The tuning table: every row length finds a kernel that holds it, and the choices are the intended ones.
#include "softmax_policy.h"

#include <gtest/gtest.h>

namespace attngraft
{
namespace
{

template <int count>
void expectRisingCapacity(Rung const (&rungs)[count])
{
    for (int i = 0; i < count; ++i)
    {
        EXPECT_EQ(rungs[i].blockThreads() % rungs[i].threads, 0);
        EXPECT_LE(rungs[i].blockThreads(), 1024);
        EXPECT_GE(rungs[i].blockThreads(), 32);
        if (i > 0)
        {
            EXPECT_GT(rungs[i].capacity(), rungs[i - 1].capacity());
        }
    }
}

TEST(SoftmaxPolicy, RungsRiseInCapacityAndFillWholeBlocks)
{
    expectRisingCapacity(kVectorRungs);
    expectRisingCapacity(kElementRungs);
}

TEST(SoftmaxPolicy, EveryLengthGetsTheSmallestRungThatHoldsIt)
{
    for (size_t const bytes : {size_t{2}, size_t{4}})
    {
        for (int64_t keys = 1; keys < 40000; ++keys)
        {
            bool const isWhole = keys * static_cast<int64_t>(bytes) % kVectorBytes == 0;
            Policy const policy = choosePolicy(keys, bytes, isWhole, true);
            int64_t const vectors = vectorsOfRow(keys, bytes, isWhole);
            if (policy.strategy == Strategy::kElements)
            {
                ASSERT_FALSE(isWhole);
                ASSERT_LE(keys, kElementRungs[policy.rung].capacity());
            }
            else if (policy.strategy == (isWhole ? Strategy::kVectors : Strategy::kShiftedVectors))
            {
                ASSERT_LE(vectors, kVectorRungs[policy.rung].capacity());
                ASSERT_TRUE(policy.rung == 0 || vectors > kVectorRungs[policy.rung - 1].capacity());
            }
            else
            {
                ASSERT_EQ(policy.strategy, Strategy::kMultiPassVectors);
                ASSERT_GT(vectors, kVectorRungs[kVectorRungCount - 1].capacity());
            }
        }
    }
}

TEST(SoftmaxPolicy, WorstCaseVectorCountCoversEveryShift)
{
    for (int64_t keys = 1; keys < 300; ++keys)
    {
        for (int64_t shift = 0; shift < 8; ++shift)
        {
            ASSERT_LE((keys + shift + 7) / 8, vectorsOfRow(keys, 2, false));
        }
    }
}

TEST(SoftmaxPolicy, RowsLongerThanTheRegistersAreReadTwice)
{
    EXPECT_EQ(choosePolicy(int64_t{1} << 40, 2, true, true).strategy, Strategy::kMultiPassVectors);
    EXPECT_EQ(choosePolicy(int64_t{1} << 40, 4, false, false).strategy, Strategy::kMultiPassElements);
}

TEST(SoftmaxPolicy, SupportsTheContractsTypes)
{
    EXPECT_TRUE(isSupported(DataType::kFloat32));
    EXPECT_TRUE(isSupported(DataType::kFloat16));
    EXPECT_TRUE(isSupported(DataType::kBFloat16));
    EXPECT_FALSE(isSupported(static_cast<DataType>(3)));
}

} // namespace
} // namespace attngraft
