# `cmake --install` and the packages of `make dist`.
#   component runtime   bin/celer
#   component dev       lib/libceler.a, include/celer, and lib/cmake/celer for find_package(celer)
#   component bundled   the shared libraries of bin/celer; only in the .tar.gz, which must run where no package is installed
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Modules are for us; whoever uses the library links one archive.
get_property(modules GLOBAL PROPERTY CELER_MODULES)
list(REMOVE_ITEM modules cli eval_text loadtest load_words plan plan_files server hub catalog report viewer)
add_library(celer_library STATIC)
set(CELER_CONFIG_FIND "")
foreach(module ${modules})
  target_sources(celer_library PRIVATE $<TARGET_OBJECTS:celer_${module}>)
  get_property(link GLOBAL PROPERTY CELER_MODULE_LINK_${module})
  list(APPEND links ${link})
endforeach()
list(REMOVE_DUPLICATES links)

# How a program that uses the installed library finds what the library needs, and in which Debian package that is.
set(package_fmt libfmt-dev)
set(package_spdlog libspdlog-dev)
set(package_OpenSSL libssl-dev)
set(package_ZLIB zlib1g-dev)
set(package_Threads libc6-dev)
foreach(item ${links})
  if(item MATCHES "^(nlohmann_json|CLI11)::")
    # Headers alone, and none of ours that are installed includes them.
  elseif(item MATCHES "^(fmt|spdlog|Threads|OpenSSL|ZLIB)::")
    string(APPEND CELER_CONFIG_FIND "find_dependency(${CMAKE_MATCH_1})\n")
    list(APPEND dev_packages ${package_${CMAKE_MATCH_1}})
    target_link_libraries(celer_library INTERFACE $<INSTALL_INTERFACE:${item}>)
  elseif(item STREQUAL "PkgConfig::PCRE2")
    string(APPEND CELER_CONFIG_FIND "celer_find_library(pcre2 pcre2-8 libpcre2-dev)\n")
    list(APPEND dev_packages libpcre2-dev)
    target_link_libraries(celer_library INTERFACE $<INSTALL_INTERFACE:celer::pcre2>)
  elseif(item STREQUAL "SentencePiece")
    string(APPEND CELER_CONFIG_FIND "celer_find_library(sentencepiece sentencepiece libsentencepiece-dev)\n")
    list(APPEND dev_packages libsentencepiece-dev)
    target_link_libraries(celer_library INTERFACE $<INSTALL_INTERFACE:celer::sentencepiece>)
  elseif(item STREQUAL "${CMAKE_DL_LIBS}")
    target_link_libraries(celer_library INTERFACE $<INSTALL_INTERFACE:${item}>)
  else()
    message(FATAL_ERROR "CelerInstall.cmake does not say how an installed program finds ${item}")
  endif()
endforeach()
if(CELER_WITH_CUDA)
  string(APPEND CELER_CONFIG_FIND "find_dependency(CUDAToolkit)\n")
  target_link_libraries(celer_library INTERFACE $<INSTALL_INTERFACE:CUDA::cudart_static>)
endif()
target_include_directories(celer_library INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(celer_library INTERFACE cxx_std_20)
set_target_properties(celer_library PROPERTIES OUTPUT_NAME celer EXPORT_NAME celer LINKER_LANGUAGE CXX)

# libceler.so: the C interface (celer/celer.h) alone. C++ programs link the archive: what C++ exports changes with each
# compiler and each release.
set(shared_library)
if(CELER_TEXT)
  add_library(celer_shared SHARED $<TARGET_OBJECTS:celer_c_api>)
  target_link_libraries(celer_shared PRIVATE celer_c_api)
  target_link_options(celer_shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/libceler.map -Wl,--no-undefined)
  set_target_properties(celer_shared PROPERTIES OUTPUT_NAME celer EXPORT_NAME shared LINKER_LANGUAGE CXX
                        VERSION ${PROJECT_VERSION} SOVERSION 0 LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/libceler.map)
  target_include_directories(celer_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set(shared_library celer_shared)
  configure_file(cmake/celer.pc.in ${CMAKE_BINARY_DIR}/celer.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/celer.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endif()

set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/celer)
install(TARGETS celer_library ${shared_library} EXPORT celerTargets ARCHIVE COMPONENT dev LIBRARY COMPONENT dev)
install(DIRECTORY include/celer DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(EXPORT celerTargets NAMESPACE celer:: DESTINATION ${cmake_folder} COMPONENT dev)
configure_package_config_file(cmake/celerConfig.cmake.in ${CMAKE_BINARY_DIR}/celerConfig.cmake
                              INSTALL_DESTINATION ${cmake_folder})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/celerConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/celerConfig.cmake ${CMAKE_BINARY_DIR}/celerConfigVersion.cmake
        DESTINATION ${cmake_folder} COMPONENT dev)

# A DT_RPATH, not a DT_RUNPATH: bundled libraries find each other by it too.
set(bundle ${CMAKE_INSTALL_LIBDIR}/celer)
file(RELATIVE_PATH bin_to_bundle /${CMAKE_INSTALL_BINDIR} /${bundle})
set_target_properties(celer PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_bundle}")
target_link_options(celer PRIVATE -Wl,--disable-new-dtags)
install(TARGETS celer RUNTIME_DEPENDENCY_SET celer_needs RUNTIME COMPONENT runtime)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
# What every Linux of that age has; the C library must be the system's own.
install(RUNTIME_DEPENDENCY_SET celer_needs
        PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+)\\.so"
        LIBRARY DESTINATION ${bundle} COMPONENT bundled EXCLUDE_FROM_ALL
        RUNTIME DESTINATION ${bundle} COMPONENT bundled EXCLUDE_FROM_ALL)
install(SCRIPT cmake/CelerBundledLicences.cmake COMPONENT bundled EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/cmake/CelerPackage.cmake)
set(CPACK_PACKAGE_NAME celer)
set(CPACK_PACKAGE_VERSION ${CELER_VERSION})
string(REPLACE "-" "~" CPACK_DEBIAN_PACKAGE_VERSION ${CELER_VERSION})  # before the release in dpkg's order
set(CPACK_PACKAGE_VENDOR "the celer developers")
set(CPACK_PACKAGE_CONTACT "the celer developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference engine that runs as close to the hardware's limit as physics allows")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
string(TOLOWER celer-${CELER_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR} CPACK_PACKAGE_FILE_NAME)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL runtime dev bundled)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME celer)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS "curl, python3-pip, libzmq5")  # what `celer pull` calls, and KV events load
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libceler-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
list(REMOVE_DUPLICATES dev_packages)
list(JOIN dev_packages ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)
set(CPACK_COMPONENT_DEV_DESCRIPTION "celer as a library: headers, archive and CMake package")
include(CPack)
