# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` gives: headers, libpresum.a, the command, and the package presum for
# find_package(). The component mpi is there where MPI was found.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/presum)

# One static library for users, out of rooms' objects: presum::NAME of the installed package. PUBLIC
# is what its headers need, PRIVATE what is only linked.
function(presum_library name)
  cmake_parse_arguments(LIBRARY "" "FILE" "ROOMS;PUBLIC;PRIVATE" ${ARGN})
  set(target presum_installed_${name})
  list(TRANSFORM LIBRARY_ROOMS REPLACE "(.+)" "$<TARGET_OBJECTS:presum_\\1>")
  add_library(${target} STATIC ${LIBRARY_ROOMS})
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX OUTPUT_NAME ${LIBRARY_FILE} EXPORT_NAME ${name})
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_link_libraries(${target} PUBLIC ${LIBRARY_PUBLIC} PRIVATE ${LIBRARY_PRIVATE})
  install(TARGETS ${target} EXPORT ${target}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT ${target} NAMESPACE presum:: FILE presum-${name}-targets.cmake
    DESTINATION ${package})
endfunction()

presum_library(presum FILE presum
  ROOMS base records observe reduce packet step metrics detect diagnose runlog judge aggregate
  PRIVATE hwy::hwy fmt::fmt SQLite::SQLite3 Threads::Threads)
install(DIRECTORY include/presum DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} PATTERN mpi.h EXCLUDE)
if(TARGET presum_mpi)
  presum_library(mpi FILE presum_mpi
    ROOMS mpi PUBLIC presum_installed_presum MPI::MPI_CXX)
  install(FILES include/presum/mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/presum)
endif()
install(TARGETS presum RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

configure_package_config_file(cmake/presumConfig.cmake.in presumConfig.cmake
  INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(presumConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/presumConfig.cmake ${PROJECT_BINARY_DIR}/presumConfigVersion.cmake
  DESTINATION ${package})
