// Makes attngraft::MaskedSoftmax plugins from fields, for the ONNX parser, for applications and for deserialization.
#pragma once

#include <NvInferRuntime.h>

namespace attngraft::plugin
{

class MaskedSoftmaxCreator final : public nvinfer1::IPluginCreatorV3One
{
public:
    //! nullptr and a log line when a field is not legal.
    nvinfer1::IPluginV3* createPlugin(nvinfer1::AsciiChar const* name, nvinfer1::PluginFieldCollection const* fc,
        nvinfer1::TensorRTPhase phase) noexcept override;
    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override;
    nvinfer1::AsciiChar const* getPluginName() const noexcept override;
    nvinfer1::AsciiChar const* getPluginVersion() const noexcept override;
    nvinfer1::AsciiChar const* getPluginNamespace() const noexcept override;
};

} // namespace attngraft::plugin
