# Target GTest::gtest_main: an installed GoogleTest, else its sources out of the pinned wheel, compiled here.
find_package(GTest QUIET)
if(NOT TARGET GTest::gtest_main)
  # The wheel is for one Python and platform, its sources for all.
  attngraft_fetch_wheel(NAME "GoogleTest sources" REQUIREMENTS "${CMAKE_CURRENT_LIST_DIR}/googletest.txt"
    PATTERN "ros_gtest_vendor-*.data/data/src/gtest_vendor/*" OUT attngraft_googletest
    OPTIONS --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64)
  if(NOT attngraft_googletest)
    message(FATAL_ERROR "No GoogleTest: install it (Debian and Ubuntu: libgtest-dev), "
                        "or let pip reach its package index.")
  endif()
  file(GLOB attngraft_googletest "${attngraft_googletest}/ros_gtest_vendor-*.data/data/src/gtest_vendor")
  add_library(attngraft_gtest_main STATIC
    "${attngraft_googletest}/src/gtest-all.cc" "${attngraft_googletest}/src/gtest_main.cc")
  target_include_directories(attngraft_gtest_main SYSTEM PUBLIC "${attngraft_googletest}/include")
  target_include_directories(attngraft_gtest_main PRIVATE "${attngraft_googletest}")
  target_link_libraries(attngraft_gtest_main PUBLIC Threads::Threads)
  add_library(GTest::gtest_main ALIAS attngraft_gtest_main)
endif()
include(GoogleTest)
