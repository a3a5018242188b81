// A block of a GPU on the CPU, as far as the attention kernels need one: its threads are coroutines that run until they
// must wait for their warp, their block or a barrier.
//
// What it finds beyond wrong results: collectives that not all threads of a warp or block take part in, threads that
// wait for each other, copies and products that nobody waits for, and what its parts find.
#pragma once

#include "emulated_copies.h"
#include "emulated_meetings.h"
#include "emulated_products.h"

#include <vector_types.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ucontext.h>

namespace attngraft::emulation
{

constexpr size_t kStackBytes = size_t{256} * 1024;
constexpr int kGroupThreads = kWarpThreads * kWarpsOfGroup;
constexpr int kNamedBarriers = 16; //!< of a block on every device
constexpr int kClusterBarrier = kNamedBarriers;

//! A copy of 16 bytes that a thread started.
struct Copy
{
    SharedAddress to;
    void const* from;
    int bytes;
};

struct Thread
{
    ucontext_t context{};
    std::jmp_buf place{};
    uint3 index{};
    bool isStarted{false};
    bool isDone{false};
    bool hasWaited{false};   //!< for earlier kernels
    bool isAtCluster{false}; //!< came to the cluster's barrier and did not wait there yet
    unsigned clusterGeneration{0};
    char const* waitsFor{""};
    std::vector<std::vector<Copy>> groups; //!< committed, oldest first
    std::vector<Copy> uncommitted;
};

class Block
{
public:
    //! With `blocks` a cluster of them, which run together: `threads` and `sharedBytes` are one's, `index` the first
    //! one's. Barriers but the cluster's are not for clusters.
    Block(dim3 grid, uint3 index, int threads, size_t sharedBytes, unsigned seed, int blocks = 1)
        : gridSize(grid)
        , blockIndex(index)
        , threadCount(threads * blocks)
        , shared(sharedBytes * blocks, threads * blocks)
        , mThreadsOfBlock(threads)
        , mSharedOfBlock(sharedBytes)
        , mThreads(threadCount)
        , mWarps(threadCount / kWarpThreads)
        , mLogs((mWarps.size() + kWarpsOfGroup - 1) / kWarpsOfGroup)
        , mRandom(seed)
    {
        for (int warp = 0; warp < static_cast<int>(mWarps.size()); ++warp)
        {
            mProducts.emplace_back(shared, warp, mLogs[warp / kWarpsOfGroup]);
        }
    }

    //! Runs `kernel` in every thread of the block, in an order that changes from turn to turn.
    void run(std::function<void()> const& kernel)
    {
        mKernel = &kernel;
        current() = this;
        for (int i = 0; i < threadCount; ++i)
        {
            mThreads[i].index.x = static_cast<unsigned>(i % mThreadsOfBlock);
            prepare(mThreads[i].context, stack(i));
        }
        mLeft = threadCount;
        bool mayHoldUp = true;
        while (mLeft > 0)
        {
            mProgress = false;
            takeTurns(mayHoldUp);
            if (mError)
            {
                std::rethrow_exception(mError);
            }
            if (!mProgress && !mayHoldUp && mLeft > 0)
            {
                throw std::logic_error("threads wait for each other: " + describeWaits());
            }
            mayHoldUp = mProgress;
        }
        checkNothingIsLeft();
    }

    static Block*& current()
    {
        static Block* block = nullptr;
        return block;
    }

    Thread& thread()
    {
        return mThreads[mRunning];
    }

    int threadNumber() const
    {
        return mRunning;
    }

    int lane() const
    {
        return mRunning % kWarpThreads;
    }

    //! Of the cluster's, the one that the thread belongs to.
    int blockOfThread() const
    {
        return mRunning / mThreadsOfBlock;
    }

    uint3 indexOfBlock() const
    {
        return uint3{blockIndex.x + static_cast<unsigned>(blockOfThread()), blockIndex.y, blockIndex.z};
    }

    //! Where a block's shared memory begins in the cluster's.
    SharedAddress sharedWindowOf(int block) const
    {
        return static_cast<SharedAddress>(mSharedOfBlock * static_cast<size_t>(block));
    }

