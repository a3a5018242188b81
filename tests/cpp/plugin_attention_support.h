// The attention plugin with 12 heads, and tensors of a network's profile, for its tests.
#pragma once

#include "fused_attention_plugin.h"
#include "plugin_network_support.h"
#include "plugin_test_support.h"

#include <cstdint>
#include <initializer_list>
#include <memory>

namespace attngraft::plugin::test
{

inline Plugin createAttention(Fields fields)
{
    FusedAttentionCreator creator;
    return {std::unique_ptr<nvinfer1::IPluginV3>(
        creator.createPlugin("layer7", fields.collection(), nvinfer1::TensorRTPhase::kBUILD))};
}

inline Plugin makeAttention(char const* layout, char const* operands = "")
{
    return createAttention(
        Fields().text("layout", layout).int32("heads", 12).int32("kv_heads", 12).text("operands", operands));
}

//! The configuration as TensorRT would store it.
inline FusedAttentionConfig stored(Plugin const& plugin)
{
    return FusedAttentionConfig::parse(plugin.runtime().getFieldsToSerialize());
}

//! A network's tensor whose dimensions are `sizes`, those below 0 known at run time only; and its profile.
inline nvinfer1::DynamicPluginTensorDesc inProfile(std::initializer_list<int64_t> sizes,
    std::initializer_list<int64_t> least, std::initializer_list<int64_t> optimum,
    std::initializer_list<int64_t> largest)
{
    nvinfer1::DynamicPluginTensorDesc tensor{};
    tensor.desc = makeDescriptor(nvinfer1::DataType::kHALF, sizes);
    tensor.min = makeDims(least);
    tensor.opt = makeDims(optimum);
    tensor.max = makeDims(largest);
    return tensor;
}

//! A packed tensor of 12 heads of 64, batch 1 to 8 and 4 at the optimum, with these lengths.
inline nvinfer1::DynamicPluginTensorDesc packedInProfile(int64_t optimum, int64_t largest)
{
    return inProfile({kDynamic, kDynamic, 2304}, {1, 1, 2304}, {4, optimum, 2304}, {8, largest, 2304});
}

} // namespace attngraft::plugin::test
