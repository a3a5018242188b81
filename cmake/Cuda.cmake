# The CUDA compiler, the static CUDA runtime, and the architectures.
#
# An installed CUDA is used when there is one: CMAKE_CUDA_COMPILER, CUDACXX, CUDA_HOME, CUDA_PATH, nvcc on PATH,
# /usr/local/cuda. Else the one of the wheels nvidia-cuda-nvcc and its like along Python's sys.path, which is also where
# pip's build isolation puts them. find_package(CUDAToolkit) is of no use there: the wheels have lib, not lib64.
# Out: language CUDA, target attngraft_cudart, CMAKE_CUDA_ARCHITECTURES, ATTNGRAFT_CUDA_ORIGIN.

# The first with every language feature that the kernels use.
set(ATTNGRAFT_MINIMUM_CUDA 12.0)

# What TensorRT supports from 8.0 on. Code for 8.0, 10.0 and 12.0 also runs on the later ones of the same major.
set(ATTNGRAFT_SUPPORTED_ARCHITECTURES 80 86 89 90 100 120)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  list(APPEND ATTNGRAFT_SUPPORTED_ARCHITECTURES 87 110)  # Jetson Orin and Thor
endif()

function(attngraft_nvcc_version nvcc out)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" ignored "${text}")
  set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

function(attngraft_find_installed_nvcc out)
  find_program(nvcc nvcc NO_CACHE
    HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" PATHS /usr/local/cuda/bin)
  if(nvcc)
    attngraft_nvcc_version("${nvcc}" version)
    if(version VERSION_LESS ATTNGRAFT_MINIMUM_CUDA)
      message(STATUS "${nvcc} is CUDA ${version}, older than ${ATTNGRAFT_MINIMUM_CUDA}; passed over")
      unset(nvcc)
    endif()
  endif()
  set(${out} "${nvcc}" PARENT_SCOPE)
endfunction()

function(attngraft_find_pip_nvcc out)
  set(script [=[
import pathlib, sys
found = (n for p in sys.path for n in sorted(pathlib.Path(p or ".").glob("nvidia/cu*/bin/nvcc"), reverse=True))
print(next(found, ""), end="")
]=])
  execute_process(COMMAND "${Python_EXECUTABLE}" -c "${script}" OUTPUT_VARIABLE nvcc)
  set(${out} "${nvcc}" PARENT_SCOPE)
endfunction()

if(CMAKE_CUDA_COMPILER)
  if(NOT ATTNGRAFT_CUDA_ORIGIN)  # known already when this is not the first configure
    set(ATTNGRAFT_CUDA_ORIGIN "as given")
  endif()
elseif(DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}")
  set(ATTNGRAFT_CUDA_ORIGIN "CUDACXX")
else()
  attngraft_find_installed_nvcc(CMAKE_CUDA_COMPILER)
  set(ATTNGRAFT_CUDA_ORIGIN "installed")
  if(NOT CMAKE_CUDA_COMPILER)
    attngraft_find_pip_nvcc(CMAKE_CUDA_COMPILER)
    set(ATTNGRAFT_CUDA_ORIGIN "from pip")
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "No CUDA compiler: install CUDA ${ATTNGRAFT_MINIMUM_CUDA} or newer, or "
                      "`pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' "
                      "'nvidia-cuda-cccl==13.0.*' 'nvidia-nvvm==13.0.*'` into ${Python_EXECUTABLE}'s environment.")
endif()
set(ATTNGRAFT_CUDA_ORIGIN "${ATTNGRAFT_CUDA_ORIGIN}" CACHE INTERNAL "Where the CUDA compiler was found")

cmake_path(GET CMAKE_CUDA_COMPILER PARENT_PATH attngraft_cuda_root)
cmake_path(GET attngraft_cuda_root PARENT_PATH attngraft_cuda_root)
find_library(ATTNGRAFT_CUDART_STATIC cudart_static
  HINTS "${attngraft_cuda_root}"
  PATH_SUFFIXES lib64 lib "targets/${CMAKE_SYSTEM_PROCESSOR}-linux/lib" "lib/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu")
find_path(ATTNGRAFT_CUDA_INCLUDE_DIR cuda_runtime_api.h
  HINTS "${attngraft_cuda_root}" PATH_SUFFIXES include "targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include")
if(NOT ATTNGRAFT_CUDART_STATIC OR NOT ATTNGRAFT_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} has no libcudart_static.a or cuda_runtime_api.h beside it: "
                      "install CUDA's runtime development files of the same version.")
endif()

if(NOT CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
endif()
# CMake tries the compiler by linking a program, for which nvcc has to find the runtime.
cmake_path(GET ATTNGRAFT_CUDART_STATIC PARENT_PATH attngraft_cuda_library_dir)
set(ENV{NVCC_APPEND_FLAGS} "$ENV{NVCC_APPEND_FLAGS} -L\"${attngraft_cuda_library_dir}\"")
# Real values follow below, once the compiler can be asked.
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)

if(ATTNGRAFT_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${ATTNGRAFT_CUDA_ARCHITECTURES})
else()
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-arch OUTPUT_VARIABLE attngraft_known)
  set(CMAKE_CUDA_ARCHITECTURES)
  foreach(architecture ${ATTNGRAFT_SUPPORTED_ARCHITECTURES})
    if(attngraft_known MATCHES "compute_${architecture}\n")
      list(APPEND CMAKE_CUDA_ARCHITECTURES "${architecture}-real")
      set(attngraft_newest ${architecture})
    endif()
  endforeach()
  # PTX of the newest, for devices that are newer still.
  list(APPEND CMAKE_CUDA_ARCHITECTURES "${attngraft_newest}-virtual")
endif()

# Static, so that the library needs no CUDA installation and fits whichever runtime TensorRT brings.
find_package(Threads REQUIRED)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
add_library(attngraft_cudart INTERFACE)
target_include_directories(attngraft_cudart SYSTEM INTERFACE "${ATTNGRAFT_CUDA_INCLUDE_DIR}")
target_link_libraries(attngraft_cudart INTERFACE "${ATTNGRAFT_CUDART_STATIC}" Threads::Threads ${CMAKE_DL_LIBS} rt)
