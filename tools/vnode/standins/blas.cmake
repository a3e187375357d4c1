# SPDX-License-Identifier: Apache-2.0
# cuBLAS and cuBLASLt of the virtual node.
set(vnode_blas_common standins/blas_common.c standins/gemm.c standins/host_blas.c standins/number.c)
foreach(file gemm host_blas number)
  # The loops over elements are written to be vectorised.
  set_source_files_properties(standins/${file}.c PROPERTIES COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-O3>")
endforeach()

vnode_standin(NAME vnode_cublas SONAME libcublas.so.13 VERSIONED EXPORTS_FROM libcublas.so.13 IMPORTS "^cublas"
  SOURCES standins/cublas.c standins/cublas_gemm.c standins/cublas_vector.c ${vnode_blas_common})
vnode_standin(NAME vnode_cublaslt SONAME libcublasLt.so.13 VERSIONED EXPORTS_FROM libcublasLt.so.13 IMPORTS "^cublasLt"
  SOURCES standins/cublaslt.c standins/lt_objects.c standins/lt_rules.c ${vnode_blas_common})
foreach(target vnode_cublas vnode_cublaslt)
  target_link_libraries(${target} PRIVATE m)
endforeach()
