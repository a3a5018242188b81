// torch.ops.attngraft_emulated.fused_attention: PyTorch's operator on CPU tensors, over the emulated device. What lies
// between PyTorch's tensors and the launch is plugin/torch's own.
#include "operator.h"

#include <torch/csrc/stable/library.h>

#include <stdexcept>
#include <string>

extern "C" {
// emulated_attention.cpp
size_t attngraft_test_attention_workspace(attngraft::FusedAttentionParams const* params);
int attngraft_test_fused_attention(attngraft::FusedAttentionParams const* params, void const* device, unsigned seed,
    char* message, size_t messageBytes);
}

namespace attngraft::torch_library
{
namespace
{

constexpr size_t kMessageBytes = 500;

class EmulatedDevice
{
public:
    explicit EmulatedDevice(Tensor const&)
    { }

    static Kernels kernels()
    {
        return {workspaceBytes, launch};
    }

private:
    static size_t workspaceBytes(FusedAttentionParams const& params)
    {
        return attngraft_test_attention_workspace(&params);
    }

    static void launch(FusedAttentionParams const& params)
    {
        std::string message(kMessageBytes, '\0');
        int const status = attngraft_test_fused_attention(&params, nullptr, 0, message.data(), message.size());
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
    library.def(attngraft::torch_library::kSchema);
}

STABLE_TORCH_LIBRARY_IMPL(attngraft_emulated, CPU, library)
{
    library.impl("fused_attention",
        TORCH_BOX(&attngraft::torch_library::fusedAttention<attngraft::torch_library::EmulatedDevice>));
}
