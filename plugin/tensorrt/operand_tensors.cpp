#include "operand_tensors.h"

#include <stdexcept>

namespace attngraft::plugin
{
namespace
{
using TensorType = nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::PluginTensorDesc;

//! The batch dimension of scores of rank 2, which have none: it counts as 1.
constexpr int32_t kImpliedBatch = -1;

[[noreturn]] void refuse(std::string const& tensor, std::string const& reason)
{
    throw std::invalid_argument(tensor + ": " + reason);
}

bool isPerBatch(Role role) noexcept
{
    return role == Role::kKvLengths || role == Role::kKvStarts;
}

bool isOwnType(TensorType type) noexcept
{
    return type == TensorType::kFLOAT || type == TensorType::kHALF || type == TensorType::kBF16;
}

bool isKeepType(TensorType type) noexcept
{
    return type == TensorType::kBOOL || type == TensorType::kINT8 || type == TensorType::kUINT8
        || type == TensorType::kINT32 || type == TensorType::kINT64;
}

bool isOperandType(Role role, TensorType type, TensorType ownType) noexcept
{
    switch (role)
    {
    case Role::kBias: return type == ownType || type == TensorType::kFLOAT;
    case Role::kKeep: return isKeepType(type);
    default: return type == TensorType::kINT32;
    }
}

KeepType kernelKeepType(TensorType type) noexcept
{
    switch (type)
    {
    case TensorType::kINT32: return KeepType::kInt32;
    case TensorType::kINT64: return KeepType::kInt64;
    default: return KeepType::kInt8;
    }
}

void checkRank(Role role, int32_t rank, int32_t scoresRank)
{
    if (isPerBatch(role) && rank != 1)
    {
        refuse(roleName(role), "rank " + std::to_string(rank) + "; give [B]");
    }
    if (rank > scoresRank)
    {
        refuse(roleName(role),
            "rank " + std::to_string(rank) + " is above the scores' rank " + std::to_string(scoresRank)
                + "; it does not broadcast");
    }
}

//! The scores' dimension that dimension `index` of an operand lies on: right-aligned as in NumPy, and the batch for
//! kv_lengths and kv_starts (0 or kImpliedBatch).
int32_t alignedDimension(Role role, int32_t index, int32_t rank, int32_t scoresRank) noexcept
{
    if (isPerBatch(role))
    {
        return scoresRank == kMinRank ? kImpliedBatch : 0;
    }
    return scoresRank - rank + index;
}

void checkDimension(Role role, int32_t aligned, int64_t dimension, int64_t scoresDimension)
{
    bool const isKnown = dimension != kUnknown && scoresDimension != kUnknown;
    if (!isKnown || dimension == scoresDimension || (dimension == 1 && !isPerBatch(role)))
    {
        return;
    }
    std::string const where = aligned == kImpliedBatch ? "their batch" : "dimension " + std::to_string(aligned);
    refuse(roleName(role),
        "has " + std::to_string(dimension) + " where the scores have " + std::to_string(scoresDimension) + " in "
            + where + (isPerBatch(role) ? "; give one value a batch entry" : "; it does not broadcast"));
}

BroadcastTensor broadcast(void const* data, Dims const& dims, int32_t scoresRank) noexcept
{
    BroadcastTensor tensor{};
    tensor.data = data;
    int64_t stride = 1;
    for (int32_t i = dims.nbDims - 1; i >= 0; --i)
    {
        tensor.strides[scoresRank - dims.nbDims + i] = dims.d[i] == 1 ? 0 : stride;
        stride *= dims.d[i];
    }
    return tensor;
}
} // namespace

void checkCounts(InputList const& list, int32_t inputs, int32_t outputs)
{
    if (inputs != list.count())
    {
        throw std::invalid_argument("the node has " + std::to_string(inputs)
            + " inputs; its attribute operands asks for " + std::to_string(list.count()) + ": " + list.ownNames
            + " and one for each role");
    }
    if (outputs != 1)
    {
        throw std::invalid_argument("the node has " + std::to_string(outputs) + " outputs; it gives one");
    }
}

bool supportsTensor(InputList const& list, nvinfer1::DynamicPluginTensorDesc const* tensors, int32_t position)
{
    PluginTensorDesc const& tensor = tensors[position].desc;
    if (tensor.format != nvinfer1::TensorFormat::kLINEAR)
    {
        return false;
    }
    if (position == 0)
    {
        return isOwnType(tensor.type);
    }
    TensorType const ownType = tensors[0].desc.type;
    if (position < list.own || position == list.count())
    {
        return tensor.type == ownType;
    }
    return isOperandType(list.operands.at(static_cast<size_t>(position - list.own)), tensor.type, ownType);
}

attngraft::DataType kernelType(TensorType type, std::string const& tensor)
{
    switch (type)
    {
    case TensorType::kFLOAT: return attngraft::DataType::kFloat32;
    case TensorType::kHALF: return attngraft::DataType::kFloat16;
    case TensorType::kBF16: return attngraft::DataType::kBFloat16;
    default: refuse(tensor, "the type is not float32, float16 or bfloat16");
    }
}

Dims knownDimensions(nvinfer1::DimsExprs const& shape)
{
    Dims dims{};
    dims.nbDims = shape.nbDims;
    for (int32_t i = 0; i < shape.nbDims; ++i)
    {
        dims.d[i] = shape.d[i]->isConstant() ? shape.d[i]->getConstantValue() : kUnknown;
    }
    return dims;
}

void checkOperandShape(Role role, Dims const& operand, Dims const& scores)
{
    checkRank(role, operand.nbDims, scores.nbDims);
    for (int32_t i = 0; i < operand.nbDims; ++i)
    {
        int32_t const aligned = alignedDimension(role, i, operand.nbDims, scores.nbDims);
        checkDimension(role, aligned, operand.d[i], aligned == kImpliedBatch ? 1 : scores.d[aligned]);
    }
}

void setMask(MaskParams& params, MaskConfig const& config, PluginTensorDesc const* descriptors,
    void const* const* addresses, Dims const& scores, TensorType scoresType)
{
    params.scale = config.scale;
    params.softcap = config.softcap;
    params.causal = config.causal;
    params.windowLeft = config.windowLeft;
    params.windowRight = config.windowRight;
    params.emptyRows = config.emptyRows;
    for (size_t i = 0; i < config.operands.size(); ++i)
    {
        Role const role = config.operands[i];
        PluginTensorDesc const& operand = descriptors[i];
        if (!isOperandType(role, operand.type, scoresType))
        {
            refuse(roleName(role),
                "the type does not fit; bias is float32 or of the scores' type, keep bool or integer, "
                "kv_lengths and kv_starts int32");
        }
        checkOperandShape(role, operand.dims, scores);
        void const* const data = addresses == nullptr ? nullptr : addresses[i];
        switch (role)
        {
        case Role::kBias:
            params.bias = broadcast(data, operand.dims, scores.nbDims);
            params.biasIsFloat32 = operand.type == TensorType::kFLOAT;
            break;
        case Role::kKeep:
            params.keep = broadcast(data, operand.dims, scores.nbDims);
            params.keepType = kernelKeepType(operand.type);
            break;
        case Role::kKvLengths: params.kvLengths = static_cast<int32_t const*>(data); break;
        case Role::kKvStarts: params.kvStarts = static_cast<int32_t const*>(data); break;
        }
    }
}

} // namespace attngraft::plugin
