// Where the threads of an emulated block meet: a warp's collectives, and the barriers of the hardware.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace attngraft::emulation
{

//! A warp's threads that meet, and what they bring along. Two buffers, since a thread may be one meeting ahead of
//! another.
struct Meeting
{
    int arrived{0};
    unsigned generation{0};
    std::vector<uint8_t> buffers[2];
};

//! A barrier at which as many threads meet as the first to come says.
class NamedBarrier
{
public:
    //! Returns the generation whose end the thread may wait for.
    unsigned arrive(int thread, int members, bool condition)
    {
        if (mArrived == 0)
        {
            mMembers = members;
            mHasArrived.clear();
        }
        mHasArrived.resize(std::max(mHasArrived.size(), static_cast<size_t>(thread) + 1));
        if (mMembers != members || mHasArrived[thread])
        {
            throw std::logic_error("threads arrive twice at a barrier, or do not agree how many they are");
        }
        mHasArrived[thread] = true;
        unsigned const generation = mGeneration;
        mIsTrueOfAny[generation % 2] = mIsTrueOfAny[generation % 2] || condition;
        if (++mArrived == members)
        {
            mArrived = 0;
            mIsTrueOfAny[++mGeneration % 2] = false;
        }
        return generation;
    }

    bool isOver(unsigned generation) const
    {
        return mGeneration != generation;
    }

    //! Whether the condition held for any of them, in the last generation but one at most.
    bool isTrueOfAny(unsigned generation) const
    {
        return mIsTrueOfAny[generation % 2];
    }

    bool isIdle() const
    {
        return mArrived == 0;
    }

private:
    int mMembers{0};
    int mArrived{0};
    unsigned mGeneration{0};
    bool mIsTrueOfAny[2]{};
    std::vector<bool> mHasArrived; //!< by thread
};

} // namespace attngraft::emulation
