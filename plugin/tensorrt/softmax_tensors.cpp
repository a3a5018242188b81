#include "softmax_tensors.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

namespace attngraft::plugin
{
namespace
{
//! Where dimension `index` of scores of rank `rank` lies in MaskedSoftmaxParams::dims: the batch in front, the others
//! right-aligned, ones between.
int32_t kernelDimension(int32_t index, int32_t rank) noexcept
{
    bool const isBatch = index == 0 && rank > kMinRank;
    return isBatch ? 0 : kMaxRank - rank + index;
}

//! Strides of an operand moved to where the dimensions of scores of rank `rank` lie.
BroadcastTensor spread(BroadcastTensor const& operand, int32_t rank) noexcept
{
    BroadcastTensor tensor{};
    tensor.data = operand.data;
    for (int32_t i = 0; i < rank; ++i)
    {
        tensor.strides[kernelDimension(i, rank)] = operand.strides[i];
    }
    return tensor;
}
} // namespace

InputList softmaxInputs(MaskConfig const& config)
{
    return {1, "the scores", config.operands};
}

void checkScoresRank(int32_t rank)
{
    if (rank < kMinRank || rank > kMaxRank)
    {
        throw std::invalid_argument(
            "scores: rank " + std::to_string(rank) + "; give [..., Sq, Sk] of rank 2 to " + std::to_string(kMaxRank));
    }
}

MaskedSoftmaxParams makeSoftmaxParams(MaskConfig const& config, nvinfer1::PluginTensorDesc const* inputDescriptors,
    void const* const* inputs, void* output)
{
    nvinfer1::PluginTensorDesc const& scores = inputDescriptors[0];
    int32_t const rank = scores.dims.nbDims;
    checkScoresRank(rank);
    MaskedSoftmaxParams params{};
    params.type = kernelType(scores.type, "scores");
    std::fill(std::begin(params.dims), std::end(params.dims), int64_t{1});
    for (int32_t i = 0; i < rank; ++i)
    {
        params.dims[kernelDimension(i, rank)] = scores.dims.d[i];
    }
    params.scores = inputs == nullptr ? nullptr : inputs[0];
    params.probabilities = output;
    Operands operands = readOperands(
        config.operands, inputDescriptors + 1, inputs == nullptr ? nullptr : inputs + 1, scores.dims, scores.type);
    operands.bias = spread(operands.bias, rank);
    operands.keep = spread(operands.keep, rank);
    setMask(params, config, operands);
    return params;
}

} // namespace attngraft::plugin
