// SPDX-License-Identifier: MIT OR Apache-2.0
// The CPU device: threads, the instruction set, and the program of each path. All work is done when
// record() returns.
#include "api/device.h"

#include <cstring>

#include "base/environment.h"
#include "program.h"

#if defined(TANDEM_CPU_X86)
#include "x86.h"
#endif

namespace tandem {
namespace {

// The simd kernels that this machine runs, best first.
Vec<const SimdKernels*> usable_kernels() {
  Vec<const SimdKernels*> list;
#if defined(TANDEM_CPU_X86)
  const X86Vectors has = x86_vectors();
#if defined(TANDEM_CPU_AVX512_BF16)
  if (has.avx512_bf16) list.push_back(&kSimdAvx512Bf16);
#endif
  if (has.avx512) list.push_back(&kSimdAvx512);
  if (has.avx2) list.push_back(&kSimdAvx2);
#endif
  list.push_back(&kSimdBaseline);
  return list;
}

// TANDEM_CPU_ISA chooses among them, so that one machine can test them all.
Status choose_kernels(const SimdKernels** chosen) {
  const Vec<const SimdKernels*> list = usable_kernels();
  String names, room;
  const char* wanted = environment_value("TANDEM_CPU_ISA", &room);
  for (const SimdKernels* kernels : list) {
    if (!wanted || !*wanted || std::strcmp(wanted, kernels->isa) == 0)
      return *chosen = kernels, Status();
    names += String(" ") + kernels->isa;
  }
  return fail(TANDEM_ERROR_INVALID_ARGUMENT, "TANDEM_CPU_ISA is %s, this machine has:%s", wanted,
              names.c_str());
}

String processor_name() {
#if defined(TANDEM_CPU_X86)
  unsigned words[12] = {};
  bool known = true;
  for (unsigned n = 0; n < 3; ++n)
    known = known && __get_cpuid(0x80000002u + n, &words[4 * n], &words[4 * n + 1],
                                 &words[4 * n + 2], &words[4 * n + 3]);
  if (known) {
    char text[sizeof words + 1] = {};
    std::memcpy(text, words, sizeof words);
    String name = text;
    name.erase(0, name.find_first_not_of(' '));
    while (!name.empty() && name.back() == ' ') name.pop_back();
    if (!name.empty()) return name;
  }
#endif
  return "CPU";
}

class CpuDevice final : public Device {
 public:
  CpuDevice(const DeviceOptions& options, const SimdKernels& kernels)
      : pool_(options.threads), kernels_(kernels) {
    log_ = options.log;
    caps_.backend = Backend::cpu;
    caps_.name = processor_name();
    caps_.threads = pool_.threads();
    caps_.vector_isa = kernels.isa;
    caps_.disabled = options.disabled;
  }

  Status build(const Plan& plan, std::unique_ptr<Program>* program) override {
    if (std::strcmp(plan.path, "simd") == 0)
      *program = make_simd_program(plan, pool_, kernels_);
    else if (std::strcmp(plan.path, "ref") == 0)
      *program = make_ref_program(plan, pool_);
    else
      return fail(TANDEM_ERROR_UNSUPPORTED, "the CPU has no path %s", plan.path);
    return Status();
  }

 private:
  Pool pool_;
  const SimdKernels& kernels_;
};

}  // namespace

Status open_cpu_device(const DeviceOptions& options, const void*, std::unique_ptr<Device>* device) {
  const SimdKernels* kernels = nullptr;
  TANDEM_TRY(choose_kernels(&kernels));
  device->reset(new CpuDevice(options, *kernels));
  return Status();
}

}  // namespace tandem
