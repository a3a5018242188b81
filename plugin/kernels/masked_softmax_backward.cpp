// Checks and dispatch by type. In: MaskedSoftmaxBackwardParams. Out: one launch, more for the gradient of a bias.
#include "masked_softmax_backward.h"

#include "softmax_backward_kernels.h"
#include "softmax_backward_plan.h"
#include "softmax_device.h"

namespace attngraft
{
namespace
{

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
    SoftmaxDevice const device = currentSoftmaxDevice();
    SoftmaxBackwardPlans plans;
    bool const isPlanned = makeSoftmaxBackwardPlans(params, device.hasClusters ? device.multiprocessors : 0, plans);
    bool const hasWorkspace = plans.workspaceBytes == 0 || params.workspace != nullptr;
    return isPlanned && hasWorkspace ? launch(params.type, plans, stream) : cudaErrorInvalidValue;
}

} // namespace attngraft
