// SPDX-License-Identifier: MIT OR Apache-2.0
// A Vulkan driver's compiler, and what it says of the pipelines that the library makes: registers,
// spills, instructions. The library itself makes them, from plans, by way of a
// vkCreateComputePipelines that asks for the statistics (VK_KHR_pipeline_executable_properties) and
// keeps them. Nothing is run.
#ifndef TANDEM_TESTS_VULKAN_COMPILED_COMPILER_H
#define TANDEM_TESTS_VULKAN_COMPILED_COMPILER_H
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace compiled {

// One pipeline. A statistic that the driver does not have is -1.
struct Figures {
  int subgroup = 0;
  int vgprs = -1, spilled_vgprs = -1, spilled_sgprs = -1, scratch_bytes = -1, shared_bytes = -1;
  int waves = -1;  // subgroups that a SIMD holds at once, by registers and shared memory
  int code_bytes = -1, latency = -1, inverse_throughput = -1;
  int products = 0;  // instructions that multiply matrices
  // All statistics that are whole numbers, in the driver's words.
  std::vector<std::pair<std::string, long long>> statistics;
  // The first of these names that the driver has; -1: it has none of them.
  long long statistic(std::initializer_list<const char*> names) const;
};

// A launch's pipeline: for tensors whose rows are aligned to 16 bytes (wide), or any others.
struct Compiled {
  const tandem::Launch* launch;  // of the plan
  bool wide;
  Figures figures;
};

// From now on the driver gets these words in place of each module: what a gate makes of a crash.
// Without words, the next pipeline ends the process by a signal.
void plant(const uint32_t* words, size_t bytes);

class Compiler {
 public:
  Compiler();  // opens the first Vulkan device; throws std::runtime_error
  ~Compiler();
  const tandem::Caps& caps() const;
  tandem::String driver() const;  // "radv Mesa 25.0.7"
  // All pipelines of a plan; narrow: also those for tensors that are not wide, where there are wide
  // ones. Any thread.
  std::vector<Compiled> compile(const tandem::Plan& plan, bool narrow) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace compiled
#endif