    SharedAddress sharedWindow() const
    {
        return sharedWindowOf(blockOfThread());
    }

    void arriveAtCluster()
    {
        if (std::exchange(thread().isAtCluster, true))
        {
            throw std::logic_error("a thread comes twice to the cluster's barrier");
        }
        thread().clusterGeneration = mNamed[kClusterBarrier].arrive(mRunning, threadCount, false);
        dawdle();
    }

    void waitForCluster()
    {
        if (!std::exchange(thread().isAtCluster, false))
        {
            throw std::logic_error("a thread waits at the cluster's barrier and did not come to it");
        }
        unsigned const generation = thread().clusterGeneration;
        wait("the cluster", [&] { return mNamed[kClusterBarrier].isOver(generation); });
    }

    //! Chance, for whoever has a choice.
    bool tossCoin()
    {
        return (mRandom() & 1U) != 0;
    }

    //! Lets others run until isOver().
    template <typename IsOver>
    void wait(char const* what, IsOver isOver)
    {
        Thread& mine = thread();
        mine.waitsFor = what;
        while (!isOver())
        {
            switchTo(mine.place, mScheduler);
        }
        mProgress = true;
    }

    //! By chance lets others run: after what they may wait for, since what a thread does too late then shows.
    void dawdle()
    {
        bool isOver = tossCoin();
        wait("its turn", [&] { return std::exchange(isOver, true); });
    }

    //! Brings `mine` to the meeting of the warp, and calls read(values) when all have.
    template <typename Value, typename Read>
    auto meet(Value const& mine, Read read)
    {
        Meeting& meeting = mWarps[mRunning / kWarpThreads];
        unsigned const generation = meeting.generation;
        std::vector<uint8_t>& buffer = meeting.buffers[generation % 2];
        buffer.resize(std::max(buffer.size(), kWarpThreads * sizeof(Value)));
        std::memcpy(buffer.data() + lane() * sizeof(Value), &mine, sizeof(Value));
        if (++meeting.arrived == kWarpThreads)
        {
            meeting.arrived = 0;
            ++meeting.generation;
        }
        wait("the warp", [&] { return meeting.generation != generation; });
        return read(reinterpret_cast<Value const*>(meeting.buffers[generation % 2].data()));
    }

    //! Arrives at a barrier of the hardware without waiting for the others.
    void arriveAt(int barrier, int threads)
    {
        mNamed.at(static_cast<size_t>(barrier)).arrive(mRunning, threads, false);
        dawdle();
    }

    //! Waits for the others. Returns whether the condition holds for any.
    bool meetAt(int barrier, int threads, bool condition)
    {
        NamedBarrier& named = mNamed.at(static_cast<size_t>(barrier));
        unsigned const generation = named.arrive(mRunning, threads, condition);
        wait("a named barrier", [&] { return named.isOver(generation); });
        return named.isTrueOfAny(generation);
    }

    //! The thread is about to read or write what earlier kernels may write or read.
    void expectEarlierKernelsDone()
    {
        if (!thread().hasWaited)
        {
            throw std::logic_error("a thread touches global memory and did not wait for earlier kernels");
        }
    }

    void copy(Copy const& copy)
    {
        uint8_t* const to = shared.atForWriting(copy.to, kUnitBytes, mRunning);
        std::memset(to, 0, kUnitBytes);
        std::memcpy(to, copy.from, static_cast<size_t>(copy.bytes));
    }

    WarpProducts& products()
    {
        return mProducts[mRunning / kWarpThreads];
    }

    dim3 gridSize;
    uint3 blockIndex;
    int threadCount;
    SharedMemory shared;
    CopyEngine copyEngine{shared};

private:
    //! Stacks serve one block after another.
    static char* stack(int thread)
    {
        static std::vector<std::unique_ptr<char[]>> stacks;
        while (static_cast<int>(stacks.size()) <= thread)
        {
            stacks.emplace_back(new char[kStackBytes]); // not filled: little of it is used
        }
        return stacks[thread].get();
    }

    __attribute__((noinline)) static void prepare(ucontext_t& context, char* stack)
    {
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = kStackBytes;
        context.uc_link = nullptr;
        makecontext(&context, &Block::enter, 0);
    }

