// Global memory as kernels on the emulated device see it: what the test says that there is, and how much of it was read
// and written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace attngraft::emulation
{

struct MemoryRange
{
    uint8_t const* low;
    uint8_t const* high;
};

//! Global memory, as far as a kernel may touch it.
struct GlobalMemory
{
    std::vector<MemoryRange> readable;
    std::vector<MemoryRange> writable;
    MemoryRange counted{}; //!< reads of it are counted
    int64_t bytesRead{0};  //!< of what is counted
    int64_t bytesStored{0};

    void read(void const* from, size_t bytes)
    {
        check(readable, from, bytes, "reads");
        auto const* const first = static_cast<uint8_t const*>(from);
        bytesRead += first >= counted.low && first < counted.high ? static_cast<int64_t>(bytes) : 0;
    }

    //! By the copy engine.
    void readInBulk(void const* from, size_t bytes)
    {
        for (size_t at = 0; at < bytes; at += kBulkBytes)
        {
            read(static_cast<uint8_t const*>(from) + at, kBulkBytes);
        }
    }

    void write(void const* to, size_t bytes)
    {
        check(writable, to, bytes, "writes");
        bytesStored += static_cast<int64_t>(bytes);
    }

private:
    static constexpr size_t kBulkBytes = 16;

    static void check(std::vector<MemoryRange> const& ranges, void const* at, size_t bytes, char const* what)
    {
        auto const* const first = static_cast<uint8_t const*>(at);
        bool isInside = false;
        for (MemoryRange const& range : ranges)
        {
            isInside = isInside || (first >= range.low && first + bytes <= range.high);
        }
        if (!isInside || reinterpret_cast<uintptr_t>(at) % bytes != 0)
        {
            throw std::out_of_range("global memory: a thread " + std::string(what) + " " + std::to_string(bytes)
                + " bytes beyond a tensor, or not aligned to them");
        }
    }
};

inline GlobalMemory& globalMemory()
{
    static GlobalMemory memory;
    return memory;
}

} // namespace attngraft::emulation
