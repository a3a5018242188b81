// The symbols that this library exports, all of them; exports.map keeps the rest inside.
#include "contract.h"
#include "guard.h"
#include "log.h"
#include "registration.h"
#include "tensorrt_library.h"

#include <NvInferRuntime.h>

#define ATTNGRAFT_EXPORT __attribute__((visibility("default")))

namespace plugin = attngraft::plugin;

extern "C" {

//! TensorRT calls this in registry.load_library. `nbCreators` receives the length of the result.
ATTNGRAFT_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& nbCreators) noexcept
{
    void const* const caller = __builtin_return_address(0);
    plugin::Creators const creators = plugin::guarded(plugin::Creators{nullptr, 0}, "getCreators", [&] {
        if (auto const library = plugin::tensorRtLibraryAt(caller))
        {
            plugin::setLoggingLibrary(*library);
        }
        return plugin::creatorsFor(caller);
    });
    nbCreators = creators.count;
    return creators.list;
}

//! TensorRT calls this for a library that comes out of an engine. Which slots the finder has depends on the caller.
ATTNGRAFT_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) noexcept
{
    void const* const caller = __builtin_return_address(0);
    plugin::guardedStatus("setLoggerFinder", [&] {
        if (auto const library = plugin::tensorRtLibraryAt(caller))
        {
            plugin::setLoggerFinder(finder, library->version);
        }
    });
}

ATTNGRAFT_EXPORT int32_t attngraftContractVersion() noexcept
{
    return plugin::kContractVersion;
}

ATTNGRAFT_EXPORT char const* attngraftVersion() noexcept
{
    return ATTNGRAFT_VERSION;
}

} // extern "C"
