#include "field_reader.h"

#include <cmath>
#include <cstring>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

template <typename Element>
Element singleValue(PluginField const& field)
{
    if (field.data == nullptr || field.length != 1)
    {
        refuseField(field.name, "holds " + std::to_string(field.length) + " values; give one");
    }
    Element value{};
    std::memcpy(&value, field.data, sizeof(value));
    return value;
}

float readAnyFloat(PluginField const& field)
{
    switch (field.type)
    {
    case PluginFieldType::kFLOAT32: return singleValue<float>(field);
    case PluginFieldType::kFLOAT64: return static_cast<float>(singleValue<double>(field));
    default: refuseField(field.name, "is not a float");
    }
}
} // namespace

void refuseField(std::string const& field, std::string const& reason)
{
    throw std::invalid_argument("field '" + field + "': " + reason);
}

std::string readText(PluginField const& field)
{
    if (field.type != PluginFieldType::kCHAR)
    {
        refuseField(field.name, "is not a string");
    }
    if (field.length < 0 || (field.data == nullptr && field.length > 0))
    {
        refuseField(field.name, "has no data");
    }
    std::string_view text(static_cast<char const*>(field.data), static_cast<size_t>(field.length));
    // Some versions of the parser count the terminating NUL, some do not.
    return std::string(text.substr(0, text.find('\0')));
}

float readFloat(PluginField const& field)
{
    float const value = readAnyFloat(field);
    if (!std::isfinite(value))
    {
        refuseField(field.name, "is not finite");
    }
    return value;
}

int64_t readInteger(PluginField const& field)
{
    switch (field.type)
    {
    case PluginFieldType::kINT32: return singleValue<int32_t>(field);
    case PluginFieldType::kINT64: return singleValue<int64_t>(field);
    default: refuseField(field.name, "is not an integer");
    }
}

std::vector<std::string_view> splitAtCommas(std::string_view text)
{
    std::vector<std::string_view> parts;
    for (size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(','))
    {
        parts.push_back(text.substr(0, comma));
        text.remove_prefix(comma + 1);
    }
    parts.push_back(text);
    return parts;
}

} // namespace attngraft::plugin
