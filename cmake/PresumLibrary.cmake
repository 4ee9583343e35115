# SPDX-License-Identifier: Apache-2.0
# presum::presum, and presum::mpi where there is MPI: each one static library out of rooms' objects,
# for who adds presum as a subdirectory; with PRESUM_INSTALL also for find_package(presum), with
# headers and the command.
include(GNUInstallDirs)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/presum)

# NAME is the target presum::NAME and its archive's. PUBLIC is what its headers need, PRIVATE what is
# only linked.
function(presum_library name)
  cmake_parse_arguments(LIBRARY "" "FILE" "ROOMS;PUBLIC;PRIVATE" ${ARGN})
  set(target presum_lib_${name})
  list(TRANSFORM LIBRARY_ROOMS REPLACE "(.+)" "$<TARGET_OBJECTS:presum_\\1>")
  add_library(${target} STATIC ${LIBRARY_ROOMS})
  add_library(presum::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX OUTPUT_NAME ${LIBRARY_FILE} EXPORT_NAME ${name})
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  target_link_libraries(${target} PUBLIC ${LIBRARY_PUBLIC} PRIVATE ${LIBRARY_PRIVATE})
  if(PRESUM_INSTALL)
    install(TARGETS ${target} EXPORT ${target}
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(EXPORT ${target} NAMESPACE presum:: FILE presum-${name}-targets.cmake
      DESTINATION ${package})
  endif()
endfunction()

presum_library(presum FILE presum
  ROOMS base records device observe reduce packet step metrics detect checks runlog judge aggregate session
  PRIVATE hwy::hwy fmt::fmt SQLite3::SQLite3 Threads::Threads ${CMAKE_DL_LIBS})
if(TARGET presum_mpi)
  presum_library(mpi FILE presum_mpi ROOMS mpi PUBLIC presum_lib_presum MPI::MPI_CXX)
endif()
if(NOT PRESUM_INSTALL)
  return()
endif()

install(DIRECTORY include/presum DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} PATTERN mpi.h EXCLUDE)
if(TARGET presum_mpi)
  install(FILES include/presum/mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/presum)
endif()
if(PRESUM_COMMAND)
  install(TARGETS presum RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
include(CMakePackageConfigHelpers)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/presumConfig.cmake.in ${PROJECT_BINARY_DIR}/presumConfig.cmake
  INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/presumConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/presumConfig.cmake ${PROJECT_BINARY_DIR}/presumConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/Findhwy.cmake
  DESTINATION ${package})
