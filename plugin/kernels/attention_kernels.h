// The launches by type, each compiled in a file of its own so that they compile side by side.
#pragma once

#include "attention_plan.h"

#include <cuda_runtime_api.h>

namespace attngraft
{

//! fp32 tensors with products in fp32.
cudaError_t launchAttentionFloat32(AttentionPlan const& plan, cudaStream_t stream);
//! fp32 tensors with products in TF32.
cudaError_t launchAttentionTf32(AttentionPlan const& plan, cudaStream_t stream);
cudaError_t launchAttentionFloat16(AttentionPlan const& plan, cudaStream_t stream);
cudaError_t launchAttentionBFloat16(AttentionPlan const& plan, cudaStream_t stream);

//! Variants of warp groups: compute capability 9.0.
cudaError_t launchWarpgroupAttentionFloat16(AttentionPlan const& plan, cudaStream_t stream);
cudaError_t launchWarpgroupAttentionBFloat16(AttentionPlan const& plan, cudaStream_t stream);
cudaError_t launchWarpgroupAttentionTf32(AttentionPlan const& plan, cudaStream_t stream);

} // namespace attngraft
