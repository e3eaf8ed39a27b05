# SPDX-License-Identifier: Apache-2.0
#
# Finds nvcc, enables the CUDA language and sets NORMACT_HAS_CUDA. find_package(CUDAToolkit) is not used: it fails on
# the toolkit that comes as Python wheels, which has no shared libcudart to link with.

# The first nvcc among CMAKE_CUDA_COMPILER, CUDACXX, CUDA_HOME, CUDA_PATH, PATH, the default prefix and the nvidia-*
# wheels of the Python that builds; "" if there is none.
function(normact_find_nvcc result)
  foreach(candidate "${CMAKE_CUDA_COMPILER}" "$ENV{CUDACXX}")
    if(candidate)
      find_program(NORMACT_NVCC "${candidate}")
    endif()
  endforeach()
  foreach(root "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}")
    if(root)
      find_program(NORMACT_NVCC nvcc PATHS "${root}/bin" NO_DEFAULT_PATH)
    endif()
  endforeach()
  find_program(NORMACT_NVCC nvcc)
  find_program(NORMACT_NVCC nvcc PATHS /usr/local/cuda/bin NO_DEFAULT_PATH)
  if(NOT NORMACT_NVCC)
    normact_find_python_package(nvidia packages)
    foreach(package ${packages})
      find_program(NORMACT_NVCC nvcc PATHS "${package}/cu13/bin" NO_DEFAULT_PATH)
    endforeach()
  endif()
  mark_as_advanced(NORMACT_NVCC)
  if(NORMACT_NVCC)
    set(${result} "${NORMACT_NVCC}" PARENT_SCOPE)
  else()
    unset(NORMACT_NVCC CACHE)  # look again next time
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

# What "all-major" stands for: each generation from Turing on that nvcc knows, and PTX of the newest for those to come.
# Not what CMake and nvcc mean by it, which are also generations that normact does not serve, and on x86 Thor
# (110), which comes with Arm cores alone.
function(normact_major_architectures nvcc result)
  execute_process(COMMAND "${nvcc}" --list-gpu-arch OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
  set(architectures "")
  foreach(architecture 75 80 90 100 110 120)
    if(known MATCHES "compute_${architecture}\n" AND
       NOT (architecture EQUAL 110 AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64"))
      list(APPEND architectures ${architecture}-real)
    endif()
  endforeach()
  string(REGEX REPLACE "-real$" "" architectures "${architectures}")
  set(${result} "${architectures}" PARENT_SCOPE)
endfunction()

set(NORMACT_HAS_CUDA OFF)
if(NOT NORMACT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "NORMACT_CUDA is '${NORMACT_CUDA}'; expected AUTO, ON or OFF")
endif()
if(NORMACT_CUDA STREQUAL "OFF")
  message(STATUS "normact: CPU only (NORMACT_CUDA=OFF)")
else()
  normact_find_nvcc(nvcc)
  if(nvcc)
    set(NORMACT_HAS_CUDA ON)
  elseif(NORMACT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "NORMACT_CUDA=ON, but nvcc was found neither by CUDACXX, CUDA_HOME, CUDA_PATH and PATH, nor "
                        "in /usr/local/cuda, nor in the nvidia-cuda-nvcc wheel")
  else()
    message(STATUS "normact: CPU only (no nvcc found; set CUDA_HOME or CUDACXX to build the CUDA back end)")
  endif()
endif()

if(NORMACT_HAS_CUDA)
  file(REAL_PATH "${nvcc}" nvcc_file)
  cmake_path(GET nvcc_file PARENT_PATH nvcc_bin)
  cmake_path(GET nvcc_bin PARENT_PATH cuda_root)
  # The wheels keep their libraries in lib, while their nvcc looks in lib64.
  set(cuda_from_wheels OFF)
  if(EXISTS "${cuda_root}/lib/libcudart_static.a" AND NOT EXISTS "${cuda_root}/lib64")
    set(cuda_from_wheels ON)
    set(ENV{LIBRARY_PATH} "${cuda_root}/lib:$ENV{LIBRARY_PATH}")
  endif()
  set(CMAKE_CUDA_COMPILER "${nvcc}")
  set(CMAKE_CUDA_ARCHITECTURES "${NORMACT_CUDA_ARCHITECTURES}")
  if(CMAKE_CUDA_ARCHITECTURES STREQUAL "all-major")
    normact_major_architectures("${nvcc}" CMAKE_CUDA_ARCHITECTURES)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  enable_language(CUDA)
  if(cuda_from_wheels)
    link_libraries("-L${cuda_root}/lib")  # link_directories would be dropped as implicit
  endif()
  set(NORMACT_CUDA_ARCHITECTURE_LIST "${CMAKE_CUDA_ARCHITECTURES}")
  if(CMAKE_CUDA_ARCHITECTURES STREQUAL "all")
    set(NORMACT_CUDA_ARCHITECTURE_LIST "${CMAKE_CUDA_ARCHITECTURES_ALL}")
  endif()
  message(STATUS "normact: CUDA ${CMAKE_CUDA_COMPILER_VERSION} (${nvcc}) for ${NORMACT_CUDA_ARCHITECTURE_LIST}")
endif()

# What the CUDA sources need beyond the language. cpp/cuda/device.cu reports NORMACT_CUDA_ARCHITECTURES.
function(normact_configure_cuda target)
  target_include_directories(${target} SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  string(REPLACE ";" "\\;" architectures "${NORMACT_CUDA_ARCHITECTURE_LIST}")
  set_property(SOURCE cpp/cuda/device.cu APPEND PROPERTY COMPILE_DEFINITIONS
               "NORMACT_CUDA_ARCHITECTURES=\"${architectures}\"")
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  # A third of the size of the library, and three fifths of the wheel's. Not before CUDA 13, whose programs older
  # drivers run, which may not know this compression.
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
  endif()
endfunction()
