// The launches by type, each compiled in a file of its own so that they compile side by side.
#pragma once

#include "softmax_plan.h"

namespace attngraft
{

cudaError_t launchSoftmaxFloat32(SoftmaxPlan const& plan, cudaStream_t stream);
cudaError_t launchSoftmaxFloat16(SoftmaxPlan const& plan, cudaStream_t stream);
cudaError_t launchSoftmaxBFloat16(SoftmaxPlan const& plan, cudaStream_t stream);

} // namespace attngraft
