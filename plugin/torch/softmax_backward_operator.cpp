#include "softmax_backward_operator.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <iterator>

namespace attngraft::torch_library
{
namespace
{

using torch::headeronly::ScalarType;

bool isUniform(MaskScalars const& scalars)
{
    return scalars.emptyRows == static_cast<int64_t>(EmptyRows::kUniform);
}

//! A tensor of the probabilities' shape, type and device.
void checkLike(Tensor const& tensor, char const* name, Tensor const& probabilities)
{
    requireDevice(tensor, name, probabilities, "probabilities");
    require(tensor.scalar_type() == probabilities.scalar_type(), name, "the type of probabilities");
    bool matches = tensor.dim() == probabilities.dim();
    for (int64_t dim = 0; matches && dim < tensor.dim(); ++dim)
    {
        matches = tensor.size(dim) == probabilities.size(dim);
    }
    require(matches, name, "the shape of probabilities");
}

void check(SoftmaxBackwardTensors const& tensors, MaskScalars const& scalars, bool withBias)
{
    Tensor const& probabilities = tensors.probabilities;
    bool const hasRank = probabilities.dim() >= kMinScoreRank && probabilities.dim() <= kMaxRank;
    require(hasRank, "probabilities", "two to six dimensions");
    checkScalars(scalars);
    checkLike(tensors.gradient, "grad_probabilities", probabilities);
    bool const readsScores = scalars.softcap != 0 || isUniform(scalars);
    require(tensors.scores || !readsScores, "scores", "a tensor, with a softcap or uniform empty rows");
    if (tensors.scores)
    {
        checkLike(*tensors.scores, "scores", probabilities);
    }
    require(tensors.masks.bias || !withBias, "bias", "a tensor, since its gradient is wanted");
    checkMasks(tensors.masks, viewOf(probabilities, "probabilities"));
}

//! The same tensors in a form that the kernels read; without masks that they do not.
SoftmaxBackwardTensors readable(SoftmaxBackwardTensors const& tensors, MaskScalars const& scalars)
{
    return {torch::stable::contiguous(tensors.gradient), torch::stable::contiguous(tensors.probabilities),
        tensors.scores ? std::optional<Tensor>(torch::stable::contiguous(*tensors.scores)) : std::nullopt,
        isUniform(scalars) ? readable(tensors.masks) : MaskTensors{}};
}

//! Without results and workspace. The tensors must outlive the launch.
MaskedSoftmaxBackwardParams paramsOf(SoftmaxBackwardTensors const& tensors, MaskScalars const& scalars)
{
    Tensor const& probabilities = tensors.probabilities;
    int64_t const rank = probabilities.dim();
    MaskedSoftmaxBackwardParams params;
    params.probabilities = probabilities.const_data_ptr();
    params.gradient = tensors.gradient.const_data_ptr();
    params.scores = tensors.scores ? tensors.scores->const_data_ptr() : nullptr;
    params.type = dataType(probabilities, "probabilities");
    setDims(params.dims, rank, [&](int64_t dim) { return probabilities.size(dim); });
    setMask(params, tensors.masks, scalars, rank);
    spreadMasks(params, rank);
    return params;
}

//! An empty gradient of the bias, with its place in the parameters; [0] where none is wanted.
Tensor emptyBiasGradient(
    std::optional<Tensor> const& bias, bool isWanted, Tensor const& probabilities, MaskedSoftmaxBackwardParams& params)
{
    if (!isWanted)
    {
        return torch::stable::new_empty(probabilities, {0});
    }
    Tensor const gradient = torch::stable::new_empty(*bias, bias->sizes());
    int64_t const rank = probabilities.dim();
    BroadcastTensor const place = spreadOverScores(broadcastTensor(gradient, rank), rank);
    params.biasGradient = gradient.mutable_data_ptr();
    params.biasIsFloat32 = isFloat32(*bias);
    std::copy(std::begin(place.strides), std::end(place.strides), params.biasGradientStrides);
    return gradient;
}

} // namespace

std::tuple<Tensor, Tensor> differentiate(SoftmaxBackwardTensors const& tensors, MaskScalars const& scalars,
    bool withBias, SoftmaxBackwardKernels const& kernels)
{
    check(tensors, scalars, withBias);
    SoftmaxBackwardTensors const inPlace = readable(tensors, scalars);
    Tensor const& probabilities = inPlace.probabilities;
    MaskedSoftmaxBackwardParams params = paramsOf(inPlace, scalars);
    Tensor const gradScores = torch::stable::new_empty(probabilities, probabilities.sizes());
    params.scoresGradient = gradScores.mutable_data_ptr();
    Tensor const gradBias = emptyBiasGradient(tensors.masks.bias, withBias, probabilities, params);
    auto const bytes = static_cast<int64_t>(kernels.workspaceBytes(params));
    Tensor const workspace = torch::stable::new_empty(probabilities, {bytes}, ScalarType::Byte);
    params.workspace = bytes > 0 ? workspace.mutable_data_ptr() : nullptr;
    kernels.launch(params);
    return {gradScores, gradBias};
}

} // namespace attngraft::torch_library
