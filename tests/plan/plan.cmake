# SPDX-License-Identifier: MIT OR Apache-2.0
# The tests of plans are part of tandem_tests (unit/unit.cmake).
# What plans do, counted for scripts/fit-cost.
add_executable(tandem_cost_terms plan/cost_terms.cpp)
tandem_test_target(tandem_cost_terms)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_Interpreter_FOUND)
  add_test(NAME plan.cost_fit COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/fit-cost
                                      --terms $<TARGET_FILE:tandem_cost_terms> --check)
endif()
add_test(NAME plan.cuda_includes COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR}
  -P ${CMAKE_CURRENT_SOURCE_DIR}/plan/cuda_includes.cmake)
# Problems of absurd sizes soon overflow a product of the planner. With sanitizers (unit/border.cmake) it ends at what C++ leaves
# undefined.
if(TANDEM_SANITIZE)
  add_executable(tandem_plans $<TARGET_OBJECTS:tandem_test_main> unit/header_c99.c unit/test_hostile.cpp plan/test_plan.cpp
    unit/test_problem_line.cpp)
  target_include_directories(tandem_plans PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src ${TANDEM_DOCTEST_INCLUDE_DIR})
  target_link_libraries(tandem_plans PRIVATE tandem::tandem Threads::Threads)
  tandem_test_options(tandem_plans)
endif()
