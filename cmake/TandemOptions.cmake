# tandem_options(target): what every C++ target of the project is compiled with.
function(tandem_options target)
  if(WIN32) # windows.h without macros named min and max, wherever it stands among the includes
    target_compile_definitions(${target} PRIVATE NOMINMAX WIN32_LEAN_AND_MEAN)
  endif()
  if(MINGW)
    # GCC takes an inline function for the one that is linked, and knows its registers; on Windows, too, the linker may take that of
    # another object, compiled by other options.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fno-ipa-ra>)
  endif()
  if(MSVC)
    # Conforming, as the other compilers are; /bigobj for tests of many templates. 4068: pragmas of GCC. 4244, 4267: -Wconversion,
    # which the others do not have in -Wall -Wextra.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:/W3;/permissive-;/Zc:preprocessor;/utf-8;/wd4068;/wd4244;/wd4267>
      $<$<COMPILE_LANGUAGE:CXX>:/EHsc;/Zc:__cplusplus;/bigobj>)
    target_compile_definitions(${target} PRIVATE _CRT_SECURE_NO_WARNINGS _CRT_NONSTDC_NO_WARNINGS)
    if(TANDEM_WERROR)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:/WX>)
    endif()
  endif()
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
