// One configuration of attngraft::FusedAttention, read from plugin fields and written back to them.
#pragma once

#include "config.h"

namespace attngraft::plugin
{

//! How a tensor lies in memory. B batch, S sequence, D size of a head, H query heads, Hk key heads, G = H / Hk.
enum class Layout : int32_t
{
    kBhsd = 0,      //!< [B, H, S, D]
    kBshd = 1,      //!< [B, S, H, D]
    kBsd = 2,       //!< [B, S, H * D]
    kQkv = 3,       //!< packed [B, S, (H + 2 * Hk) * D]: all query heads, all key heads, all value heads
    kQkvByHead = 4, //!< packed [B, S, Hk * (G + 2) * D]: for each key head its query heads, its key, its value
};

//! The layout's word in `layout`.
char const* layoutName(Layout layout) noexcept;

constexpr bool isPacked(Layout layout) noexcept
{
    return layout == Layout::kQkv || layout == Layout::kQkvByHead;
}

//! Whether the last dimension holds heads side by side, so that their number must be told.
constexpr bool isFolded(Layout layout) noexcept
{
    return layout == Layout::kBsd || isPacked(layout);
}

struct FusedAttentionConfig
{
    MaskConfig mask;
    Layout query{Layout::kBhsd}; //!< of the one input where it is packed, and then so are key and value
    Layout key{Layout::kBhsd};
    Layout value{Layout::kBhsd};
    Layout context{Layout::kBhsd}; //!< kBsd where the input is packed
    int32_t heads{0};              //!< 0: the shapes tell
    int32_t kvHeads{0};            //!< divides heads; 0: the shapes tell
    bool isExact{false};

    bool operator==(FusedAttentionConfig const& other) const noexcept;

    //! As MaskConfig::parse.
    static FusedAttentionConfig parse(nvinfer1::PluginFieldCollection const* fields);

    //! All fields, those of the mask first; parse gives the same configuration back.
    OwnedFields fields() const;
};

} // namespace attngraft::plugin
