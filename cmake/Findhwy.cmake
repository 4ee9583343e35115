# SPDX-License-Identifier: Apache-2.0
# hwy::hwy. Highway before 1.0.4 installs no package of its own for CMake; Debian adds one.
find_package(hwy CONFIG QUIET)
if(NOT TARGET hwy::hwy)
  find_path(HWY_INCLUDE hwy/highway.h)
  find_library(HWY_LIBRARY hwy)
  if(HWY_INCLUDE AND HWY_LIBRARY)
    add_library(hwy::hwy UNKNOWN IMPORTED)
    set_target_properties(hwy::hwy PROPERTIES
      IMPORTED_LOCATION ${HWY_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${HWY_INCLUDE})
  endif()
endif()
if(TARGET hwy::hwy)
  set(hwy_FOUND ON)
elseif(hwy_FIND_REQUIRED)
  message(FATAL_ERROR " hwy: there is no Highway (libhwy-dev, conda-forge libhwy)")
endif()
