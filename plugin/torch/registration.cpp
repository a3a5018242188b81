// What loading this library does: torch.ops.attngraft.fused_attention, and its kernel for CUDA.
// Every other part of the operator (CPU, shapes, autograd, vmap, autocast) is in python/attngraft/torch.
#include "current_stream.h"
#include "operator.h"

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
        throw std::runtime_error(
            std::string("attngraft::fused_attention: ") + call + ": " + cudaGetErrorString(status));
    }
}

int32_t cudaDeviceOf(Tensor const& q)
{
    if (!q.is_cuda())
    {
        throw std::runtime_error("attngraft::fused_attention: q: expected a CUDA device, as the other tensors have");
    }
    return q.get_device_index();
}

//! Makes the device of a tensor the current one. PyTorch's CUDA runtime is another one than that linked in here, which
//! has to know the device too; in the end PyTorch's guard restores what both share, the driver's current context.
class CudaDevice
{
public:
    explicit CudaDevice(Tensor const& q)
        : mGuard(cudaDeviceOf(q))
    {
        requireSuccess(cudaSetDevice(q.get_device_index()), "cudaSetDevice");
    }

    static Kernels kernels()
    {
        return {attentionWorkspaceBytes, launch};
    }

private:
    //! On PyTorch's current stream, without waiting. Scratch memory is PyTorch's too, which hands it out again only to
    //! what is enqueued later on that stream.
    static void launch(FusedAttentionParams const& params)
    {
        int device = 0;
        requireSuccess(cudaGetDevice(&device), "cudaGetDevice");
        requireSuccess(launchFusedAttention(params, currentStream(device)), "launchFusedAttention");
    }

    torch::stable::accelerator::DeviceGuard mGuard;
};

} // namespace
} // namespace attngraft::torch_library

STABLE_TORCH_LIBRARY_FRAGMENT(attngraft, library)
{
    library.def(attngraft::torch_library::kSchema);
}

STABLE_TORCH_LIBRARY_IMPL(attngraft, CUDA, library)
{
    library.impl(
        "fused_attention", TORCH_BOX(&attngraft::torch_library::fusedAttention<attngraft::torch_library::CudaDevice>));
}
