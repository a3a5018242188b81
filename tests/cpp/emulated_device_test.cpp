// What the emulated device says of kernels with faults: of each a few lines, and beside it the same without the fault.
#define ATTNGRAFT_DEVICE_INSTRUCTIONS "emulated_device.h"
#define ATTNGRAFT_BULK_INSTRUCTIONS "emulated_bulk.h"
#define ATTNGRAFT_WARPGROUP_INSTRUCTIONS "emulated_warpgroups.h"

#include "warpgroup_instructions.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace attngraft
{
namespace
{

constexpr int kWidth = 32; //!< of the products
constexpr int kSeeds = 20; //!< of which some show what depends on the order of threads
constexpr SharedAddress kLeft = 0;
constexpr SharedAddress kRight = 8192;
constexpr SharedAddress kBarrier = 16384;
constexpr size_t kSharedBytes = 16384 + 64;

using Kernel = std::function<void()>;

//! What running a block says, empty where all is well.
std::string complaint(Kernel const& kernel, unsigned seed = 0, int threads = kWarpgroupThreads)
{
    try
    {
        emulation::Block block(dim3(1), uint3{0, 0, 0}, threads, kSharedBytes, seed);
        block.run(kernel);
    }
    catch (std::exception const& error)
    {
        return error.what();
    }
    return "";
}

void expectComplaint(Kernel const& kernel, std::string const& part, int threads = kWarpgroupThreads)
{
    std::string const said = complaint(kernel, 0, threads);
    EXPECT_NE(said.find(part), std::string::npos) << "said: " << said;
}

//! The kernel stores a result for each thread; whether all are as expected, for each seed.
int countRight(std::function<float()> const& kernel, float expected)
{
    int right = 0;
    for (unsigned seed = 0; seed < kSeeds; ++seed)
    {
        bool isRight = true;
        std::string const said = complaint([&] { isRight = (kernel() == expected) && isRight; }, seed);
        EXPECT_EQ(said, "");
        right += isRight ? 1 : 0;
    }
    return right;
}

int thread()
{
    return static_cast<int>(threadIdx.x);
}

bool isFirstThread()
{
    return thread() == 0;
}

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

void makeBarrier(int arrivals)
{
    if (isFirstThread())
    {
        makeCountingBarrier(kBarrier, arrivals);
        publishCountingBarriers();
    }
    synchronizeBlock();
}

//! A box of ones that fills the left factor.
struct Box
{
    std::vector<uint16_t> ones = std::vector<uint16_t>(size_t{64} * 64, 0x3c00);
    emulation::BoxedTensor map{
        reinterpret_cast<uint8_t const*>(ones.data()), 4, 64, {64, 64, 1, 1, 1}, {2, 128, 8192, 8192, 0}};
    static constexpr int kBytes = 64 * 128;

    void copy() const
    {
        if (isFirstThread())
        {
            arriveExpecting(kBarrier, kBytes);
            copyBox(kLeft, &map, kBarrier, 0, 0, 0, 0);
        }
    }
};

//! Fills the left factor by box.copy().
void bring(Box const& box)
{
    makeBarrier(1);
    waitForEarlierKernels();
    box.copy();
}

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

TEST(EmulatedCopies, BringBoxesWhenTheBarrierSaysSo)
{
    Box const box;
    auto const kernel = [&](bool waits) {
        bring(box);
        if (waits)
        {
            waitForPhase(kBarrier, 0);
        }
        auto const bits = loadShared<uint32_t>(kLeft + thread() * 64);
        waitForPhase(kBarrier, 0);
        return bits == packPair<__half>(1.F, 1.F) ? 1.F : 0.F;
    };
    EXPECT_EQ(countRight([&] { return kernel(true); }, 1.F), kSeeds);
    EXPECT_LT(countRight([&] { return kernel(false); }, 1.F), kSeeds);
}

TEST(EmulatedCopies, AreWaitedFor)
{
    Box const box;
    int noticed = 0;
    for (unsigned seed = 0; seed < kSeeds; ++seed)
    {
        std::string const said = complaint([&] { bring(box); }, seed);
        noticed += said.find("nobody waited for") != std::string::npos ? 1 : 0;
    }
    EXPECT_GT(noticed, 0);
}

TEST(EmulatedCopies, HaveTheDimensionsOfTheTensor)
{
    Box box;
    box.map.dims = 5;
    expectComplaint([&] { bring(box); }, "of 4 dimensions of a tensor of 5");
}

TEST(EmulatedCopies, BringNeighbouringBytesOfKnownMemory)
{
    alignas(16) uint32_t source[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    auto const kernel = [&](int bytes, int past) {
        makeBarrier(1);
        if (isFirstThread())
        {
            arriveExpecting(kBarrier, bytes);
            copyBulk(kLeft, reinterpret_cast<uint8_t const*>(source) + past, bytes, kBarrier);
        }
        waitForPhase(kBarrier, 0);
        return loadShared<uint32_t>(kLeft) == 1 ? 1.F : 0.F;
    };
    auto* const bytes = reinterpret_cast<uint8_t const*>(source);
    emulation::globalMemory() = {{{bytes, bytes + sizeof(source)}}, {}};
    EXPECT_EQ(countRight([&] { return kernel(32, 0); }, 1.F), kSeeds);
    expectComplaint([&] { kernel(48, 0); }, "beyond a tensor");
    expectComplaint([&] { kernel(16, 4); }, "not aligned");
    expectComplaint([&] { kernel(24, 0); }, "no multiple of 16");
}

TEST(EmulatedMemory, IsGlobalOnceEarlierKernelsAreDone)
{
    Box const box;
    auto const touches = [&](std::function<void()> const& touch) {
        EXPECT_EQ(complaint([&] {
            waitForEarlierKernels();
            touch();
        }),
            "");
        expectComplaint(touch, "did not wait for earlier kernels");
    };
    alignas(16) uint4 vector{};
    touches([&] { copyAsync16(kLeft, &vector, 16); });
    touches([&] { storeGlobal16(&vector, uint4{}); });
    expectComplaint(
        [&] {
            makeBarrier(1);
            box.copy();
        },
        "did not wait for earlier kernels");
}

TEST(EmulatedBarriers, EndPhasesByParity)
{
    auto const kernel = [](uint32_t parity) {
        makeBarrier(kWarpgroupThreads);
        arrive(kBarrier);
        waitForPhase(kBarrier, 0);
        waitForPhase(kBarrier, parity);
    };
    EXPECT_EQ(complaint([&] { kernel(0); }), "");
    expectComplaint([&] { kernel(1); }, "threads wait for each other: 128 for a phase of a counting barrier");
}

TEST(EmulatedBarriers, AreMadePublishedAndLeftAlone)
{
    expectComplaint([] { arrive(kBarrier); }, "no counting barrier");
    expectComplaint(
        [] {
            makeCountingBarrier(kBarrier, 1);
            arrive(kBarrier);
        },
        "no counting barrier");
    expectComplaint(
        [] {
            makeBarrier(1);
            storeShared(kBarrier, 0U);
        },
        "a barrier at 16384");
}

TEST(NamedBarriers, LetSomeMeetAndOthersArrive)
{
    constexpr int kThreads = 2 * kWarpgroupThreads;
    auto const kernel = [](int arrivals, int members) {
        if (warpgroupOfThread() == 0)
        {
            for (int i = 0; i < arrivals; ++i)
            {
                arriveThreads(1, members);
            }
        }
        else
        {
            synchronizeThreads(1, kThreads);
        }
    };
    EXPECT_EQ(complaint([&] { kernel(1, kThreads); }, 0, kThreads), "");
    expectComplaint([&] { kernel(0, kThreads); }, "128 for a named barrier, 128 for nothing, being done", kThreads);
    expectComplaint([&] { kernel(2, kThreads); }, "arrive twice", kThreads);
    expectComplaint([&] { kernel(1, kThreads + 1); }, "do not agree", kThreads);
    expectComplaint(
        [] {
            if (warpgroupOfThread() == 0)
            {
                arriveThreads(1, kThreads);
            }
        },
        "others did not come to", kThreads);
}

TEST(EmulatedMemory, IsWithinTheBlock)
{
    expectComplaint([] { storeShared(kSharedBytes, 0U); }, "shared memory: 4 bytes");
    EXPECT_EQ(complaint([] { storeShared(kSharedBytes - 4, 0U); }), "");
}

} // namespace
} // namespace attngraft
