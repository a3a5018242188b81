#include "config.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>
#include <string_view>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;

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

[[noreturn]] void refuse(std::string const& field, std::string const& reason)
{
    throw std::invalid_argument("field '" + field + "': " + reason);
}

//! The enumerator whose name is `text`.
template <typename Enum, size_t Count>
Enum parseName(std::string const& field, std::string_view text, std::array<char const*, Count> const& names)
{
    auto const found = std::find(names.begin(), names.end(), text);
    if (found == names.end())
    {
        std::string known;
        for (char const* name : names)
        {
            known += (known.empty() ? "" : ", ") + std::string(name);
        }
        refuse(field, "'" + std::string(text) + "' is not one of " + known);
    }
    return static_cast<Enum>(found - names.begin());
}

//! The single value of a numeric field; TensorRT's parser gives a scalar as an array of one.
template <typename Element>
Element singleValue(PluginField const& field)
{
    if (field.data == nullptr || field.length != 1)
    {
        refuse(field.name, "holds " + std::to_string(field.length) + " values; give one");
    }
    Element value{};
    std::memcpy(&value, field.data, sizeof(value));
    return value;
}

std::string readText(PluginField const& field)
{
    if (field.type != PluginFieldType::kCHAR)
    {
        refuse(field.name, "is not a string");
    }
    if (field.length < 0 || (field.data == nullptr && field.length > 0))
    {
        refuse(field.name, "has no data");
    }
    std::string_view text(static_cast<char const*>(field.data), static_cast<size_t>(field.length));
    // Some versions of the parser count the terminating NUL, some do not.
    return std::string(text.substr(0, text.find('\0')));
}

float readFloat(PluginField const& field)
{
    switch (field.type)
    {
    case PluginFieldType::kFLOAT32: return singleValue<float>(field);
    case PluginFieldType::kFLOAT64: return static_cast<float>(singleValue<double>(field));
    default: refuse(field.name, "is not a float");
    }
}

int64_t readInteger(PluginField const& field)
{
    switch (field.type)
    {
    case PluginFieldType::kINT32: return singleValue<int32_t>(field);
    case PluginFieldType::kINT64: return singleValue<int64_t>(field);
    default: refuse(field.name, "is not an integer");
    }
}

std::vector<Role> readOperands(PluginField const& field)
{
    std::vector<Role> roles;
    std::string const text = readText(field);
    std::string_view rest = text;
    while (!rest.empty())
    {
        size_t const comma = std::min(rest.find(','), rest.size());
        std::string_view const name = rest.substr(0, comma);
        rest.remove_prefix(std::min(comma + 1, rest.size()));
        if (name.empty())
        {
            continue;
        }
        Role const role = parseName<Role>(field.name, name, kRoleNames);
        if (std::find(roles.begin(), roles.end(), role) != roles.end())
        {
            refuse(field.name, "'" + text + "' names a role twice");
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
        refuse(field.name, std::to_string(window) + " is not -1 (unbounded) or a number of keys below 2^31");
    }
    return static_cast<int32_t>(window);
}

void readField(PluginField const& field, MaskedSoftmaxConfig& config)
{
    std::string_view const name = field.name;
    if (name == kOperandsField)
    {
        config.operands = readOperands(field);
    }
    else if (name == kScaleField)
    {
        config.scale = readFloat(field);
        if (!std::isfinite(config.scale))
        {
            refuse(field.name, "is not finite");
        }
    }
    else if (name == kCausalField)
    {
        config.causal = parseName<Causal>(field.name, readText(field), kCausalNames);
    }
    else if (name == kWindowLeftField)
    {
        config.windowLeft = readWindow(field);
    }
    else if (name == kWindowRightField)
    {
        config.windowRight = readWindow(field);
    }
    else if (name == kSoftcapField)
    {
        config.softcap = readFloat(field);
        if (!std::isfinite(config.softcap) || config.softcap < 0.F)
        {
            refuse(field.name, "is negative or not finite; 0 turns it off");
        }
    }
    else if (name == kEmptyRowsField)
    {
        config.emptyRows = parseName<EmptyRows>(field.name, readText(field), kEmptyRowsNames);
    }
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

//! With the terminating NUL, so that an empty string is not an empty field.
PluginField textField(char const* name, std::string const& text)
{
    return {name, text.c_str(), PluginFieldType::kCHAR, static_cast<int32_t>(text.size() + 1)};
}

//! Enough digits to tell any two floats apart.
std::string exactText(float value)
{
    std::array<char, 32> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "%.*g", std::numeric_limits<float>::max_digits10, value);
    return buffer.data();
}
} // namespace

