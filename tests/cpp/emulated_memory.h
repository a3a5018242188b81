// Shared memory of an emulated block. It begins as NaN, so that reads of what nothing wrote show; it knows which of a
// thread's writes the tensor cores and the copy engine need not see yet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace attngraft
{

using SharedAddress = uint32_t;

namespace emulation
{

constexpr SharedAddress kUnitBytes = 16; //!< what swizzles move, and copies bring
constexpr SharedAddress kPieceBytes = 2; //!< the least that a thread writes

constexpr SharedAddress kBarrierBytes = 8;

//! Where a unit lies under the 128-byte swizzle: the 8 units of a row change places by the row.
inline SharedAddress swizzled128(SharedAddress plain)
{
    return plain ^ (plain >> 7 & 7U) << 4;
}

class SharedMemory
{
public:
    SharedMemory(size_t bytes, int threads)
        : mBytes(bytes, 0xff)
        , mWriters((bytes + kPieceBytes - 1) / kPieceBytes)
        , mPublications(static_cast<size_t>(threads), 1)
    { }

    //! For a thread to read: `bytes` are a power of two and divide the address.
    uint8_t* at(SharedAddress address, size_t bytes)
    {
        if (address + bytes > mBytes.size() || address % bytes != 0)
        {
            throw std::out_of_range("shared memory: " + std::to_string(bytes) + " bytes at " + std::to_string(address)
                + " of " + std::to_string(mBytes.size()));
        }
        if (isReserved(address, bytes))
        {
            throw std::logic_error("shared memory: a barrier at " + std::to_string(address) + " is read or written");
        }
        return mBytes.data() + address;
    }

    //! For a thread to write, which then has to publish it to the tensor cores and the copy engine.
    uint8_t* atForWriting(SharedAddress address, size_t bytes, int thread)
    {
        uint8_t* const to = at(address, bytes);
        for (SharedAddress at = address; at < address + bytes; at += kPieceBytes)
        {
            mWriters[at / kPieceBytes] = {thread, mPublications[thread]};
        }
        return to;
    }

    //! A unit for the tensor cores to read or the copy engine to write.
    uint8_t* atForEngine(SharedAddress address)
    {
        uint8_t* const unit = at(address, kUnitBytes);
        for (SharedAddress at = address; at < address + kUnitBytes; at += kPieceBytes)
        {
            Writer const& writer = mWriters[at / kPieceBytes];
            if (writer.publication == mPublications[writer.thread])
            {
                throw std::logic_error("shared memory: a product or a bulk copy meets at " + std::to_string(at)
                    + " what thread " + std::to_string(writer.thread) + " wrote and did not publish");
            }
        }
        return unit;
    }

    //! All that the thread wrote so far.
    void publish(int thread)
    {
        ++mPublications[thread];
    }

    //! A barrier's bytes, that nobody reads or writes as such from now on.
    void reserve(SharedAddress barrier)
    {
        mIsReserved.resize(mBytes.size() / kBarrierBytes);
        mIsReserved[barrier / kBarrierBytes] = true;
    }

private:
    //! Who wrote a piece last, and the number of that thread's next publication. 0: nobody.
    struct Writer
    {
        int thread{0};
        uint32_t publication{0};
    };

    bool isReserved(SharedAddress address, size_t bytes) const
    {
        size_t const first = address / kBarrierBytes;
        size_t const end = std::min((address + bytes + kBarrierBytes - 1) / kBarrierBytes, mIsReserved.size());
        for (size_t i = first; i < end; ++i)
        {
            if (mIsReserved[i])
            {
                return true;
            }
        }
        return false;
    }

    std::vector<uint8_t> mBytes;
    std::vector<Writer> mWriters;        //!< of the pieces
    std::vector<uint32_t> mPublications; //!< of the threads: the next one's number
    std::vector<bool> mIsReserved;       //!< by the place that a barrier takes
};

} // namespace emulation
} // namespace attngraft
