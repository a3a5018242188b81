#include "registration.h"

#include "contract.h"
#include "fused_attention_plugin.h"
#include "guard.h"
#include "masked_softmax_plugin.h"
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
        logError(std::string(getPluginName()) + " is no plugin; create " + kFusedAttentionName + " or "
            + kMaskedSoftmaxName);
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

//! Those of all plugins. They live as long as this library.
std::array<nvinfer1::IPluginCreatorInterface*, 2> const& allCreators()
{
    static FusedAttentionCreator fusedAttention;
    static MaskedSoftmaxCreator maskedSoftmax;
    static std::array<nvinfer1::IPluginCreatorInterface*, 2> const creators{&fusedAttention, &maskedSoftmax};
    return creators;
}

//! Whether the TensorRT took any: then it must not be offered them again.
bool registerAll(TensorRtLibrary const& library)
{
    bool isAnyTaken = false;
    for (nvinfer1::IPluginCreatorInterface* creator : allCreators())
    {
        isAnyTaken |= registerCreator(library.getRegistry(), library.version, *creator, kNamespace);
    }
    return isAnyTaken;
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
            if (registerAll(library))
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
    static Placeholder placeholder;
    static nvinfer1::IPluginCreatorInterface* const placeholders[]{&placeholder};
    std::optional<TensorRtLibrary> const library = tensorRtLibraryAt(caller);
    bool const isRegistered = library
        && std::find(gRegisteredAtDlopen.begin(), gRegisteredAtDlopen.end(), library->base)
            != gRegisteredAtDlopen.end();
    return isRegistered ? Creators{placeholders, 1}
                        : Creators{allCreators().data(), static_cast<int32_t>(allCreators().size())};
}

} // namespace attngraft::plugin
