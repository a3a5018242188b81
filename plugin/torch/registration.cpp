// What loading this library does: the operators of torch.ops.attngraft, and their kernels for CUDA.
// Every other part of them (CPU, shapes, autograd, vmap, autocast) is in python/attngraft/torch.
#include "attention_operator.h"
#include "current_stream.h"
#include "softmax_backward_operator.h"
#include "softmax_operator.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <stdexcept>
#include <string>

namespace attngraft::torch_library
{
namespace
{

void requireSuccess(cudaError_t status, char const* call)
{
    if (status != cudaSuccess)
    {
        throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
    }
}

int32_t cudaDeviceOf(Tensor const& tensor, char const* name)
{
    require(tensor.is_cuda(), name, "a CUDA device, as the other tensors have");
    return tensor.get_device_index();
}

//! Makes the device of a tensor the current one. PyTorch's CUDA runtime is another one than that linked in here, which
//! has to know the device too; in the end PyTorch's guard restores what both share, the driver's current context.
class CudaDevice
{
public:
    CudaDevice(Tensor const& tensor, char const* name)
        : mGuard(cudaDeviceOf(tensor, name))
    {
        requireSuccess(cudaSetDevice(tensor.get_device_index()), "cudaSetDevice");
    }

    static AttentionKernels attention()
    {
        return {attentionWorkspaceBytes, launchAttention};
    }

    static SoftmaxLaunch softmax()
    {
        return launchSoftmax;
    }

    static SoftmaxBackwardKernels softmaxBackward()
    {
        return {softmaxBackwardWorkspaceBytes, launchSoftmaxBackward};
    }

private:
    //! On PyTorch's current stream, without waiting. Scratch memory is PyTorch's too, which hands it out again only to
    //! what is enqueued later on that stream.
    static void launchAttention(FusedAttentionParams const& params)
    {
        requireSuccess(launchFusedAttention(params, streamOfDevice()), "launchFusedAttention");
    }

    static void launchSoftmax(MaskedSoftmaxParams const& params)
    {
        requireSuccess(launchMaskedSoftmax(params, streamOfDevice()), "launchMaskedSoftmax");
    }

    static void launchSoftmaxBackward(MaskedSoftmaxBackwardParams const& params)
    {
        requireSuccess(launchMaskedSoftmaxBackward(params, streamOfDevice()), "launchMaskedSoftmaxBackward");
    }

    static cudaStream_t streamOfDevice()
    {
        int device = 0;
        requireSuccess(cudaGetDevice(&device), "cudaGetDevice");
        return currentStream(device);
    }

    torch::stable::accelerator::DeviceGuard mGuard;
};

} // namespace
} // namespace attngraft::torch_library

STABLE_TORCH_LIBRARY_FRAGMENT(attngraft, library)
{
    library.def(attngraft::torch_library::kAttentionSchema);
    library.def(attngraft::torch_library::kSoftmaxSchema);
    library.def(attngraft::torch_library::kSoftmaxBackwardSchema);
}

STABLE_TORCH_LIBRARY_IMPL(attngraft, CUDA, library)
{
    using attngraft::torch_library::CudaDevice;
    library.impl("fused_attention", TORCH_BOX(&attngraft::torch_library::fusedAttention<CudaDevice>));
    library.impl("masked_softmax", TORCH_BOX(&attngraft::torch_library::maskedSoftmax<CudaDevice>));
    library.impl("masked_softmax_backward", TORCH_BOX(&attngraft::torch_library::maskedSoftmaxBackward<CudaDevice>));
}
