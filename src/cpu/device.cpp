// SPDX-License-Identifier: MIT OR Apache-2.0
// The CPU device: threads, and the program of each path. Work is done when record() returns.
#include "../device.h"

#include <cstring>

#include "program.h"

namespace tandem {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const DeviceOptions& options) : pool_(options.threads) {
    log_ = options.log;
    caps_.backend = Backend::cpu;
    caps_.threads = pool_.threads();
    caps_.vector_isa = simd_isa();
    caps_.disabled = options.disabled;
  }

  Status build(const Plan& plan, std::unique_ptr<Program>* program) override {
    if (std::strcmp(plan.path, "simd") == 0)
      *program = make_simd_program(plan, pool_);
    else if (std::strcmp(plan.path, "ref") == 0)
      *program = make_ref_program(plan, pool_);
    else
      return fail(TANDEM_ERROR_UNSUPPORTED, "the CPU has no path %s", plan.path);
    return Status();
  }

 private:
  Pool pool_;
};

}  // namespace

Status open_cpu_device(const DeviceOptions& options, const void*, std::unique_ptr<Device>* device) {
  device->reset(new CpuDevice(options));
  return Status();
}

}  // namespace tandem
