// What the plugins have in common: capabilities, names, one output of the type of the first input, the fields to store.
#pragma once

#include "operand_tensors.h"
#include "owned_fields.h"

#include <NvInferRuntime.h>

#include <cuda_runtime_api.h>
#include <string>

namespace attngraft::plugin
{

//! Immutable after construction, so any number of threads may use one object, as far as this class goes.
class PluginBase : public nvinfer1::IPluginV3,
                   public nvinfer1::IPluginV3OneCore,
                   public nvinfer1::IPluginV3OneBuild,
                   public nvinfer1::IPluginV3OneRuntime
{
public:
    // IPluginV3
    nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept final;

    // IPluginV3OneCore
    nvinfer1::AsciiChar const* getPluginName() const noexcept final;
    nvinfer1::AsciiChar const* getPluginVersion() const noexcept final;
    nvinfer1::AsciiChar const* getPluginNamespace() const noexcept final;

    // IPluginV3OneBuild
    int32_t getNbOutputs() const noexcept final;
    int32_t getOutputDataTypes(nvinfer1::DataType* outputTypes, int32_t nbOutputs, nvinfer1::DataType const* inputTypes,
        int32_t nbInputs) const noexcept final;
    bool supportsFormatCombination(int32_t pos, nvinfer1::DynamicPluginTensorDesc const* inOut, int32_t nbInputs,
        int32_t nbOutputs) noexcept final;
    char const* getTimingCacheID() noexcept final;
    char const* getMetadataString() noexcept final;

    // IPluginV3OneRuntime
    nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept final;
    nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept final;

protected:
    //! `name` is the operator's and outlives the object, `layerName` is for messages only.
    PluginBase(char const* name, std::string const& layerName, InputList inputs, OwnedFields fields);
    PluginBase(PluginBase const&) = delete;

    std::string const& layerName() const noexcept
    {
        return mLayerName;
    }

    //! "Name 'layer name'", what a log line starts with.
    char const* title() const noexcept
    {
        return mTitle.c_str();
    }

    //! As the function in operand_tensors.h.
    void checkCounts(int32_t inputs, int32_t outputs) const;

private:
    char const* const mName;
    std::string const mLayerName;
    std::string const mTitle;
    InputList const mInputs;
    OwnedFields const mFields;
};

//! Throws with the reason unless `status`, which a launch function returned, is cudaSuccess.
void checkLaunch(cudaError_t status);

} // namespace attngraft::plugin
