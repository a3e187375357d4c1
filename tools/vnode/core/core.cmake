# SPDX-License-Identifier: Apache-2.0
include(${CMAKE_CURRENT_LIST_DIR}/standin.cmake)

add_library(b200vnode SHARED
  core/config.c core/device.c core/memory.c core/physical.c core/session.c core/sleep.c core/stream.c core/order.c core/capture.c core/graph.c core/graph_memory.c core/exec.c core/race.c core/model.c core/ledger.c core/trap.c
  core/hook.c core/fault.c core/trace.c)
# Modelled times are equal on all machines: no contraction of a * b + c.
set_source_files_properties(core/model.c PROPERTIES COMPILE_OPTIONS "-ffp-contract=off")
set_target_properties(b200vnode PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${VNODE_OUTPUT}" BUILD_RPATH "$ORIGIN")
target_include_directories(b200vnode INTERFACE ${CMAKE_CURRENT_LIST_DIR})
target_link_libraries(b200vnode PRIVATE b200_flags pthread rt ${CMAKE_DL_LIBS})
target_link_options(b200vnode PRIVATE ${VNODE_LINK_OPTIONS})
