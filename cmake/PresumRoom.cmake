# SPDX-License-Identifier: Apache-2.0
# One call per room: presum_room(NAME SOURCES ... DEPS room... [LIBS target...] [TESTS ...]).
# DEPS is also what tests/test_architecture.py allows the room to include.

add_library(presum_flags INTERFACE)
target_compile_options(presum_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Werror
  -Wno-missing-field-initializers  # designated initialisers leave defaults on purpose
  -ffp-contract=off)
target_include_directories(presum_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(presum_flags INTERFACE PRESUM_VERSION="${PROJECT_VERSION}")
if(PRESUM_SANITIZE)
  target_compile_options(presum_flags INTERFACE
    -fsanitize=${PRESUM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(presum_flags INTERFACE -fsanitize=${PRESUM_SANITIZE})
endif()

function(presum_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPS;LIBS;TESTS" ${ARGN})
  add_library(presum_${name} STATIC ${ROOM_SOURCES})
  list(TRANSFORM ROOM_DEPS PREPEND presum_)
  target_link_libraries(presum_${name} PUBLIC presum_flags ${ROOM_DEPS} PRIVATE ${ROOM_LIBS})
  if(PRESUM_TESTS AND ROOM_TESTS)
    add_executable(${name}_test ${ROOM_TESTS})
    target_link_libraries(${name}_test PRIVATE presum_${name} ${ROOM_LIBS} GTest::gtest_main)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60)
  endif()
endfunction()
