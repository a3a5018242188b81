// Plugin fields that own their names' values, for TensorRT to serialize, and the same on one line.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <deque>
#include <string>
#include <variant>
#include <vector>

namespace attngraft::plugin
{

//! The fields point to values inside this object. It may be moved, which leaves the values where they are, but not
//! copied.
class OwnedFields
{
public:
    OwnedFields() = default;
    OwnedFields(OwnedFields&&) = default;
    OwnedFields& operator=(OwnedFields&&) = default;
    OwnedFields(OwnedFields const&) = delete;
    OwnedFields& operator=(OwnedFields const&) = delete;

    //! `name` must outlive the object.
    void add(char const* name, std::string value);
    void add(char const* name, float value);
    void add(char const* name, int32_t value);

    //! Valid until the next add.
    nvinfer1::PluginFieldCollection const* collection() const noexcept
    {
        return &mCollection;
    }

    //! "name=value name=value", which tells any two configurations apart: for the timing cache's key and the engine
    //! inspector.
    char const* line() const noexcept
    {
        return mLine.c_str();
    }

private:
    void append(nvinfer1::PluginField const& field, std::string const& text);

    std::deque<std::variant<std::string, float, int32_t>> mValues;
    std::vector<nvinfer1::PluginField> mFields;
    nvinfer1::PluginFieldCollection mCollection{};
    std::string mLine;
};

} // namespace attngraft::plugin
