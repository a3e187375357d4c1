# SPDX-License-Identifier: Apache-2.0
# vnode_standin(NAME <target> SONAME <soname> [CUDA12 <header>] [VERSIONED]
#               EXPORTS_FROM <library file name> | EXPORTS_LIST <file> | EXPORTS_DEFINED <regex>
#               [IMPORTS <regex>] SOURCES <file>...)
#
# A shared library that takes the place of a vendor's in an unmodified PyTorch:
#   * file and soname are SONAME; with VERSIONED its symbols carry a version node of that name, as the vendor's do;
#   * it exports what the vendor's library exports (EXPORTS_FROM, looked up in B200_WHEEL_LIB; one name a line in EXPORTS_LIST;
#     or, where there is no list to follow, what SOURCES define of names that match EXPORTS_DEFINED) and what PyTorch and the
#     wheels' other libraries import of it (by version node when VERSIONED, else every undefined name that matches IMPORTS, an
#     extended regular expression); PyTorch binds with RTLD_NOW, so all must exist;
#   * each of them is entered through a hook (hook.h): the function that SOURCES define is renamed to vnode_own_<name> in all
#     of them, so calls inside the library pass the hook by;
#   * a name that SOURCES do not define becomes a trap: calling it ends the process with the name (vnode_trap);
#   * every other global name of SOURCES stays inside the library;
#   * with CUDA12 it is compiled against the headers of CUDA 12, after <header>, which makes up for what they lack, and lies in
#     <build>/vnode/cuda12; otherwise against those of CUDA 13, in <build>/vnode. What has no version in its soname serves both.
# It links the engine (b200vnode), found beside it at run time. The lists of hooks and traps are <build>/vnode/<target>.hooks.txt
# and .traps.txt.
find_program(B200_NM NAMES ${CMAKE_NM} nm REQUIRED)
find_program(B200_AR NAMES ${CMAKE_AR} ar REQUIRED)
find_program(B200_OBJCOPY NAMES ${CMAKE_OBJCOPY} objcopy REQUIRED)
set(VNODE_LINK_OPTIONS -Wl,-z,now,-z,relro)
if(NOT B200_SANITIZE)
  list(APPEND VNODE_LINK_OPTIONS -Wl,-z,defs) # clang leaves a sanitizer's own names to the program
endif()
set(VNODE_OUTPUT "${CMAKE_BINARY_DIR}/vnode")
set(VNODE_GEN_ENTRIES "${CMAKE_CURRENT_LIST_DIR}/gen_entries.sh")
set(VNODE_ENTRIES "${CMAKE_CURRENT_LIST_DIR}/hook_entry.S" "${CMAKE_CURRENT_LIST_DIR}/entries.inc" "${CMAKE_CURRENT_LIST_DIR}/hook.h")

set(vnode_importers)
foreach(folder ${B200_TORCH_LIB} ${B200_TORCH_LIB_12} ${B200_WHEEL_LIB})
  file(GLOB found "${folder}/*.so" "${folder}/*.so.*")
  list(APPEND vnode_importers ${found})
endforeach()
string(REPLACE ";" "\n" vnode_importers "${vnode_importers}")
file(CONFIGURE OUTPUT "${VNODE_OUTPUT}/importers.txt" CONTENT "${vnode_importers}\n")

