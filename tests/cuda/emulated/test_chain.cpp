// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels that begin before the one before them has ended, over several executes, on an emulated
// Hopper (TANDEM_EMULATED).
#include <cstdio>

#include "../bias_chain.h"

int main() {
  tandem_device* device = nullptr;
  if (tandem_cuda_device_create(0, nullptr, &device) != TANDEM_OK) {
    std::printf("%s\n", tandem_last_message());
    return 1;
  }
  const std::string wrong = bias_chain::run(device);
  std::printf("%s\n", wrong.empty() ? "each execute waits for the one before" : wrong.c_str());
  tandem_device_destroy(device);
  return wrong.empty() ? 0 : 1;
}
