# cmake -DPROGRAM=attngraft_replay -P no_bundle_test.cmake: what it says of folders that are none of ours.

function(expect text)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT status EQUAL 1)
    message(FATAL_ERROR "${ARGN}: status ${status}, not 1")
  endif()
  if(NOT output STREQUAL "" OR NOT errors STREQUAL "attngraft_replay: error: ${text}\n")
    message(FATAL_ERROR "${ARGN}: said \"${output}\" and \"${errors}\"")
  endif()
endfunction()

expect("/nowhere: is no bundle, it has no model.engine to read" /nowhere)
expect("${CMAKE_CURRENT_LIST_DIR}: is no bundle, it has no model.engine to read" "${CMAKE_CURRENT_LIST_DIR}" 5)
expect("usage: attngraft_replay DIR [REPLAYS]")
expect("usage: attngraft_replay DIR [REPLAYS]" /nowhere none)
expect("usage: attngraft_replay DIR [REPLAYS]" /nowhere 5 6)
