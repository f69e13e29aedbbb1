# celer_module(NAME DEPS module... LINK target... [UNITY folder...] [UNITY_TESTS folder...]
#              [ALONE file...] [WITHOUT folder...])
#
# One module under src/ is one static library celer_NAME. Files find their place by name:
#   x.cc                      the library, built with baseline flags
#   x_arm_dotprod.cc, ...     only on aarch64, with the flags of that suffix (x86 likewise)
#   x_cuda.cc, x_cuda.cu, ... only with CUDA
#   x_test.cc                 the test program celer_NAME_test
#   x_bench.cc                the benchmark program celer_NAME_bench
#   x_fuzz.cc                 a fuzz target (see tests/fuzz)
# A file with an ISA suffix must not include headers with inline functions that baseline files use too
# (<vector>, <string>, ...): the linker keeps one copy of those, and it may be the one for the newer CPU.
#
# Folders of UNITY are compiled in groups of 8 files, because their files all read and instantiate the same large
# templates: a whole build is quicker. "." is the module itself, "*" every folder. UNITY_TESTS says the same of tests. Files
# whose names in anonymous namespaces meet those of a neighbour are in ALONE; files with flags of their own are always
# compiled alone. Folders of WITHOUT are left out of this build.

# Kernels are written in the order they should run in. GCC's scheduling before register allocation interleaves
# their unrolled parts until registers spill.
set(CELER_FLAGS_arm_neon -fno-schedule-insns)
set(CELER_FLAGS_arm_fp16 -march=armv8.2-a+fp16 -fno-schedule-insns)
set(CELER_FLAGS_arm_fhm -march=armv8.2-a+fp16+fp16fml -fno-schedule-insns)
set(CELER_FLAGS_arm_dotprod -march=armv8.2-a+fp16+dotprod -fno-schedule-insns)
set(CELER_FLAGS_arm_i8mm -march=armv8.2-a+fp16+dotprod+i8mm -fno-schedule-insns)
set(CELER_FLAGS_arm_bf16 -march=armv8.2-a+fp16+dotprod+bf16 -fno-schedule-insns)
set(CELER_FLAGS_x86_avx2 -mavx2 -mfma -mf16c)
set(CELER_FLAGS_x86_avxvnni ${CELER_FLAGS_x86_avx2} -mavxvnni)
# GCC 12's own AVX-512 header starts registers that stay undefined from themselves (GCC bug 105593).
set(CELER_FLAGS_x86_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -Wno-uninitialized
    -Wno-maybe-uninitialized)
set(CELER_FLAGS_x86_avx512fp16 ${CELER_FLAGS_x86_avx512} -mavx512fp16)
set(CELER_FLAGS_x86_bf16 ${CELER_FLAGS_x86_avx512} -mavx512bf16)
set(CELER_FLAGS_x86_vnni ${CELER_FLAGS_x86_avx512} -mavx512vnni)
set(CELER_FLAGS_x86_amx ${CELER_FLAGS_x86_vnni} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)

function(celer_set_isa_flags files)
  foreach(file ${files})
    if(file MATCHES "_((arm|x86)_[a-z0-9]+)\\.cc$")
      set(isa ${CMAKE_MATCH_1})
      if(NOT DEFINED CELER_FLAGS_${isa})
        message(FATAL_ERROR "${file}: no flags for the suffix _${isa}; add CELER_FLAGS_${isa} to CelerModule.cmake")
      endif()
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${CELER_FLAGS_${isa}}")
    endif()
  endforeach()
endfunction()

