#include "attention_kernels.h"
#include "warpgroup_launch.cuh"

namespace attngraft
{

cudaError_t launchWarpgroupAttentionBFloat16(AttentionPlan const& plan, cudaStream_t stream)
{
    return launchWarpgroupAttention<BFloat16Math>(plan, stream);
}

} // namespace attngraft
