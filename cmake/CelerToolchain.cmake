# Compiler, warnings, sanitizers, CUDA and the packages every module may use.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CELER_CCACHE ccache)
if(CELER_CCACHE)
  # Paths below the checkout are hashed relative to it, so that one clone of it finds what another compiled.
  set(in_any_clone ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1)
  # The compiler writes which headers it read; without that, ccache runs the preprocessor once more for each new file.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${in_any_clone} CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${CELER_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${in_any_clone} ${CELER_CCACHE})
endif()

# Warnings are errors in our code. -Wrestrict misfires on std::string in g++ 12 (GCC bug 105651).
set(CELER_WARNINGS -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-restrict)
if(CELER_WERROR)
  list(APPEND CELER_WARNINGS -Werror)
endif()

if(CELER_SANITIZE)
  add_compile_options(-fsanitize=${CELER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${CELER_SANITIZE})
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(CELER_ARM 1)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(CELER_X86 1)
  # g++ 13 moves 8 bytes through an MMX register and never executes EMMS; the x87 stack is then full, and the next
  # fmod(), which it inlines as FPREM, returns NaN.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-mno-mmx> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-mno-mmx>)
endif()

# A first build should not wait for kernels that cannot run here. The last two are a GPU's device files under WSL and on
# Jetson boards.
set(use_cuda ${CELER_CUDA})
set(has_gpu ON)
if(NOT EXISTS /dev/nvidiactl AND NOT EXISTS /dev/dxg AND NOT EXISTS /dev/nvhost-gpu)
  set(has_gpu OFF)
endif()
if(CELER_CUDA STREQUAL "AUTO" AND NOT has_gpu)
  message(STATUS "celer: no NVIDIA GPU here; -DCELER_CUDA=TOOLKIT compiles the CUDA code all the same")
  set(use_cuda OFF)
endif()

set(CELER_WITH_CUDA 0)
if(NOT use_cuda STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${CELER_CUDA_ARCHS})
  # Where none of it can run, PTX tells whether it compiles, and PTX that is not optimized tells it in a third of the time;
  # ptxas would take as long again.
  set(CELER_CUDA_PTX_ONLY OFF)
  if(CELER_CUDA STREQUAL "TOOLKIT" AND NOT has_gpu)
    set(CELER_CUDA_PTX_ONLY ON)
    list(TRANSFORM CMAKE_CUDA_ARCHITECTURES APPEND -virtual)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    check_language(CUDA)
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc 13 speaks C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    string(APPEND CMAKE_CUDA_FLAGS " --expt-relaxed-constexpr")  # kernels call constexpr functions of plain headers
    if(CELER_CUDA_PTX_ONLY)
      string(APPEND CMAKE_CUDA_FLAGS " -Xcicc=-O0")
    endif()
    list(LENGTH CELER_CUDA_ARCHS targets)
    if(targets GREATER 1)  # code for several GPUs is much the same code (docs/adr/0022-cuda-binary-size.md)
      string(APPEND CMAKE_CUDA_FLAGS " --compress-mode=size")
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(CELER_WITH_CUDA 1)
  elseif(CELER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CELER_CUDA=ON, but no nvcc was found; add it to PATH or use -DCELER_CUDA=AUTO")
  endif()
endif()
message(STATUS "celer: ${CMAKE_SYSTEM_PROCESSOR}, CUDA ${CELER_WITH_CUDA}, text ${CELER_TEXT}")

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)  # hashes of files
find_package(ZLIB REQUIRED)  # traces that are packed, checksums of archives
# The checksum of packed weights; without it a slower one is used.
find_path(CELER_XXHASH_INCLUDE xxhash.h)
if(NOT CELER_XXHASH_INCLUDE)
  message(STATUS "celer: xxhash.h not found (libxxhash-dev); --pack-cache will check its files slowly")
endif()
if(CELER_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
if(CELER_BENCHES)
  find_package(benchmark QUIET)
  if(NOT benchmark_FOUND)
    message(STATUS "celer: Google Benchmark not found; micro-benchmarks are not built")
    set(CELER_BENCHES OFF)
  endif()
endif()
