// Sizes of an attention from the shapes and layouts of its tensors, while the network is built (where dimensions may be
// unknown) as well as at run time. Every function that can refuse throws std::invalid_argument that names the tensor.
#pragma once

#include "attention_config.h"
#include "operand_tensors.h"

namespace attngraft::plugin
{

//! kUnknown where the dimensions do not say. The scores are [batch, heads, queries, keys].
struct AttentionSizes
{
    int64_t batch{kUnknown};
    int64_t heads{kUnknown};
    int64_t kvHeads{kUnknown};
    int64_t queries{kUnknown};
    int64_t keys{kUnknown};
    int64_t headSize{kUnknown};
    int64_t valueSize{kUnknown};
};

constexpr int32_t kMaxOwnInputs = 3;

//! 3 for q, k and v, 1 for qkv.
int32_t ownInputs(FusedAttentionConfig const& config) noexcept;

//! q, k and v, or qkv, and one input for each operand.
InputList attentionInputs(FusedAttentionConfig const& config);

//! `tensors` are the shapes of q, k and v, or of qkv. Refuses ranks that are not the layout's, sizes that do not agree
//! with each other or with the configuration, and sizes beyond the contract.
AttentionSizes attentionSizes(FusedAttentionConfig const& config, nvinfer1::Dims const* tensors);

//! Raises what q, k and v tell alike, batch and keys, to the largest of them, so that attentionSizes takes shapes that
//! are upper bounds. `tensors` have the ranks of their layouts.
void alignBounds(FusedAttentionConfig const& config, nvinfer1::Dims* tensors);

//! [batch, heads, queries, keys]
nvinfer1::Dims scoresShape(AttentionSizes const& sizes) noexcept;

//! The context's shape as expressions of those of q, k and v, or of qkv.
nvinfer1::DimsExprs contextShape(
    FusedAttentionConfig const& config, nvinfer1::DimsExprs const* tensors, nvinfer1::IExprBuilder& builder);

} // namespace attngraft::plugin
