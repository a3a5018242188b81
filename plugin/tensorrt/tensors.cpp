#include "tensors.h"

#include <stdexcept>
#include <string>

namespace attngraft::plugin
{
namespace
{
using TensorType = nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::PluginTensorDesc;

[[noreturn]] void refuse(std::string const& tensor, std::string const& reason)
{
    throw std::invalid_argument(tensor + ": " + reason);
}

bool isPerBatch(Role role) noexcept
{
    return role == Role::kKvLengths || role == Role::kKvStarts;
}

bool isScoresType(TensorType type) noexcept
{
    return type == TensorType::kFLOAT || type == TensorType::kHALF || type == TensorType::kBF16;
}

bool isKeepType(TensorType type) noexcept
{
    return type == TensorType::kBOOL || type == TensorType::kINT8 || type == TensorType::kUINT8
        || type == TensorType::kINT32 || type == TensorType::kINT64;
}

bool isOperandType(Role role, TensorType type, TensorType scoresType) noexcept
{
    switch (role)
    {
    case Role::kBias: return type == scoresType || type == TensorType::kFLOAT;
    case Role::kKeep: return isKeepType(type);
    default: return type == TensorType::kINT32;
    }
}

attngraft::DataType kernelType(TensorType type)
{
    switch (type)
    {
    case TensorType::kFLOAT: return attngraft::DataType::kFloat32;
    case TensorType::kHALF: return attngraft::DataType::kFloat16;
    case TensorType::kBF16: return attngraft::DataType::kBFloat16;
    default: refuse("scores", "the type is not float32, float16 or bfloat16");
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

//! Where dimension `index` of scores of rank `rank` lies in MaskedSoftmaxParams::dims: the batch in front, the others
//! right-aligned, ones between.
int32_t kernelDimension(int32_t index, int32_t rank) noexcept
{
    bool const isBatch = index == 0 && rank > kMinRank;
    return isBatch ? 0 : kMaxRank - rank + index;
}

void setScores(MaskedSoftmaxParams& params, PluginTensorDesc const& scores)
{
    checkScoresRank(scores.dims.nbDims);
    params.type = kernelType(scores.type);
    for (int64_t& dimension : params.dims)
    {
        dimension = 1;
    }
    for (int32_t i = 0; i < scores.dims.nbDims; ++i)
    {
        params.dims[kernelDimension(i, scores.dims.nbDims)] = scores.dims.d[i];
    }
}

void checkOperand(Role role, PluginTensorDesc const& operand, PluginTensorDesc const& scores)
{
    if (!isOperandType(role, operand.type, scores.type))
    {
        refuse(roleName(role),
            "the type does not fit; bias is float32 or of the scores' type, keep bool or integer, "
            "kv_lengths and kv_starts int32");
    }
    Dims const& dims = operand.dims;
    checkOperandRank(role, dims.nbDims, scores.dims.nbDims);
    for (int32_t i = 0; i < dims.nbDims; ++i)
    {
        int32_t const aligned = alignedDimension(role, i, dims.nbDims, scores.dims.nbDims);
        checkDimension(role, aligned, dims.d[i], aligned == kImpliedBatch ? 1 : scores.dims.d[aligned]);
    }
}

BroadcastTensor broadcast(void const* data, Dims const& dims, int32_t scoresRank)
{
    BroadcastTensor tensor{};
    tensor.data = data;
    int64_t stride = 1;
    for (int32_t i = dims.nbDims - 1; i >= 0; --i)
    {
        int32_t const aligned = scoresRank - dims.nbDims + i;
        tensor.strides[kernelDimension(aligned, scoresRank)] = dims.d[i] == 1 ? 0 : stride;
        stride *= dims.d[i];
    }
    return tensor;
}
} // namespace

int32_t inputCount(MaskedSoftmaxConfig const& config) noexcept
{
    return 1 + static_cast<int32_t>(config.operands.size());
}

void checkCounts(MaskedSoftmaxConfig const& config, int32_t inputs, int32_t outputs)
{
    if (inputs != inputCount(config))
    {
        throw std::invalid_argument("the node has " + std::to_string(inputs)
            + " inputs; its attribute operands asks for " + std::to_string(inputCount(config))
            + ": the scores and one for each role");
    }
    if (outputs != 1)
    {
        throw std::invalid_argument("the node has " + std::to_string(outputs) + " outputs; it gives one");
    }
}

bool supportsTensor(
    MaskedSoftmaxConfig const& config, PluginTensorDesc const& scores, PluginTensorDesc const& tensor, int32_t position)
{
    if (tensor.format != nvinfer1::TensorFormat::kLINEAR)
    {
        return false;
    }
    if (position == 0)
    {
        return isScoresType(tensor.type);
    }
    if (position == inputCount(config))
    {
        return tensor.type == scores.type;
    }
    return isOperandType(config.operands.at(static_cast<size_t>(position - 1)), tensor.type, scores.type);
}

void checkScoresRank(int32_t rank)
{
    if (rank < kMinRank || rank > kMaxRank)
    {
        refuse("scores", "rank " + std::to_string(rank) + "; give [..., Sq, Sk] of rank 2 to 6");
    }
}

void checkDimension(Role role, int32_t index, int64_t dimension, int64_t scoresDimension)
{
    if (dimension == scoresDimension || (dimension == 1 && !isPerBatch(role)))
    {
        return;
    }
    std::string const where = index == kImpliedBatch ? "their batch" : "dimension " + std::to_string(index);
    refuse(roleName(role),
        "has " + std::to_string(dimension) + " where the scores have " + std::to_string(scoresDimension) + " in "
            + where + (isPerBatch(role) ? "; give one value a batch entry" : "; it does not broadcast"));
}

void checkOperandRank(Role role, int32_t rank, int32_t scoresRank)
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

int32_t alignedDimension(Role role, int32_t index, int32_t rank, int32_t scoresRank) noexcept
{
    if (isPerBatch(role))
    {
        return scoresRank == kMinRank ? kImpliedBatch : 0;
    }
    return scoresRank - rank + index;
}

MaskedSoftmaxParams makeParams(MaskedSoftmaxConfig const& config, PluginTensorDesc const* inputDescriptors,
    void const* const* inputs, void* output)
{
    PluginTensorDesc const& scores = inputDescriptors[0];
    MaskedSoftmaxParams params{};
    setScores(params, scores);
    params.scores = inputs == nullptr ? nullptr : inputs[0];
    params.probabilities = output;
    for (size_t i = 0; i < config.operands.size(); ++i)
    {
        PluginTensorDesc const& operand = inputDescriptors[i + 1];
        void const* const data = inputs == nullptr ? nullptr : inputs[i + 1];
        checkOperand(config.operands[i], operand, scores);
        switch (config.operands[i])
        {
        case Role::kBias:
            params.bias = broadcast(data, operand.dims, scores.dims.nbDims);
            params.biasIsFloat32 = operand.type == TensorType::kFLOAT;
            break;
        case Role::kKeep:
            params.keep = broadcast(data, operand.dims, scores.dims.nbDims);
            params.keepType = kernelKeepType(operand.type);
            break;
        case Role::kKvLengths: params.kvLengths = static_cast<int32_t const*>(data); break;
        case Role::kKvStarts: params.kvStarts = static_cast<int32_t const*>(data); break;
        }
    }
    params.scale = config.scale;
    params.softcap = config.softcap;
    params.causal = config.causal;
    params.windowLeft = config.windowLeft;
    params.windowRight = config.windowRight;
    params.emptyRows = config.emptyRows;
    return params;
}

} // namespace attngraft::plugin
