// From TensorRT's tensor descriptors to the parameters of the fused attention kernels.
#pragma once

#include "attention_shapes.h"
#include "fused_attention.h"

namespace attngraft::plugin
{

//! The kernels' parameters for tensors of these descriptors and addresses, all but the variant and the workspace. Each
//! layout becomes strides, a packed tensor three addresses in it; broadcast dimensions get stride 0. Nothing is copied
//! and, unless it throws, nothing allocated. Addresses may be null when only sizes and types matter. Throws
//! std::invalid_argument that names the input and says what does not fit.
FusedAttentionParams makeAttentionParams(FusedAttentionConfig const& config,
    nvinfer1::PluginTensorDesc const* inputDescriptors, void const* const* inputs, void* output);

//! The same for the sizes that a profile's optimum gives; without addresses.
FusedAttentionParams makeOptimumParams(
    FusedAttentionConfig const& config, nvinfer1::DynamicPluginTensorDesc const* inputs);

//! Sizes and types that bound all shapes of a profile from above; without operands and addresses. Bounds of inner
//! tensors come from interval arithmetic, so those of q, k and v need not agree: the largest counts.
FusedAttentionParams makeLargestParams(
    FusedAttentionConfig const& config, nvinfer1::DynamicPluginTensorDesc const* inputs);

} // namespace attngraft::plugin
