// The tuning table: every row length finds a kernel that holds it, and the choices are the intended ones.
#include "softmax_policy.h"

#include <gtest/gtest.h>

namespace attngraft
{
namespace
{

constexpr SoftmaxDevice kWithClusters{132, true};
constexpr SoftmaxDevice kWithoutClusters{132, false};
constexpr SoftmaxDevice kHopper{132, true, 227 * 1024}; // with the shared memory that long rows take
constexpr int64_t kManyRows = 1 << 20;
constexpr MaskTensors kAllTensors[] = {
    MaskTensors::kNone, MaskTensors::kKeepBytes, MaskTensors::kBias, MaskTensors::kAny};

Policy chooseWhole(int64_t keys, size_t bytes, SoftmaxDevice const& device, int64_t rows = kManyRows)
{
    return choosePolicy({rows, keys, bytes, true, MaskTensors::kNone}, device);
}

TEST(SoftmaxPolicy, RungsAreWholeGroupsAndWholeWarps)
{
    for (Rung const& rung : kVectorRungs)
    {
        EXPECT_EQ(rung.blockThreads % rung.threads, 0);
        EXPECT_EQ(rung.blockThreads % 32, 0);
        EXPECT_LE(rung.blockThreads, 1024);
    }
    for (Rung const& rung : kElementRungs)
    {
        EXPECT_EQ(rung.blockThreads % rung.threads, 0);
    }
}

TEST(SoftmaxPolicy, RungsRiseInCapacityForEveryKindOfMask)
{
    for (MaskTensors const tensors : kAllTensors)
    {
        int64_t capacity = 0;
        for (Rung const& rung : kVectorRungs)
        {
            if (rung.serves(tensors))
            {
                EXPECT_GT(rung.capacity(), capacity);
                capacity = rung.capacity();
            }
        }
        EXPECT_GE(capacity, 4096);
    }
}

TEST(SoftmaxPolicy, EveryLengthGetsARungThatHoldsItAndServesItsMask)
{
    for (MaskTensors const tensors : kAllTensors)
    {
        for (int64_t keys = 1; keys < 600000; keys += 1 + keys / 50)
        {
            for (bool const isWhole : {false, keys % 8 == 0})
            {
                Policy const policy = choosePolicy({kManyRows, keys, 2, isWhole, tensors}, kWithClusters);
                ASSERT_NE(policy.strategy, Strategy::kLong); // which takes shared memory
                if (policy.strategy == Strategy::kElements)
                {
                    ASSERT_LE(keys, kElementRungs[policy.rung].capacity());
                }
                else if (policy.strategy == Strategy::kVectors)
                {
                    Rung const& rung = kVectorRungs[policy.rung];
                    ASSERT_TRUE(rung.serves(tensors));
                    ASSERT_TRUE(policy.blocks == 1 || rung.mayBeShared());
                    ASSERT_LE(vectorsOfRow(keys, 2, isWhole), rung.capacity() * policy.blocks);
                }
                else
                {
                    ASSERT_GT(vectorsOfRow(keys, 2, isWhole), 8 * 4096);
                }
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

TEST(SoftmaxPolicy, LongRowsAreSharedByClustersWhereThereAre)
{
    EXPECT_EQ(chooseWhole(16384, 2, kWithClusters).blocks, 1);
    EXPECT_EQ(chooseWhole(32768, 2, kWithClusters).blocks, 2);
    EXPECT_EQ(chooseWhole(131072, 2, kWithClusters).blocks, 8);
    EXPECT_EQ(chooseWhole(262144, 2, kWithClusters).blocks, 8);
    EXPECT_EQ(chooseWhole(32768, 2, kWithoutClusters).blocks, 1);
    EXPECT_EQ(chooseWhole(32776, 2, kWithoutClusters).strategy, Strategy::kPasses);
}

TEST(SoftmaxPolicy, FewRowsAreSharedByAsManyBlocksAsThereAreMultiprocessors)
{
    EXPECT_EQ(chooseWhole(24576, 2, kWithClusters, 32).blocks, 4);
    EXPECT_EQ(chooseWhole(16384, 2, kWithClusters, 32).blocks, 1);
    EXPECT_EQ(chooseWhole(8192, 2, kWithClusters, 132).blocks, 1);
    EXPECT_EQ(chooseWhole(2048, 2, kWithClusters, 1).blocks, 1);
    EXPECT_EQ(chooseWhole(32768, 2, kWithClusters, 4).blocks, 8);
    EXPECT_EQ(chooseWhole(24576, 2, kWithoutClusters, 1).blocks, 1);
}

TEST(SoftmaxPolicy, RowsLongerThanTheRegistersAreReadTwice)
{
    EXPECT_EQ(chooseWhole(int64_t{1} << 40, 2, kWithClusters).strategy, Strategy::kPasses);
    EXPECT_EQ(chooseWhole(int64_t{1} << 40, 2, kWithClusters).blocks, kMaxCluster);
    EXPECT_EQ(chooseWhole(int64_t{1} << 40, 4, kWithoutClusters).blocks, 1);
}

TEST(SoftmaxPolicy, LongRowsAreHeldInSharedMemoryWhereTheyAreMany)
{
    EXPECT_EQ(chooseWhole(16384, 2, kHopper).strategy, Strategy::kVectors);
    EXPECT_EQ(chooseWhole(32768, 2, kHopper, 131).strategy, Strategy::kVectors);
    EXPECT_EQ(chooseWhole(32768, 2, kHopper, 132).strategy, Strategy::kLong);
    EXPECT_EQ(chooseWhole(32768, 2, kWithoutClusters).strategy, Strategy::kVectors);
    EXPECT_EQ(choosePolicy({kManyRows, 32768, 2, true, MaskTensors::kAny}, kHopper).strategy, Strategy::kVectors);
    constexpr int64_t kBlocksOfKeys[][2] = {{32768, 1}, {65536, 2}, {131072, 4}, {262144, 8}, {524288, 8}};
    for (auto const& [keys, blocks] : kBlocksOfKeys)
    {
        for (int const bytes : {2, 4})
        {
            Policy const policy = chooseWhole(keys * 2 / bytes, static_cast<size_t>(bytes), kHopper);
            EXPECT_EQ(policy.strategy, Strategy::kLong);
            EXPECT_EQ(policy.blocks, blocks);
        }
    }
    EXPECT_EQ(chooseWhole(1000000, 2, kHopper).strategy, Strategy::kPasses);
}

TEST(SoftmaxPolicy, RowsOfWhichAnIntervalIsReadAreLongSooner)
{
    SoftmaxWork work{kManyRows, 16384, 2, true, MaskTensors::kNone, true};
    EXPECT_EQ(choosePolicy(work, kHopper).strategy, Strategy::kEven);
    work.hasInterval = true;
    EXPECT_EQ(choosePolicy(work, kHopper).strategy, Strategy::kLong);
    work.tensors = MaskTensors::kKeepBytes;
    EXPECT_EQ(choosePolicy(work, kHopper).strategy, Strategy::kEven);
    work.keys = 8192;
    work.tensors = MaskTensors::kNone;
    EXPECT_EQ(choosePolicy(work, kHopper).strategy, Strategy::kEven);
}

TEST(SoftmaxPolicy, BlocksHaveRoomForLongRows)
{
    for (int sharedBytes = 0; sharedBytes <= kHopper.sharedBytes; sharedBytes += 16 * 1024)
    {
        SoftmaxDevice const device{132, true, sharedBytes};
        for (int64_t keys = 1000; keys < 2000000; keys += keys / 10)
        {
            Policy const policy = choosePolicy({kManyRows, keys, 2, false, MaskTensors::kNone}, device);
            if (policy.strategy == Strategy::kLong)
            {
                int64_t const vectors = vectorsOfRow(keys, 2, false);
                ChunkLayout const layout{vectors, policy.blocks};
                EXPECT_LE(layout.bytes(), sharedBytes);
                EXPECT_LE(layout.chunks(), kMostChunks);
                EXPECT_GE(layout.chunks() * policy.blocks * kChunkVectors, vectors);
                EXPECT_GE((layout.bytes() - kChunksBegin) / kVectorBytes * policy.blocks, vectors);
            }
        }
    }
}

template <size_t count>
void expectRising(EvenRung const (&rungs)[count], MaskTensors tensors)
{
    int64_t capacity = 0;
    for (EvenRung const& rung : rungs)
    {
        EXPECT_EQ(evenBlockThreads(rung.threads, false) % 32, 0);
        EXPECT_EQ(evenBlockThreads(rung.threads, true) % rung.threads, 0);
        if (rung.serves(tensors))
        {
            EXPECT_GT(rung.capacity(), capacity);
            capacity = rung.capacity();
        }
    }
    EXPECT_GE(capacity, kLongVectors);
}

TEST(SoftmaxPolicy, EvenRowsFindARungUpToTheLengthThatTheyAreLongFrom)
{
    for (MaskTensors const tensors : {MaskTensors::kNone, MaskTensors::kKeepBytes, MaskTensors::kBias})
    {
        expectRising(kEvenRungs, tensors);
        expectRising(kUnevenRungs, tensors);
        for (int64_t keys = kShortestEven * 8; keys <= 16384; keys += 8)
        {
            Policy const policy = choosePolicy({kManyRows, keys, 2, true, tensors, true}, kHopper);
            ASSERT_EQ(policy.strategy, Strategy::kEven);
            ASSERT_GE(kEvenRungs[policy.rung].capacity() * 8, keys);
        }
    }
    EXPECT_EQ(choosePolicy({kManyRows, 64, 2, true, MaskTensors::kNone, true}, kHopper).strategy, Strategy::kVectors);
    EXPECT_EQ(choosePolicy({kManyRows, 512, 2, true, MaskTensors::kAny, true}, kHopper).strategy, Strategy::kVectors);
    EXPECT_GT(choosePolicy({32, 32768, 2, true, MaskTensors::kNone, true}, kHopper).blocks, 1);
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
