#include "softmax_backward_kernels.h"
#include "softmax_backward_launch.cuh"

namespace attngraft
{

cudaError_t launchSoftmaxBackwardBFloat16(SoftmaxBackwardPlans const& plans, cudaStream_t stream)
{
    return dispatchSoftmaxBackward<__nv_bfloat16>(plans, SoftmaxBackwardLaunch{stream});
}

} // namespace attngraft
