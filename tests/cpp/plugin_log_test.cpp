// The guard at the noexcept edges, and where its log lines go.
#include "guard.h"
#include "plugin_test_support.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace attngraft::plugin
{
namespace
{
using test::CapturedLog;

TEST(Guard, TurnsAnyExceptionIntoFailure)
{
    CapturedLog log;
    EXPECT_EQ(guardedStatus("here", [] { throw std::runtime_error("broken"); }), kFailure);
    EXPECT_EQ(guardedStatus("here", [] { throw 7; }), kFailure);
    EXPECT_EQ(guardedStatus("here", [] { }), kSuccess);
    EXPECT_EQ(guarded(false, "here", [] { return true; }), true);
    EXPECT_EQ(log.text(), "error: [attngraft] here: broken\nerror: [attngraft] here: unknown exception\n");
}

TEST(Log, GoesToStderrWithoutALogger)
{
    testing::internal::CaptureStderr();
    logError("nobody listens");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "[attngraft] nobody listens\n");
}

TEST(Log, GoesToTheLoggerOfTheLibraryThatTookTheCreators)
{
    struct Logger final : nvinfer1::ILogger
    {
        void log(Severity, nvinfer1::AsciiChar const* message) noexcept override
        {
            text += message;
        }
        std::string text;
    };
    static Logger logger;
    TensorRtLibrary library;
    library.version = {test::HeaderVersion::kMajor, test::HeaderVersion::kMinor};
    library.getLogger = []() -> void* { return static_cast<nvinfer1::ILogger*>(&logger); };
    setLoggingLibrary(library);
    logError("to the global logger");
    setLoggingLibrary({});
    EXPECT_EQ(logger.text, "[attngraft] to the global logger");
}

} // namespace
} // namespace attngraft::plugin
