// Values out of plugin fields, as TensorRT's ONNX parser and applications give them.
// Every function throws std::invalid_argument that names the field and says what does not fit.
#pragma once

#include <NvInferRuntime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace attngraft::plugin
{

[[noreturn]] void refuseField(std::string const& field, std::string const& reason);

//! A string, with or without its trailing NUL.
std::string readText(nvinfer1::PluginField const& field);

//! One finite kFLOAT32 or kFLOAT64. TensorRT's parser gives a scalar as an array of one.
float readFloat(nvinfer1::PluginField const& field);

//! One kINT32 or kINT64.
int64_t readInteger(nvinfer1::PluginField const& field);

//! What lies between the commas of `text`, empty parts included; one empty part for an empty text.
std::vector<std::string_view> splitAtCommas(std::string_view text);

//! "a, b, c"
template <size_t Count>
std::string joinNames(std::array<char const*, Count> const& names)
{
    std::string text;
    for (char const* name : names)
    {
        text += (text.empty() ? "" : ", ") + std::string(name);
    }
    return text;
}

//! The enumerator whose name is `text`; its value is the name's index.
template <typename Enum, size_t Count>
Enum parseName(std::string const& field, std::string_view text, std::array<char const*, Count> const& names)
{
    auto const found = std::find(names.begin(), names.end(), text);
    if (found == names.end())
    {
        refuseField(field, "'" + std::string(text) + "' is not one of " + joinNames(names));
    }
    return static_cast<Enum>(found - names.begin());
}

//! Calls `read` for each field, which may ignore it. Refuses fields without a name and fields that are given twice.
template <typename Read>
void forEachField(nvinfer1::PluginFieldCollection const* fields, Read&& read)
{
    int32_t const count = fields == nullptr ? 0 : fields->nbFields;
    std::set<std::string> seen;
    for (int32_t i = 0; i < count; ++i)
    {
        nvinfer1::PluginField const& field = fields->fields[i];
        if (field.name == nullptr)
        {
            throw std::invalid_argument("field " + std::to_string(i) + " has no name");
        }
        if (!seen.insert(field.name).second)
        {
            refuseField(field.name, "is given twice");
        }
        read(field);
    }
}

} // namespace attngraft::plugin
