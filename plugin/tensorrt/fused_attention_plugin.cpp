#include "fused_attention_plugin.h"

#include "guard.h"

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <utility>

namespace attngraft::plugin
{
namespace
{
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

//! Refuses while the network is built what constant dimensions already show to be wrong.
void checkConstantDimensions(FusedAttentionConfig const& config, DimsExprs const* inputs)
{
    int32_t const own = ownInputs(config);
    std::array<nvinfer1::Dims, kMaxOwnInputs> shapes{};
    std::transform(inputs, inputs + own, shapes.begin(), knownDimensions);
    nvinfer1::Dims const scores = scoresShape(attentionSizes(config, shapes.data()));
    for (size_t i = 0; i < config.mask.operands.size(); ++i)
    {
        checkOperandShape(config.mask.operands[i], knownDimensions(inputs[own + static_cast<int32_t>(i)]), scores);
    }
}

//! Sizes of 0, and those that the builder cannot tell, need no version of the kernel.
bool needsVariant(FusedAttentionParams const& params) noexcept
{
    return params.batch > 0 && params.heads > 0 && params.queries > 0 && params.keys >= 0;
}
} // namespace

AttentionVariants AttentionVariants::of(FusedAttentionParams const& params)
{
    AttentionVariants variants{};
    variants.count = std::min(attentionVariants(params, variants.list.data(), kCapacity), kCapacity);
    return variants;
}

bool AttentionVariants::contains(int32_t variant) const noexcept
{
    return std::find(list.begin(), list.begin() + count, variant) != list.begin() + count;
}

FusedAttentionPlugin::FusedAttentionPlugin(FusedAttentionConfig config, std::string const& layerName)
    : PluginBase(kName, layerName, attentionInputs(config), config.fields())
    , mConfig(std::move(config))
{ }

nvinfer1::IPluginV3* FusedAttentionPlugin::clone() noexcept
{
    return guarded<nvinfer1::IPluginV3*>(nullptr, title(), [&] {
        auto copy = std::make_unique<FusedAttentionPlugin>(mConfig, layerName());
        copy->mOffered = mOffered;
        copy->mTactic = mTactic;
        return copy.release();
    });
}

int32_t FusedAttentionPlugin::getOutputShapes(DimsExprs const* inputs, int32_t nbInputs, DimsExprs const*, int32_t,
    DimsExprs* outputs, int32_t nbOutputs, nvinfer1::IExprBuilder& exprBuilder) noexcept
{
    return guardedStatus(title(), [&] {
        checkCounts(nbInputs, nbOutputs);
        checkConstantDimensions(mConfig, inputs);
        outputs[0] = contextShape(mConfig, inputs, exprBuilder);
    });
}

int32_t FusedAttentionPlugin::configurePlugin(
    DynamicPluginTensorDesc const* in, int32_t nbInputs, DynamicPluginTensorDesc const*, int32_t nbOutputs) noexcept
{
    return guardedStatus(title(), [&] {
        checkCounts(nbInputs, nbOutputs);
        makeLargestParams(mConfig, in); // refuses here what getWorkspaceSize could not report
        FusedAttentionParams const params = makeOptimumParams(mConfig, in);
        mOffered = AttentionVariants::of(params);
        if (mOffered.count == 0 && needsVariant(params))
        {
            throw std::invalid_argument("the kernels do not serve these sizes: batch " + std::to_string(params.batch)
                + ", " + std::to_string(params.heads) + " heads, " + std::to_string(params.queries) + " queries, "
                + std::to_string(params.keys) + " keys, head size " + std::to_string(params.headSize) + " and "
                + std::to_string(params.valueSize));
        }
    });
}

size_t FusedAttentionPlugin::getWorkspaceSize(
    DynamicPluginTensorDesc const* inputs, int32_t, DynamicPluginTensorDesc const*, int32_t) const noexcept
{
    return guarded(size_t{0}, title(), [&] { return attentionWorkspaceBytes(makeLargestParams(mConfig, inputs)); });
}

int32_t FusedAttentionPlugin::getNbTactics() noexcept
{
    return mOffered.count;
}

int32_t FusedAttentionPlugin::getValidTactics(int32_t* tactics, int32_t nbTactics) noexcept
{
    return guardedStatus(title(), [&] {
        if (nbTactics != mOffered.count)
        {
            throw std::invalid_argument("TensorRT asks for " + std::to_string(nbTactics) + " tactics where "
                + std::to_string(mOffered.count) + " are offered");
        }
        std::copy_n(mOffered.list.begin(), nbTactics, tactics);
    });
}

int32_t FusedAttentionPlugin::setTactic(int32_t tactic) noexcept
{
    // One that this library does not know, as in an engine of another version, is no error: enqueue passes it over.
    mTactic = tactic;
    return kSuccess;
}

int32_t FusedAttentionPlugin::onShapeChange(
    PluginTensorDesc const* in, int32_t nbInputs, PluginTensorDesc const*, int32_t nbOutputs) noexcept
{
    return guardedStatus(title(), [&] {
        checkCounts(nbInputs, nbOutputs);
        makeAttentionParams(mConfig, in, nullptr, nullptr);
    });
}

int32_t FusedAttentionPlugin::enqueue(PluginTensorDesc const* inputDesc, PluginTensorDesc const*,
    void const* const* inputs, void* const* outputs, void* workspace, cudaStream_t stream) noexcept
{
    return guardedStatus(title(), [&] {
        FusedAttentionParams params = makeAttentionParams(mConfig, inputDesc, inputs, outputs[0]);
        params.variant = AttentionVariants::of(params).contains(mTactic) ? mTactic : 0;
        params.workspace = workspace;
        checkLaunch(launchFusedAttention(params, stream));
    });
}

} // namespace attngraft::plugin
