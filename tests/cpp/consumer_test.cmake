# SPDX-License-Identifier: Apache-2.0
#
# Builds and runs an example against an installed normact:
#   cmake -D EXAMPLE=examples/c -D WORK_DIR=build/consumer (-D BUILD_DIR=build | -D PREFIX=<prefix>) -P consumer_test.cmake
# With BUILD_DIR that build is installed first. PREFIX may be a wheel's package folder, site-packages/normact.
# FLAGS go to the compiler: a program must have the sanitizers of the library it loads.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

cmake_path(ABSOLUTE_PATH WORK_DIR)
file(REMOVE_RECURSE "${WORK_DIR}")
if(NOT PREFIX)
  set(PREFIX "${WORK_DIR}/prefix")
  run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${PREFIX}" --config "${CONFIG}")
endif()
cmake_path(ABSOLUTE_PATH PREFIX)
run(${CMAKE_COMMAND} -S "${EXAMPLE}" -B "${WORK_DIR}/build" "-DCMAKE_PREFIX_PATH=${PREFIX}" -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_C_FLAGS=${FLAGS}" "-DCMAKE_CXX_FLAGS=${FLAGS}")
run(${CMAKE_COMMAND} --build "${WORK_DIR}/build" --config Release)
run(${CMAKE_COMMAND} --build "${WORK_DIR}/build" --config Release --target run)
