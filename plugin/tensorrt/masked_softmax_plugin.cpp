#include "masked_softmax_plugin.h"

#include "guard.h"
#include "softmax_tensors.h"

#include <utility>

namespace attngraft::plugin
{
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

MaskedSoftmaxPlugin::MaskedSoftmaxPlugin(MaskConfig config, std::string const& layerName)
    : PluginBase(kName, layerName, softmaxInputs(config), config.fields())
    , mConfig(std::move(config))
{ }

nvinfer1::IPluginV3* MaskedSoftmaxPlugin::clone() noexcept
{
    return guarded<nvinfer1::IPluginV3*>(
        nullptr, title(), [&] { return new MaskedSoftmaxPlugin(mConfig, layerName()); });
}

int32_t MaskedSoftmaxPlugin::getOutputShapes(DimsExprs const* inputs, int32_t nbInputs, DimsExprs const*, int32_t,
    DimsExprs* outputs, int32_t nbOutputs, nvinfer1::IExprBuilder&) noexcept
{
    return guardedStatus(title(), [&] {
        checkCounts(nbInputs, nbOutputs);
        checkScoresRank(inputs[0].nbDims);
        // What constant dimensions already show to be wrong is refused while the network is built.
        for (size_t i = 0; i < mConfig.operands.size(); ++i)
        {
            checkOperandShape(mConfig.operands[i], knownDimensions(inputs[i + 1]), knownDimensions(inputs[0]));
        }
        outputs[0] = inputs[0];
    });
}

int32_t MaskedSoftmaxPlugin::configurePlugin(
    DynamicPluginTensorDesc const* in, int32_t nbInputs, DynamicPluginTensorDesc const*, int32_t nbOutputs) noexcept
{
    return guardedStatus(title(), [&] {
        checkCounts(nbInputs, nbOutputs);
        checkScoresRank(in[0].desc.dims.nbDims);
    });
}

int32_t MaskedSoftmaxPlugin::onShapeChange(
    PluginTensorDesc const* in, int32_t nbInputs, PluginTensorDesc const*, int32_t nbOutputs) noexcept
{
    return guardedStatus(title(), [&] {
        checkCounts(nbInputs, nbOutputs);
        makeSoftmaxParams(mConfig, in, nullptr, nullptr);
    });
}

int32_t MaskedSoftmaxPlugin::enqueue(PluginTensorDesc const* inputDesc, PluginTensorDesc const*,
    void const* const* inputs, void* const* outputs, void*, cudaStream_t stream) noexcept
{
    return guardedStatus(title(),
        [&] { checkLaunch(launchMaskedSoftmax(makeSoftmaxParams(mConfig, inputDesc, inputs, outputs[0]), stream)); });
}

} // namespace attngraft::plugin
