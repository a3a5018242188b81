# Target attngraft_warnings: the warnings that all own code is compiled with.
add_library(attngraft_warnings INTERFACE)
target_compile_options(attngraft_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
if(ATTNGRAFT_WARNINGS_AS_ERRORS)
  target_compile_options(attngraft_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
