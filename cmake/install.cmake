# SPDX-License-Identifier: Apache-2.0
#
# include/, lib/ and lib/cmake/normact/ below the prefix: the same in a wheel, an editable install and cmake --install.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/normact")
install(TARGETS normact EXPORT normactTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY cpp/include/normact DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT normactTargets NAMESPACE normact:: DESTINATION "${package_dir}")

configure_package_config_file(cmake/normactConfig.cmake.in normactConfig.cmake INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(normactConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/normactConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/normactConfigVersion.cmake"
        DESTINATION "${package_dir}")
