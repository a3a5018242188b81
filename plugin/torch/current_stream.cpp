#include "current_stream.h"

#include <dlfcn.h>

#include <stdexcept>

namespace attngraft::torch_library
{
namespace
{

//! Declared as in torch/csrc/inductor/aoti_torch/c/shim.h, under USE_CUDA: of PyTorch's stable C interface.
using GetCurrentStream = int32_t (*)(int32_t device, void** stream);

constexpr char const* kLibrary = "libtorch_cuda.so";
constexpr char const* kSymbol = "aoti_torch_get_current_cuda_stream";

GetCurrentStream findGetCurrentStream()
{
    // PyTorch opens its libraries without making their symbols global; RTLD_NOLOAD gives the one that is open.
    void* const library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
    void* const symbol = library == nullptr ? nullptr : dlsym(library, kSymbol);
    if (symbol == nullptr)
    {
        throw std::runtime_error(
            "this PyTorch has no CUDA (no aoti_torch_get_current_cuda_stream in libtorch_cuda.so); "
            "install a CUDA build of PyTorch");
    }
    return reinterpret_cast<GetCurrentStream>(symbol);
}

} // namespace

cudaStream_t currentStream(int32_t device)
{
    static GetCurrentStream const getCurrentStream = findGetCurrentStream();
    void* stream = nullptr;
    if (getCurrentStream(device, &stream) != 0)
    {
        throw std::runtime_error("PyTorch did not give its current CUDA stream");
    }
    return static_cast<cudaStream_t>(stream);
}

} // namespace attngraft::torch_library
