#include "plugin_base.h"

#include "guard.h"

#include <stdexcept>
#include <utility>

namespace attngraft::plugin
{

PluginBase::PluginBase(char const* name, std::string const& layerName, InputList inputs, OwnedFields fields)
    : mName(name)
    , mLayerName(layerName)
    , mTitle(std::string(name) + " '" + layerName + "'")
    , mInputs(std::move(inputs))
    , mFields(std::move(fields))
{ }

nvinfer1::IPluginCapability* PluginBase::getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept
{
    switch (type)
    {
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

nvinfer1::AsciiChar const* PluginBase::getPluginName() const noexcept
{
    return mName;
}

nvinfer1::AsciiChar const* PluginBase::getPluginVersion() const noexcept
{
    return kPluginVersion;
}

nvinfer1::AsciiChar const* PluginBase::getPluginNamespace() const noexcept
{
    return kNamespace;
}

int32_t PluginBase::getNbOutputs() const noexcept
{
    return 1;
}

int32_t PluginBase::getOutputDataTypes(nvinfer1::DataType* outputTypes, int32_t nbOutputs,
    nvinfer1::DataType const* inputTypes, int32_t nbInputs) const noexcept
{
    return guardedStatus(title(), [&] {
        checkCounts(nbInputs, nbOutputs);
        outputTypes[0] = inputTypes[0];
    });
}

bool PluginBase::supportsFormatCombination(
    int32_t pos, nvinfer1::DynamicPluginTensorDesc const* inOut, int32_t nbInputs, int32_t nbOutputs) noexcept
{
    return guarded(false, title(), [&] {
        checkCounts(nbInputs, nbOutputs);
        return supportsTensor(mInputs, inOut, pos);
    });
}

char const* PluginBase::getTimingCacheID() noexcept
{
    return mFields.line();
}

char const* PluginBase::getMetadataString() noexcept
{
    return mFields.line();
}

nvinfer1::IPluginV3* PluginBase::attachToContext(nvinfer1::IPluginResourceContext*) noexcept
{
    return clone();
}

nvinfer1::PluginFieldCollection const* PluginBase::getFieldsToSerialize() noexcept
{
    return mFields.collection();
}

void PluginBase::checkCounts(int32_t inputs, int32_t outputs) const
{
    plugin::checkCounts(mInputs, inputs, outputs);
}

void checkLaunch(cudaError_t status)
{
    if (status != cudaSuccess)
    {
        throw std::runtime_error(
            std::string("the kernel launch failed: ") + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
    }
}

} // namespace attngraft::plugin
