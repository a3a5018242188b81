// What both operators say of their inputs: how many, of which types, and how the operands lie on the scores.
// Every function that can refuse throws std::invalid_argument that names the input and says what does not fit.
#pragma once

#include "config.h"

#include <string>

namespace attngraft::plugin
{

//! A dimension that is known at run time only, as TensorRT marks it.
constexpr int64_t kUnknown = -1;

//! The inputs of an operator: tensors of its own, all of one type, then one for each operand. The output is of that
//! type as well.
struct InputList
{
    int32_t own;          //!< how many tensors of its own
    char const* ownNames; //!< what they are called together, for messages
    std::vector<Role> operands;

    int32_t count() const noexcept
    {
        return own + static_cast<int32_t>(operands.size());
    }
};

//! Throws unless `inputs` is what the operator takes and `outputs` is 1.
void checkCounts(InputList const& list, int32_t inputs, int32_t outputs);

//! Whether the tensor at `position` (inputs first, then the output) may have the type and format that it has, given
//! those before it. Linear (dense row-major) tensors of the types that contract.py names may.
bool supportsTensor(InputList const& list, nvinfer1::DynamicPluginTensorDesc const* tensors, int32_t position);

//! The kernels' name for the type of an operator's own tensor; refuses others in the name of `tensor`.
attngraft::DataType kernelType(nvinfer1::DataType type, std::string const& tensor);

//! Constant dimensions of a network's tensor, kUnknown for the others.
nvinfer1::Dims knownDimensions(nvinfer1::DimsExprs const& shape);

//! Throws unless an operand has a rank that the contract allows for its role, and each dimension equals the scores'
//! dimension or broadcasts to it. Dimensions that are unknown on either side are not looked at.
void checkOperandShape(Role role, nvinfer1::Dims const& operand, nvinfer1::Dims const& scores);

//! The part of either operator's parameters that says how scores become probabilities: attributes, and operands of
//! these descriptors and addresses over scores of this shape and type, each checked. Nothing is copied and, unless it
//! throws, nothing allocated. `addresses` may be nullptr when only the check is wanted.
void setMask(MaskParams& params, MaskConfig const& config, nvinfer1::PluginTensorDesc const* descriptors,
    void const* const* addresses, nvinfer1::Dims const& scores, nvinfer1::DataType scoresType);

} // namespace attngraft::plugin
