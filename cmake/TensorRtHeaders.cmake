# The TensorRT headers. Nothing of TensorRT is linked: the library finds it in the process that loads it.
#
# In: TENSORRT_ROOT, as CMake variable or in the environment (must have the headers), else system paths, else the pinned
# wheel. Out: target attngraft_tensorrt_headers, ATTNGRAFT_TENSORRT_INCLUDE_DIR, ATTNGRAFT_TENSORRT_VERSION.

# IPluginV3 came with TensorRT 10; TensorRT-RTX counts its own versions from 1.
set(ATTNGRAFT_MINIMUM_TENSORRT 10)

function(attngraft_tensorrt_version folder out)
  file(STRINGS "${folder}/NvInferVersion.h" lines REGEX "^#define (NV_TENSORRT|TRT)_(MAJOR|MINOR)")
  foreach(part MAJOR MINOR)
    # Newer headers define NV_TENSORRT_MAJOR by way of TRT_MAJOR_ENTERPRISE or TRT_MAJOR_RTX.
    string(REGEX MATCH "(NV_TENSORRT_${part}|TRT_${part}_[A-Z]+) ([0-9]+)" ignored "${lines}")
    set(${part} "${CMAKE_MATCH_2}")
  endforeach()
  set(${out} "${MAJOR}.${MINOR}" PARENT_SCOPE)
endfunction()

if(NOT TENSORRT_ROOT AND DEFINED ENV{TENSORRT_ROOT})
  set(TENSORRT_ROOT "$ENV{TENSORRT_ROOT}")
endif()
set(attngraft_include_suffixes
  include "include/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu" "targets/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu/include")

if(TENSORRT_ROOT)
  find_path(ATTNGRAFT_TENSORRT_INCLUDE_DIR NvInferRuntimePlugin.h
    PATHS "${TENSORRT_ROOT}" PATH_SUFFIXES ${attngraft_include_suffixes} NO_DEFAULT_PATH)
  if(NOT ATTNGRAFT_TENSORRT_INCLUDE_DIR)
    message(FATAL_ERROR "TENSORRT_ROOT is ${TENSORRT_ROOT}, where no include/NvInferRuntimePlugin.h is. "
                        "Point it at a TensorRT SDK, or unset it and the headers are downloaded.")
  endif()
else()
  find_path(ATTNGRAFT_TENSORRT_INCLUDE_DIR NvInferRuntimePlugin.h PATH_SUFFIXES "${CMAKE_SYSTEM_PROCESSOR}-linux-gnu")
endif()

if(ATTNGRAFT_TENSORRT_INCLUDE_DIR)
  attngraft_tensorrt_version("${ATTNGRAFT_TENSORRT_INCLUDE_DIR}" ATTNGRAFT_TENSORRT_VERSION)
  if(ATTNGRAFT_TENSORRT_VERSION VERSION_LESS ATTNGRAFT_MINIMUM_TENSORRT
      AND NOT ATTNGRAFT_TENSORRT_VERSION MATCHES "^1\\.")
    message(STATUS "TensorRT ${ATTNGRAFT_TENSORRT_VERSION} in ${ATTNGRAFT_TENSORRT_INCLUDE_DIR} has no IPluginV3; "
                   "passed over")
    unset(ATTNGRAFT_TENSORRT_INCLUDE_DIR CACHE)
  endif()
endif()

if(NOT ATTNGRAFT_TENSORRT_INCLUDE_DIR)
  # Any Python may use a package's headers, whatever versions its modules are for.
  attngraft_fetch_wheel(NAME "TensorRT headers" REQUIREMENTS "${CMAKE_CURRENT_LIST_DIR}/tensorrt_headers.txt"
    PATTERN "kernel_lens/include/tensorrt/*" OUT attngraft_headers OPTIONS --ignore-requires-python)
  if(NOT attngraft_headers)
    message(FATAL_ERROR "No TensorRT headers: set TENSORRT_ROOT to a TensorRT SDK, or let pip reach its package index.")
  endif()
  set(ATTNGRAFT_TENSORRT_INCLUDE_DIR "${attngraft_headers}/kernel_lens/include/tensorrt")
  attngraft_tensorrt_version("${ATTNGRAFT_TENSORRT_INCLUDE_DIR}" ATTNGRAFT_TENSORRT_VERSION)
endif()

add_library(attngraft_tensorrt_headers INTERFACE)
target_include_directories(attngraft_tensorrt_headers SYSTEM INTERFACE "${ATTNGRAFT_TENSORRT_INCLUDE_DIR}")
