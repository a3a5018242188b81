// The launches by type, each compiled in a file of its own so that they compile side by side.
#pragma once

#include "softmax_backward_plan.h"

namespace attngraft
{

cudaError_t launchSoftmaxBackwardFloat32(SoftmaxBackwardPlans const& plans, cudaStream_t stream);
cudaError_t launchSoftmaxBackwardFloat16(SoftmaxBackwardPlans const& plans, cudaStream_t stream);
cudaError_t launchSoftmaxBackwardBFloat16(SoftmaxBackwardPlans const& plans, cudaStream_t stream);

} // namespace attngraft
