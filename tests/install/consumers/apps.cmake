# SPDX-License-Identifier: MIT OR Apache-2.0
# The consumers' programs: what they compile, link and run, whichever way the library came.
if(NOT TANDEM_TARGET)
  set(TANDEM_TARGET tandem::tandem)
endif()
add_executable(app_c ${CMAKE_CURRENT_LIST_DIR}/app.c)
target_link_libraries(app_c PRIVATE ${TANDEM_TARGET})
get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(CXX IN_LIST languages)
  add_executable(app_cpp ${CMAKE_CURRENT_LIST_DIR}/app.cpp)
  target_link_libraries(app_cpp PRIVATE ${TANDEM_TARGET})
  target_compile_features(app_cpp PRIVATE cxx_std_17)
endif()
