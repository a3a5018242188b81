#include "attention_kernels.h"
#include "warpgroup_launch.cuh"

namespace attngraft
{

cudaError_t launchWarpgroupAttentionTf32(AttentionPlan const& plan, cudaStream_t stream)
{
    return launchWarpgroupAttention<Tf32Math>(plan, stream);
}

} // namespace attngraft
