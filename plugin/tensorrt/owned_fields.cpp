#include "owned_fields.h"

#include <array>
#include <cstdio>
#include <limits>
#include <utility>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

//! Enough digits to tell any two floats apart.
std::string exactText(float value)
{
    std::array<char, 32> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "%.*g", std::numeric_limits<float>::max_digits10, value);
    return buffer.data();
}
} // namespace

void OwnedFields::add(char const* name, std::string value)
{
    std::string const& text = std::get<std::string>(mValues.emplace_back(std::move(value)));
    // With the terminating NUL, so that an empty string is not an empty field.
    append({name, text.c_str(), PluginFieldType::kCHAR, static_cast<int32_t>(text.size() + 1)}, text);
}

void OwnedFields::add(char const* name, float value)
{
    append({name, &std::get<float>(mValues.emplace_back(value)), PluginFieldType::kFLOAT32, 1}, exactText(value));
}

void OwnedFields::add(char const* name, int32_t value)
{
    append({name, &std::get<int32_t>(mValues.emplace_back(value)), PluginFieldType::kINT32, 1}, std::to_string(value));
}

void OwnedFields::append(PluginField const& field, std::string const& text)
{
    mFields.push_back(field);
    mCollection = {static_cast<int32_t>(mFields.size()), mFields.data()};
    mLine += (mLine.empty() ? "" : " ") + std::string(field.name) + "=" + text;
}

} // namespace attngraft::plugin
