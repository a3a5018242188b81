// Whether tensorrt_abi.h states the virtual tables as the TensorRT headers that this is compiled with have them.
// tests/python/test_build_headers.py compiles it against each version and runs it. Status: 0, or which check
// failed.
#include "tensorrt_abi.h"

#include <NvInferRuntime.h>

#include <cstring>

namespace
{
using namespace nvinfer1;

constexpr attngraft::plugin::TensorRtVersion kVersion{NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR};

class Creator final : public IPluginCreatorInterface
{
public:
    InterfaceInfo getInterfaceInfo() const noexcept override
    {
        return {"probe", 1, 0};
    }
};

class Logger final : public ILogger
{
public:
    void log(Severity severity, AsciiChar const* message) noexcept override
    {
        isCalled = severity == Severity::kERROR && std::strcmp(message, "probe") == 0;
    }
    bool isCalled{false};
};

class Finder final : public ILoggerFinder
{
public:
    ILogger* findLogger() override
    {
        return &logger;
    }
    Logger logger;
};

//! Answers registerCreator as TensorRT does and calls of any other slot with what the probe takes for a failure.
class Registry final : public IPluginRegistry
{
public:
    bool registerCreator(IPluginCreatorInterface& creator, AsciiChar const* const pluginNamespace) noexcept override
    {
        registered = &creator;
        return std::strcmp(pluginNamespace, "space") == 0;
    }
#if NV_TENSORRT_MAJOR == 10 || (NV_TENSORRT_MAJOR == 1 && NV_TENSORRT_MINOR < 5)
    bool registerCreator(IPluginCreator&, AsciiChar const* const) noexcept override
    {
        return false;
    }
    IPluginCreator* const* getPluginCreatorList(int32_t* const) const noexcept override
    {
        return nullptr;
    }
    IPluginCreator* getPluginCreator(
        AsciiChar const* const, AsciiChar const* const, AsciiChar const* const) noexcept override
    {
        return nullptr;
    }
    bool deregisterCreator(IPluginCreator const&) noexcept override
    {
        return false;
    }
#endif
    void setErrorRecorder(IErrorRecorder* const) noexcept override
    { }
    IErrorRecorder* getErrorRecorder() const noexcept override
    {
        return nullptr;
    }
    bool isParentSearchEnabled() const override
    {
        return false;
    }
    void setParentSearchEnabled(bool const) override
    { }
    PluginLibraryHandle loadLibrary(AsciiChar const*) noexcept override
    {
        return nullptr;
    }
    void deregisterLibrary(PluginLibraryHandle) noexcept override
    { }
    IPluginCreatorInterface* const* getAllCreators(int32_t* const) const noexcept override
    {
        return nullptr;
    }
    IPluginCreatorInterface* getCreator(
        AsciiChar const* const, AsciiChar const* const, AsciiChar const* const) noexcept override
    {
        return nullptr;
    }
    bool deregisterCreator(IPluginCreatorInterface const&) noexcept override
    {
        return false;
    }
    IPluginResource* acquirePluginResource(AsciiChar const*, IPluginResource*) noexcept override
    {
        return nullptr;
    }
    int32_t releasePluginResource(AsciiChar const*) noexcept override
    {
        return 1;
    }
    IPluginCreatorInterface* const* getAllCreatorsRecursive(int32_t* const) noexcept override
    {
        return nullptr;
    }

    IPluginCreatorInterface* registered{nullptr};
};
} // namespace

int main()
{
    Registry registry;
    Creator creator;
    void* const asTensorRtReturnsIt = static_cast<IPluginRegistry*>(&registry);
    if (!attngraft::plugin::registerCreator(asTensorRtReturnsIt, kVersion, creator, "space")
        || registry.registered != &creator)
    {
        return 1;
    }
    Finder finder;
    void* const logger = attngraft::plugin::findLogger(static_cast<ILoggerFinder*>(&finder), kVersion);
    if (logger != static_cast<ILogger*>(&finder.logger))
    {
        return 2;
    }
    attngraft::plugin::logErrorTo(logger, kVersion, "probe");
    return finder.logger.isCalled ? 0 : 3;
}
