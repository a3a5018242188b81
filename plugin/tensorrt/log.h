// One log line to TensorRT's logger, or to stderr where TensorRT has none.
#pragma once

#include "tensorrt_library.h"

#include <string>

namespace attngraft::plugin
{

//! Remembers the ILoggerFinder that a TensorRT of this version gave: how to find the logger of the calling thread's
//! engine. nullptr forgets it.
void setLoggerFinder(void* finder, TensorRtVersion version) noexcept;

//! Remembers the TensorRT that took the creators; its global logger is used where there is no finder.
void setLoggingLibrary(TensorRtLibrary const& library) noexcept;

//! Never throws: a line that cannot be written is dropped.
void logError(std::string const& message) noexcept;

} // namespace attngraft::plugin
