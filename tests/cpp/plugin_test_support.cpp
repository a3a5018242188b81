#include "plugin_test_support.h"

#include "log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace
{
std::atomic<int64_t> gAllocations{0};
} // namespace

void* operator new(size_t size)
{
    ++gAllocations;
    void* const memory = std::malloc(size == 0 ? 1 : size);
    return memory != nullptr ? memory : throw std::bad_alloc();
}

void operator delete(void* memory) noexcept
{
    std::free(memory);
}

void operator delete(void* memory, size_t) noexcept
{
    std::free(memory);
}

namespace attngraft
{
namespace test = plugin::test;

namespace
{
template <typename Params>
cudaError_t note(test::FakeLaunch<Params>& fake, Params const& params, cudaStream_t stream)
{
    ++fake.calls;
    fake.params = params;
    fake.stream = stream;
    return fake.answer;
}
} // namespace

// In place of the kernels: these tests need no GPU.

cudaError_t launchMaskedSoftmax(MaskedSoftmaxParams const& params, cudaStream_t stream)
{
    return note(test::fakeSoftmax(), params, stream);
}

cudaError_t launchFusedAttention(FusedAttentionParams const& params, cudaStream_t stream)
{
    return note(test::fakeAttention(), params, stream);
}

int attentionVariants(FusedAttentionParams const& params, int32_t* variants, int capacity)
{
    if (params.batch * params.heads * params.queries == 0 || params.headSize == test::kUnservedHeadSize)
    {
        return 0;
    }
    int count = 0;
    for (int32_t variant : {test::kFirstVariant, test::kVariantForFewQueries, test::kLastVariant})
    {
        if (variant == test::kVariantForFewQueries && params.queries > test::kFewQueries)
        {
            continue;
        }
        if (count < capacity)
        {
            variants[count] = variant;
        }
        ++count;
    }
    return count;
}

size_t attentionWorkspaceBytes(FusedAttentionParams const& params)
{
    return static_cast<size_t>(test::fakeWorkspaceBytes(params.batch, params.heads, params.queries, params.valueSize));
}
} // namespace attngraft

namespace attngraft::plugin::test
{
namespace
{
class StringLogger final : public nvinfer1::ILogger
{
public:
    void log(Severity severity, nvinfer1::AsciiChar const* message) noexcept override
    {
        text += (severity == Severity::kERROR ? "error: " : "other: ") + std::string(message) + "\n";
    }

    std::string text;
};

class StringLoggerFinder final : public nvinfer1::ILoggerFinder
{
public:
    nvinfer1::ILogger* findLogger() override
    {
        return &logger;
    }

    StringLogger logger;
};

StringLoggerFinder gFinder;
} // namespace

nvinfer1::Dims makeDims(std::initializer_list<int64_t> sizes)
{
    nvinfer1::Dims dims{};
    dims.nbDims = static_cast<int32_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), dims.d);
    return dims;
}

nvinfer1::PluginTensorDesc makeDescriptor(
    nvinfer1::DataType type, std::initializer_list<int64_t> sizes, nvinfer1::TensorFormat format)
{
    return {makeDims(sizes), type, format, 1.F};
}

Fields& Fields::text(char const* name, std::string value, bool withNul)
{
    int32_t const length = static_cast<int32_t>(value.size()) + (withNul ? 1 : 0);
    // Without a NUL the next byte is a letter, which a reader that goes too far would take in.
    value.push_back(withNul ? '\0' : 'X');
    return number(name, nvinfer1::PluginFieldType::kCHAR, value.data(), value.size(), length);
}

Fields& Fields::number(char const* name, nvinfer1::PluginFieldType type, void const* data, size_t bytes, int32_t length)
{
    mNames.emplace_back(name);
    mValues.emplace_back(static_cast<char const*>(data), bytes);
    mTypes.push_back(type);
    mLengths.push_back(length);
    return *this;
}

Fields& Fields::float32(char const* name, float value)
{
    return number(name, nvinfer1::PluginFieldType::kFLOAT32, &value, sizeof(value));
}

Fields& Fields::int32(char const* name, int32_t value)
{
    return number(name, nvinfer1::PluginFieldType::kINT32, &value, sizeof(value));
}

Fields& Fields::int64(char const* name, int64_t value)
{
    return number(name, nvinfer1::PluginFieldType::kINT64, &value, sizeof(value));
}

nvinfer1::PluginFieldCollection const* Fields::collection()
{
    mFields.clear();
    for (size_t i = 0; i < mNames.size(); ++i)
    {
        mFields.emplace_back(mNames[i].c_str(), mValues[i].data(), mTypes[i], mLengths[i]);
    }
    mCollection = {static_cast<int32_t>(mFields.size()), mFields.data()};
    return &mCollection;
}

FakeLaunch<MaskedSoftmaxParams>& fakeSoftmax()
{
    static FakeLaunch<MaskedSoftmaxParams> fake;
    return fake;
}

FakeLaunch<FusedAttentionParams>& fakeAttention()
{
    static FakeLaunch<FusedAttentionParams> fake;
    return fake;
}

void expectAnnounced(nvinfer1::PluginFieldCollection const& announced, nvinfer1::PluginFieldCollection const& written)
{
    ASSERT_EQ(announced.nbFields, written.nbFields);
    for (int32_t i = 0; i < announced.nbFields; ++i)
    {
        EXPECT_STREQ(announced.fields[i].name, written.fields[i].name);
        EXPECT_EQ(announced.fields[i].type, written.fields[i].type);
        EXPECT_EQ(announced.fields[i].data, nullptr);
        EXPECT_NE(written.fields[i].data, nullptr);
        EXPECT_GE(written.fields[i].length, 1);
    }
}

int64_t allocationCount()
{
    return gAllocations;
}

CapturedLog::CapturedLog()
{
    gFinder.logger.text.clear();
    setLoggerFinder(&gFinder, {HeaderVersion::kMajor, HeaderVersion::kMinor});
}

CapturedLog::~CapturedLog()
{
    setLoggerFinder(nullptr, {});
}

std::string const& CapturedLog::text() const
{
    return gFinder.logger.text;
}

} // namespace attngraft::plugin::test