function(celer_compile_settings target scope)
  target_include_directories(${target} ${scope} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_compile_definitions(${target} ${scope} CELER_WITH_CUDA=${CELER_WITH_CUDA} CELER_WITH_TEXT=$<BOOL:${CELER_TEXT}>)
  if(NOT scope STREQUAL "INTERFACE")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${CELER_WARNINGS}>)
  endif()
  if(CELER_WITH_CUDA)
    target_link_libraries(${target} ${scope} CUDA::cudart_static)
    target_include_directories(${target} SYSTEM ${scope} ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endfunction()

# The longest test takes 12 s, and several times as long under the address sanitizer.
set(CELER_TEST_SECONDS 300)
if(CELER_SANITIZE)
  set(CELER_TEST_SECONDS 900)
endif()

# celer_unity(TARGET "source..." "folder..." "file..."): see UNITY and ALONE above. Not CMake's own UNITY_BUILD: that
# includes files by absolute paths, and ccache would find none of them in another clone.
function(celer_unity target sources folders alone)
  if(NOT CELER_UNITY OR NOT folders)
    return()
  endif()
  get_target_property(all ${target} SOURCES)
  set(files)
  foreach(file ${all})
    if(NOT file MATCHES "^\\$<")
      cmake_path(ABSOLUTE_PATH file)
    endif()
    list(APPEND files ${file})
  endforeach()
  set(groups)
  foreach(file ${sources})
    cmake_path(ABSOLUTE_PATH file)
    cmake_path(GET file PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder)
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${file})
    get_source_file_property(flags ${file} COMPILE_OPTIONS)
    if(NOT file MATCHES "\\.cc$" OR flags OR name IN_LIST alone OR NOT (folder IN_LIST folders OR "*" IN_LIST folders))
      continue()
    endif()
    string(MAKE_C_IDENTIFIER "${folder}" group)
    math(EXPR count_${group} "0${count_${group}} + 1")
    math(EXPR number "(${count_${group}} - 1) / 8")
    list(APPEND groups ${group}_${number})
    file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/src ${file})
    string(APPEND lines_${group}_${number} "#include \"${name}\"\n")
    list(REMOVE_ITEM files ${file})
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group ${groups})
    set(path ${CMAKE_CURRENT_BINARY_DIR}/unity/${target}/${group}.cc)
    file(CONFIGURE OUTPUT ${path} CONTENT "${lines_${group}}" @ONLY)
    list(APPEND files ${path})
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${files}")
endfunction()

# celer_precompile(TARGET header... | REUSE_FROM target): headers that all its files read. Not for clang-tidy, which has a
# build without groups: it cannot read what g++ precompiled.
function(celer_precompile target)
  get_target_property(prebuilt ${target} IMPORTED)
  if(NOT CELER_UNITY OR prebuilt)
    return()
  endif()
  if(ARGV1 STREQUAL "REUSE_FROM")
    target_precompile_headers(${target} ${ARGN})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
  # The first: without it ccache cannot tell which headers were read. The others: g++ 12 warns of things in the system's
  # headers that cannot be, and forgets that precompiled ones are the system's.
  set(flags -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:${flags}>")
endfunction()

function(celer_test_settings target)
  celer_compile_settings(${target} PRIVATE)
  # Compiled once, run once. At -O1 g++ 12 does not see which sizes cannot be.
  target_compile_options(${target} PRIVATE
                         $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1;-Wno-alloc-size-larger-than>)
  # fmt and spdlog bring definitions, and all that share precompiled headers must have the same.
  target_link_libraries(${target} PRIVATE GTest::gtest_main GTest::gmock fmt::fmt spdlog::spdlog)
endfunction()

function(celer_test_program target sources)
  # The only file of a test program that says where the checkout is: see celer_unity.
  if(NOT TARGET celer_source_dir)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/source_dir.cc
         CONTENT "#include \"base/source_dir.h\"\nconst char* const celer::kSourceDir = \"@CMAKE_SOURCE_DIR@\";\n" @ONLY)
    add_library(celer_source_dir OBJECT ${CMAKE_BINARY_DIR}/source_dir.cc)
    celer_compile_settings(celer_source_dir PRIVATE)
  endif()
  add_executable(${target} ${sources} $<TARGET_OBJECTS:celer_source_dir>)
  celer_test_settings(${target})
  # Compiled once for all of them, the first time; with other flags g++ would not take it.
  if(NOT TARGET celer_test_headers)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/test_headers.cc CONTENT "// Carries the precompiled headers of all tests.\n")
    add_executable(celer_test_headers EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/test_headers.cc)
    celer_test_settings(celer_test_headers)
    celer_precompile(celer_test_headers <gmock/gmock.h> <gtest/gtest.h> <algorithm> <cmath> <filesystem> <fstream> <functional> <map>
                     <memory> <optional> <random> <span> <string> <vector>)
  endif()
  celer_precompile(${target} REUSE_FROM celer_test_headers)
endfunction()

# celer_module_options(NAME option...): compiler options of a module's files, if it is compiled here.
function(celer_module_options name)
  get_target_property(prebuilt celer_${name} IMPORTED)
  if(NOT prebuilt)
    target_compile_options(celer_${name} PRIVATE ${ARGN})
  endif()
