# SPDX-License-Identifier: Apache-2.0

# The warnings that all host code is clean of.
function(normact_add_warnings target)
  set(flags -Wall -Wextra -Wconversion -Wshadow)
  if(NORMACT_WERROR)
    list(APPEND flags -Werror)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:${flags}>")
  if(NORMACT_HAS_CUDA AND NORMACT_WERROR)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
  endif()
endfunction()
