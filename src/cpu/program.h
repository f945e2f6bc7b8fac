// SPDX-License-Identifier: MIT OR Apache-2.0
// The programs of the CPU paths, and their access to tensors.
#ifndef TANDEM_SRC_CPU_PROGRAM_H
#define TANDEM_SRC_CPU_PROGRAM_H
#include <algorithm>
#include <limits>
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

// Largest logits of the tiles of rows of each head of each batch entry, if the problem wants any:
// each tile is one thread's, and the order of their maximum does not matter.
class MaxLogits {
 public:
  MaxLogits(const Problem& p, int64_t tiles)
      : heads_(p.heads_q),
        tiles_(tiles),
        tops_(size_t(p.max_logit_batch > 0 ? p.batch * p.heads_q * tiles : 0),
              -std::numeric_limits<float>::infinity()) {}
  float* of(int64_t b, int64_t h, int64_t tile) {
    return tops_.empty() ? nullptr : &tops_[size_t((b * heads_ + h) * tiles_ + tile)];
  }
  // Raises max_logit, f32 [p.max_logit_batch, Hq].
  void raise(const Problem& p, float* max_logit) const {
    for (int64_t n = 0; n < int64_t(tops_.size()); ++n) {
      const int64_t head = n / tiles_;
      float& to = max_logit[p.head_number(p.max_logit_batch, head / heads_, head % heads_)];
      to = std::max(to, tops_[size_t(n)]);
    }
  }

 private:
  int64_t heads_, tiles_;
  Vec<float> tops_;
};

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
