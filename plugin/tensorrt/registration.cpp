#include "registration.h"

#include "contract.h"
#include "guard.h"
#include "masked_softmax_creator.h"
#include "tensorrt_library.h"

#include <algorithm>
#include <array>
#include <dlfcn.h>
#include <execinfo.h>
#include <vector>

namespace attngraft::plugin
{
namespace
{
//! Deeper than any call chain from TensorRT through the dynamic loader to a constructor.
constexpr int kMaxFrames = 64;

//! Stands in where the real creators are registered already.
class Placeholder final : public nvinfer1::IPluginCreatorV3One
{
public:
    nvinfer1::IPluginV3* createPlugin(
        nvinfer1::AsciiChar const*, nvinfer1::PluginFieldCollection const*, nvinfer1::TensorRTPhase) noexcept override
    {
        logError(std::string(getPluginName()) + " is no plugin; create " + kMaskedSoftmaxName);
        return nullptr;
    }

    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override
    {
        static constexpr nvinfer1::PluginFieldCollection kNone{0, nullptr};
        return &kNone;
    }

    nvinfer1::AsciiChar const* getPluginName() const noexcept override
    {
        return "RegisteredAtDlopen";
    }

    nvinfer1::AsciiChar const* getPluginVersion() const noexcept override
    {
        return kPluginVersion;
    }

    nvinfer1::AsciiChar const* getPluginNamespace() const noexcept override
    {
        return kNamespace;
    }
};

nvinfer1::IPluginCreatorInterface& maskedSoftmaxCreator()
{
    static MaskedSoftmaxCreator creator;
    return creator;
}

//! Whether TensorRT's code is on the call stack, which is so when it is TensorRT that loads this library.
bool isCalledByTensorRt()
{
    std::array<void*, kMaxFrames> frames{};
    int const count = backtrace(frames.data(), kMaxFrames);
    return std::any_of(
        frames.begin(), frames.begin() + count, [](void const* frame) { return tensorRtLibraryAt(frame).has_value(); });
}

//! Registries now point into this library, so it must outlive a dlclose.
void stayLoaded()
{
    Dl_info info{};
    if (dladdr(&kMaxFrames, &info) != 0)
    {
        dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    }
}

//! Registers in every TensorRT that is loaded by then, unless one of them is loading this library.
std::vector<void const*> registerAtDlopen() noexcept
{
    return guarded(std::vector<void const*>{}, "registration at dlopen", [] {
        std::vector<void const*> bases;
        if (isCalledByTensorRt())
        {
            return bases;
        }
        for (TensorRtLibrary const& library : loadedTensorRtLibraries())
        {
            if (registerCreator(library.getRegistry(), library.version, maskedSoftmaxCreator(), kNamespace))
            {
                bases.push_back(library.base);
                setLoggingLibrary(library);
            }
        }
        if (!bases.empty())
        {
            stayLoaded();
        }
        return bases;
    });
}

//! Base addresses of the TensorRT libraries in which the creators were registered at dlopen.
std::vector<void const*> const gRegisteredAtDlopen = registerAtDlopen();
} // namespace

Creators creatorsFor(void const* caller)
{
    static nvinfer1::IPluginCreatorInterface* const creators[]{&maskedSoftmaxCreator()};
    static Placeholder placeholder;
    static nvinfer1::IPluginCreatorInterface* const placeholders[]{&placeholder};
    std::optional<TensorRtLibrary> const library = tensorRtLibraryAt(caller);
    bool const isRegistered = library
        && std::find(gRegisteredAtDlopen.begin(), gRegisteredAtDlopen.end(), library->base)
            != gRegisteredAtDlopen.end();
    return isRegistered ? Creators{placeholders, 1} : Creators{creators, 1};
}

} // namespace attngraft::plugin
