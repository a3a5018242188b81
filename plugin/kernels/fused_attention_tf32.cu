#include "attention_kernels.h"
#include "attention_launch.cuh"

namespace attngraft
{

cudaError_t launchAttentionTf32(AttentionPlan const& plan, cudaStream_t stream)
{
    return launchAttention<Tf32Math>(plan, stream);
}

} // namespace attngraft
