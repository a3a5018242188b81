// Dispatch by type. In: MaskedSoftmaxParams. Out: one launch.
#include "masked_softmax.h"

#include "softmax_kernels.h"
#include "softmax_plan.h"

namespace attngraft
{
namespace
{

#if defined(ATTNGRAFT_CLUSTERS)
constexpr bool kCompilesClusters = true;
#else
constexpr bool kCompilesClusters = false;
#endif

//! Where a device cannot be asked, what serves every one.
SoftmaxDevice currentDevice()
{
    SoftmaxDevice device{1, false};
    int index = 0;
    int clusters = 0;
    if (cudaGetDevice(&index) == cudaSuccess
        && cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, index) == cudaSuccess
        && cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, index) == cudaSuccess)
    {
        device.hasClusters = kCompilesClusters && clusters != 0;
    }
    return device;
}

} // namespace

cudaError_t launchMaskedSoftmax(MaskedSoftmaxParams const& params, cudaStream_t stream)
{
    SoftmaxPlan plan;
    if (!makeSoftmaxPlan(params, currentDevice(), plan))
    {
        return cudaErrorInvalidValue;
    }
    if (plan.rows == 0)
    {
        return cudaSuccess;
    }
    switch (params.type)
    {
    case DataType::kFloat32: return launchSoftmaxFloat32(plan, stream);
    case DataType::kFloat16: return launchSoftmaxFloat16(plan, stream);
    case DataType::kBFloat16: return launchSoftmaxBFloat16(plan, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace attngraft
