// The two ways in which the plugin creators reach a TensorRT.
//
// registry.load_library dlopens this library and then asks getCreators. Other tools only dlopen it and expect that it
// registers itself (Polygraphy, trtexec --staticPlugins, ctypes). A creator that is registered twice makes load_library
// fail, so the two ways know of each other:
//   * a dlopen that comes from inside TensorRT registers nothing, since TensorRT is about to ask getCreators;
//   * getCreators offers a TensorRT in which the creators are registered already nothing but a placeholder, for which
//     load_library gives a handle as ever.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>

namespace attngraft::plugin
{

struct Creators
{
    nvinfer1::IPluginCreatorInterface* const* list;
    int32_t count;
};

//! What the TensorRT whose code holds `caller` is to register. The list lives as long as this library.
Creators creatorsFor(void const* caller);

} // namespace attngraft::plugin
