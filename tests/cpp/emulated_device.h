// A block of a GPU on the CPU, as far as the attention kernels need one: its threads are coroutines that run until they
// must wait for their warp or their block. The kernels' own source is compiled against this in place of the
// instructions in tensor_core.cuh.
//
// What it finds beyond wrong results: reads of shared memory that nothing wrote (it begins as NaN), accesses outside
// of it, copies that are not waited for (they arrive when waited for, no earlier), and collectives that not all threads
// of a warp or block take part in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include <ucontext.h>

#define ATTNGRAFT_DEVICE inline
#if !defined(__launch_bounds__)
#define __launch_bounds__(...)
#endif
#if !defined(__grid_constant__)
#define __grid_constant__
#endif

namespace attngraft
{

using SharedAddress = uint32_t;

namespace emulation
{

constexpr int kWarpThreads = 32;
constexpr size_t kStackBytes = size_t{512} * 1024;

struct Copy
{
    SharedAddress to;
    void const* from;
    int bytes;
};

//! Threads that meet, and what they bring along. Two buffers, since a thread may be one meeting ahead of another.
struct Meeting
{
    int members{0};
    int arrived{0};
    unsigned generation{0};
    std::vector<uint8_t> buffers[2];
};

struct Thread
{
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    uint3 index{};
    bool isDone{false};
    std::vector<std::vector<Copy>> groups; //!< committed, oldest first
    std::vector<Copy> uncommitted;
};

class Block
{
public:
    Block(dim3 grid, uint3 index, int threads, size_t sharedBytes, unsigned seed)
        : gridSize(grid)
        , blockIndex(index)
        , threadCount(threads)
        , shared(sharedBytes, 0xff)
        , mThreads(threads)
        , mWarps(threads / kWarpThreads)
        , mRandom(seed)
    {
        mBlock.members = threads;
        for (Meeting& warp : mWarps)
        {
            warp.members = kWarpThreads;
        }
    }

