# tandem_options(target): what every C++ target of the project is compiled with.
function(tandem_options target)
  if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;$<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>>)
    if(TANDEM_WERROR)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
    endif()
    if(TANDEM_SANITIZE)
      set(sanitizers address,undefined)
      if(TANDEM_SANITIZE STREQUAL "THREAD")
        set(sanitizers thread)
      endif()
      target_compile_options(${target} PUBLIC
        $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${sanitizers};-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
      # Without it GCC takes any number in an enum. It watches those in memory; Clang arguments, too.
      target_compile_options(${target} PUBLIC $<$<COMPILE_LANGUAGE:CXX>:-fstrict-enums>)
      target_link_options(${target} PUBLIC -fsanitize=${sanitizers})
      if(TANDEM_FUZZ) # numbers of any size become integers: Clang does not watch that by itself
        target_compile_options(${target} PUBLIC
          $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link,float-cast-overflow>)
      endif()
    endif()
  endif()
endfunction()
