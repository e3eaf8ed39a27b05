# SPDX-License-Identifier: Apache-2.0

# The folders of an importable Python package, found without importing it; "" if there is no Python or no package.
# The Python is the one that builds the wheel, else the first on the PATH.
function(normact_find_python_package name result)
  set(${result} "" PARENT_SCOPE)
  set(python "${Python_EXECUTABLE}")
  if(NOT python)
    find_program(python_on_path NAMES python3 python NO_CACHE)
    set(python "${python_on_path}")
  endif()
  if(python)
    execute_process(COMMAND "${python}" -c "import importlib.util as u
spec = u.find_spec('${name}')
print(*(spec.submodule_search_locations if spec else []), sep=';')"
                    OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(${result} "${folders}" PARENT_SCOPE)
  endif()
endfunction()
