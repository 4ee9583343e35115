# SPDX-License-Identifier: Apache-2.0
# Compiles for x86-64 Linux with glibc 2.28 and later, libc++ inside: -D ZIG_BIN=folder of the
# wrappers that libraries.py writes, -D LIBRARIES=prefix of the static libraries.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG_BIN LIBRARIES)
foreach(tool C CXX AR RANLIB)
  string(TOLOWER ${tool} name)
  set(program ${ZIG_BIN}/zig-${name})
  if(tool STREQUAL "AR" OR tool STREQUAL "RANLIB")
    set(CMAKE_${tool} ${program})
  else()
    set(CMAKE_${tool}_COMPILER ${program})
  endif()
endforeach()
set(CMAKE_PREFIX_PATH ${LIBRARIES})
set(CMAKE_FIND_ROOT_PATH ${LIBRARIES})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(CMAKE_FIND_USE_PACKAGE_REGISTRY OFF)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
# What the linked archives hold stays inside the extension module.
set(CMAKE_MODULE_LINKER_FLAGS_INIT
  "-Wl,--gc-sections -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/exports.map")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--gc-sections -Wl,-s")