    //! Without the system calls of swapcontext, of which there would be millions.
    __attribute__((noinline)) static void switchTo(std::jmp_buf& from, std::jmp_buf& to)
    {
        if (_setjmp(from) == 0)
        {
            _longjmp(to, 1);
        }
    }

    __attribute__((noinline)) void resume(Thread& thread)
    {
        if (thread.isStarted)
        {
            switchTo(mScheduler, thread.place);
        }
        else if (_setjmp(mScheduler) == 0)
        {
            thread.isStarted = true;
            mProgress = true;
            setcontext(&thread.context);
        }
    }

    static void enter()
    {
        Block& block = *current();
        try
        {
            (*block.mKernel)();
            if (block.thread().isAtCluster)
            {
                throw std::logic_error("a thread ends without having waited for the cluster");
            }
        }
        catch (...)
        {
            block.mError = std::current_exception();
        }
        block.thread().isDone = true;
        block.mProgress = true;
        --block.mLeft;
        _longjmp(block.mScheduler, 1);
    }

    //! Every thread once, from a random one on, but for those that are held up.
    void takeTurns(bool mayHoldUp)
    {
        holdUp(mayHoldUp);
        auto const shift = static_cast<int>(mRandom() % static_cast<unsigned>(threadCount));
        for (int i = 0; i < threadCount && !mError; ++i)
        {
            mRunning = (i + shift) % threadCount;
            bool const isHeldUp = mRunning >= mHeldUpFrom && mRunning < mHeldUpTo;
            if (!mThreads[mRunning].isDone && !isHeldUp)
            {
                resume(mThreads[mRunning]);
            }
        }
    }

    //! By chance a warp or a warp group stands still for some turns, so that others get far ahead of it.
    void holdUp(bool mayHoldUp)
    {
        constexpr unsigned kTurns = 16; // on average
        if (!mayHoldUp)
        {
            mHeldUpTo = 0;
        }
        else if (mRandom() % kTurns == 0)
        {
            int const size = tossCoin() ? kWarpThreads : kGroupThreads;
            mHeldUpFrom = static_cast<int>(mRandom() % static_cast<unsigned>(threadCount)) / size * size;
            mHeldUpTo = tossCoin() ? mHeldUpFrom + size : 0;
        }
    }

    std::string describeWaits() const
    {
        std::map<std::string, int> counts;
        for (Thread const& thread : mThreads)
        {
            counts[thread.isDone ? "nothing, being done" : thread.waitsFor] += 1;
        }
        std::string text;
        for (auto const& [what, count] : counts)
        {
            text += (text.empty() ? "" : ", ") + std::to_string(count) + " for " + what;
        }
        return text;
    }

    void checkNothingIsLeft() const
    {
        bool const isWaited = copyEngine.isIdle()
            && std::all_of(mProducts.begin(), mProducts.end(), [](WarpProducts const& all) { return all.isIdle(); });
        if (!isWaited)
        {
            throw std::logic_error("a block ends with bulk copies or products that nobody waited for");
        }
        for (NamedBarrier const& named : mNamed)
        {
            if (!named.isIdle())
            {
                throw std::logic_error("a block ends with threads at a named barrier that others did not come to");
            }
        }
    }

    int mThreadsOfBlock;
    size_t mSharedOfBlock;
    std::vector<Thread> mThreads;
    std::vector<Meeting> mWarps;
    std::array<NamedBarrier, kNamedBarriers + 1> mNamed; //!< and the cluster's
    std::vector<std::vector<Product>> mLogs;             //!< of the warp groups
    std::vector<WarpProducts> mProducts;                 //!< of the warps
    std::mt19937 mRandom;
    std::jmp_buf mScheduler{};
    std::function<void()> const* mKernel{nullptr};
    std::exception_ptr mError;
    int mRunning{0};
    int mHeldUpFrom{0}; //!< threads that stand still
    int mHeldUpTo{0};
    int mLeft{0};
    bool mProgress{false};
};

inline Block& block()
{
    return *Block::current();
}

} // namespace attngraft::emulation
