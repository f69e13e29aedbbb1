# celer_cuda_twins(TARGET...): each of these programs once more as TARGET_generic, with generic device code (compute_80) in
# place of its own, so that a GPU of compute capability 9.0 tests what older ones run. All of it is compiled from the PTX of
# compute_80 for the GPU that is here (CELER_CUDA_TWIN, 90), as the driver would do when the program starts.
#
# Objects stand in front of libraries, so that the linker takes the kernels from them and not from libceler_kernels.a.
function(celer_cuda_twins)
  foreach(module device kernels)
    get_target_property(sources celer_${module} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.cu$")
    list(APPEND all ${sources})
  endforeach()
  add_library(celer_cuda_generic OBJECT ${all})
  celer_compile_settings(celer_cuda_generic PRIVATE)
  set_target_properties(celer_cuda_generic PROPERTIES CUDA_ARCHITECTURES OFF)
  target_compile_options(celer_cuda_generic PRIVATE
                         "--generate-code=arch=compute_80,code=[compute_80,sm_${CELER_CUDA_TWIN}]")
  foreach(target ${ARGN})
    get_target_property(libraries ${target} LINK_LIBRARIES)
    add_executable(${target}_generic $<TARGET_OBJECTS:${target}> $<TARGET_OBJECTS:celer_cuda_generic>)
    if(target MATCHES "_test$")
      target_sources(${target}_generic PRIVATE $<TARGET_OBJECTS:celer_source_dir>)
    endif()
    set_target_properties(${target}_generic PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(${target}_generic PRIVATE ${libraries})
  endforeach()
endfunction()
