#include "log.h"

#include <cstdio>
#include <mutex>

namespace attngraft::plugin
{
namespace
{
struct LoggerSource
{
    void* finder{nullptr};
    TensorRtVersion finderVersion{};
    TensorRtLibrary library{};
};

std::mutex gMutex;
LoggerSource gSource;

LoggerSource loggerSource()
{
    std::lock_guard<std::mutex> const lock(gMutex);
    return gSource;
}

//! False when TensorRT has no logger. The finder comes last: it may be asked only while TensorRT calls the plugin, and
//! a shape check that fails is no such call in every version.
bool logToTensorRt(char const* line)
{
    LoggerSource const source = loggerSource();
    if (void* const logger = source.library.getLogger == nullptr ? nullptr : source.library.getLogger())
    {
        logErrorTo(logger, source.library.version, line);
        return true;
    }
    void* const logger = source.finder == nullptr ? nullptr : findLogger(source.finder, source.finderVersion);
    if (logger != nullptr)
    {
        logErrorTo(logger, source.finderVersion, line);
    }
    return logger != nullptr;
}
} // namespace

void setLoggerFinder(void* finder, TensorRtVersion version) noexcept
{
    std::lock_guard<std::mutex> const lock(gMutex);
    gSource.finder = finder;
    gSource.finderVersion = version;
}

void setLoggingLibrary(TensorRtLibrary const& library) noexcept
{
    std::lock_guard<std::mutex> const lock(gMutex);
    gSource.library = library;
}

void logError(std::string const& message) noexcept
try
{
    std::string const line = "[attngraft] " + message;
    if (!logToTensorRt(line.c_str()))
    {
        std::fprintf(stderr, "%s\n", line.c_str());
    }
}
catch (...)
{
    // There is nowhere left to report to.
}

} // namespace attngraft::plugin