function(vnode_standin)
  cmake_parse_arguments(PARSE_ARGV 0 A "VERSIONED" "NAME;SONAME;CUDA12;EXPORTS_FROM;EXPORTS_LIST;EXPORTS_DEFINED;IMPORTS" "SOURCES")
  if(A_UNPARSED_ARGUMENTS OR NOT A_NAME OR NOT A_SONAME OR NOT A_SOURCES OR
     NOT (A_EXPORTS_FROM OR A_EXPORTS_LIST OR A_EXPORTS_DEFINED))
    message(FATAL_ERROR "vnode_standin: NAME, SONAME, SOURCES and one of EXPORTS_* are needed (${A_UNPARSED_ARGUMENTS})")
  endif()
  set(exports_file)
  if(A_EXPORTS_DEFINED)
    set(exports "defined:${A_EXPORTS_DEFINED}")
  elseif(A_EXPORTS_LIST)
    set(exports "${A_EXPORTS_LIST}")
    set(exports_file "${exports}")
  else()
    find_file(B200_REAL_${A_EXPORTS_FROM} "${A_EXPORTS_FROM}" PATHS ${B200_WHEEL_LIB} NO_DEFAULT_PATH REQUIRED)
    set(exports "${B200_REAL_${A_EXPORTS_FROM}}")
    set(exports_file "${exports}")
  endif()
  set(node "-")
  if(A_VERSIONED)
    set(node "${A_SONAME}")
  endif()

  if(NOT A_IMPORTS)
    set(A_IMPORTS "-") # an empty argument would be dropped
  endif()

  add_library(${A_NAME}_objects OBJECT ${A_SOURCES})
  # What is visible is decided by the version script alone: the vendor's headers declare no visibility.
  set_target_properties(${A_NAME}_objects PROPERTIES C_VISIBILITY_PRESET default)
  target_link_libraries(${A_NAME}_objects PRIVATE b200_flags b200vnode)
  set(folder "${VNODE_OUTPUT}")
  if(A_CUDA12)
    set(folder "${VNODE_OUTPUT}/cuda12")
    target_include_directories(${A_NAME}_objects SYSTEM PRIVATE ${B200_WHEEL_INCLUDE_12})
    target_compile_options(${A_NAME}_objects PRIVATE -include "${A_CUDA12}")
  else()
    target_include_directories(${A_NAME}_objects SYSTEM PRIVATE ${B200_WHEEL_INCLUDE})
  endif()

  set(out "${VNODE_OUTPUT}/${A_NAME}")
  add_custom_command(
    OUTPUT "${out}.traps.S" "${out}.map" "${out}.renames"
    COMMAND sh "${VNODE_GEN_ENTRIES}" "${B200_NM}" "${out}" "${A_SONAME}" "${node}" "${exports}" "${VNODE_OUTPUT}/importers.txt"
            "${A_IMPORTS}" "$<TARGET_OBJECTS:${A_NAME}_objects>"
    DEPENDS "${VNODE_GEN_ENTRIES}" ${exports_file} "${VNODE_OUTPUT}/importers.txt" ${A_NAME}_objects
            $<TARGET_OBJECTS:${A_NAME}_objects>
    COMMAND_EXPAND_LISTS VERBATIM)
  add_custom_command(
    OUTPUT "${out}.own.a"
    COMMAND ${CMAKE_COMMAND} -E rm -f "${out}.own.a"
    COMMAND "${B200_AR}" qcS "${out}.own.a" "$<TARGET_OBJECTS:${A_NAME}_objects>"
    COMMAND "${B200_OBJCOPY}" "--redefine-syms=${out}.renames" "${out}.own.a"
    COMMAND "${B200_AR}" s "${out}.own.a"
    DEPENDS "${out}.renames" $<TARGET_OBJECTS:${A_NAME}_objects>
    COMMAND_EXPAND_LISTS VERBATIM)

  set_source_files_properties("${out}.traps.S" PROPERTIES
    GENERATED TRUE OBJECT_DEPENDS "${VNODE_ENTRIES}" INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}")
  list(GET VNODE_ENTRIES 0 hook_entry)
  add_library(${A_NAME} SHARED "${out}.traps.S" "${hook_entry}")
  add_custom_target(${A_NAME}_own DEPENDS "${out}.own.a")
  add_dependencies(${A_NAME} ${A_NAME}_own)
  set_target_properties(${A_NAME} PROPERTIES
    PREFIX "" SUFFIX "" OUTPUT_NAME "${A_SONAME}" NO_SONAME ON LINKER_LANGUAGE C
    LIBRARY_OUTPUT_DIRECTORY "${folder}" BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN;$ORIGIN/.."
    LINK_DEPENDS "${out}.map;${out}.own.a")
  target_link_libraries(${A_NAME} PRIVATE b200vnode ${CMAKE_DL_LIBS})
  target_link_options(${A_NAME} PRIVATE "-Wl,-soname,${A_SONAME}" "-Wl,--version-script=${out}.map" ${VNODE_LINK_OPTIONS})
  target_link_options(${A_NAME} PRIVATE "-Wl,--whole-archive,${out}.own.a,--no-whole-archive")
  if(B200_SANITIZE)
    target_link_options(${A_NAME} PRIVATE -fsanitize=${B200_SANITIZE})
  endif()
endfunction()
