// attngraft::FusedAttention v1 as TensorRT sees it. Meaning: python/attngraft/contract.py.
#pragma once

#include "attention_config.h"
#include "attention_tensors.h"
#include "plugin_base.h"
#include "plugin_creator.h"

#include <array>

namespace attngraft::plugin
{

//! Which versions of the kernel serve some sizes; without memory of its own, since enqueue asks too.
struct AttentionVariants
{
    //! More than there are versions for any one type and size.
    static constexpr int kCapacity = 64;

    std::array<int32_t, kCapacity> list{};
    int32_t count{0};

    static AttentionVariants of(FusedAttentionParams const& params);
    bool contains(int32_t variant) const noexcept;
};

//! TensorRT's tactics are the kernel's versions. They are what changes after construction: configurePlugin notes those
//! that the builder may time, setTactic the one that enqueue takes. A clone starts with both, for TensorRT may choose
//! before it attaches a clone to a context. Each context has its own clone, so no two threads meet in one object.
//!
//! Offered are the versions that serve the profile's optimum, where TensorRT times them. One that does not serve
//! another shape of the profile makes way there for the kernels' own choice: offering only what serves every shape of
//! a profile would let its rarest corner decide over the shape that it is built for.
class FusedAttentionPlugin final : public PluginBase
{
public:
    static constexpr char const* kName = kFusedAttentionName;
    using Config = FusedAttentionConfig;

    //! `layerName` is for messages only.
    FusedAttentionPlugin(Config config, std::string const& layerName);

    // IPluginV3
    nvinfer1::IPluginV3* clone() noexcept override;

    // IPluginV3OneBuild
    int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t nbInputs, nvinfer1::DimsExprs const* shapeInputs,
        int32_t nbShapeInputs, nvinfer1::DimsExprs* outputs, int32_t nbOutputs,
        nvinfer1::IExprBuilder& exprBuilder) noexcept override;
    int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* in, int32_t nbInputs,
        nvinfer1::DynamicPluginTensorDesc const* out, int32_t nbOutputs) noexcept override;
    size_t getWorkspaceSize(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t nbInputs,
        nvinfer1::DynamicPluginTensorDesc const* outputs, int32_t nbOutputs) const noexcept override;
    int32_t getNbTactics() noexcept override;
    int32_t getValidTactics(int32_t* tactics, int32_t nbTactics) noexcept override;

    // IPluginV3OneRuntime
    int32_t setTactic(int32_t tactic) noexcept override;
    int32_t onShapeChange(nvinfer1::PluginTensorDesc const* in, int32_t nbInputs, nvinfer1::PluginTensorDesc const* out,
        int32_t nbOutputs) noexcept override;
    int32_t enqueue(nvinfer1::PluginTensorDesc const* inputDesc, nvinfer1::PluginTensorDesc const* outputDesc,
        void const* const* inputs, void* const* outputs, void* workspace, cudaStream_t stream) noexcept override;

private:
    FusedAttentionConfig const mConfig;
    AttentionVariants mOffered{};
    int32_t mTactic{0}; //!< 0: the kernels' own choice
};

using FusedAttentionCreator = PluginCreator<FusedAttentionPlugin>;

} // namespace attngraft::plugin
