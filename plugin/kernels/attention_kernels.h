// The launches by type, each compiled in a file of its own so that they compile side by side.
#pragma once

#include "attention_plan.h"

#include <cuda_runtime_api.h>

namespace attngraft
{

cudaError_t launchAttentionFloat32(AttentionPlan const& plan, cudaStream_t stream);
cudaError_t launchAttentionFloat16(AttentionPlan const& plan, cudaStream_t stream);
cudaError_t launchAttentionBFloat16(AttentionPlan const& plan, cudaStream_t stream);

} // namespace attngraft
