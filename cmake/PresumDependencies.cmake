# SPDX-License-Identifier: Apache-2.0
# Finds what presum is built with; one line says how to install what is missing.
set(missing "")
set(missing_apt "")
set(missing_conda "")

macro(presum_missing name apt conda)
  list(APPEND missing ${name})
  list(APPEND missing_apt ${apt})
  list(APPEND missing_conda ${conda})
endmacro()

macro(presum_need name target apt conda)
  if(NOT TARGET ${target})
    find_package(${name} QUIET)
  endif()
  if(NOT TARGET ${target})
    presum_missing(${name} ${apt} ${conda})
  endif()
endmacro()

presum_need(hwy hwy::hwy libhwy-dev libhwy)
find_package(SQLite3 QUIET)
if(TARGET SQLite::SQLite3 AND NOT TARGET SQLite3::SQLite3)
  add_library(SQLite3::SQLite3 ALIAS SQLite::SQLite3)  # before CMake 4.3
endif()
presum_need(SQLite3 SQLite3::SQLite3 libsqlite3-dev sqlite)
if(PRESUM_COMMAND OR PRESUM_PYTHON OR PRESUM_TESTS)
  presum_need(CLI11 CLI11::CLI11 libcli11-dev cli11)
endif()
presum_need(nlohmann_json nlohmann_json::nlohmann_json nlohmann-json3-dev nlohmann_json)
presum_need(fmt fmt::fmt libfmt-dev fmt)
find_path(PRESUM_XXHASH xxhash.h)
if(NOT PRESUM_XXHASH)
  presum_missing(xxhash libxxhash-dev xxhash)
endif()
if(PRESUM_TESTS)
  presum_need(GTest GTest::gtest_main libgtest-dev gtest)
endif()

if(missing)
  list(JOIN missing ", " missing)
  list(JOIN missing_apt " " missing_apt)
  list(JOIN missing_conda " " missing_conda)
  # A line that begins with a space is not wrapped.
  message(FATAL_ERROR " presum needs ${missing}: apt install ${missing_apt} (Debian, Ubuntu), "
    "or conda install -c conda-forge ${missing_conda}")
endif()
find_package(Threads REQUIRED)
