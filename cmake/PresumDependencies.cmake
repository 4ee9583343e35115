# SPDX-License-Identifier: Apache-2.0
# Finds what presum is built with; what is missing is one line that says how to install all of it.
set(missing "")

function(presum_need name target apt conda)
  if(NOT TARGET ${target})
    find_package(${name} QUIET)
  endif()
  if(NOT TARGET ${target})
    list(APPEND missing "${name}|${apt}|${conda}")
    set(missing "${missing}" PARENT_SCOPE)
  endif()
endfunction()

presum_need(hwy hwy::hwy libhwy-dev libhwy)
presum_need(SQLite3 SQLite::SQLite3 libsqlite3-dev sqlite)
presum_need(CLI11 CLI11::CLI11 libcli11-dev cli11)
presum_need(nlohmann_json nlohmann_json::nlohmann_json nlohmann-json3-dev nlohmann_json)
presum_need(fmt fmt::fmt libfmt-dev fmt)
find_path(PRESUM_XXHASH xxhash.h)
if(NOT PRESUM_XXHASH)
  list(APPEND missing "xxhash|libxxhash-dev|xxhash")
endif()
if(PRESUM_TESTS)
  presum_need(GTest GTest::gtest_main libgtest-dev gtest)
endif()

if(missing)
  list(TRANSFORM missing REPLACE "^([^|]*).*" "\\1" OUTPUT_VARIABLE names)
  list(TRANSFORM missing REPLACE "^[^|]*\\|([^|]*).*" "\\1" OUTPUT_VARIABLE apt)
  list(TRANSFORM missing REPLACE "^.*\\|([^|]*)$" "\\1" OUTPUT_VARIABLE conda)
  list(JOIN names ", " names)
  list(JOIN apt " " apt)
  list(JOIN conda " " conda)
  message(FATAL_ERROR "presum needs ${names}: apt install ${apt} (Debian, Ubuntu), "
    "or conda install -c conda-forge ${conda}")
endif()

find_package(Threads REQUIRED)
