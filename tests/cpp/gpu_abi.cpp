// The kernels' launches with C linkage, so that Python's ctypes can call them without TensorRT.
// softmax_abi.py, softmax_backward_abi.py and attention_abi.py of tests/python mirror the params structs; who loads the
// library checks their sizes.
#include "fused_attention.h"
#include "masked_softmax.h"
#include "masked_softmax_backward.h"

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

//! Size of MaskedSoftmaxBackwardParams in bytes.
ATTNGRAFT_TEST_EXPORT size_t attngraft_test_softmax_backward_params_size()
{
    return sizeof(attngraft::MaskedSoftmaxBackwardParams);
}

//! As softmaxBackwardWorkspaceBytes.
ATTNGRAFT_TEST_EXPORT size_t attngraft_test_softmax_backward_workspace(
    attngraft::MaskedSoftmaxBackwardParams const* params)
{
    return attngraft::softmaxBackwardWorkspaceBytes(*params);
}

//! Enqueues on `stream` (a cudaStream_t; nullptr: the default stream) and returns the cudaError_t.
ATTNGRAFT_TEST_EXPORT int attngraft_test_softmax_backward(
    attngraft::MaskedSoftmaxBackwardParams const* params, void* stream)
{
    return attngraft::launchMaskedSoftmaxBackward(*params, static_cast<cudaStream_t>(stream));
}

//! Size of FusedAttentionParams in bytes.
ATTNGRAFT_TEST_EXPORT size_t attngraft_test_attention_params_size()
{
    return sizeof(attngraft::FusedAttentionParams);
}

//! As attentionVariants, on the current device.
ATTNGRAFT_TEST_EXPORT int attngraft_test_attention_variants(
    attngraft::FusedAttentionParams const* params, int32_t* variants, int capacity)
{
    return attngraft::attentionVariants(*params, variants, capacity);
}

//! As attentionWorkspaceBytes.
ATTNGRAFT_TEST_EXPORT size_t attngraft_test_attention_workspace(attngraft::FusedAttentionParams const* params)
{
    return attngraft::attentionWorkspaceBytes(*params);
}

//! Enqueues on `stream` (a cudaStream_t; nullptr: the default stream) and returns the cudaError_t.
ATTNGRAFT_TEST_EXPORT int attngraft_test_fused_attention(attngraft::FusedAttentionParams const* params, void* stream)
{
    return attngraft::launchFusedAttention(*params, static_cast<cudaStream_t>(stream));
}
