# attngraft_fetch_wheel(NAME name REQUIREMENTS file PATTERN pattern OUT variable [OPTIONS option...])
#
# Downloads the one wheel that the requirements file pins by version and hash, with pip, and extracts from it only what
# matches PATTERN. `variable` receives the folder. Kept in the build folder: a second configure downloads nothing.
function(attngraft_fetch_wheel)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;REQUIREMENTS;PATTERN;OUT" "OPTIONS")
  set(folder "${CMAKE_BINARY_DIR}/wheels/${arg_NAME}")
  file(SHA256 "${arg_REQUIREMENTS}" pin)
  if(NOT EXISTS "${folder}/${pin}")
    file(REMOVE_RECURSE "${folder}")
    file(MAKE_DIRECTORY "${folder}")
    message(STATUS "Downloading the ${arg_NAME} (pip, pinned by ${arg_REQUIREMENTS})")
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all:
              --require-hashes --requirement "${arg_REQUIREMENTS}" --dest "${folder}" ${arg_OPTIONS}
      RESULT_VARIABLE failed ERROR_VARIABLE reason)
    file(GLOB wheel "${folder}/*.whl")
    if(failed OR NOT wheel)
      file(REMOVE_RECURSE "${folder}")
      set(${arg_OUT} "" PARENT_SCOPE)
      message(STATUS "pip could not download the ${arg_NAME}:\n${reason}")
      return()
    endif()
    file(ARCHIVE_EXTRACT INPUT "${wheel}" DESTINATION "${folder}" PATTERNS "${arg_PATTERN}")
    file(REMOVE "${wheel}")
    file(TOUCH "${folder}/${pin}")
  endif()
  set(${arg_OUT} "${folder}" PARENT_SCOPE)
endfunction()
