// Matrix products of an emulated block's warp groups, which run beside its threads.
#pragma once

#include "emulated_memory.h"

#include <deque>
#include <memory>

namespace attngraft::emulation
{

constexpr int kWarpThreads = 32;
constexpr int kWarpsOfGroup = 4;

//! Of what a product's factors are.
enum class FactorType
{
    kHalf,
    kBFloat16,
    kTf32,
};

//! A product as all threads of a warp group must start it.
struct Product
{
    uint64_t left; //!< descriptor; unused where the left factor is in registers
    uint64_t right;
    int width;
    FactorType type;
    bool isOfRegisters; //!< the left factor; of 16 bits, the right one's rows then lie across the inner dimension
    bool accumulates;

    //! Steps of the inner dimension: 32 bytes.
    int inner() const
    {
        return type == FactorType::kTf32 ? 8 : 16;
    }

    bool operator==(Product const& other) const
    {
        return left == other.left && right == other.right && width == other.width && type == other.type
            && isOfRegisters == other.isOfRegisters && accumulates == other.accumulates;
    }
};

//! The products of one warp: its 16 rows of those of its warp group. Factors are read when the products are committed
//! or when they are waited for, as chance has it; accumulators hold NaN until they are waited for.
class WarpProducts
{
public:
    //! `warp` of the block; `log`: the products of its warp group, as far as any thread has started them.
    WarpProducts(SharedMemory& memory, int warp, std::vector<Product>& log)
        : mMemory(&memory)
        , mWarpOfGroup(warp % kWarpsOfGroup)
        , mLog(&log)
    { }

    void fence(int lane)
    {
        mLanes[lane].isFenced = true;
    }

    //! A lane starts a product. `c`: its part of the accumulator; `left`: its part of the left factor, if it has one.
    void start(int lane, Product const& product, float* c, void const* left);

    void commit(int lane, bool isReadAtOnce);

    //! How many products, of all that the lane has started, are over when at most `pending` commits are under way.
    int due(int lane, int pending);

    //! Gives out the results of all products before that number, when all lanes wait for them.
    void finish(int end);

    //! Whether everything that was started was waited for, by all lanes and by all warps of the group.
    bool isIdle() const;

private:
    struct Lane
    {
        int started{0};
        std::vector<int> commits; //!< what was started at each of them
        bool isFenced{false};
    };

    struct Accumulator
    {
        float* lanes[kWarpThreads]{};
        int width;
        std::vector<float> sums; //!< 16 rows
        int underWay{0};         //!< products
    };

    struct Started
    {
        Product product;
        std::shared_ptr<Accumulator> accumulator;
        void const* left[kWarpThreads]{};
    };

    std::shared_ptr<Accumulator> accumulatorOf(int lane, float const* c, int width) const;
    void compute(int end);
    void compute(Started const& started) const;

    SharedMemory* mMemory;
    int mWarpOfGroup;
    std::vector<Product>* mLog;
    Lane mLanes[kWarpThreads];
    std::deque<Started> mStarted; //!< from number mFinished on
    int mFinished{0};
    int mComputed{0};
};

} // namespace attngraft::emulation
