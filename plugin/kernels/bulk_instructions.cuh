// The instructions of compute capability 9.0 and later by which memory comes to a block and is written while its
// threads do other work: barriers that count arrivals and bytes, copies that tell them, and stores that are waited for
// in groups. For code that only such devices run.
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

//! Starts the copy of neighbouring bytes, which are read once; the barrier is told when they are there. Addresses and
//! size are multiples of 16.
ATTNGRAFT_DEVICE void copyBulk(SharedAddress to, void const* from, int bytes, SharedAddress barrier)
{
    asm volatile(
        "{\n.reg .b64 once;\n"
        "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
        "once;\n}\n" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

//! The same where others read what lies in the same lines beside it, soon: those stay in the cache as others do.
ATTNGRAFT_DEVICE void copyBulkBesideOthers(SharedAddress to, void const* from, int bytes, SharedAddress barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

//! Starts writing neighbouring bytes of shared memory to memory. What threads wrote there must be published before, and
//! they must have met. Addresses and size are multiples of 16.
ATTNGRAFT_DEVICE void storeBulk(void* to, SharedAddress from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to), "r"(from), "r"(bytes)
        : "memory");
}

//! What this thread started to write so far is a group from here on.
ATTNGRAFT_DEVICE void commitBulkStores()
{
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

//! Waits until at most `pending` of this thread's groups, the last ones, still read shared memory.
template <int pending>
ATTNGRAFT_DEVICE void waitForBulkReads()
{
    asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(pending) : "memory");
}

//! Waits until all is written.
ATTNGRAFT_DEVICE void waitForBulkStores()
{
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
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
