// Checks and dispatch by type. In: MaskedSoftmaxBackwardParams. Out: one launch, more for the gradient of a bias.
#include "masked_softmax_backward.h"

#include "softmax_backward_kernels.h"
#include "softmax_backward_plan.h"

namespace attngraft
{
namespace
{

//! Multiprocessors of the current device if it has clusters, else 0.
cudaError_t findMultiprocessors(int& multiprocessors)
{
    int device = 0;
    int hasClusters = 0;
    multiprocessors = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
    {
        status = cudaDeviceGetAttribute(&hasClusters, cudaDevAttrClusterLaunch, device);
    }
    if (status == cudaSuccess && hasClusters != 0)
    {
        status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    }
    return status;
}

cudaError_t launch(DataType type, SoftmaxBackwardPlans const& plans, cudaStream_t stream)
{
    switch (type)
    {
    case DataType::kFloat32: return launchSoftmaxBackwardFloat32(plans, stream);
    case DataType::kFloat16: return launchSoftmaxBackwardFloat16(plans, stream);
    case DataType::kBFloat16: return launchSoftmaxBackwardBFloat16(plans, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace

size_t softmaxBackwardWorkspaceBytes(MaskedSoftmaxBackwardParams const& params)
{
    SoftmaxBackwardPlans plans;
    return makeSoftmaxBackwardPlans(params, 0, plans) ? plans.workspaceBytes : 0;
}

cudaError_t launchMaskedSoftmaxBackward(MaskedSoftmaxBackwardParams const& params, cudaStream_t stream)
{
    int multiprocessors = 0;
    cudaError_t const status = findMultiprocessors(multiprocessors);
    if (status != cudaSuccess)
    {
        return status;
    }
    SoftmaxBackwardPlans plans;
    bool const isPlanned = makeSoftmaxBackwardPlans(params, multiprocessors, plans);
    bool const hasWorkspace = plans.workspaceBytes == 0 || params.workspace != nullptr;
    return isPlanned && hasWorkspace ? launch(params.type, plans, stream) : cudaErrorInvalidValue;
}

} // namespace attngraft
