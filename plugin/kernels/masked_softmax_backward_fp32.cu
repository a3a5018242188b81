#include "softmax_backward_kernels.h"
#include "softmax_backward_launch.cuh"

namespace attngraft
{

cudaError_t launchSoftmaxBackwardFloat32(SoftmaxBackwardPlans const& plans, cudaStream_t stream)
{
    return dispatchSoftmaxBackward<float>(plans, SoftmaxBackwardLaunch{stream});
}

} // namespace attngraft
