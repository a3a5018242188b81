#include "attention_config.h"

#include "field_reader.h"

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

constexpr char const* kLayoutField = "layout";
constexpr char const* kHeadsField = "heads";
constexpr char const* kKvHeadsField = "kv_heads";
constexpr char const* kExactField = "exact";

//! Index: the enumerator's value.
constexpr std::array<char const*, 5> kLayoutNames{"bhsd", "bshd", "bsd", "qkv", "qkv_by_head"};

//! Words of `layout` when it names each tensor: q, k, v and the context.
constexpr size_t kLayoutWords = 4;

void setLayouts(FusedAttentionConfig& config, PluginField const& field)
{
    std::string const text = readText(field);
    std::vector<std::string_view> const words = splitAtCommas(text);
    if (words.size() != 1 && words.size() != kLayoutWords)
    {
        refuseField(field.name, "'" + text + "' is neither one word nor four, q,k,v,context");
    }
    std::array<Layout, kLayoutWords> layouts{};
    for (size_t i = 0; i < kLayoutWords; ++i)
    {
        layouts[i] = parseName<Layout>(field.name, words[words.size() == 1 ? 0 : i], kLayoutNames);
        if (isPacked(layouts[i]) && words.size() != 1)
        {
            refuseField(field.name, "'" + text + "' names a packed tensor among others; give the one word");
        }
    }
    config.query = layouts[0];
    config.key = layouts[1];
    config.value = layouts[2];
    config.context = isPacked(layouts[0]) ? Layout::kBsd : layouts[3];
}

int32_t readHeads(PluginField const& field)
{
    int64_t const heads = readInteger(field);
    if (heads < 0 || heads > std::numeric_limits<int32_t>::max())
    {
        refuseField(field.name, std::to_string(heads) + " is not 0 (what the shapes say) or a number of heads");
    }
    return static_cast<int32_t>(heads);
}

bool readExact(PluginField const& field)
{
    int64_t const exact = readInteger(field);
    if (exact != 0 && exact != 1)
    {
        refuseField(field.name, std::to_string(exact) + " is neither 0 nor 1");
    }
    return exact == 1;
}

void readAttentionField(PluginField const& field, FusedAttentionConfig& config)
{
    std::string_view const name = field.name;
    if (name == kLayoutField)
    {
        setLayouts(config, field);
    }
    else if (name == kHeadsField)
    {
        config.heads = readHeads(field);
    }
    else if (name == kKvHeadsField)
    {
        config.kvHeads = readHeads(field);
    }
    else if (name == kExactField)
    {
        config.isExact = readExact(field);
    }
}

//! The value of `layout`, one word where one says it all.
std::string joinLayouts(FusedAttentionConfig const& config)
{
    std::string const query = layoutName(config.query);
    bool const isOneWord = isPacked(config.query)
        || (config.key == config.query && config.value == config.query && config.context == config.query);
    return isOneWord
        ? query
        : query + "," + layoutName(config.key) + "," + layoutName(config.value) + "," + layoutName(config.context);
}

//! What no field alone shows.
void checkHeads(FusedAttentionConfig const& config)
{
    bool const needsHeads =
        isFolded(config.query) || isFolded(config.key) || isFolded(config.value) || isFolded(config.context);
    if (needsHeads && (config.heads == 0 || config.kvHeads == 0))
    {
        refuseField(config.heads == 0 ? kHeadsField : kKvHeadsField,
            "layout '" + joinLayouts(config) + "' needs the number of heads, 1 or more");
    }
    if (config.kvHeads != 0 && config.heads % config.kvHeads != 0)
    {
        refuseField(kHeadsField,
            std::to_string(config.heads) + " is no multiple of kv_heads, " + std::to_string(config.kvHeads));
    }
}
} // namespace

char const* layoutName(Layout layout) noexcept
{
    return kLayoutNames[static_cast<size_t>(layout)];
}

bool FusedAttentionConfig::operator==(FusedAttentionConfig const& other) const noexcept
{
    return mask == other.mask && query == other.query && key == other.key && value == other.value
        && context == other.context && heads == other.heads && kvHeads == other.kvHeads && isExact == other.isExact;
}

FusedAttentionConfig FusedAttentionConfig::parse(PluginFieldCollection const* fields)
{
    FusedAttentionConfig config;
    forEachField(fields, [&](PluginField const& field) {
        if (!config.mask.readField(field))
        {
            readAttentionField(field, config);
        }
    });
    checkHeads(config);
    return config;
}

OwnedFields FusedAttentionConfig::fields() const
{
    OwnedFields fields = mask.fields();
    fields.add(kLayoutField, joinLayouts(*this));
    fields.add(kHeadsField, heads);
    fields.add(kKvHeadsField, kvHeads);
    fields.add(kExactField, static_cast<int32_t>(isExact));
    return fields;
}

} // namespace attngraft::plugin
