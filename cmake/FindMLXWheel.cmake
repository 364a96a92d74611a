# Finds the mlx wheel that is installed for ${Python_EXECUTABLE}, or is in AGENTKV_WHEELS: the imported target `mlx`,
# MLX_VERSION, or neither.
agentkv_find_wheel(mlx _mlx_root)
if(_mlx_root)
  find_package(MLX CONFIG PATHS ${_mlx_root} NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
endif()
if(TARGET mlx)
  # Its headers are not ours to warn about, and ours come first.
  set_target_properties(mlx PROPERTIES SYSTEM TRUE)
  file(STRINGS ${MLX_INCLUDE_DIRS}/mlx/version.h _mlx_version REGEX "define MLX_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE "[^0-9;]" "" _mlx_version "${_mlx_version}")
  list(JOIN _mlx_version "." MLX_VERSION)
  message(STATUS "Building the MLX backend for mlx ${MLX_VERSION}")
else()
  message(STATUS "Building without the MLX backend: ${Python_EXECUTABLE} has no mlx")
endif()
