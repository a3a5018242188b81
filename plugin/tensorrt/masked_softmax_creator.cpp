#include "masked_softmax_creator.h"

#include "config.h"
#include "guard.h"
#include "masked_softmax_plugin.h"

#include <string>

namespace attngraft::plugin
{

nvinfer1::IPluginV3* MaskedSoftmaxCreator::createPlugin(
    nvinfer1::AsciiChar const* name, nvinfer1::PluginFieldCollection const* fc, nvinfer1::TensorRTPhase) noexcept
{
    return guarded<nvinfer1::IPluginV3*>(nullptr, kMaskedSoftmaxName, [&] {
        std::string const layer = name == nullptr ? "" : name;
        std::string const title = std::string(kMaskedSoftmaxName) + " '" + layer + "' cannot be created";
        return guarded<nvinfer1::IPluginV3*>(
            nullptr, title.c_str(), [&] { return new MaskedSoftmaxPlugin(parseFields(fc), layer); });
    });
}

nvinfer1::PluginFieldCollection const* MaskedSoftmaxCreator::getFieldNames() noexcept
{
    return fieldNames();
}

nvinfer1::AsciiChar const* MaskedSoftmaxCreator::getPluginName() const noexcept
{
    return kMaskedSoftmaxName;
}

nvinfer1::AsciiChar const* MaskedSoftmaxCreator::getPluginVersion() const noexcept
{
    return kPluginVersion;
}

nvinfer1::AsciiChar const* MaskedSoftmaxCreator::getPluginNamespace() const noexcept
{
    return kNamespace;
}

} // namespace attngraft::plugin
