#include "attention_kernels.h"
#include "attention_launch.cuh"

namespace attngraft
{

cudaError_t launchAttentionFloat16(AttentionPlan const& plan, cudaStream_t stream)
{
    return launchAttention<HalfMath>(plan, stream);
}

} // namespace attngraft
