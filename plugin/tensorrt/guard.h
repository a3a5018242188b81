// The guard at every noexcept edge: an exception becomes TensorRT's failure value and a log line.
#pragma once

#include "log.h"

#include <cstdint>
#include <exception>
#include <string>

namespace attngraft::plugin
{

constexpr int32_t kSuccess = 0;
//! TensorRT takes any non-zero value for a failure and reports it through its error recorder.
constexpr int32_t kFailure = 1;

//! Returns what `body` returns; when it throws, logs "`where`: reason" and returns `onFailure`.
template <typename Result, typename Body>
Result guarded(Result onFailure, char const* where, Body&& body) noexcept
{
    try
    {
        return body();
    }
    catch (std::exception const& error)
    {
        logError(std::string(where) + ": " + error.what());
    }
    catch (...)
    {
        logError(std::string(where) + ": unknown exception");
    }
    return onFailure;
}

//! The same for methods that return a status: kSuccess when `body` returns, kFailure when it throws.
template <typename Body>
int32_t guardedStatus(char const* where, Body&& body) noexcept
{
    return guarded(kFailure, where, [&] {
        body();
        return kSuccess;
    });
}

} // namespace attngraft::plugin
