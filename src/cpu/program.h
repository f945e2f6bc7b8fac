// SPDX-License-Identifier: MIT OR Apache-2.0
// The programs of the CPU paths, and their access to tensors.
#ifndef TANDEM_SRC_CPU_PROGRAM_H
#define TANDEM_SRC_CPU_PROGRAM_H
#include <algorithm>
#include <memory>

#include "api/device.h"
#include "plan/plan.h"
#include "pool.h"
#include "simd.h"

namespace tandem {

template <typename T>
T* address(const tandem_buffer& b) {
  return reinterpret_cast<T*>(uintptr_t(b.handle + b.offset));
}

// delta [B,Hq,Sq] in the workspace.
inline float* delta_of(const Plan& plan, const tandem_args& args) {
  return reinterpret_cast<float*>(address<char>(args.workspace) +
                                  plan.scratch[Scratch::delta].offset);
}

// Threads that a problem is worth, where each is to have so many flops.
inline unsigned worth_threads(const Problem& problem, double flops_of_thread) {
  return 1 + unsigned(std::min(problem_flops(problem) / flops_of_thread, 1e6));
}

// The pool outlives the program: plans are destroyed before their device.
std::unique_ptr<Program> make_ref_program(const Plan& plan, Pool& pool);
std::unique_ptr<Program> make_simd_program(const Plan& plan, Pool& pool,
                                           const SimdKernels& kernels);

}  // namespace tandem
#endif
