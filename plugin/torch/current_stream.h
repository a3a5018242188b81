// PyTorch's current CUDA stream, asked for at run time: the library also loads into a PyTorch without CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace attngraft::torch_library
{

//! The current stream of a device in the calling thread. Throws std::runtime_error where PyTorch has no CUDA.
cudaStream_t currentStream(int32_t device);

} // namespace attngraft::torch_library
