#include "softmax_tensors.h"

#include <stdexcept>
#include <string>

namespace attngraft::plugin
{

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
    setDims(params.dims, rank, [&](int64_t dim) { return scores.dims.d[dim]; });
    setContiguous(params);
    params.scores = inputs == nullptr ? nullptr : inputs[0];
    params.probabilities = output;
    setMask(params, config, inputDescriptors + 1, inputs == nullptr ? nullptr : inputs + 1, scores.dims, scores.type);
    spreadMasks(params, rank);
    return params;
}

} // namespace attngraft::plugin
