// What the emulated device says of kernels with faults in copies, memory and barriers: of each a few lines, and beside
// it the same without the fault.
#include "emulated_faults.h"

#include <vector>

namespace attngraft::faults
{
namespace
{

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
} // namespace attngraft::faults
