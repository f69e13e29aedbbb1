# celer_embed(NAME NAMESPACE n HEADER h TYPE t FUNCTION f FILES file...): a static library celer_NAME with the bytes of some
# files, each aligned to 8 bytes. HEADER declares in NAMESPACE a struct TYPE { path, content_type, etag, body } of
# std::string_view, and FUNCTION, which returns a std::span over them. index.html has the path "/".
# The same file, run as a script (cmake -P), writes the C++ source at build time.

if(CMAKE_SCRIPT_MODE_FILE)
  set(type_html "text/html; charset=utf-8")
  set(type_css "text/css; charset=utf-8")
  set(type_js "text/javascript; charset=utf-8")
  set(type_svg "image/svg+xml")
  set(type_json "application/json")
  set(type_bin "application/octet-stream")
  set(type_txt "text/plain; charset=utf-8")
  set(rows "")
  set(contents "")
  set(names "")
  foreach(file ${FILES})
    cmake_path(GET file FILENAME name)
    cmake_path(GET file EXTENSION LAST_ONLY extension)
    string(SUBSTRING "${extension}" 1 -1 extension)
    if(NOT DEFINED type_${extension})
      message(FATAL_ERROR "${file}: no content type for .${extension}; add type_${extension} to CelerEmbed.cmake")
    endif()
    set(path "/${name}")
    if(name STREQUAL "index.html")
      set(path "/")
    endif()
    file(SHA256 ${file} hash)
    string(SUBSTRING ${hash} 0 16 hash)
    file(SIZE ${file} size)
    # Every byte as \xNN, 40 in a line, so that no content can end the literal.
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${bytes}")
    string(REPEAT "...." 40 line)
    string(REGEX REPLACE "(${line})" "\\1\"\n     \"" bytes "${bytes}")
    list(LENGTH names index)
    list(APPEND names ${name})
    # Aligned, so that a file of numbers can be read in place.
    string(APPEND contents "alignas(8) constexpr char kBytes${index}[] =\n     \"${bytes}\";\n")
    string(APPEND rows "    {\"${path}\", \"${type_${extension}}\", \"\\\"${hash}\\\"\", {kBytes${index}, ${size}}},\n")
  endforeach()
  file(WRITE ${OUTPUT} "// Written by CelerEmbed.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\nnamespace {\n\n"
       "${contents}constexpr ${TYPE} kFiles[] = {\n${rows}};\n\n}  // namespace\n\n"
       "std::span<const ${TYPE}> ${FUNCTION}() {\n  return kFiles;\n}\n\n}  // namespace ${NAMESPACE}\n")
  return()
endif()

function(celer_embed name)
  cmake_parse_arguments(ARG "" "NAMESPACE;HEADER;TYPE;FUNCTION" "FILES" ${ARGN})
  list(TRANSFORM ARG_FILES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}_files.cc)
  set(script ${CMAKE_SOURCE_DIR}/cmake/CelerEmbed.cmake)
  add_custom_command(
    OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} "-DFILES=${ARG_FILES}" -DOUTPUT=${source} -DHEADER=${ARG_HEADER}
            -DNAMESPACE=${ARG_NAMESPACE} -DTYPE=${ARG_TYPE} -DFUNCTION=${ARG_FUNCTION} -P ${script}
    DEPENDS ${ARG_FILES} ${script}
    COMMENT "Embedding the files of ${name}"
    VERBATIM)
  add_library(celer_${name} STATIC ${source})
  celer_compile_settings(celer_${name} PUBLIC)
  set_property(GLOBAL APPEND PROPERTY CELER_MODULES ${name})
endfunction()
