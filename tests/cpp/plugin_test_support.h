// Stand-ins for what TensorRT gives a plugin, and for the kernels below it.
#pragma once

#include "config.h"
#include "fused_attention.h"
#include "masked_softmax.h"

#include <NvInferRuntime.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace attngraft::plugin::test
{

nvinfer1::Dims makeDims(std::initializer_list<int64_t> sizes);

nvinfer1::PluginTensorDesc makeDescriptor(nvinfer1::DataType type, std::initializer_list<int64_t> sizes,
    nvinfer1::TensorFormat format = nvinfer1::TensorFormat::kLINEAR);

//! Plugin fields that own their values.
class Fields
{
public:
    Fields& text(char const* name, std::string value, bool withNul = true);
    Fields& number(
        char const* name, nvinfer1::PluginFieldType type, void const* data, size_t bytes, int32_t length = 1);
    Fields& float32(char const* name, float value);
    Fields& int32(char const* name, int32_t value);
    Fields& int64(char const* name, int64_t value);

    nvinfer1::PluginFieldCollection const* collection();

private:
    std::vector<std::string> mNames;
    std::vector<std::string> mValues;
    std::vector<nvinfer1::PluginFieldType> mTypes;
    std::vector<int32_t> mLengths;
    std::vector<nvinfer1::PluginField> mFields;
    nvinfer1::PluginFieldCollection mCollection{};
};

//! What a launch function, which these tests replace, was called with, and what it answers.
template <typename Params>
struct FakeLaunch
{
    int calls{0};
    Params params{};
    cudaStream_t stream{nullptr};
    cudaError_t answer{cudaSuccess};
};
FakeLaunch<MaskedSoftmaxParams>& fakeSoftmax();
FakeLaunch<FusedAttentionParams>& fakeAttention();

//! The replaced attention kernels have these versions, in this order: one for any sizes, one for few queries, another
//! for any sizes. None of them serves heads of kUnservedHeadSize.
constexpr int32_t kFirstVariant = 3;
constexpr int32_t kVariantForFewQueries = 11;
constexpr int32_t kLastVariant = 4;
constexpr int64_t kFewQueries = 16;
constexpr int64_t kUnservedHeadSize = 13;

//! Scratch memory of the replaced attention kernels.
constexpr int64_t fakeWorkspaceBytes(int64_t batch, int64_t heads, int64_t queries, int64_t valueSize)
{
    return batch * heads * queries * (valueSize + 2) * 4;
}

//! Expects `announced` to have the names and types of `written`, and nothing in them.
void expectAnnounced(nvinfer1::PluginFieldCollection const& announced, nvinfer1::PluginFieldCollection const& written);

//! How often memory was allocated by `new` in this program so far.
int64_t allocationCount();

//! Collects the log lines of its lifetime, as the logger that TensorRT's finder finds.
class CapturedLog
{
public:
    CapturedLog();
    ~CapturedLog();
    CapturedLog(CapturedLog const&) = delete;
    CapturedLog& operator=(CapturedLog const&) = delete;

    //! All lines, each with its newline.
    std::string const& text() const;
};

//! Version of the headers that this test was compiled against.
struct HeaderVersion
{
    static constexpr int32_t kMajor = NV_TENSORRT_MAJOR;
    static constexpr int32_t kMinor = NV_TENSORRT_MINOR;
};

} // namespace attngraft::plugin::test
