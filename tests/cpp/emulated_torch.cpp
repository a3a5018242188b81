// torch.ops.attngraft_emulated: PyTorch's operators on CPU tensors, attention and the softmax's backward pass over the
// emulated device, the softmax over a reference. What lies between PyTorch's tensors and the launch is plugin/torch's
// own.
#include "attention_operator.h"
#include "reference_softmax.h"
#include "softmax_backward_operator.h"
#include "softmax_operator.h"

#include <torch/csrc/stable/library.h>

#include <stdexcept>
#include <string>

extern "C" {
// emulated_attention.cpp
size_t attngraft_test_attention_workspace(attngraft::FusedAttentionParams const* params);
int attngraft_test_fused_attention(attngraft::FusedAttentionParams const* params, void const* device, unsigned seed,
    char* message, size_t messageBytes);
// emulated_softmax_backward.cpp
size_t attngraft_test_softmax_backward_workspace(attngraft::MaskedSoftmaxBackwardParams const* params);
int attngraft_test_softmax_backward(attngraft::MaskedSoftmaxBackwardParams const* params, void const* device,
    unsigned seed, char* message, size_t messageBytes);
}

namespace attngraft::torch_library
{
namespace
{

constexpr size_t kMessageBytes = 500;

class EmulatedDevice
{
public:
    EmulatedDevice(Tensor const&, char const*)
    { }

    static AttentionKernels attention()
    {
        return {workspaceBytes, launch};
    }

    static SoftmaxLaunch softmax()
    {
        return referenceSoftmax;
    }

    static SoftmaxBackwardKernels softmaxBackward()
    {
        return {backwardWorkspaceBytes, launchBackward};
    }

private:
    static size_t workspaceBytes(FusedAttentionParams const& params)
    {
        return attngraft_test_attention_workspace(&params);
    }

    static void launch(FusedAttentionParams const& params)
    {
        std::string message(kMessageBytes, '\0');
        requireSuccess(attngraft_test_fused_attention(&params, nullptr, 0, message.data(), message.size()), message);
    }

    static size_t backwardWorkspaceBytes(MaskedSoftmaxBackwardParams const& params)
    {
        return attngraft_test_softmax_backward_workspace(&params);
    }

    static void launchBackward(MaskedSoftmaxBackwardParams const& params)
    {
        std::string message(kMessageBytes, '\0');
        requireSuccess(attngraft_test_softmax_backward(&params, nullptr, 0, message.data(), message.size()), message);
    }

    static void requireSuccess(int status, std::string const& message)
    {
        if (status != 0)
        {
            throw std::runtime_error("CUDA error " + std::to_string(status) + ": " + message.c_str());
        }
    }
};

} // namespace
} // namespace attngraft::torch_library

STABLE_TORCH_LIBRARY(attngraft_emulated, library)
{
    library.def(attngraft::torch_library::kAttentionSchema);
    library.def(attngraft::torch_library::kSoftmaxSchema);
    library.def(attngraft::torch_library::kSoftmaxBackwardSchema);
}

STABLE_TORCH_LIBRARY_IMPL(attngraft_emulated, CPU, library)
{
    using attngraft::torch_library::EmulatedDevice;
    library.impl("fused_attention", TORCH_BOX(&attngraft::torch_library::fusedAttention<EmulatedDevice>));
    library.impl("masked_softmax", TORCH_BOX(&attngraft::torch_library::maskedSoftmax<EmulatedDevice>));
    library.impl(
        "masked_softmax_backward", TORCH_BOX(&attngraft::torch_library::maskedSoftmaxBackward<EmulatedDevice>));
}
