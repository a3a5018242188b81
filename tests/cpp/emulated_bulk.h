// The instructions of bulk_instructions.cuh for the kernels' own source on the CPU, in the threads of an emulated
// block. Copies and messages arrive at once or when somebody waits for them, as chance has it.
#pragma once

#include "emulated_block.h"
#include "emulated_global.h"

#include <cstring>

namespace attngraft
{

inline void makeCountingBarrier(SharedAddress barrier, int arrivals)
{
    emulation::block().copyEngine.makeBarrier(barrier, arrivals);
}

inline void publishCountingBarriers()
{
    emulation::block().copyEngine.publishBarriers();
}

inline void publishToAsyncProxy()
{
    emulation::block().shared.publish(emulation::block().threadNumber());
}

inline void arriveExpecting(SharedAddress barrier, int bytes)
{
    emulation::block().copyEngine.barrier(barrier).arrive(bytes);
    emulation::block().dawdle();
}

inline void arrive(SharedAddress barrier)
{
    emulation::block().copyEngine.barrier(barrier).arrive(0);
    emulation::block().dawdle();
}

inline void waitForPhase(SharedAddress barrier, uint32_t parity)
{
    emulation::CountingBarrier const& counting = emulation::block().copyEngine.barrier(barrier);
    emulation::block().wait("a phase of a counting barrier", [&] {
        emulation::block().copyEngine.finish(barrier);
        return (counting.phase & 1U) != parity;
    });
}

inline void copyBulk(SharedAddress to, void const* from, int bytes, SharedAddress barrier)
{
    emulation::Block& block = emulation::block();
    if (bytes <= 0 || bytes % 16 != 0 || to % 16 != 0)
    {
        throw std::out_of_range("copyBulk: bytes or their place are no multiple of 16");
    }
    emulation::globalMemory().readInBulk(from, static_cast<size_t>(bytes));
    auto const bring = [&block, to, from, bytes] {
        for (int at = 0; at < bytes; at += 16)
        {
            uint8_t* const unit = block.shared.atForEngine(to + static_cast<SharedAddress>(at));
            std::memcpy(unit, static_cast<uint8_t const*>(from) + at, 16);
        }
    };
    block.copyEngine.start({barrier, bytes, bring}, block.tossCoin());
}

inline void sendToBlock(SharedAddress to, uint2 value, SharedAddress barrier, int blockNumber)
{
    emulation::Block& block = emulation::block();
    SharedAddress const there = block.sharedWindowOf(blockNumber) - block.sharedWindow();
    auto const bring = [&block, to, there, value] {
        std::memcpy(block.shared.at(to + there, sizeof(value)), &value, sizeof(value));
    };
    block.copyEngine.start({barrier + there, sizeof(value), bring}, block.tossCoin());
}

} // namespace attngraft
