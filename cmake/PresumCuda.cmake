# SPDX-License-Identifier: Apache-2.0
# The part of a room that nvcc compiles, as a library of its own; presum_flags are for GCC and Clang.
# -fmad=false: the same bits as on the host. --expt-relaxed-constexpr: kernels call constexpr
# functions of the rooms.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90 CACHE STRING "GPUs to compile for; later ones compile at load")
endif()
enable_language(CUDA)
# CMake 3.25 does not know that nvcc has C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")

function(presum_cuda_target name)
  target_compile_options(${name} PRIVATE -fmad=false --expt-relaxed-constexpr
    -Xcompiler=-Wall,-Wextra,-ffp-contract=off
    $<$<BOOL:${PRESUM_WERROR}>:-Werror all-warnings -Xcompiler=-Werror>)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
endfunction()

function(presum_cuda_library name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;TESTS" ${ARGN})
  add_library(presum_${name} STATIC ${ROOM_SOURCES})
  presum_cuda_target(presum_${name})
  if(PRESUM_TESTS)
    add_executable(${name}_test ${ROOM_TESTS})
    presum_cuda_target(${name}_test)
    target_link_libraries(${name}_test PRIVATE presum_${name} GTest::gtest_main)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60)
  endif()
endfunction()
