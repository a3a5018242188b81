// From TensorRT's tensor descriptors to the kernels' parameters: types, shapes and strides, each checked.
// Every function throws std::invalid_argument that names the input and says what does not fit.
#pragma once

#include "config.h"

namespace attngraft::plugin
{

//! Number of inputs that `config` asks for: the scores and one for each operand.
int32_t inputCount(MaskedSoftmaxConfig const& config) noexcept;

//! Throws unless `inputs` is inputCount(config) and `outputs` is 1.
void checkCounts(MaskedSoftmaxConfig const& config, int32_t inputs, int32_t outputs);

//! Whether the tensor at `position` (inputs first, then the output) may have this type and format, given those of the
//! scores. Linear (dense row-major) tensors of the types that contract.py names may.
bool supportsTensor(MaskedSoftmaxConfig const& config, nvinfer1::PluginTensorDesc const& scores,
    nvinfer1::PluginTensorDesc const& tensor, int32_t position);

//! Throws unless `rank` is one that the contract allows for the scores.
void checkScoresRank(int32_t rank);

//! Throws unless a dimension of an operand equals the scores' dimension or broadcasts to it. `index` is the scores'
//! dimension, for the message.
void checkDimension(Role role, int32_t index, int64_t dimension, int64_t scoresDimension);

//! Throws unless an operand has a rank that the contract allows for its role.
void checkOperandRank(Role role, int32_t rank, int32_t scoresRank);

//! The batch dimension of scores of rank 2, which have none: it counts as 1.
constexpr int32_t kImpliedBatch = -1;

//! The scores' dimension that dimension `index` of an operand lies on: right-aligned as in NumPy, and the batch for
//! kv_lengths and kv_starts (0 or kImpliedBatch).
int32_t alignedDimension(Role role, int32_t index, int32_t rank, int32_t scoresRank) noexcept;

//! The kernels' parameters for tensors of these descriptors and addresses. Broadcast dimensions get stride 0, nothing
//! is copied and, unless it throws, nothing allocated. Addresses may be null when only the check is wanted.
MaskedSoftmaxParams makeParams(MaskedSoftmaxConfig const& config, nvinfer1::PluginTensorDesc const* inputDescriptors,
    void const* const* inputs, void* output);

} // namespace attngraft::plugin
