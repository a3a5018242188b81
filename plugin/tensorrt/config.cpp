#include "config.h"

#include "field_reader.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;

constexpr char const* kOperandsField = "operands";
constexpr char const* kScaleField = "scale";
constexpr char const* kCausalField = "causal";
constexpr char const* kWindowLeftField = "window_left";
constexpr char const* kWindowRightField = "window_right";
constexpr char const* kSoftcapField = "softcap";
constexpr char const* kEmptyRowsField = "empty_rows";

//! Index: the enumerator's value.
constexpr std::array<char const*, kMaxOperands> kRoleNames{"bias", "keep", "kv_lengths", "kv_starts"};
constexpr std::array<char const*, 3> kCausalNames{"none", "top_left", "bottom_right"};
constexpr std::array<char const*, 3> kEmptyRowsNames{"zeros", "uniform", "unmasked"};

std::vector<Role> readOperands(PluginField const& field)
{
    std::vector<Role> roles;
    std::string const text = readText(field);
    for (std::string_view name : splitAtCommas(text))
    {
        if (name.empty())
        {
            continue;
        }
        Role const role = parseName<Role>(field.name, name, kRoleNames);
        if (std::find(roles.begin(), roles.end(), role) != roles.end())
        {
            refuseField(field.name, "'" + text + "' names a role twice");
        }
        roles.push_back(role);
    }
    return roles;
}

//! 32 bits, since TensorRT's ONNX parser carries integer attributes in no more.
int32_t readWindow(PluginField const& field)
{
    int64_t const window = readInteger(field);
    if (window < -1 || window > std::numeric_limits<int32_t>::max())
    {
        refuseField(field.name, std::to_string(window) + " is not -1 (unbounded) or a number of keys below 2^31");
    }
    return static_cast<int32_t>(window);
}

float readSoftcap(PluginField const& field)
{
    float const softcap = readFloat(field);
    if (softcap < 0.F)
    {
        refuseField(field.name, "is negative; 0 turns it off");
    }
    return softcap;
}

std::string joinRoles(std::vector<Role> const& roles)
{
    std::string text;
    for (Role role : roles)
    {
        text += (text.empty() ? "" : ",") + std::string(roleName(role));
    }
    return text;
}
} // namespace

char const* roleName(Role role) noexcept
{
    return kRoleNames[static_cast<size_t>(role)];
}

bool MaskConfig::operator==(MaskConfig const& other) const noexcept
{
    return operands == other.operands && scale == other.scale && causal == other.causal
        && windowLeft == other.windowLeft && windowRight == other.windowRight && softcap == other.softcap
        && emptyRows == other.emptyRows;
}

MaskConfig MaskConfig::parse(PluginFieldCollection const* fields)
{
    MaskConfig config;
    forEachField(fields, [&](PluginField const& field) { config.readField(field); });
    return config;
}

bool MaskConfig::readField(PluginField const& field)
{
    std::string_view const name = field.name;
    if (name == kOperandsField)
    {
        operands = readOperands(field);
    }
    else if (name == kScaleField)
    {
        scale = readFloat(field);
    }
    else if (name == kCausalField)
    {
        causal = parseName<Causal>(field.name, readText(field), kCausalNames);
    }
    else if (name == kWindowLeftField)
    {
        windowLeft = readWindow(field);
    }
    else if (name == kWindowRightField)
    {
        windowRight = readWindow(field);
    }
    else if (name == kSoftcapField)
    {
        softcap = readSoftcap(field);
    }
    else if (name == kEmptyRowsField)
    {
        emptyRows = parseName<EmptyRows>(field.name, readText(field), kEmptyRowsNames);
    }
    else
    {
        return false;
    }
    return true;
}

OwnedFields MaskConfig::fields() const
{
    OwnedFields fields;
    fields.add(kOperandsField, joinRoles(operands));
    fields.add(kScaleField, scale);
    fields.add(kCausalField, std::string(kCausalNames[static_cast<size_t>(causal)]));
    fields.add(kWindowLeftField, windowLeft);
    fields.add(kWindowRightField, windowRight);
    fields.add(kSoftcapField, softcap);
    fields.add(kEmptyRowsField, std::string(kEmptyRowsNames[static_cast<size_t>(emptyRows)]));
    return fields;
}

} // namespace attngraft::plugin
