# SPDX-License-Identifier: Apache-2.0
set(VNODE_NCCL_SOURCES
  standins/nccl_collective.c standins/nccl_comm.c standins/nccl_entry.c standins/nccl_group.c standins/nccl_memory.c
  standins/nccl_p2p.c standins/nccl_reduce.c standins/nccl_trace.c standins/nccl_transport.c)
list(TRANSFORM VNODE_NCCL_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
# The inner loops are written to be vectorised; the data they see are whatever the program put there.
set_source_files_properties(standins/nccl_reduce.c PROPERTIES COMPILE_OPTIONS "-O3;-fno-strict-aliasing")

vnode_standin(NAME vnode_nccl SONAME libnccl.so.2 EXPORTS_FROM libnccl.so.2 IMPORTS "^p?nccl[A-Z]" SOURCES ${VNODE_NCCL_SOURCES})
target_link_libraries(vnode_nccl PRIVATE pthread)
