# Sets `result` to the folder of a package that is installed for ${Python_EXECUTABLE}; where AGENTKV_WHEELS is set, to its
# folder in there; to nothing where there is none.
set(AGENTKV_WHEELS "" CACHE PATH "Folder of unpacked wheels for the machine that is built for, if that is another one")

function(agentkv_find_wheel package result)
  set(${result} "" PARENT_SCOPE)
  if(AGENTKV_WHEELS)
    if(IS_DIRECTORY ${AGENTKV_WHEELS}/${package})
      set(${result} ${AGENTKV_WHEELS}/${package} PARENT_SCOPE)
    endif()
    return()
  endif()
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u; print(u.find_spec('${package}').submodule_search_locations[0])"
    OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed EQUAL 0)
    set(${result} ${root} PARENT_SCOPE)
  endif()
endfunction()