endfunction()

# A module of CELER_PREBUILT_MODULES is not compiled: its library comes from the build folder CELER_PREBUILT, and it has no
# tests here. CI compiles only what it looks at with sanitizers; kernels take longer to compile than all of that.
function(celer_prebuilt_module name)
  cmake_parse_arguments(ARG "" "" "DEPS;LINK;UNITY;UNITY_TESTS;ALONE;WITHOUT" ${ARGN})
  file(RELATIVE_PATH folder ${CMAKE_BINARY_DIR} ${CMAKE_CURRENT_BINARY_DIR})
  set(archive ${CELER_PREBUILT}/${folder}/libceler_${name}.a)
  if(NOT EXISTS ${archive})
    message(FATAL_ERROR "CELER_PREBUILT=${CELER_PREBUILT}: no ${archive}; build the target celer_${name} there first")
  endif()
  add_library(celer_${name} STATIC IMPORTED GLOBAL)
  set_target_properties(celer_${name} PROPERTIES IMPORTED_LOCATION ${archive})
  celer_compile_settings(celer_${name} INTERFACE)
  list(TRANSFORM ARG_DEPS PREPEND celer_)
  target_link_libraries(celer_${name} INTERFACE ${ARG_DEPS} ${ARG_LINK})
endfunction()

function(celer_module name)
  if(CELER_PREBUILT AND name IN_LIST CELER_PREBUILT_MODULES)
    celer_prebuilt_module(${name} ${ARGN})
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "DEPS;LINK;UNITY;UNITY_TESTS;ALONE;WITHOUT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc)
  file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS *.cu)
  foreach(folder ${ARG_WITHOUT})
    list(FILTER sources EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}/${folder}/")
  endforeach()
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz)\\.cc$|/main\\.cc$")
  if(NOT CELER_ARM)
    list(FILTER sources EXCLUDE REGEX "_arm_[a-z0-9]+\\.cc$")
  endif()
  if(NOT CELER_X86)
    list(FILTER sources EXCLUDE REGEX "_x86_[a-z0-9]+\\.cc$")
  endif()
  if(CELER_WITH_CUDA)
    list(APPEND sources ${cuda_sources})
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda(_[a-z0-9]+)*\\.cc$")
    list(FILTER tests EXCLUDE REGEX "_cuda(_[a-z0-9]+)*_test\\.cc$")
    list(FILTER benches EXCLUDE REGEX "_cuda(_[a-z0-9]+)*_bench\\.cc$")
  endif()
  celer_set_isa_flags("${sources}")

  set_property(GLOBAL APPEND PROPERTY CELER_MODULES ${name})
  set_property(GLOBAL PROPERTY CELER_MODULE_LINK_${name} ${ARG_LINK})
  list(TRANSFORM ARG_DEPS PREPEND celer_)
  if(sources)
    add_library(celer_${name} STATIC ${sources})
    celer_compile_settings(celer_${name} PUBLIC)
    target_link_libraries(celer_${name} PUBLIC ${ARG_DEPS} ${ARG_LINK})
    celer_unity(celer_${name} "${sources}" "${ARG_UNITY}" "${ARG_ALONE}")
  else()
    add_library(celer_${name} INTERFACE)
    celer_compile_settings(celer_${name} INTERFACE)
    target_link_libraries(celer_${name} INTERFACE ${ARG_DEPS} ${ARG_LINK})
  endif()

  if(CELER_TESTS AND tests)
    celer_test_program(celer_${name}_test "${tests}")
    target_link_libraries(celer_${name}_test PRIVATE celer_${name})
    celer_unity(celer_${name}_test "${tests}" "${ARG_UNITY_TESTS}" "${ARG_ALONE}")
    gtest_discover_tests(celer_${name}_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 TEST_PREFIX ${name}.
                         PROPERTIES TIMEOUT ${CELER_TEST_SECONDS})
  endif()
  if(CELER_BENCHES AND benches)
    add_executable(celer_${name}_bench ${benches})
    celer_compile_settings(celer_${name}_bench PRIVATE)
    target_link_libraries(celer_${name}_bench PRIVATE celer_${name} benchmark::benchmark_main)
  endif()
endfunction()
