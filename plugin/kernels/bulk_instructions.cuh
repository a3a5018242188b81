// The instructions of compute capability 9.0 and later by which memory comes to a block while its threads do other
// work: barriers that count arrivals and bytes, and copies and messages that tell them. For code that only such devices
// run.
#pragma once

#include "tensor_core.cuh"

#if defined(ATTNGRAFT_BULK_INSTRUCTIONS) // something else that has them: a test's, on the CPU
#include ATTNGRAFT_BULK_INSTRUCTIONS
#else

namespace attngraft
{

//! A barrier in shared memory whose phase ends when as many threads as it was made for have arrived.
ATTNGRAFT_DEVICE void makeCountingBarrier(SharedAddress barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}

//! Makes the barriers known beyond the threads that made them; the block must synchronise afterwards.
ATTNGRAFT_DEVICE void publishCountingBarriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

//! Makes what this thread wrote to shared memory, finished copies included, visible to products that read it by
//! themselves.
ATTNGRAFT_DEVICE void publishToAsyncProxy()
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

//! Arrives, and announces bytes that copies will bring before the phase ends.
ATTNGRAFT_DEVICE void arriveExpecting(SharedAddress barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

ATTNGRAFT_DEVICE void arrive(SharedAddress barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

//! Waits for the end of the phase of that parity.
ATTNGRAFT_DEVICE void waitForPhase(SharedAddress barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\n"
                 "WAIT_%=:\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra WAIT_%=;\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

//! Starts the copy of neighbouring bytes; the barrier is told when they are there. Addresses and size are multiples of
//! 16. Without a policy "evict first", see loadOnce of row_instructions.cuh.
ATTNGRAFT_DEVICE void copyBulk(SharedAddress to, void const* from, int bytes, SharedAddress barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

//! Writes to this address of another block's shared memory, and tells its barrier, each given as this block's own.
ATTNGRAFT_DEVICE void sendToBlock(SharedAddress to, uint2 value, SharedAddress barrier, int block)
{
    asm volatile(
        "{\n.reg .b32 place, told;\n"
        "mapa.shared::cluster.u32 place, %0, %4;\n"
        "mapa.shared::cluster.u32 told, %3, %4;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [place], {%1, %2}, [told];\n}\n" ::"r"(to),
        "r"(value.x), "r"(value.y), "r"(barrier), "r"(block)
        : "memory");
}

} // namespace attngraft

#endif
