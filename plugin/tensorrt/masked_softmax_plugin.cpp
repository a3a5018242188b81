#include "masked_softmax_plugin.h"

#include "guard.h"
#include "tensors.h"

#include <stdexcept>
#include <utility>
#include <vector>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::IDimensionExpr;
using nvinfer1::PluginTensorDesc;

//! Refuses while the network is built what constant dimensions already show to be wrong.
void checkConstantDimensions(Role role, DimsExprs const& operand, DimsExprs const& scores)
{
    checkOperandRank(role, operand.nbDims, scores.nbDims);
    for (int32_t i = 0; i < operand.nbDims; ++i)
    {
        int32_t const aligned = alignedDimension(role, i, operand.nbDims, scores.nbDims);
        IDimensionExpr const* const scoresDimension = aligned == kImpliedBatch ? nullptr : scores.d[aligned];
        if (operand.d[i]->isConstant() && (scoresDimension == nullptr || scoresDimension->isConstant()))
        {
            checkDimension(role, aligned, operand.d[i]->getConstantValue(),
                scoresDimension == nullptr ? 1 : scoresDimension->getConstantValue());
        }
    }
}
} // namespace

MaskedSoftmaxPlugin::MaskedSoftmaxPlugin(MaskedSoftmaxConfig config, std::string const& layerName)
    : mConfig(std::move(config))
    , mLayerName(layerName)
    , mTitle(std::string(kMaskedSoftmaxName) + " '" + layerName + "'")
    , mSerialized(mConfig)
{ }

nvinfer1::IPluginCapability* MaskedSoftmaxPlugin::getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept
{
    switch (type)
    {
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

nvinfer1::IPluginV3* MaskedSoftmaxPlugin::clone() noexcept
{
    return guarded<nvinfer1::IPluginV3*>(
        nullptr, mTitle.c_str(), [&] { return new MaskedSoftmaxPlugin(mConfig, mLayerName); });
}

nvinfer1::AsciiChar const* MaskedSoftmaxPlugin::getPluginName() const noexcept
{
    return kMaskedSoftmaxName;
}

nvinfer1::AsciiChar const* MaskedSoftmaxPlugin::getPluginVersion() const noexcept
{
    return kPluginVersion;
}

nvinfer1::AsciiChar const* MaskedSoftmaxPlugin::getPluginNamespace() const noexcept
{
    return kNamespace;
}

int32_t MaskedSoftmaxPlugin::getNbOutputs() const noexcept
{
    return 1;
}

int32_t MaskedSoftmaxPlugin::getOutputDataTypes(nvinfer1::DataType* outputTypes, int32_t nbOutputs,
    nvinfer1::DataType const* inputTypes, int32_t nbInputs) const noexcept
{
    return guardedStatus(mTitle.c_str(), [&] {
        checkCounts(mConfig, nbInputs, nbOutputs);
        outputTypes[0] = inputTypes[0];
    });
}

int32_t MaskedSoftmaxPlugin::getOutputShapes(DimsExprs const* inputs, int32_t nbInputs, DimsExprs const*, int32_t,
    DimsExprs* outputs, int32_t nbOutputs, nvinfer1::IExprBuilder&) noexcept
{
    return guardedStatus(mTitle.c_str(), [&] {
        checkCounts(mConfig, nbInputs, nbOutputs);
        checkScoresRank(inputs[0].nbDims);
        for (size_t i = 0; i < mConfig.operands.size(); ++i)
        {
            checkConstantDimensions(mConfig.operands[i], inputs[i + 1], inputs[0]);
        }
        outputs[0] = inputs[0];
    });
}

bool MaskedSoftmaxPlugin::supportsFormatCombination(
    int32_t pos, DynamicPluginTensorDesc const* inOut, int32_t nbInputs, int32_t nbOutputs) noexcept
{
    return guarded(false, mTitle.c_str(), [&] {
        checkCounts(mConfig, nbInputs, nbOutputs);
        return supportsTensor(mConfig, inOut[0].desc, inOut[pos].desc, pos);
    });
}

int32_t MaskedSoftmaxPlugin::configurePlugin(
    DynamicPluginTensorDesc const* in, int32_t nbInputs, DynamicPluginTensorDesc const*, int32_t nbOutputs) noexcept
{
    return guardedStatus(mTitle.c_str(), [&] {
        checkCounts(mConfig, nbInputs, nbOutputs);
        checkScoresRank(in[0].desc.dims.nbDims);
    });
}

char const* MaskedSoftmaxPlugin::getTimingCacheID() noexcept
{
    return mSerialized.text();
}

char const* MaskedSoftmaxPlugin::getMetadataString() noexcept
{
    return mSerialized.text();
}

int32_t MaskedSoftmaxPlugin::onShapeChange(
    PluginTensorDesc const* in, int32_t nbInputs, PluginTensorDesc const*, int32_t nbOutputs) noexcept
{
    return guardedStatus(mTitle.c_str(), [&] {
        checkCounts(mConfig, nbInputs, nbOutputs);
        makeParams(mConfig, in, nullptr, nullptr);
    });
}

int32_t MaskedSoftmaxPlugin::enqueue(PluginTensorDesc const* inputDesc, PluginTensorDesc const*,
    void const* const* inputs, void* const* outputs, void*, cudaStream_t stream) noexcept
{
    return guardedStatus(mTitle.c_str(), [&] {
        MaskedSoftmaxParams const params = makeParams(mConfig, inputDesc, inputs, outputs[0]);
        cudaError_t const status = launchMaskedSoftmax(params, stream);
        if (status != cudaSuccess)
        {
            throw std::runtime_error(std::string("the kernel launch failed: ") + cudaGetErrorName(status) + ", "
                + cudaGetErrorString(status));
        }
    });
}

nvinfer1::IPluginV3* MaskedSoftmaxPlugin::attachToContext(nvinfer1::IPluginResourceContext*) noexcept
{
    return clone();
}

nvinfer1::PluginFieldCollection const* MaskedSoftmaxPlugin::getFieldsToSerialize() noexcept
{
    return mSerialized.fields();
}

} // namespace attngraft::plugin
