// launchMaskedSoftmax with C linkage, so that Python's ctypes can call the kernels without TensorRT.
// tests/gpu/kernel_abi.py mirrors MaskedSoftmaxParams and checks its size.
#include "masked_softmax.h"

#define ATTNGRAFT_TEST_EXPORT extern "C" __attribute__((visibility("default")))

//! Size of MaskedSoftmaxParams in bytes.
ATTNGRAFT_TEST_EXPORT size_t attngraft_test_params_size()
{
    return sizeof(attngraft::MaskedSoftmaxParams);
}

//! Enqueues on `stream` (a cudaStream_t; nullptr: the default stream) and returns the cudaError_t.
ATTNGRAFT_TEST_EXPORT int attngraft_test_masked_softmax(attngraft::MaskedSoftmaxParams const* params, void* stream)
{
    return attngraft::launchMaskedSoftmax(*params, static_cast<cudaStream_t>(stream));
}
