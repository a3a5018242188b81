// Dispatch by type. In: MaskedSoftmaxParams. Out: one launch.
#include "masked_softmax.h"

#include "softmax_kernels.h"
#include "softmax_plan.h"

namespace attngraft
{

cudaError_t launchMaskedSoftmax(MaskedSoftmaxParams const& params, cudaStream_t stream)
{
    SoftmaxPlan plan;
    if (!makeSoftmaxPlan(params, currentSoftmaxDevice(), plan))
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
