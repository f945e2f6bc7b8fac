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
# The planner once more, in place of the library's, which ends at what C++ leaves undefined: problems of absurd sizes overflow a product soon.
if(NOT TANDEM_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(planner plan/caps plan/cost/cost plan/cost/slow plan/cost/terms api/explain kernels/kernel_rows kernels/params plan/plan plan/cpu/planner
    plan/gpu plan/launches plan/coopmat/planner plan/coopmat/plain_loop plan/scalar/planner plan/simt/planner
    plan/sm80/planner plan/sm90/planner plan/sm90/heuristics plan/sm90/rows plan/sm90/rules plan/workspace problem/problem
    problem/problem_line kernels/push)
  list(TRANSFORM planner PREPEND ${PROJECT_SOURCE_DIR}/src/)
  list(TRANSFORM planner APPEND .cpp)
  add_executable(tandem_plans_watched $<TARGET_OBJECTS:tandem_test_main> unit/header_c99.c unit/test_hostile.cpp plan/test_plan.cpp unit/test_problem_line.cpp ${planner})
  tandem_test_target(tandem_plans_watched)
  target_include_directories(tandem_plans_watched PRIVATE ${PROJECT_BINARY_DIR})
  target_compile_definitions(tandem_plans_watched PRIVATE $<TARGET_PROPERTY:tandem,COMPILE_DEFINITIONS>)
  # -fstrict-enums: without it GCC takes any number in an enum. It watches those in memory; Clang
  # arguments, too. -O1: with more the compiler takes half a minute for what runs in two seconds.
  target_compile_options(tandem_plans_watched PRIVATE -O1 -fsanitize=undefined,enum -fno-sanitize-recover=all
    $<$<COMPILE_LANGUAGE:CXX>:-fstrict-enums>)
  target_link_options(tandem_plans_watched PRIVATE -fsanitize=undefined)
  add_test(NAME plans.watched COMMAND tandem_plans_watched)
endif()
