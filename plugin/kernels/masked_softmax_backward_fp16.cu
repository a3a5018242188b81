#include "softmax_backward_kernels.h"
#include "softmax_backward_launch.cuh"

namespace attngraft
{

cudaError_t launchSoftmaxBackwardFloat16(SoftmaxBackwardPlans const& plans, cudaStream_t stream)
{
    return dispatchSoftmaxBackward<__half>(plans, SoftmaxBackwardLaunch{stream});
}

} // namespace attngraft
