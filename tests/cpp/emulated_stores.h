// Bulk stores of an emulated thread: from shared memory to global memory, in groups that the thread waits for.
#pragma once

#include "emulated_memory.h"

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

namespace attngraft::emulation
{

//! A unit on its way. Shared memory is read at any time until the thread waits for that, and global memory is written
//! no earlier than the thread waits for that: who changes what is not read yet, or reads what is not written yet, is
//! found out.
struct StoredUnit
{
    uint8_t* to;
    SharedAddress from;
    bool isRead{false};
    uint8_t bytes[kUnitBytes]{};

    void read(SharedMemory& memory)
    {
        if (!isRead)
        {
            std::memcpy(bytes, memory.atForEngine(from), kUnitBytes);
            isRead = true;
        }
    }
};

class BulkStores
{
public:
    //! `readsNow()`: whether a unit is read at once. What threads have not published yet is an error in any case.
    template <typename ReadsNow>
    void start(SharedMemory& memory, uint8_t* to, SharedAddress from, int bytes, ReadsNow readsNow)
    {
        for (SharedAddress at = 0; at < static_cast<SharedAddress>(bytes); at += kUnitBytes)
        {
            memory.atForEngine(from + at);
            StoredUnit unit{to + at, from + at};
            if (readsNow())
            {
                unit.read(memory);
            }
            mUncommitted.push_back(unit);
        }
    }

    void commit()
    {
        mGroups.push_back(std::move(mUncommitted));
        mUncommitted.clear();
    }

    //! Of all groups but the last `pending`.
    void finishReading(SharedMemory& memory, size_t pending)
    {
        for (size_t group = 0; group + pending < mGroups.size(); ++group)
        {
            for (StoredUnit& unit : mGroups[group])
            {
                unit.read(memory);
            }
        }
    }

    void finish(SharedMemory& memory)
    {
        finishReading(memory, 0);
        for (std::vector<StoredUnit> const& group : mGroups)
        {
            for (StoredUnit const& unit : group)
            {
                std::memcpy(unit.to, unit.bytes, kUnitBytes);
            }
        }
        mGroups.clear();
    }

    bool isIdle() const
    {
        return mUncommitted.empty() && mGroups.empty();
    }

private:
    std::vector<StoredUnit> mUncommitted;
    std::vector<std::vector<StoredUnit>> mGroups; //!< oldest first
};

} // namespace attngraft::emulation
