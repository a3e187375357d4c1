# SPDX-License-Identifier: Apache-2.0
# Finds what the build needs of CUDA: headers, and for the virtual node the export lists of the libraries that the installed
# PyTorch loads. Nothing here is ever linked.
#
#   B200_PYTHON          python with the CUDA build of torch (tools/setup makes .venv)
#   B200_CUDA_INCLUDE    folders with cuda.h, cublasLt.h, nccl.h: the system's toolkit, else PyPI's wheels
#   B200_WHEEL_INCLUDE   the same, of the wheels that torch itself loads (empty without them)
#   B200_WHEEL_LIB       folders with libcudart.so.13, libcublas.so.13, libcublasLt.so.13, libnccl.so.2 of those wheels
#   B200_TORCH_LIB       folder of libtorch_cuda.so
set(B200_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "python with the CUDA build of torch")

if(EXISTS "${B200_PYTHON}")
  execute_process(COMMAND "${B200_PYTHON}" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"
                  OUTPUT_VARIABLE site OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  foreach(folder nvidia/cu13 nvidia/nccl)
    if(EXISTS "${site}/${folder}/include")
      list(APPEND B200_WHEEL_INCLUDE "${site}/${folder}/include")
      list(APPEND B200_WHEEL_LIB "${site}/${folder}/lib")
    endif()
  endforeach()
  if(EXISTS "${site}/torch/lib/libtorch_cuda.so")
    set(B200_TORCH_LIB "${site}/torch/lib")
  endif()
endif()

foreach(header cuda.h cublasLt.h nccl.h)
  find_path(B200_INCLUDE_${header} ${header}
            HINTS ENV CUDA_HOME PATHS /usr/local/cuda /usr/lib/cuda PATH_SUFFIXES include
            NO_CMAKE_FIND_ROOT_PATH)
  if(NOT B200_INCLUDE_${header})
    find_path(B200_INCLUDE_${header} ${header} PATHS ${B200_WHEEL_INCLUDE} NO_DEFAULT_PATH REQUIRED)
  endif()
  list(APPEND B200_CUDA_INCLUDE "${B200_INCLUDE_${header}}")
endforeach()
list(REMOVE_DUPLICATES B200_CUDA_INCLUDE)
message(STATUS "CUDA headers: ${B200_CUDA_INCLUDE}")

if(B200_VNODE AND NOT (B200_WHEEL_LIB AND B200_TORCH_LIB))
  message(STATUS "No PyTorch with CUDA 13 libraries at B200_PYTHON (${B200_PYTHON}): the virtual node is not built")
  set(B200_VNODE OFF)
endif()
