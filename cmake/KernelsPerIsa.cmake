# The same source once per instruction set; which one runs is picked at run time (core/isa.h).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(AGENTKV_ISAS v2 v3 v4)
  set(AGENTKV_DOT_ISAS ${AGENTKV_ISAS} v3vnni v4vnni)
  set(AGENTKV_MATRIX_ISAS ${AGENTKV_DOT_ISAS} v4amx)
  set(AGENTKV_ISA_FLAGS_v2 -march=x86-64-v2)
  set(AGENTKV_ISA_FLAGS_v3 -march=x86-64-v3)
  set(AGENTKV_ISA_FLAGS_v3vnni ${AGENTKV_ISA_FLAGS_v3} -mavxvnni)
  set(AGENTKV_ISA_FLAGS_v4 -march=x86-64-v4 -mprefer-vector-width=512)
  set(AGENTKV_ISA_FLAGS_v4vnni ${AGENTKV_ISA_FLAGS_v4} -mavx512vnni)
  set(AGENTKV_ISA_FLAGS_v4amx ${AGENTKV_ISA_FLAGS_v4vnni} -mamx-tile -mamx-int8)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  set(AGENTKV_ISAS base)
  set(AGENTKV_DOT_ISAS base dotprod)
  set(AGENTKV_MATRIX_ISAS ${AGENTKV_DOT_ISAS})
  set(AGENTKV_ISA_FLAGS_dotprod -march=armv8.2-a+dotprod)
else()
  set(AGENTKV_ISAS base)
  set(AGENTKV_DOT_ISAS base)
  set(AGENTKV_MATRIX_ISAS base)
endif()

# Under sanitizers the level of all that is built holds for kernels, too: see the top CMakeLists.txt.
if(NOT AGENTKV_SANITIZE)
  set(_agentkv_kernel_level -O3)
endif()

function(_agentkv_add_kernels isas target source table)
  foreach(isa IN LISTS ${isas})
    set(object ${target}_${table}_${isa})
    add_library(${object} OBJECT ${source})
    target_include_directories(${object} PRIVATE ${PROJECT_SOURCE_DIR}/cpp)
    target_compile_definitions(${object} PRIVATE AGENTKV_TABLE=${table}_${isa})
    target_compile_options(${object} PRIVATE ${_agentkv_kernel_level} -Wno-psabi ${AGENTKV_ISA_FLAGS_${isa}} ${ARGN})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
  endforeach()
endfunction()

# Adds `source` to `target`; it defines one table, under the name that AGENTKV_TABLE stands for: <table>_<isa>. Further
# arguments are compile options.
function(agentkv_add_kernels target source table)
  _agentkv_add_kernels(AGENTKV_ISAS ${target} ${source} ${table} ${ARGN})
endfunction()

# The same for kernels with integer dot products, which more instruction sets matter to.
function(agentkv_add_dot_kernels target source table)
  _agentkv_add_kernels(AGENTKV_DOT_ISAS ${target} ${source} ${table} ${ARGN})
endfunction()

# The same for kernels with integer matrix products.
function(agentkv_add_matrix_kernels target source table)
  _agentkv_add_kernels(AGENTKV_MATRIX_ISAS ${target} ${source} ${table} ${ARGN})
endfunction()
