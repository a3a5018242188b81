# PyTorch's stable interface, for the optional library attngraft_torch.
#
# In: ATTNGRAFT_TORCH, by default whether the PyTorch of Python_EXECUTABLE has that interface. Out: the same, and where it
# is on, target attngraft_pytorch and ATTNGRAFT_TORCH_VERSION. PyTorch itself is not imported, which takes seconds.

# The first whose stable interface has all that plugin/torch uses.
set(ATTNGRAFT_MINIMUM_TORCH 2.10)

set(attngraft_find_torch [=[
import importlib.util, pathlib
found = importlib.util.find_spec("torch")
print(pathlib.Path(found.origin).parent if found and found.origin else "", end="")
]=])
execute_process(COMMAND "${Python_EXECUTABLE}" -c "${attngraft_find_torch}" OUTPUT_VARIABLE attngraft_torch_root)
set(ATTNGRAFT_TORCH_VERSION "")
if(attngraft_torch_root AND EXISTS "${attngraft_torch_root}/include/torch/headeronly/version.h")
  file(STRINGS "${attngraft_torch_root}/include/torch/headeronly/version.h" attngraft_torch_lines
    REGEX "^#define TORCH_VERSION_(MAJOR|MINOR) [0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" attngraft_torch_lines "${attngraft_torch_lines}")
  list(JOIN attngraft_torch_lines "." ATTNGRAFT_TORCH_VERSION)
endif()

set(attngraft_torch_serves OFF)
if(ATTNGRAFT_TORCH_VERSION VERSION_GREATER_EQUAL ATTNGRAFT_MINIMUM_TORCH)
  set(attngraft_torch_serves ON)
endif()
# No cache entry: the next configure may find a PyTorch that this one did not.
if(NOT DEFINED ATTNGRAFT_TORCH)
  set(ATTNGRAFT_TORCH ${attngraft_torch_serves})
endif()
if(ATTNGRAFT_TORCH AND NOT attngraft_torch_serves)
  message(FATAL_ERROR "ATTNGRAFT_TORCH is ON, but ${Python_EXECUTABLE} has no PyTorch ${ATTNGRAFT_MINIMUM_TORCH} or newer: "
                      "install it there and build with `pip install --no-build-isolation`, or leave ATTNGRAFT_TORCH out.")
endif()
if(ATTNGRAFT_TORCH)
  add_library(attngraft_pytorch INTERFACE)
  target_include_directories(attngraft_pytorch SYSTEM INTERFACE "${attngraft_torch_root}/include")
  target_link_libraries(attngraft_pytorch INTERFACE "${attngraft_torch_root}/lib/libtorch_cpu.so")
endif()
