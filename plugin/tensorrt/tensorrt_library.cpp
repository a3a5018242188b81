#include "tensorrt_library.h"

#include <algorithm>
#include <dlfcn.h>
#include <link.h>
#include <string>
#include <string_view>

namespace attngraft::plugin
{
namespace
{
//! getInferLibVersion counts major * 10000 + minor * 100 + patch from TensorRT 10 and TensorRT-RTX 1 on, and stayed
//! below 10000 before, when there was no IPluginV3.
constexpr int32_t kMajorUnit = 10000;
constexpr int32_t kMinorUnit = 100;

template <typename Function>
Function findFunction(void* handle, char const* name) noexcept
{
    return reinterpret_cast<Function>(dlsym(handle, name));
}

//! The TensorRT library that `handle` is, or depends on.
std::optional<TensorRtLibrary> describe(void* handle)
{
    TensorRtLibrary library;
    library.getRegistry = findFunction<void* (*)()>(handle, "getPluginRegistry");
    library.getLogger = findFunction<void* (*)()>(handle, "getLogger");
    auto const getVersion = findFunction<int32_t (*)()>(handle, "getInferLibVersion");
    Dl_info info{};
    if (library.getRegistry == nullptr || library.getLogger == nullptr || getVersion == nullptr
        || dladdr(reinterpret_cast<void const*>(library.getRegistry), &info) == 0)
    {
        return std::nullopt;
    }
    int32_t const version = getVersion();
    if (version < kMajorUnit)
    {
        return std::nullopt;
    }
    library.base = info.dli_fbase;
    library.version = {version / kMajorUnit, version % kMajorUnit / kMinorUnit};
    return library;
}

//! `name` as the dynamic loader knows the object; "" is the program itself. Loads nothing.
std::optional<TensorRtLibrary> describeLoaded(std::string const& name)
{
    void* const handle = dlopen(name.empty() ? nullptr : name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr)
    {
        return std::nullopt;
    }
    std::optional<TensorRtLibrary> const library = describe(handle);
    dlclose(handle);
    return library;
}

//! Names of the loaded objects that may be TensorRT: by file name, and the program, which may contain or link it.
std::vector<std::string> candidateNames()
{
    std::vector<std::string> names;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* out) {
            std::string_view const path = info->dlpi_name;
            std::string_view const file = path.substr(path.rfind('/') + 1);
            if (path.empty() || file.rfind("libnvinfer", 0) == 0 || file.rfind("libtensorrt_rtx", 0) == 0)
            {
                static_cast<std::vector<std::string>*>(out)->emplace_back(path);
            }
            return 0;
        },
        &names);
    return names;
}
} // namespace

std::optional<TensorRtLibrary> tensorRtLibraryAt(void const* address)
{
    Dl_info info{};
    if (dladdr(address, &info) == 0 || info.dli_fname == nullptr)
    {
        return std::nullopt;
    }
    std::optional<TensorRtLibrary> const library = describeLoaded(info.dli_fname);
    // What links TensorRT, as its Python bindings do, is not TensorRT.
    return library && library->base == info.dli_fbase ? library : std::nullopt;
}

std::vector<TensorRtLibrary> loadedTensorRtLibraries()
{
    std::vector<TensorRtLibrary> libraries;
    for (std::string const& name : candidateNames())
    {
        std::optional<TensorRtLibrary> const library = describeLoaded(name);
        bool const isKnown = library && std::any_of(libraries.begin(), libraries.end(), [&](auto const& other) {
            return other.base == library->base;
        });
        if (library && !isKnown)
        {
            libraries.push_back(*library);
        }
    }
    return libraries;
}

} // namespace attngraft::plugin
