#include "softmax_kernels.h"
#include "softmax_launch.cuh"

namespace attngraft
{

cudaError_t launchSoftmaxFloat32(SoftmaxPlan const& plan, cudaStream_t stream)
{
    return launchSoftmax<float>(plan, stream);
}

} // namespace attngraft
