// Calling into a TensorRT that these sources were not compiled against.
//
// TensorRT 11 and TensorRT-RTX 1.5 removed deprecated virtual functions from IPluginRegistry and gave ILogger and
// ILoggerFinder a base class with virtual functions of its own, which moved the others to other slots of the virtual
// tables (compare the headers of 10.14 and 11.4, or of RTX 1.4 and 1.5). One library serves both, so it must not call
// these three interfaces as its own headers have them. Both tables are stated here, up to the one function called.
// The plugin interfaces, which TensorRT calls, are the same in all these versions.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>

namespace attngraft::plugin
{

struct TensorRtVersion
{
    int32_t major; //!< 10 and more; TensorRT-RTX counts from 1
    int32_t minor;
};

//! Whether the interfaces have the slots of TensorRT 10 and of TensorRT-RTX before 1.5.
constexpr bool hasOldSlots(TensorRtVersion version) noexcept
{
    return version.major == 10 || (version.major == 1 && version.minor < 5);
}

static_assert(hasOldSlots({10, 6}) && hasOldSlots({1, 4}));
static_assert(!hasOldSlots({11, 4}) && !hasOldSlots({1, 5}));

namespace abi
{

class OldRegistry
{
public:
    virtual void registerCreatorV2() noexcept = 0;
    virtual void getPluginCreatorList() noexcept = 0;
    virtual void getPluginCreatorV2() noexcept = 0;
    virtual ~OldRegistry() noexcept = default;
    virtual void setErrorRecorder() noexcept = 0;
    virtual void getErrorRecorder() noexcept = 0;
    virtual void deregisterCreatorV2() noexcept = 0;
    virtual void isParentSearchEnabled() noexcept = 0;
    virtual void setParentSearchEnabled() noexcept = 0;
    virtual void loadLibrary() noexcept = 0;
    virtual void deregisterLibrary() noexcept = 0;
    virtual bool registerCreator(nvinfer1::IPluginCreatorInterface& creator, char const* nameSpace) noexcept = 0;
};

class NewRegistry
{
public:
    virtual ~NewRegistry() noexcept = default;
    virtual void setErrorRecorder() noexcept = 0;
    virtual void getErrorRecorder() noexcept = 0;
    virtual void isParentSearchEnabled() noexcept = 0;
    virtual void setParentSearchEnabled() noexcept = 0;
    virtual void loadLibrary() noexcept = 0;
    virtual void deregisterLibrary() noexcept = 0;
    virtual bool registerCreator(nvinfer1::IPluginCreatorInterface& creator, char const* nameSpace) noexcept = 0;
};

class OldLogger
{
public:
    virtual void log(int32_t severity, char const* message) noexcept = 0;
};

class NewLogger : public nvinfer1::IVersionedInterface
{
public:
    virtual void log(int32_t severity, char const* message) noexcept = 0;
};

class OldLoggerFinder
{
public:
    virtual void* findLogger() = 0;
};

class NewLoggerFinder : public nvinfer1::IVersionedInterface
{
public:
    virtual void* findLogger() = 0;
};

} // namespace abi

//! IPluginRegistry::registerCreator. False when the registry has a creator of that name, version and namespace already.
inline bool registerCreator(
    void* registry, TensorRtVersion version, nvinfer1::IPluginCreatorInterface& creator, char const* nameSpace) noexcept
{
    return hasOldSlots(version) ? static_cast<abi::OldRegistry*>(registry)->registerCreator(creator, nameSpace)
                                : static_cast<abi::NewRegistry*>(registry)->registerCreator(creator, nameSpace);
}

//! ILogger::log with severity kERROR.
inline void logErrorTo(void* logger, TensorRtVersion version, char const* message) noexcept
{
    constexpr int32_t kError = 1;
    hasOldSlots(version) ? static_cast<abi::OldLogger*>(logger)->log(kError, message)
                         : static_cast<abi::NewLogger*>(logger)->log(kError, message);
}

//! ILoggerFinder::findLogger; may be nullptr.
inline void* findLogger(void* finder, TensorRtVersion version)
{
    return hasOldSlots(version) ? static_cast<abi::OldLoggerFinder*>(finder)->findLogger()
                                : static_cast<abi::NewLoggerFinder*>(finder)->findLogger();
}

} // namespace attngraft::plugin
