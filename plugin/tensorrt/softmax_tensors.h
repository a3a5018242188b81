// From TensorRT's tensor descriptors to the parameters of the softmax kernels.
// Every function throws std::invalid_argument that names the input and says what does not fit.
#pragma once

#include "masked_softmax.h"
#include "operand_tensors.h"

namespace attngraft::plugin
{

//! The scores and one input for each operand.
InputList softmaxInputs(MaskConfig const& config);

//! Throws unless `rank` is one that the contract allows for the scores.
void checkScoresRank(int32_t rank);

//! The kernels' parameters for tensors of these descriptors and addresses. Broadcast dimensions get stride 0, nothing
//! is copied and, unless it throws, nothing allocated. Addresses may be null when only the check is wanted.
MaskedSoftmaxParams makeSoftmaxParams(MaskConfig const& config, nvinfer1::PluginTensorDesc const* inputDescriptors,
    void const* const* inputs, void* output);

} // namespace attngraft::plugin
