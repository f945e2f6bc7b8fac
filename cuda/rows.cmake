# Sources of the kernels of cuda/sm80 and cuda/sm90, by the rows of src/kernels/kernels.inc: one for each header with
# kernels that rows name, so that they compile in parallel. The header stands first in it, then instantiate.cuh of its
# folder, then its rows. TANDEM_SM80_SOURCES and TANDEM_SM90_SOURCES list the headers, without their suffix.
set(kernels_inc ${PROJECT_SOURCE_DIR}/src/kernels/kernels.inc)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kernels_inc})
file(STRINGS ${kernels_inc} tandem_rows REGEX "^TANDEM_KERNEL.*, +cuda,")
set(TANDEM_SM80_SOURCES "")
set(TANDEM_SM90_SOURCES "")
foreach(row IN LISTS tandem_rows)
  string(REGEX REPLACE "^TANDEM_KERNEL\\((.*)\\)$" "\\1" row "${row}")
  string(REGEX REPLACE " *, *" ";" row "${row}")
  list(LENGTH row columns)
  if(NOT columns EQUAL 12)
    message(FATAL_ERROR "src/kernels/kernels.inc: not a row: ${row}")
  endif()
  list(GET row 9 folder)
  list(GET row 10 source)
  list(GET row 0 3 4 5 6 7 8 11 row) # stem, variant, dtypes, tiles, needs, inputs, traits, params
  string(REPLACE ";" ", " row "${row}")
  if(folder STREQUAL "sm90")
    if(NOT source IN_LIST TANDEM_SM90_SOURCES)
      set(tandem_sm90_${source} "")
    endif()
    list(APPEND TANDEM_SM90_SOURCES ${source})
    string(APPEND tandem_sm90_${source} "TANDEM_SM90_KERNEL(${row})\n")
  elseif(folder STREQUAL "sm80")
    # Its tiles say the rest: the kernel of the first row is that of all.
    if(NOT source IN_LIST TANDEM_SM80_SOURCES)
      set(tandem_sm80_${source} "TANDEM_SM80_KERNEL(${source}, ${row})\n")
    endif()
    list(APPEND TANDEM_SM80_SOURCES ${source})
  endif()
endforeach()
list(REMOVE_DUPLICATES TANDEM_SM80_SOURCES)
list(REMOVE_DUPLICATES TANDEM_SM90_SOURCES)

# tandem_cuda_source(folder source file): writes the source of a header to a file, which includes by way of cuda/.
function(tandem_cuda_source folder source file)
  file(GLOB_RECURSE header RELATIVE ${CMAKE_CURRENT_FUNCTION_LIST_DIR} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${folder}/${source}.cuh)
  list(LENGTH header found)
  if(NOT found EQUAL 1)
    message(FATAL_ERROR "src/kernels/kernels.inc: cuda/${folder} has not one ${source}.cuh: ${header}")
  endif()
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT
    "#include \"${header}\"\n#include \"${folder}/instantiate.cuh\"\n${tandem_${folder}_${source}}")
endfunction()

# tandem_absent_kernels(sm80 file): writes their look-ups for a build without them.
function(tandem_absent_kernels folder file)
  set(content "#include \"cuda/look_ups.h\"\nnamespace tandem::cuda::${folder} {\n")
  foreach(source IN LISTS TANDEM_SM80_SOURCES)
    string(REGEX REPLACE ".*, ([A-Za-z0-9]+)\\)\n$" "\\1" params "${tandem_${folder}_${source}}")
    string(APPEND content
      "Kernel<${params}> ${source}_kernel(tandem_dtype, const KernelChoice&, bool) { return nullptr; }\n")
  endforeach()
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "${content}}\n")
endfunction()
