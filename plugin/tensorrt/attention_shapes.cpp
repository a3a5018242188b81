#include "attention_shapes.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::DimensionOperation;
using nvinfer1::Dims;
using nvinfer1::DimsExprs;
using nvinfer1::IDimensionExpr;
using nvinfer1::IExprBuilder;

[[noreturn]] void refuse(char const* tensor, std::string const& reason)
{
    throw std::invalid_argument(std::string(tensor) + ": " + reason);
}

//! Which dimension is which. The batch is the first, what a head has is in the last.
struct Axes
{
    int32_t rank;
    int32_t rows;
    int32_t heads; //!< kFoldedHeads: in the last dimension, side by side
};

constexpr int32_t kFoldedHeads = -1;

constexpr Axes axesOf(Layout layout) noexcept
{
    switch (layout)
    {
    case Layout::kBhsd: return {4, 2, 1};
    case Layout::kBshd: return {4, 1, 2};
    default: return {3, 1, kFoldedHeads};
    }
}

//! One tensor's sizes; `lastDimension` is a head's size where the heads have a dimension of their own.
struct TensorSizes
{
    int64_t batch;
    int64_t rows;
    int64_t heads;
    int64_t lastDimension;
};

TensorSizes readTensor(char const* tensor, Layout layout, Dims const& dims)
{
    Axes const axes = axesOf(layout);
    if (dims.nbDims != axes.rank)
    {
        refuse(tensor,
            "rank " + std::to_string(dims.nbDims) + "; layout " + layoutName(layout) + " has rank "
                + std::to_string(axes.rank));
    }
    int64_t const heads = axes.heads == kFoldedHeads ? kUnknown : dims.d[axes.heads];
    return {dims.d[0], dims.d[axes.rows], heads, dims.d[axes.rank - 1]};
}

//! A head's size in a last dimension that holds `heads` of them side by side.
int64_t unfold(char const* tensor, int64_t lastDimension, int64_t heads)
{
    if (lastDimension != kUnknown && lastDimension % heads != 0)
    {
        refuse(tensor,
            "the last dimension, " + std::to_string(lastDimension) + ", does not hold " + std::to_string(heads)
                + " heads of one size");
    }
    return lastDimension == kUnknown ? kUnknown : lastDimension / heads;
}

//! A size that several tensors tell, and who told it first. Without strings: no memory is allocated at run time.
struct SharedSize
{
    char const* what;
    int64_t value{kUnknown};
    char const* source{""};

    void tell(char const* tensor, int64_t found)
    {
        if (found == kUnknown)
        {
            return;
        }
        if (value != kUnknown && value != found)
        {
            refuse(tensor,
                std::string("its ") + what + " is " + std::to_string(found) + ", that of " + source + " is "
                    + std::to_string(value));
        }
        if (value == kUnknown)
        {
            value = found;
            source = tensor;
        }
    }
};

int64_t orUnknown(int32_t attribute) noexcept
{
    return attribute == 0 ? kUnknown : attribute;
}

AttentionSizes separateSizes(FusedAttentionConfig const& config, Dims const* tensors)
{
    TensorSizes const q = readTensor("q", config.query, tensors[0]);
    TensorSizes const k = readTensor("k", config.key, tensors[1]);
    TensorSizes const v = readTensor("v", config.value, tensors[2]);
    SharedSize batch{"batch"};
    SharedSize heads{"number of heads"};
    SharedSize kvHeads{"number of heads"};
    SharedSize keys{"number of keys"};
    SharedSize headSize{"head size"};
    heads.tell("the attribute heads", orUnknown(config.heads));
    heads.tell("q", q.heads);
    kvHeads.tell("the attribute kv_heads", orUnknown(config.kvHeads));
    kvHeads.tell("k", k.heads);
    kvHeads.tell("v", v.heads);
    batch.tell("q", q.batch);
    batch.tell("k", k.batch);
    batch.tell("v", v.batch);
    keys.tell("k", k.rows);
    keys.tell("v", v.rows);
    headSize.tell("q", isFolded(config.query) ? unfold("q", q.lastDimension, heads.value) : q.lastDimension);
    headSize.tell("k", isFolded(config.key) ? unfold("k", k.lastDimension, kvHeads.value) : k.lastDimension);
    int64_t const valueSize = isFolded(config.value) ? unfold("v", v.lastDimension, kvHeads.value) : v.lastDimension;
    return {batch.value, heads.value, kvHeads.value, q.rows, keys.value, headSize.value, valueSize};
}

//! How many heads lie side by side in a packed tensor.
int64_t packedHeads(FusedAttentionConfig const& config) noexcept
{
    return int64_t{config.heads} + 2 * int64_t{config.kvHeads};
}

