# SPDX-License-Identifier: Apache-2.0
# Finds what the build needs of CUDA: headers, and for the virtual node the export lists of the libraries that the installed
# PyTorch loads. Nothing here is ever linked.
#
#   B200_PYTHON            python with a CUDA 13 build of torch (tools/setup makes .venv)
#   B200_PYTHON12          python with a CUDA 12 build of torch (tools/setup --cuda 12 makes .venv12); its stand-ins are built, too
#   B200_CUDA_INCLUDE      folders with cuda.h, cublasLt.h, nccl.h: the system's toolkit, else PyPI's wheels
#   B200_WHEEL_INCLUDE     the same, of the wheels that the torch of B200_PYTHON loads (empty without them)
#   B200_WHEEL_INCLUDE_12  the same of B200_PYTHON12
#   B200_WHEEL_LIB         folders with libcudart.so.13, libcublas.so.13, libcublasLt.so.13, libnccl.so.2 and their like of CUDA 12
#   B200_TORCH_LIB         folder of libtorch_cuda.so; B200_TORCH_LIB_12 that of CUDA 12
#   B200_CUDA_MAJORS       CUDA versions that stand-ins are built for: 13, or 13 and 12
set(B200_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "python with a CUDA 13 build of torch")
set(B200_PYTHON12 "${PROJECT_SOURCE_DIR}/.venv12/bin/python" CACHE FILEPATH "python with a CUDA 12 build of torch")

# In `out`, the folder that a Python has its packages in; empty without that Python.
function(b200_site_packages python out)
  set(site "")
  if(EXISTS "${python}")
    execute_process(COMMAND "${python}" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"
                    OUTPUT_VARIABLE site OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  endif()
  set(${out} "${site}" PARENT_SCOPE)
endfunction()

b200_site_packages("${B200_PYTHON}" site)
if(EXISTS "${site}/torch/lib/libtorch_cuda.so" AND EXISTS "${site}/nvidia/cu13/include")
  set(B200_CUDA_MAJORS 13)
  set(B200_WHEEL_INCLUDE "${site}/nvidia/cu13/include" "${site}/nvidia/nccl/include")
  set(B200_WHEEL_LIB "${site}/nvidia/cu13/lib" "${site}/nvidia/nccl/lib")
  set(B200_TORCH_LIB "${site}/torch/lib")
endif()

b200_site_packages("${B200_PYTHON12}" site)
if(B200_CUDA_MAJORS AND EXISTS "${site}/torch/lib/libtorch_cuda.so" AND EXISTS "${site}/nvidia/cuda_runtime/include")
  list(APPEND B200_CUDA_MAJORS 12)
  # The wheels of CUDA 12 leave out the folder crt; Triton, which PyTorch comes with, has one.
  foreach(folder nvidia/cuda_runtime/include nvidia/cublas/include nvidia/nccl/include triton/backends/nvidia/include)
    list(APPEND B200_WHEEL_INCLUDE_12 "${site}/${folder}")
  endforeach()
  file(GLOB found "${site}/nvidia/*/lib")
  list(APPEND B200_WHEEL_LIB ${found})
  set(B200_TORCH_LIB_12 "${site}/torch/lib")
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

if(B200_VNODE AND NOT B200_CUDA_MAJORS)
  message(STATUS "No PyTorch with CUDA 13 libraries at B200_PYTHON (${B200_PYTHON}): the virtual node is not built")
  set(B200_VNODE OFF)
elseif(B200_VNODE)
  message(STATUS "Virtual node for CUDA: ${B200_CUDA_MAJORS}")
endif()
