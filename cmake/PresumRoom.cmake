# SPDX-License-Identifier: Apache-2.0
# One call per room: presum_room(NAME SOURCES ... DEPS room... [LIBS target...] [TESTS ...]).
# DEPS is also what tests/test_architecture.py allows the room to include.

# What every target of presum's own is built with; nobody else gets any of it.
add_library(presum_flags INTERFACE)
target_compile_options(presum_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor
  $<$<BOOL:${PRESUM_WERROR}>:-Werror>
  -Wno-missing-field-initializers  # designated initializers leave defaults on purpose
  -ffp-contract=off)
target_include_directories(presum_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_include_directories(presum_flags SYSTEM INTERFACE ${PRESUM_XXHASH})
target_compile_definitions(presum_flags INTERFACE PRESUM_VERSION="${PROJECT_VERSION}")
if(PRESUM_SANITIZE)
  target_compile_options(presum_flags INTERFACE
    -fsanitize=${PRESUM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(presum_flags INTERFACE -fsanitize=${PRESUM_SANITIZE})
endif()

# Kernels have -O3 of their own; what is no kernel gains nothing from it and takes longer to compile.
function(presum_optimize target level)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O${level}>)
endfunction()

function(presum_executable name)
  cmake_parse_arguments(EXECUTABLE "" "" "SOURCES;ROOMS;LIBS" ${ARGN})
  add_executable(${name} ${EXECUTABLE_SOURCES})
  list(TRANSFORM EXECUTABLE_ROOMS PREPEND presum_)
  target_link_libraries(${name} PRIVATE presum_flags ${EXECUTABLE_ROOMS} ${EXECUTABLE_LIBS})
endfunction()

# ONCE: what a command does once.
function(presum_room name)
  cmake_parse_arguments(ROOM "ONCE" "" "SOURCES;DEPS;LIBS;TESTS" ${ARGN})
  add_library(presum_${name} STATIC ${ROOM_SOURCES})
  list(TRANSFORM ROOM_DEPS PREPEND presum_)
  target_link_libraries(presum_${name} PUBLIC ${ROOM_DEPS} PRIVATE presum_flags ${ROOM_LIBS})
  presum_optimize(presum_${name} $<IF:$<BOOL:${ROOM_ONCE}>,1,2>)
  if(PRESUM_TESTS AND ROOM_TESTS)
    presum_executable(${name}_test
      SOURCES ${ROOM_TESTS} ROOMS ${name} LIBS ${ROOM_LIBS} GTest::gtest_main)
    presum_optimize(${name}_test 1)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60
      PROPERTIES ENVIRONMENT "XDG_CONFIG_HOME=${CMAKE_BINARY_DIR}/config")  # not the user's salt
  endif()
endfunction()
