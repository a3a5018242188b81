// The attention plugin at run time: shapes, tactics and launches.
#include "plugin_attention_support.h"

#include <gtest/gtest.h>

#include <memory>

namespace attngraft::plugin
{
namespace
{
using TensorType = nvinfer1::DataType;
using nvinfer1::PluginTensorDesc;
using test::CapturedLog;
using test::makeAttention;
using test::makeDescriptor;
using test::makeDims;
using test::Plugin;
using test::stored;

TEST(FusedAttentionPlugin, ChecksRunTimeShapes)
{
    Plugin const plugin = makeAttention("bsd");
    PluginTensorDesc inputs[]{makeDescriptor(TensorType::kHALF, {2, 5, 768}),
        makeDescriptor(TensorType::kHALF, {2, 7, 768}), makeDescriptor(TensorType::kHALF, {2, 7, 768})};
    EXPECT_EQ(plugin.runtime().onShapeChange(inputs, 3, nullptr, 1), 0);
    inputs[1].dims = makeDims({3, 7, 768});
    CapturedLog log;
    EXPECT_NE(plugin.runtime().onShapeChange(inputs, 3, nullptr, 1), 0);
    EXPECT_EQ(log.text(), "error: [attngraft] FusedAttention 'layer7': k: its batch is 3, that of q is 2\n");
}

class FusedAttentionEnqueue : public testing::Test
{
protected:
    void SetUp() override
    {
        test::fakeAttention() = {};
    }

    int32_t enqueue(Plugin const& plugin, int64_t queries = 5)
    {
        mInputs[0].dims.d[1] = queries;
        void* const outputs[]{&mBytes[2]};
        void const* const inputs[]{&mBytes[0], &mBytes[1]};
        return plugin.runtime().enqueue(mInputs, nullptr, inputs, outputs, &mBytes[3], mStream);
    }

    //! The version of the kernel that was launched.
    int32_t launched(Plugin const& plugin, int64_t queries)
    {
        EXPECT_EQ(enqueue(plugin, queries), 0);
        return test::fakeAttention().params.variant;
    }

    char mBytes[4]{};
    cudaStream_t mStream{reinterpret_cast<cudaStream_t>(&mBytes)};
    PluginTensorDesc mInputs[2]{
        makeDescriptor(TensorType::kHALF, {2, 5, 2304}), makeDescriptor(TensorType::kINT32, {2})};
    Plugin mPlugin{makeAttention("qkv", "kv_lengths")};
};

TEST_F(FusedAttentionEnqueue, LaunchesOnceOnTheGivenStream)
{
    EXPECT_EQ(enqueue(mPlugin), 0);
    EXPECT_EQ(test::fakeAttention().calls, 1);
    EXPECT_EQ(test::fakeAttention().stream, mStream);
    FusedAttentionParams const& params = test::fakeAttention().params;
    EXPECT_EQ(params.query.data, &mBytes[0]);
    EXPECT_EQ(static_cast<void const*>(params.kvLengths), &mBytes[1]);
    EXPECT_EQ(params.context.data, &mBytes[2]);
    EXPECT_EQ(params.workspace, &mBytes[3]);
    EXPECT_EQ(params.queries, 5);
    EXPECT_EQ(params.variant, 0);
}

TEST_F(FusedAttentionEnqueue, TakesTheTacticWhereItServes)
{
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kVariantForFewQueries), 0);
    EXPECT_EQ(launched(mPlugin, test::kFewQueries), test::kVariantForFewQueries);
    EXPECT_EQ(launched(mPlugin, test::kFewQueries + 1), 0);
    EXPECT_EQ(launched(mPlugin, 1), test::kVariantForFewQueries);
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kLastVariant), 0);
    EXPECT_EQ(launched(mPlugin, 384), test::kLastVariant);
    EXPECT_EQ(mPlugin.runtime().setTactic(0), 0);
    EXPECT_EQ(launched(mPlugin, 384), 0);
}

TEST_F(FusedAttentionEnqueue, PassesOverATacticOfAnotherVersion)
{
    for (int32_t unknown : {-1, 999})
    {
        EXPECT_EQ(mPlugin.runtime().setTactic(unknown), 0);
        EXPECT_EQ(launched(mPlugin, 5), 0);
    }
}

TEST_F(FusedAttentionEnqueue, ClonesTakeTheTacticAlongAndThenGoTheirWay)
{
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kLastVariant), 0);
    Plugin const clone{std::unique_ptr<nvinfer1::IPluginV3>(mPlugin.object->clone())};
    Plugin const attached{std::unique_ptr<nvinfer1::IPluginV3>(mPlugin.runtime().attachToContext(nullptr))};
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kFirstVariant), 0);
    EXPECT_EQ(clone.runtime().setTactic(0), 0);
    EXPECT_EQ(launched(mPlugin, 5), test::kFirstVariant);
    EXPECT_EQ(launched(clone, 5), 0);
    FusedAttentionConfig const config = stored(mPlugin);
    mPlugin.object.reset();
    EXPECT_EQ(launched(attached, 5), test::kLastVariant);
    EXPECT_EQ(stored(attached), config);
}

TEST_F(FusedAttentionEnqueue, AllocatesNothing)
{
    EXPECT_EQ(mPlugin.runtime().setTactic(test::kFirstVariant), 0);
    int64_t const before = test::allocationCount();
    EXPECT_EQ(enqueue(mPlugin), 0);
    EXPECT_EQ(test::allocationCount(), before);
    EXPECT_GT(before, 0);
}

TEST_F(FusedAttentionEnqueue, AllocatesNothingForSeparateTensors)
{
    Plugin const plugin = makeAttention("bhsd,bshd,bsd,bsd", "bias");
    PluginTensorDesc const descriptors[]{makeDescriptor(TensorType::kHALF, {2, 12, 5, 64}),
        makeDescriptor(TensorType::kHALF, {2, 7, 12, 64}), makeDescriptor(TensorType::kHALF, {2, 7, 768}),
        makeDescriptor(TensorType::kHALF, {2, 1, 1, 7})};
    void const* const inputs[]{&mBytes[0], &mBytes[1], &mBytes[0], &mBytes[1]};
    void* const outputs[]{&mBytes[2]};
    int64_t const before = test::allocationCount();
    EXPECT_EQ(plugin.runtime().enqueue(descriptors, nullptr, inputs, outputs, nullptr, mStream), 0);
    EXPECT_EQ(test::allocationCount(), before);
}

TEST_F(FusedAttentionEnqueue, ReportsAFailedLaunch)
{
    test::fakeAttention().answer = cudaErrorInvalidConfiguration;
    CapturedLog log;
    EXPECT_NE(enqueue(mPlugin), 0);
    EXPECT_EQ(log.text(),
        "error: [attngraft] FusedAttention 'layer7': the kernel launch failed: cudaErrorInvalidConfiguration, invalid "
        "configuration argument\n");
}

TEST_F(FusedAttentionEnqueue, LaunchesNothingForShapesThatDoNotFit)
{
    mInputs[1].dims = makeDims({3});
    CapturedLog log;
    EXPECT_NE(enqueue(mPlugin), 0);
    EXPECT_EQ(test::fakeAttention().calls, 0);
    EXPECT_NE(log.text(), "");
}

} // namespace
} // namespace attngraft::plugin
