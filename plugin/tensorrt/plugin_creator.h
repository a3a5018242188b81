// Makes plugins from fields, for the ONNX parser, for applications and for deserialization. One creator a plugin class,
// which has a name kName, a type Config with a static parse, and a constructor (Config, layer name).
#pragma once

#include "contract.h"
#include "guard.h"
#include "owned_fields.h"

#include <NvInferRuntime.h>

#include <string>
#include <vector>

namespace attngraft::plugin
{

//! Names and types of `fields` without their values, for IPluginCreatorV3One::getFieldNames.
class FieldNames
{
public:
    explicit FieldNames(OwnedFields const& fields)
        : mFields(fields.collection()->fields, fields.collection()->fields + fields.collection()->nbFields)
    {
        for (nvinfer1::PluginField& field : mFields)
        {
            field.data = nullptr;
            field.length = 1;
        }
        mCollection = {static_cast<int32_t>(mFields.size()), mFields.data()};
    }
    FieldNames(FieldNames const&) = delete;
    FieldNames& operator=(FieldNames const&) = delete;

    nvinfer1::PluginFieldCollection const* collection() const noexcept
    {
        return &mCollection;
    }

private:
    std::vector<nvinfer1::PluginField> mFields;
    nvinfer1::PluginFieldCollection mCollection{};
};

template <typename Plugin>
class PluginCreator final : public nvinfer1::IPluginCreatorV3One
{
public:
    //! nullptr and a log line when a field is not legal.
    nvinfer1::IPluginV3* createPlugin(nvinfer1::AsciiChar const* name, nvinfer1::PluginFieldCollection const* fc,
        nvinfer1::TensorRTPhase) noexcept override
    {
        return guarded<nvinfer1::IPluginV3*>(nullptr, Plugin::kName, [&] {
            std::string const layer = name == nullptr ? "" : name;
            std::string const title = std::string(Plugin::kName) + " '" + layer + "' cannot be created";
            return guarded<nvinfer1::IPluginV3*>(
                nullptr, title.c_str(), [&] { return new Plugin(Plugin::Config::parse(fc), layer); });
        });
    }

    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override
    {
        return guarded<nvinfer1::PluginFieldCollection const*>(nullptr, Plugin::kName, [] {
            static FieldNames const names(typename Plugin::Config{}.fields());
            return names.collection();
        });
    }

    nvinfer1::AsciiChar const* getPluginName() const noexcept override
    {
        return Plugin::kName;
    }

    nvinfer1::AsciiChar const* getPluginVersion() const noexcept override
    {
        return kPluginVersion;
    }

    nvinfer1::AsciiChar const* getPluginNamespace() const noexcept override
    {
        return kNamespace;
    }
};

} // namespace attngraft::plugin
