# SPDX-License-Identifier: Apache-2.0
# The runtime, driver and NVML stand-ins.
set(runtime_dir ${CMAKE_CURRENT_LIST_DIR})

# There is no real libcuda.so.1 on a machine without a GPU: its names are those that cuda.h declares, in its three readings
# (current names, per-thread default stream, old binary interfaces), and a few that are declared elsewhere.
set(driver_names "${VNODE_OUTPUT}/libcuda.txt")
list(GET B200_WHEEL_INCLUDE 0 wheel_cuda_include)
set(driver_name_list cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy
                     cuProfilerInitialize cuProfilerStart cuProfilerStop)
file(WRITE "${VNODE_OUTPUT}/cuda_names.c" "#include <cuda.h>\n")
foreach(reading "" -DCUDA_API_PER_THREAD_DEFAULT_STREAM -D__CUDA_API_VERSION_INTERNAL)
  execute_process(COMMAND ${CMAKE_C_COMPILER} -E -P ${reading} "-I${wheel_cuda_include}" "${VNODE_OUTPUT}/cuda_names.c"
                  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "CUresult +cu[A-Za-z0-9_]+ *\\(" found "${text}")
  list(TRANSFORM found REPLACE "CUresult +(cu[A-Za-z0-9_]+) *\\(" "\\1")
  list(APPEND driver_name_list ${found})
endforeach()
list(REMOVE_DUPLICATES driver_name_list)
list(JOIN driver_name_list "\n" driver_name_text)
file(CONFIGURE OUTPUT "${driver_names}" CONTENT "${driver_name_text}\n")

set(cudart_sources
  ${runtime_dir}/cudart_device.c ${runtime_dir}/cudart_memory.c ${runtime_dir}/cudart_stream.c
  ${runtime_dir}/cudart_graph.c ${runtime_dir}/cudart_launch.c ${runtime_dir}/cudart_aten.c ${runtime_dir}/common.c
  ${runtime_dir}/graph_common.c)
vnode_standin(NAME vnode_cudart SONAME libcudart.so.13 VERSIONED EXPORTS_FROM libcudart.so.13 SOURCES ${cudart_sources})
if(12 IN_LIST B200_CUDA_MAJORS)
  vnode_standin(NAME vnode_cudart12 SONAME libcudart.so.12 CUDA12 ${runtime_dir}/cuda12_runtime.h VERSIONED
    EXPORTS_FROM libcudart.so.12 SOURCES ${cudart_sources} ${runtime_dir}/cudart_12.c)
endif()

vnode_standin(NAME vnode_cuda SONAME libcuda.so.1 EXPORTS_LIST "${driver_names}" IMPORTS "^cu[A-Z]"
  SOURCES ${runtime_dir}/driver.c ${runtime_dir}/driver_memory.c ${runtime_dir}/driver_virtual.c ${runtime_dir}/driver_pool.c
          ${runtime_dir}/driver_stream.c ${runtime_dir}/driver_graph.c ${runtime_dir}/driver_launch.c ${runtime_dir}/common.c
          ${runtime_dir}/graph_common.c)
target_link_libraries(vnode_cuda PRIVATE b200_kernels_cpu)

# NVML has no list to follow: what is not here is missing, which its users are made for.
vnode_standin(NAME vnode_nvml SONAME libnvidia-ml.so.1 EXPORTS_DEFINED "^nvml"
  SOURCES ${runtime_dir}/nvml.c ${runtime_dir}/common.c)
