// The TensorRT libraries of this process: TensorRT, its lean and dispatch runtimes, TensorRT-RTX. This library links
// none of them, so that one file serves all.
#pragma once

#include "tensorrt_abi.h"

#include <optional>
#include <vector>

namespace attngraft::plugin
{

struct TensorRtLibrary
{
    void const* base{nullptr}; //!< address at which it is loaded; tells libraries apart
    TensorRtVersion version{};
    void* (*getRegistry)(){nullptr}; //!< gives its IPluginRegistry
    void* (*getLogger)(){nullptr};   //!< gives the ILogger of its first builder or runtime, or nullptr
};

//! The TensorRT library whose code holds `address`; none when the address lies elsewhere.
std::optional<TensorRtLibrary> tensorRtLibraryAt(void const* address);

//! All that are loaded, each once, however they were loaded.
std::vector<TensorRtLibrary> loadedTensorRtLibraries();

} // namespace attngraft::plugin
