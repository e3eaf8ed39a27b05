# SPDX-License-Identifier: Apache-2.0
# The CPU back end: NORMACT_CPU_SOURCES (paths relative to the top) and the flags of the files that are built once per
# instruction set. -ffp-contract=off: only what the source writes as a fused operation is one, so that two inlined
# copies of a loop cannot round differently. -fno-math-errno: sqrt is one instruction.
set(NORMACT_CPU_SOURCES
    cpp/cpu/backward.cpp
    cpp/cpu/channel_backward.cpp
    cpp/cpu/channel_forward.cpp
    cpp/cpu/channel_parts.cpp
    cpp/cpu/dispatch.cpp
    cpp/cpu/forward.cpp
    cpp/cpu/openmp_team.cpp
    cpp/cpu/pointwise.cpp
    cpp/cpu/scratch.cpp
    cpp/cpu/small_sets.cpp
    cpp/cpu/thread_pool.cpp)

set(NORMACT_CPU_KERNEL_FLAGS -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math)
# GCC gives registers loop by loop: without this, what is kept across a short loop took them from the loop's own sums.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND NORMACT_CPU_KERNEL_FLAGS -fira-region=all)
endif()

# normact_cpu_kernels(NAME FLAGS...) adds cpp/cpu/{kernels,channel,pointwise}_NAME.cpp, built with these flags. The pointwise
# loops test for absent biases and sums inside: a copy of each loop for each combination would be most of the library.
macro(normact_cpu_kernels name)
  list(APPEND NORMACT_CPU_ISAS ${name})
  set(NORMACT_CPU_FLAGS_${name} ${NORMACT_CPU_KERNEL_FLAGS} ${ARGN})  # the tests build the formulas with them
  list(APPEND NORMACT_CPU_SOURCES cpp/cpu/kernels_${name}.cpp cpp/cpu/channel_${name}.cpp
       cpp/cpu/pointwise_${name}.cpp)
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/cpp/cpu/kernels_${name}.cpp
                              ${CMAKE_CURRENT_SOURCE_DIR}/cpp/cpu/channel_${name}.cpp
                              PROPERTIES COMPILE_OPTIONS "${NORMACT_CPU_FLAGS_${name}}")
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/cpp/cpu/pointwise_${name}.cpp
                              PROPERTIES COMPILE_OPTIONS "${NORMACT_CPU_FLAGS_${name}};-fno-unswitch-loops")
endmacro()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  normact_cpu_kernels(baseline)
  normact_cpu_kernels(avx2 -mavx2 -mfma -mf16c)
  normact_cpu_kernels(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  normact_cpu_kernels(neon)
else()
  normact_cpu_kernels(baseline)
endif()
