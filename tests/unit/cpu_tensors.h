// SPDX-License-Identifier: MIT OR Apache-2.0
// The buffers of an execute on the CPU device, for tests that compare bits.
#ifndef TANDEM_TESTS_UNIT_CPU_TENSORS_H
#define TANDEM_TESTS_UNIT_CPU_TENSORS_H
#include <cstring>
#include <vector>

#include "tandem/tandem.h"

// f32 buffers of SIZE numbers each, the same in every object, and a workspace behind them.
template <size_t SIZE>
class CpuTensors {
 public:
  CpuTensors() {
    using A = tandem_args;
    Part* part = parts_.data();
    for (tandem_buffer A::*b :
         {&A::q, &A::k, &A::v, &A::d_o, &A::bias, &A::dist_bias, &A::slope, &A::tau, &A::o, &A::lse,
          &A::d_q, &A::d_k, &A::d_v, &A::d_bias, &A::d_dist_bias, &A::d_tau, &A::workspace}) {
      for (size_t i = 0; i < SIZE; ++i)
        part->values[i] = float(int(i * 2654435761u >> 7) % 17 - 8) / 8;
      args_.*b = {uint64_t(uintptr_t(part++)), 0};
    }
    args_.workspace_size = sizeof(Part);
  }
  CpuTensors(const CpuTensors&) = delete;
  const tandem_args& args() const { return args_; }
  // But for the workspace.
  bool operator==(const CpuTensors& other) const {
    return std::memcmp(parts_.data(), other.parts_.data(), (kParts - 1) * sizeof(Part)) == 0;
  }

 private:
  static constexpr size_t kParts = 17;
  struct alignas(256) Part {
    float values[SIZE];
  };
  std::vector<Part> parts_ = std::vector<Part>(kParts);
  tandem_args args_ = TANDEM_ARGS_INIT;
};

#endif