    //! Runs `kernel` in every thread of the block, in an order that changes from turn to turn.
    void run(std::function<void()> const& kernel)
    {
        mKernel = &kernel;
        current() = this;
        for (int i = 0; i < threadCount; ++i)
        {
            Thread& thread = mThreads[i];
            thread.index.x = static_cast<unsigned>(i);
            thread.stack = std::make_unique<char[]>(kStackBytes);
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.get();
            thread.context.uc_stack.ss_size = kStackBytes;
            thread.context.uc_link = &mScheduler;
            makecontext(&thread.context, &Block::enter, 0);
        }
        int left = threadCount;
        while (left > 0)
        {
            mProgress = false;
            auto const shift = static_cast<int>(mRandom() % static_cast<unsigned>(threadCount));
            for (int i = 0; i < threadCount; ++i)
            {
                mRunning = (i + shift) % threadCount;
                if (mThreads[mRunning].isDone)
                {
                    continue;
                }
                swapcontext(&mScheduler, &mThreads[mRunning].context);
                left -= mThreads[mRunning].isDone ? 1 : 0;
            }
            if (!mProgress && left > 0)
            {
                throw std::logic_error("threads wait for each other: not all take part in a collective operation");
            }
        }
        if (mError)
        {
            std::rethrow_exception(mError);
        }
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

    uint8_t* at(SharedAddress address, size_t bytes)
    {
        if (address + bytes > shared.size() || address % bytes != 0)
        {
            throw std::out_of_range("shared memory: " + std::to_string(bytes) + " bytes at " + std::to_string(address)
                + " of " + std::to_string(shared.size()));
        }
        return shared.data() + address;
    }

    //! Brings `mine` to the meeting of the warp, or of the block, and calls read(values) when all have.
    template <typename Value, typename Read>
    auto meet(bool ofBlock, Value const& mine, Read read)
    {
        Meeting& meeting = ofBlock ? mBlock : mWarps[mRunning / kWarpThreads];
        int const seat = ofBlock ? mRunning : mRunning % kWarpThreads;
        unsigned const generation = meeting.generation;
        std::vector<uint8_t>& buffer = meeting.buffers[generation % 2];
        buffer.resize(std::max(buffer.size(), meeting.members * sizeof(Value)));
        std::memcpy(buffer.data() + seat * sizeof(Value), &mine, sizeof(Value));
        mProgress = true;
        if (++meeting.arrived == meeting.members)
        {
            meeting.arrived = 0;
            ++meeting.generation;
        }
        while (meeting.generation == generation)
        {
            int const me = mRunning;
            swapcontext(&mThreads[me].context, &mScheduler);
        }
        return read(reinterpret_cast<Value const*>(meeting.buffers[generation % 2].data()));
    }

    void copy(Copy const& copy)
    {
        uint8_t* const to = at(copy.to, 16);
        std::memset(to, 0, 16);
        std::memcpy(to, copy.from, static_cast<size_t>(copy.bytes));
    }

    dim3 gridSize;
    uint3 blockIndex;
    int threadCount;
    std::vector<uint8_t> shared;

private:
    static void enter()
    {
        Block& block = *current();
        try
        {
            (*block.mKernel)();
        }
        catch (...)
        {
            block.mError = std::current_exception();
        }
        block.mThreads[block.mRunning].isDone = true;
        block.mProgress = true;
    }

    std::vector<Thread> mThreads;
    std::vector<Meeting> mWarps;
    Meeting mBlock;
    std::mt19937 mRandom;
    ucontext_t mScheduler{};
    std::function<void()> const* mKernel{nullptr};
    std::exception_ptr mError;
    int mRunning{0};
    bool mProgress{false};
};

inline Block& block()
{
    return *Block::current();
}

inline float toFloat(uint16_t bits, bool isHalf)
{
    if (isHalf)
    {
        __half_raw raw;
        raw.x = bits;
        return __half2float(__half(raw));
    }
    __nv_bfloat16_raw raw;
    raw.x = bits;
    return __bfloat162float(__nv_bfloat16(raw));
}

} // namespace emulation

#define threadIdx (::attngraft::emulation::block().thread().index)
#define blockIdx (::attngraft::emulation::block().blockIndex)
#define gridDim (::attngraft::emulation::block().gridSize)
#define blockDim (dim3(static_cast<unsigned>(::attngraft::emulation::block().threadCount)))

inline SharedAddress dynamicSharedMemory()
{
    return 0;
}

inline void copyAsync16(SharedAddress to, void const* from, int bytes)
{
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
    {
        throw std::out_of_range("copyAsync16: the source is not aligned");
    }
    emulation::block().thread().uncommitted.push_back({to, from, bytes});
}

inline void commitCopies()
{
    emulation::Thread& thread = emulation::block().thread();
    thread.groups.push_back(std::move(thread.uncommitted));
    thread.uncommitted.clear();
}

template <int pending>
void waitForCopies()
{
    auto& groups = emulation::block().thread().groups;
    while (groups.size() > pending)
    {
        for (emulation::Copy const& copy : groups.front())
        {
            emulation::block().copy(copy);
        }
        groups.erase(groups.begin());
    }
}

namespace emulation
{
template <bool isTransposed>
void loadFourMatrices(uint32_t (&to)[4], SharedAddress from)
{
    int const lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    block().meet(false, from, [&](SharedAddress const* rows) {
        for (int matrix = 0; matrix < 4; ++matrix)
        {
            auto const element = [&](int row, int column) {
                uint16_t bits;
                std::memcpy(&bits, block().at(rows[8 * matrix + row], 16) + 2 * column, 2);
                return bits;
            };
            int const major = lane / 4;
            int const minor = lane % 4 * 2;
            uint32_t const low = isTransposed ? element(minor, major) : element(major, minor);
            uint32_t const high = isTransposed ? element(minor + 1, major) : element(major, minor + 1);
            to[matrix] = low | high << 16;
        }
        return 0;
    });
}
} // namespace emulation

inline void loadMatrices(uint32_t (&to)[4], SharedAddress from)
{
    emulation::loadFourMatrices<false>(to, from);
}

inline void loadMatricesTransposed(uint32_t (&to)[4], SharedAddress from)
{
    emulation::loadFourMatrices<true>(to, from);
}

inline uint32_t roundToTf32(float x)
{
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bool const isFinite = (bits & 0x7f800000U) != 0x7f800000U;
    return isFinite ? (bits + 0x1000U) & ~0x1fffU : bits;
}

template <typename Math>
void multiplyFragments(float (&c)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1)
{
    struct Fragments
    {
        uint32_t a[4];
        uint32_t b[2];
    };
    Fragments const mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
    int const lane = static_cast<int>(threadIdx.x) % emulation::kWarpThreads;
    emulation::block().meet(false, mine, [&](Fragments const* all) {
        constexpr int kPerRegister = 4 / static_cast<int>(sizeof(typename Math::Element));
        auto const value = [](uint32_t bits, int i) {
            if constexpr (kPerRegister == 1)
            {
                uint32_t const seen = bits & ~0x1fffU; // the tensor cores read no more
                float x;
                std::memcpy(&x, &seen, 4);
                return static_cast<double>(x);
            }
            else
            {
                constexpr bool kIsHalf = std::is_same_v<Math, HalfMath>;
                return static_cast<double>(emulation::toFloat(static_cast<uint16_t>(bits >> (16 * i)), kIsHalf));
            }
        };
        for (int i = 0; i < 4; ++i)
        {
            int const row = lane / 4;
            int const column = lane % 4 * 2 + i % 2;
            double sum = c[i];
            for (int k = 0; k < 8 * kPerRegister; ++k)
            {
                int const part = k / (4 * kPerRegister);
                int const owner = k / kPerRegister % 4;
                Fragments const& left = all[row * 4 + owner];
                Fragments const& right = all[column * 4 + owner];
                sum += value(left.a[2 * part + i / 2], k % kPerRegister) * value(right.b[part], k % kPerRegister);
            }
            c[i] = static_cast<float>(sum);
        }
        return 0;
    });
}

template <typename T>
uint32_t packPair(float low, float high)
{
    auto const bits = [](float x) {
        uint16_t made;
        T const value = static_cast<T>(x);
        std::memcpy(&made, &value, 2);
        return static_cast<uint32_t>(made);
    };
    return bits(low) | bits(high) << 16;
}

template <typename Value>
void storeShared(SharedAddress to, Value value)
{
    std::memcpy(emulation::block().at(to, sizeof(Value)), &value, sizeof(Value));
}

template <typename Value>
Value loadShared(SharedAddress from)
{
    Value value;
    std::memcpy(&value, emulation::block().at(from, sizeof(Value)), sizeof(Value));
    return value;
}

inline float shuffleXor(float value, int lanes)
{
    int const lane = static_cast<int>(threadIdx.x) % emulation::kWarpThreads;
    return emulation::block().meet(false, value, [&](float const* all) { return all[lane ^ lanes]; });
}

inline float shuffleFrom(float value, int lane)
{
    return emulation::block().meet(false, value, [&](float const* all) { return all[lane]; });
}

inline uint32_t ballot(bool condition)
{
    return emulation::block().meet(false, condition, [](bool const* all) {
        uint32_t bits = 0;
        for (int lane = 0; lane < emulation::kWarpThreads; ++lane)
        {
            bits |= static_cast<uint32_t>(all[lane]) << lane;
        }
        return bits;
    });
}

inline bool anyInWarp(bool condition)
{
    return ballot(condition) != 0;
}

inline bool anyInBlock(bool condition)
{
    return emulation::block().meet(true, condition, [](bool const* all) {
        bool any = false;
        for (int i = 0; i < emulation::block().threadCount; ++i)
        {
            any = any || all[i];
        }
        return any;
    });
}

inline void synchronizeBlock()
{
    anyInBlock(false);
}

inline void synchronizeWarp()
{
    ballot(false);
}

inline float multiplyAlone(float a, float b)
{
    float const volatile product = a * b;
    return product;
}

inline float exp2Fast(float x)
{
    return std::exp2(x);
}

} // namespace attngraft
