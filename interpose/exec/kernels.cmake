# SPDX-License-Identifier: Apache-2.0
# b200_add_kernels_cpu(NAME STATIC|SHARED [option…]): the executor with its kernels. The C compiler compiles the C++ (no exceptions,
# no runtime type information, no library), so that whoever links it stays a C program without libstdc++.
function(b200_add_kernels_cpu name type)
  set(folder "${PROJECT_SOURCE_DIR}/interpose/exec")
  set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.o")
  set(options -std=c++17 -O3 -g -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-math-errno -ffp-contract=off
    -Wall -Wextra -Wconversion -Wshadow -Wno-unknown-pragmas -Werror -I "${PROJECT_SOURCE_DIR}" ${ARGN})
  if(B200_SANITIZE)
    list(APPEND options -O1 -DB200_CPU_SANITIZED -fsanitize=${B200_SANITIZE} -fno-omit-frame-pointer)
    if(B200_SANITIZE MATCHES "undefined")
      list(APPEND options -fno-sanitize=vptr) # it and `function` need C++'s type information
      if(CMAKE_C_COMPILER_ID MATCHES "Clang")
        list(APPEND options -fno-sanitize=function)
      endif()
    endif()
  endif()
  add_custom_command(
    OUTPUT "${object}"
    COMMAND "${CMAKE_C_COMPILER}" -x c++ ${options} -MD -MF "${object}.d" -MT "${object}" -c "${folder}/cpu.cc" -o "${object}"
    DEPFILE "${object}.d" DEPENDS "${folder}/cpu.cc" VERBATIM)
  add_library(${name} ${type} "${folder}/quant.c" "${object}")
  target_link_libraries(${name} PUBLIC b200_flags m)
endfunction()

b200_add_kernels_cpu(b200_kernels_cpu STATIC)
