// Bulk copies of an emulated block, and the barriers that count their bytes.
#pragma once

#include "emulated_memory.h"

#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace attngraft::emulation
{

//! A barrier whose phase ends when all arrivals and all announced bytes are there.
struct CountingBarrier
{
    int arrivals{0};  //!< of a phase
    int missing{0};   //!< of the present one
    int64_t bytes{0}; //!< announced and not there; negative: there before they were announced
    uint32_t phase{0};
    bool isPublished{false};

    void arrive(int64_t announced)
    {
        bytes += announced;
        --missing;
        endPhase();
    }

    void bring(int64_t count)
    {
        bytes -= count;
        endPhase();
    }

private:
    void endPhase()
    {
        if (missing == 0 && bytes == 0)
        {
            missing = arrivals;
            ++phase;
        }
    }
};

constexpr int kMostBoxDims = 5;

//! What the emulation keeps in a CUtensorMap: a tensor of 16-bit elements, [batch, heads, rows, columns] or, with heads
//! in groups, of a dimension more.
struct BoxedTensor
{
    uint8_t const* data;
    int32_t dims;
    int32_t boxRows;               //!< of kBoxRowBytes
    int64_t sizes[kMostBoxDims];   //!< columns first
    int64_t strides[kMostBoxDims]; //!< in bytes
};

constexpr SharedAddress kBoxRowBytes = 128; //!< of a swizzled panel

//! What is under way to shared memory: a barrier is told of so many bytes once it is brought.
struct Delivery
{
    SharedAddress barrier;
    int64_t bytes;
    std::function<void()> bring;
};

//! A bulk copy of a box.
struct BoxCopy
{
    BoxedTensor tensor;
    SharedAddress to;
    SharedAddress barrier;
    int first[kMostBoxDims]; //!< coordinates, column first
};

class CopyEngine
{
public:
    explicit CopyEngine(SharedMemory& memory)
        : mMemory(&memory)
    { }

    void makeBarrier(SharedAddress address, int arrivals)
    {
        mMemory->at(address, kBarrierBytes);
        mBarriers[address] = CountingBarrier{arrivals, arrivals};
    }

    //! Barriers are known to all from here on, and their memory is theirs.
    void publishBarriers()
    {
        for (auto& [address, barrier] : mBarriers)
        {
            barrier.isPublished = true;
            mMemory->reserve(address);
        }
    }

    CountingBarrier& barrier(SharedAddress address)
    {
        auto const found = mBarriers.find(address);
        if (found == mBarriers.end() || !found->second.isPublished)
        {
            throw std::logic_error("no counting barrier was made and published at " + std::to_string(address));
        }
        return found->second;
    }

    //! Starts what arrives now or when somebody waits for its barrier.
    void start(Delivery delivery, bool arrivesNow)
    {
        SharedAddress const barrier = delivery.barrier;
        mUnderWay.push_back(std::move(delivery));
        if (arrivesNow)
        {
            finish(barrier);
        }
    }

    //! The same of a box, by an instruction for tensors of so many dimensions.
    void start(BoxCopy const& copy, int dims, bool arrivesNow)
    {
        if (copy.tensor.dims != dims)
        {
            throw std::logic_error("a bulk copy of " + std::to_string(dims) + " dimensions of a tensor of "
                + std::to_string(copy.tensor.dims));
        }
        start({copy.barrier, int64_t{copy.tensor.boxRows} * kBoxRowBytes, [this, copy] { bring(copy); }}, arrivesNow);
    }

    //! All that tells this barrier arrives.
    void finish(SharedAddress address)
    {
        auto const isOther = [&](Delivery const& delivery) { return delivery.barrier != address; };
        auto const first = std::stable_partition(mUnderWay.begin(), mUnderWay.end(), isOther);
        std::for_each(first, mUnderWay.end(), [&](Delivery const& delivery) {
            delivery.bring();
            barrier(address).bring(delivery.bytes);
        });
        mUnderWay.erase(first, mUnderWay.end());
    }

    bool isIdle() const
    {
        return mUnderWay.empty();
    }

private:
    void bring(BoxCopy const& copy) const
    {
        for (int row = 0; row < copy.tensor.boxRows; ++row)
        {
            for (SharedAddress byte = 0; byte < kBoxRowBytes; byte += kUnitBytes)
            {
                bringUnit(copy, row, byte, mMemory->atForEngine(swizzled128(copy.to + row * kBoxRowBytes + byte)));
            }
        }
    }

    //! A unit of a row of a box, zeros beyond the tensor's ends.
    static void bringUnit(BoxCopy const& copy, int row, SharedAddress byte, uint8_t* to)
    {
        BoxedTensor const& tensor = copy.tensor;
        int64_t const column = copy.first[0] + static_cast<int64_t>(byte) / tensor.strides[0];
        std::memset(to, 0, kUnitBytes);
        int64_t offset = 0;
        for (int axis = 0; axis < tensor.dims; ++axis)
        {
            int64_t const at = axis == 0 ? column : int64_t{copy.first[axis]} + (axis == 1 ? row : 0);
            if (at < 0 || at >= tensor.sizes[axis])
            {
                return;
            }
            offset += at * tensor.strides[axis];
        }
        int64_t const left = (tensor.sizes[0] - column) * tensor.strides[0];
        std::memcpy(to, tensor.data + offset, static_cast<size_t>(std::min<int64_t>(left, kUnitBytes)));
    }

    SharedMemory* mMemory;
    std::map<SharedAddress, CountingBarrier> mBarriers;
    std::vector<Delivery> mUnderWay;
};

} // namespace attngraft::emulation
