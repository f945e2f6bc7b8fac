# tandem_shaders(target stem...): compiles shaders/<stem>.comp to SPIR-V, validates it where a validator
# was found, and lets the target include it as shaders/<stem>.spv.h, which defines the words as
# <stem>_spirv[].
function(tandem_shaders target)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/shaders)
  file(MAKE_DIRECTORY ${out})
  foreach(stem IN LISTS ARGN)
    set(source ${PROJECT_SOURCE_DIR}/shaders/${stem}.comp)
    set(glslang ${TANDEM_GLSLANG} --quiet --target-env vulkan1.2
        -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/shaders)
    set(validate "")
    if(TANDEM_SPIRV_VAL)
      set(validate COMMAND ${TANDEM_SPIRV_VAL} --target-env vulkan1.2 ${out}/${stem}.spv)
    endif()
    # The module comes first, so that a bad one leaves no header behind.
    add_custom_command(
      OUTPUT ${out}/${stem}.spv.h
      BYPRODUCTS ${out}/${stem}.spv
      COMMAND ${glslang} -o ${out}/${stem}.spv ${source}
      ${validate}
      COMMAND ${glslang} --depfile ${out}/${stem}.d --vn ${stem}_spirv -o ${out}/${stem}.spv.h
              ${source}
      DEPENDS ${source}
      DEPFILE ${out}/${stem}.d
      COMMENT "SPIR-V ${stem}"
      VERBATIM)
    target_sources(${target} PRIVATE ${out}/${stem}.spv.h)
  endforeach()
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
