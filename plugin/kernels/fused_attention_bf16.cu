#include "attention_kernels.h"
#include "attention_launch.cuh"

namespace attngraft
{

cudaError_t launchAttentionBFloat16(AttentionPlan const& plan, cudaStream_t stream)
{
    return launchAttention<BFloat16Math>(plan, stream);
}

} // namespace attngraft
