#include "softmax_kernels.h"
#include "softmax_launch.cuh"

namespace attngraft
{

cudaError_t launchSoftmaxFloat16(SoftmaxPlan const& plan, cudaStream_t stream)
{
    return launchSoftmax<__half>(plan, stream);
}

} // namespace attngraft
