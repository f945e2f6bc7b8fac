# Sources for the rows of instances.inc, which nvcc compiles in parallel. They include headers of this
# folder, which must be among the include folders of their target.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/instances.inc tandem_sm80_rows REGEX "^TANDEM_AMPERE_KERNEL")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/instances.inc)
set(TANDEM_SM80_KERNELS "")
foreach(row IN LISTS tandem_sm80_rows)
  if(NOT row MATCHES "^TANDEM_AMPERE_KERNEL\\([a-z_]+, *([a-z_]+),")
    message(FATAL_ERROR "cuda/sm80/instances.inc: not a row: ${row}")
  endif()
  list(APPEND TANDEM_SM80_KERNELS ${CMAKE_MATCH_1})
  set(tandem_sm80_row_${CMAKE_MATCH_1} "${row}")
endforeach()

# Writes the source of a kernel to a file.
function(tandem_sm80_instance kernel file)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT
    "#include \"${kernel}.cuh\"\n#include \"instantiate.cuh\"\n${tandem_sm80_row_${kernel}}\n")
endfunction()
