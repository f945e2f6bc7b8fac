// SPDX-License-Identifier: MIT OR Apache-2.0
// What the tests of the C border share.
#ifndef TANDEM_TESTS_UNIT_API_FIXTURE_H
#define TANDEM_TESTS_UNIT_API_FIXTURE_H
#include <cstdint>
#include <string>
#include <vector>

#include "tandem/tandem.h"

struct CpuDevice {
  tandem_device* device = nullptr;
  explicit CpuDevice(uint32_t threads = 2) {
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.threads = threads;
    REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
  }
  ~CpuDevice() { tandem_device_destroy(device); }
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;
};

// A pointer that no call returns: an out-parameter still has it after a failure.
template <typename T>
T* untouched() {
  return reinterpret_cast<T*>(uintptr_t(0x5a5a5a5a));
}

// Backward with every member in use, so that a test can spoil any of them.
inline tandem_problem good_problem() {
  tandem_problem p;
  tandem_problem_init(&p);
  p.direction = TANDEM_BACKWARD;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seq_q = 5;
  p.seq_kv = 7;
  p.head_dim = 16;
  p.head_dim_v = 8;
  p.mask = TANDEM_MASK_CAUSAL;
  p.align = TANDEM_BOTTOM_RIGHT;
  p.window_left = 3;
  tandem_problem_contiguous(&p, TANDEM_F32);
  return p;
}

// The text of a function that is called as snprintf is.
template <typename Call>
std::string text_of(Call call) {
  std::vector<char> text(call(nullptr, 0) + 1, '#');
  call(text.data(), text.size());
  return text.data();
}

#endif
