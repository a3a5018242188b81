#include "softmax_kernels.h"
#include "softmax_launch.cuh"

namespace attngraft
{

cudaError_t launchSoftmaxBFloat16(SoftmaxPlan const& plan, cudaStream_t stream)
{
    return launchSoftmax<__nv_bfloat16>(plan, stream);
}

} // namespace attngraft
