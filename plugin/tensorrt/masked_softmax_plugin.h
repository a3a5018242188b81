// attngraft::MaskedSoftmax v1 as TensorRT sees it. Meaning: python/attngraft/contract.py.
#pragma once

#include "config.h"
#include "plugin_base.h"
#include "plugin_creator.h"

namespace attngraft::plugin
{

//! Immutable after construction, so any number of threads may use one object.
class MaskedSoftmaxPlugin final : public PluginBase
{
public:
    static constexpr char const* kName = kMaskedSoftmaxName;
    using Config = MaskConfig;

    //! `layerName` is for messages only.
    MaskedSoftmaxPlugin(Config config, std::string const& layerName);

    // IPluginV3
    nvinfer1::IPluginV3* clone() noexcept override;

    // IPluginV3OneBuild
    int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t nbInputs, nvinfer1::DimsExprs const* shapeInputs,
        int32_t nbShapeInputs, nvinfer1::DimsExprs* outputs, int32_t nbOutputs,
        nvinfer1::IExprBuilder& exprBuilder) noexcept override;
    int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* in, int32_t nbInputs,
        nvinfer1::DynamicPluginTensorDesc const* out, int32_t nbOutputs) noexcept override;

    // IPluginV3OneRuntime
    int32_t onShapeChange(nvinfer1::PluginTensorDesc const* in, int32_t nbInputs, nvinfer1::PluginTensorDesc const* out,
        int32_t nbOutputs) noexcept override;
    int32_t enqueue(nvinfer1::PluginTensorDesc const* inputDesc, nvinfer1::PluginTensorDesc const* outputDesc,
        void const* const* inputs, void* const* outputs, void* workspace, cudaStream_t stream) noexcept override;

private:
    MaskConfig const mConfig;
};

using MaskedSoftmaxCreator = PluginCreator<MaskedSoftmaxPlugin>;

} // namespace attngraft::plugin