char const* roleName(Role role) noexcept
{
    return kRoleNames[static_cast<size_t>(role)];
}

bool MaskedSoftmaxConfig::operator==(MaskedSoftmaxConfig const& other) const noexcept
{
    return operands == other.operands && scale == other.scale && causal == other.causal
        && windowLeft == other.windowLeft && windowRight == other.windowRight && softcap == other.softcap
        && emptyRows == other.emptyRows;
}

MaskedSoftmaxConfig parseFields(PluginFieldCollection const* fields)
{
    MaskedSoftmaxConfig config;
    int32_t const count = fields == nullptr ? 0 : fields->nbFields;
    std::set<std::string> seen;
    for (int32_t i = 0; i < count; ++i)
    {
        PluginField const& field = fields->fields[i];
        if (field.name == nullptr)
        {
            throw std::invalid_argument("field " + std::to_string(i) + " has no name");
        }
        if (!seen.insert(field.name).second)
        {
            refuse(field.name, "is given twice");
        }
        readField(field, config);
    }
    return config;
}

PluginFieldCollection const* fieldNames() noexcept
{
    static PluginField const fields[]{
        {kOperandsField, nullptr, PluginFieldType::kCHAR, 1},
        {kScaleField, nullptr, PluginFieldType::kFLOAT32, 1},
        {kCausalField, nullptr, PluginFieldType::kCHAR, 1},
        {kWindowLeftField, nullptr, PluginFieldType::kINT32, 1},
        {kWindowRightField, nullptr, PluginFieldType::kINT32, 1},
        {kSoftcapField, nullptr, PluginFieldType::kFLOAT32, 1},
        {kEmptyRowsField, nullptr, PluginFieldType::kCHAR, 1},
    };
    static PluginFieldCollection const collection{static_cast<int32_t>(std::size(fields)), fields};
    return &collection;
}

SerializedConfig::SerializedConfig(MaskedSoftmaxConfig const& config)
    : mOperands(joinRoles(config.operands))
    , mScale(config.scale)
    , mCausal(kCausalNames[static_cast<size_t>(config.causal)])
    , mWindowLeft(config.windowLeft)
    , mWindowRight(config.windowRight)
    , mSoftcap(config.softcap)
    , mEmptyRows(kEmptyRowsNames[static_cast<size_t>(config.emptyRows)])
    , mText("operands=" + mOperands + " scale=" + exactText(mScale) + " causal=" + mCausal
          + " window=" + std::to_string(mWindowLeft) + "," + std::to_string(mWindowRight)
          + " softcap=" + exactText(mSoftcap) + " empty_rows=" + mEmptyRows)
    , mFields{textField(kOperandsField, mOperands), PluginField(kScaleField, &mScale, PluginFieldType::kFLOAT32, 1),
          textField(kCausalField, mCausal), PluginField(kWindowLeftField, &mWindowLeft, PluginFieldType::kINT32, 1),
          PluginField(kWindowRightField, &mWindowRight, PluginFieldType::kINT32, 1),
          PluginField(kSoftcapField, &mSoftcap, PluginFieldType::kFLOAT32, 1), textField(kEmptyRowsField, mEmptyRows)}
    , mCollection{static_cast<int32_t>(kFieldCount), mFields.data()}
{ }

} // namespace attngraft::plugin