AttentionSizes packedSizes(FusedAttentionConfig const& config, Dims const& tensor)
{
    TensorSizes const qkv = readTensor("qkv", config.query, tensor);
    int64_t const size = unfold("qkv", qkv.lastDimension, packedHeads(config));
    return {qkv.batch, config.heads, config.kvHeads, qkv.rows, qkv.rows, size, size};
}

void checkHeads(AttentionSizes const& sizes)
{
    if (sizes.heads == 0 || sizes.kvHeads == 0)
    {
        refuse(sizes.heads == 0 ? "q" : "k", "has no head");
    }
    bool const areKnown = sizes.heads != kUnknown && sizes.kvHeads != kUnknown;
    if (areKnown && sizes.heads % sizes.kvHeads != 0)
    {
        refuse("q",
            "its " + std::to_string(sizes.heads) + " heads are no multiple of the " + std::to_string(sizes.kvHeads)
                + " of k and v");
    }
}

void checkHeadSize(char const* tensor, int64_t size)
{
    if (size != kUnknown && (size < 1 || size > kMaxHeadSize))
    {
        refuse(tensor, "head size " + std::to_string(size) + " is not in 1 to " + std::to_string(kMaxHeadSize));
    }
}

IDimensionExpr const* orConstant(IDimensionExpr const* expression, int64_t known, IExprBuilder& builder)
{
    return known == kUnknown ? expression : builder.constant(known);
}

IDimensionExpr const* valueSizeOf(
    FusedAttentionConfig const& config, AttentionSizes const& sizes, DimsExprs const* tensors, IExprBuilder& builder)
{
    DimsExprs const& value = isPacked(config.value) ? tensors[0] : tensors[2];
    IDimensionExpr const* const last = value.d[value.nbDims - 1];
    if (sizes.valueSize != kUnknown || !isFolded(config.value))
    {
        return orConstant(last, sizes.valueSize, builder);
    }
    int64_t const heads = isPacked(config.value) ? packedHeads(config) : config.kvHeads;
    return builder.operation(DimensionOperation::kFLOOR_DIV, *last, *builder.constant(heads));
}
} // namespace

int32_t ownInputs(FusedAttentionConfig const& config) noexcept
{
    return isPacked(config.query) ? 1 : kMaxOwnInputs;
}

InputList attentionInputs(FusedAttentionConfig const& config)
{
    return {ownInputs(config), isPacked(config.query) ? "qkv" : "q, k, v", config.mask.operands};
}

AttentionSizes attentionSizes(FusedAttentionConfig const& config, Dims const* tensors)
{
    bool const packed = isPacked(config.query);
    AttentionSizes const sizes = packed ? packedSizes(config, tensors[0]) : separateSizes(config, tensors);
    checkHeads(sizes);
    checkHeadSize(packed ? "qkv" : "q", sizes.headSize);
    checkHeadSize(packed ? "qkv" : "v", sizes.valueSize);
    return sizes;
}

void alignBounds(FusedAttentionConfig const& config, Dims* tensors)
{
    if (isPacked(config.query))
    {
        return;
    }
    int64_t const batch = std::max({tensors[0].d[0], tensors[1].d[0], tensors[2].d[0]});
    for (int32_t i = 0; i < kMaxOwnInputs; ++i)
    {
        tensors[i].d[0] = batch;
    }
    int64_t& keyRows = tensors[1].d[axesOf(config.key).rows];
    int64_t& valueRows = tensors[2].d[axesOf(config.value).rows];
    keyRows = valueRows = std::max(keyRows, valueRows);
}

Dims scoresShape(AttentionSizes const& sizes) noexcept
{
    return {4, {sizes.batch, sizes.heads, sizes.queries, sizes.keys}};
}

DimsExprs contextShape(FusedAttentionConfig const& config, DimsExprs const* tensors, IExprBuilder& builder)
{
    std::array<Dims, kMaxOwnInputs> known{};
    std::transform(tensors, tensors + ownInputs(config), known.begin(), knownDimensions);
    AttentionSizes const sizes = attentionSizes(config, known.data());
    DimsExprs const& query = tensors[0];
    Axes const from = axesOf(config.query);
    Axes const to = axesOf(config.context);
    IDimensionExpr const* const heads =
        orConstant(from.heads == kFoldedHeads ? nullptr : query.d[from.heads], sizes.heads, builder);
    IDimensionExpr const* const valueSize = valueSizeOf(config, sizes, tensors, builder);

    DimsExprs context{};
    context.nbDims = to.rank;
    context.d[0] = query.d[0];
    context.d[to.rows] = query.d[from.rows];
    if (to.heads == kFoldedHeads)
    {
        context.d[to.rank - 1] = builder.operation(DimensionOperation::kPROD, *heads, *valueSize);
    }
    else
    {
        context.d[to.heads] = heads;
        context.d[to.rank - 1] = valueSize;
    }
    return context;
}

} // namespace attngraft::plugin
