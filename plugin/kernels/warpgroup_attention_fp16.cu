#include "attention_kernels.h"
#include "warpgroup_launch.cuh"

namespace attngraft
{

cudaError_t launchWarpgroupAttentionFloat16(AttentionPlan const& plan, cudaStream_t stream)
{
    return launchWarpgroupAttention<HalfMath>(plan, stream);
}

} // namespace attngraft
