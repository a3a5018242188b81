// What the emulated device says of kernels with faults in their products of warpgroups: of each a few lines, and beside
// it the same without the fault.
#include "emulated_faults.h"

#include <cmath>

namespace attngraft::faults
{
namespace
{

constexpr int kWidth = 32; //!< of the products

//! Each thread fills its share of both factors with ones.
void storeOnes()
{
    uint32_t const ones = packPair<__half>(1.F, 1.F);
    for (SharedAddress at = thread() * 16; at < kBarrier; at += kWarpgroupThreads * 16)
    {
        storeShared(at, uint4{ones, ones, ones, ones});
    }
}

void storeAndPublishOnes()
{
    storeOnes();
    publishToAsyncProxy();
    synchronizeBlock();
}

using Ones = float[kWidth / 8][4];

void startProduct(Ones& c)
{
    fenceProducts();
    WarpgroupProduct<HalfMath, kWidth>::ofShared(c, matrixDescriptor(kLeft, 16), matrixDescriptor(kRight, 16), false);
    commitProducts();
}

constexpr float kProduct = 16.F; //!< of ones

TEST(EmulatedProducts, AreThereOnceTheyAreWaitedFor)
{
    auto const kernel = [](bool waits) {
        Ones c{};
        storeAndPublishOnes();
        startProduct(c);
        if (waits)
        {
            waitForProducts<0>();
        }
        float const seen = c[0][0];
        waitForProducts<0>();
        return seen;
    };
    EXPECT_EQ(countRight([&] { return kernel(true); }, kProduct), kSeeds);
    EXPECT_EQ(countRight([&] { return kernel(false); }, kProduct), 0);
}

//! Integers that TF32 has, and bits behind them that the tensor cores do not see.
float leftTf32(int row, int k)
{
    return static_cast<float>(row % 16 + 5 * k + 1);
}

float rightTf32(int column, int k)
{
    return static_cast<float>(column - 7 * k - 40);
}

uint32_t withUnseenBits(float value)
{
    return floatAsBits(value) | 0x1fffU;
}

//! Both factors, their rows along the inner dimension, in the first unit of a panel and the second.
void storeTf32()
{
    auto const at = [](SharedAddress tile, int row, int k) {
        return tile + row * 128 + (k / 4 ^ row % 8) * 16 + k % 4 * 4;
    };
    for (int k = 0; k < 8; ++k)
    {
        int const row = thread() % kWarpgroupRows;
        storeShared(at(kLeft, row, k), withUnseenBits(leftTf32(row, k)));
        storeShared(at(kRight, thread() % kWidth, k), withUnseenBits(rightTf32(thread() % kWidth, k)));
    }
    publishToAsyncProxy();
    synchronizeBlock();
}

TEST(EmulatedProducts, OfTf32ReadRowsAlongTheInnerDimension)
{
    auto const kernel = [](bool isOfRegisters) {
        Ones c{};
        storeTf32();
        int const lane = thread() % 32;
        int const row = thread() / 32 * 16 + lane / 4;
        float left[4];
        for (int i = 0; i < 4; ++i)
        {
            left[i] = bitsAsFloat(withUnseenBits(leftTf32(row + i % 2 * 8, lane % 4 + i / 2 * 4)));
        }
        fenceProducts();
        uint64_t const right = matrixDescriptor(kRight, 16);
        if (isOfRegisters)
        {
            WarpgroupProduct<Tf32Math, kWidth>::ofRegisters(c, left, right, true);
        }
        else
        {
            WarpgroupProduct<Tf32Math, kWidth>::ofShared(c, matrixDescriptor(kLeft, 16), right, false);
        }
        commitProducts();
        waitForProducts<0>();
        int wrong = 0;
        for (int i = 0; i < 4 * kWidth / 8; ++i)
        {
            float sum = 0.F;
            for (int k = 0; k < 8; ++k)
            {
                sum += leftTf32(row + i / 2 % 2 * 8, k) * rightTf32(i / 4 * 8 + lane % 4 * 2 + i % 2, k);
            }
            wrong += c[i / 4][i % 4] == sum ? 0 : 1;
        }
        return static_cast<float>(wrong);
    };
    EXPECT_EQ(countRight([&] { return kernel(false); }, 0.F), kSeeds);
    EXPECT_EQ(countRight([&] { return kernel(true); }, 0.F), kSeeds);
}

TEST(EmulatedProducts, ReadSharedMemoryAndRegistersUntilTheyAreWaitedFor)
{
    auto const kernel = [](bool changesShared, bool changesRegisters) {
        Ones c{};
        storeAndPublishOnes();
        uint32_t left[4];
        std::fill_n(left, 4, packPair<__half>(1.F, 1.F));
        fenceProducts();
        WarpgroupProduct<HalfMath, kWidth>::ofRegisters(c, left, matrixDescriptor(kRight, 16));
        commitProducts();
        if (changesRegisters)
        {
            left[0] = 0;
        }
        if (changesShared)
        {
            storeShared(kRight + thread() * 16, uint4{});
            publishToAsyncProxy();
        }
        waitForProducts<0>();
        return c[0][0];
    };
    EXPECT_EQ(countRight([&] { return kernel(false, false); }, kProduct), kSeeds);
    EXPECT_LT(countRight([&] { return kernel(false, true); }, kProduct), kSeeds);
    EXPECT_LT(countRight([&] { return kernel(true, false); }, kProduct), kSeeds);
}

TEST(EmulatedProducts, SeeWhatWasPublished)
{
    expectComplaint(
        [] {
            Ones c{};
            storeOnes();
            synchronizeBlock();
            startProduct(c);
            waitForProducts<0>();
        },
        "did not publish");
}

TEST(EmulatedProducts, AreWaitedForFencedAndTheSameInTheWholeGroup)
{
    expectComplaint(
        [] {
            Ones c{};
            storeAndPublishOnes();
            startProduct(c);
        },
        "nobody waited for");
    expectComplaint(
        [] {
            Ones c{};
            WarpgroupProduct<HalfMath, kWidth>::ofShared(c, 0, 0, false);
        },
        "without a fence");
    expectComplaint(
        [] {
            Ones c{};
            fenceProducts();
            WarpgroupProduct<HalfMath, kWidth>::ofShared(c, thread() / 32, 0, false);
        },
        "different products");
    expectComplaint(
        [] {
            Ones c{};
            fenceProducts();
            WarpgroupProduct<HalfMath, kWidth>::ofShared(c, 0, 0, false);
            commitProducts();
            waitForProducts<0>();
        },
        "matrix descriptor");
}

} // namespace
} // namespace attngraft::faults
