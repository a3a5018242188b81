#include "attention_kernels.h"
#include "attention_launch.cuh"

namespace attngraft
{

cudaError_t launchAttentionFloat32(AttentionPlan const& plan, cudaStream_t stream)
{
    return launchAttention<Fp32Math>(plan, stream);
}

} // namespace attngraft
