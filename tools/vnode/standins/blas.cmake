# SPDX-License-Identifier: Apache-2.0
# cuBLAS and cuBLASLt of the virtual node.
set(vnode_blas_common standins/blas_common.c standins/gemm.c standins/host_blas.c standins/number.c
                      standins/scales.c)
foreach(file gemm host_blas number scales)
  # The loops over elements are written to be vectorised.
  set_source_files_properties(standins/${file}.c PROPERTIES COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-O3>")
endforeach()

set(vnode_cublas_sources standins/cublas.c standins/cublas_gemm.c standins/cublas_vector.c standins/cublas_trace.c
                         ${vnode_blas_common})
set(vnode_cublaslt_sources standins/cublaslt.c standins/lt_objects.c standins/lt_rules.c standins/lt_narrow.c
                           standins/cublaslt_trace.c
                           ${vnode_blas_common})
set(vnode_cuda12 "${CMAKE_CURRENT_LIST_DIR}/cuda12_blas.h")

vnode_standin(NAME vnode_cublas SONAME libcublas.so.13 VERSIONED EXPORTS_FROM libcublas.so.13 SOURCES ${vnode_cublas_sources})
vnode_standin(NAME vnode_cublaslt SONAME libcublasLt.so.13 VERSIONED EXPORTS_FROM libcublasLt.so.13
  SOURCES ${vnode_cublaslt_sources})
set(vnode_blas_targets vnode_cublas vnode_cublaslt)
if(12 IN_LIST B200_CUDA_MAJORS)
  vnode_standin(NAME vnode_cublas12 SONAME libcublas.so.12 CUDA12 ${vnode_cuda12} VERSIONED EXPORTS_FROM libcublas.so.12
    SOURCES ${vnode_cublas_sources})
  vnode_standin(NAME vnode_cublaslt12 SONAME libcublasLt.so.12 CUDA12 ${vnode_cuda12} VERSIONED
    EXPORTS_FROM libcublasLt.so.12 SOURCES ${vnode_cublaslt_sources})
  list(APPEND vnode_blas_targets vnode_cublas12 vnode_cublaslt12)
endif()
foreach(target ${vnode_blas_targets})
  target_link_libraries(${target} PRIVATE m)
endforeach()
