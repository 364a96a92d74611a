# Cross-compiles for Linux on Arm of 64 bits with Debian's g++-aarch64-linux-gnu, and runs what tests build under
# qemu-user: `make test-arm`. The environment's QEMU_CPU names the processor; qemu's best one without it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

# Python of that machine, as tests/arm/machine.py unpacks it: what the native modules are compiled for.
set(AGENTKV_ARM_ROOT "" CACHE PATH "Folder of a Debian root of arm64 with libpython3-dev")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES AGENTKV_ARM_ROOT)
if(AGENTKV_ARM_ROOT)
  file(GLOB Python_INCLUDE_DIR ${AGENTKV_ARM_ROOT}/usr/include/python3.*)
  string(REGEX REPLACE ".*/python3\\." "cpython-3" SKBUILD_SOABI "${Python_INCLUDE_DIR}-aarch64-linux-gnu")
  set(CMAKE_CXX_FLAGS_INIT "-isystem ${AGENTKV_ARM_ROOT}/usr/include")  # Python's headers of each machine
endif()
