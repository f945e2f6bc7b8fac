// SPDX-License-Identifier: MIT OR Apache-2.0
// What a plan promises of its launches and of its workspace, on any device.
#ifndef TANDEM_TESTS_FUZZ_PLAN_CHECKS_H
#define TANDEM_TESTS_FUZZ_PLAN_CHECKS_H
#include "api/handles.h"
#include "fuzz.h"
#include "kernels/kernel_rows.h"

namespace fuzz {

using namespace tandem;

inline void check_launches(const Plan& plan, const Caps& caps) {
  for (const Launch& l : plan.launches) {
    FUZZ_CHECK(l.kernel >= 0 && l.kernel < kKernelCount);
    FUZZ_CHECK_OF(kKernels[l.kernel].backend == plan.backend, stem_name(l.stem));
    if (plan.backend == Backend::cpu) continue;
    FUZZ_CHECK_OF(l.groups_x <= caps.max_groups_x && l.groups_y <= caps.max_groups_y,
                  stem_name(l.stem));
    FUZZ_CHECK_OF(l.shared_bytes <= caps.shared_bytes, stem_name(l.stem));
    FUZZ_CHECK_OF(l.invocations() <= int64_t(caps.max_invocations), stem_name(l.stem));
    if (!l.joins() && l.total > 0)
      FUZZ_CHECK_OF(l.groups_x > 0 && l.groups_y > 0, stem_name(l.stem));
  }
}

// Arrays of the workspace lie one behind the other, aligned and within its size.
inline void check_workspace(const Plan& plan) {
  uint64_t end = 0;
  for (int n = 0; n < kScratchCount; ++n) {
    const ScratchArray& array = plan.scratch[Scratch(n)];
    if (!array.present) continue;
    const uint64_t element = kScratch[n].element_size;
    FUZZ_CHECK_OF(array.offset >= end && array.offset % element == 0, kScratch[n].name);
    FUZZ_CHECK_OF(array.size < uint64_t(1) << 62 && array.offset < uint64_t(1) << 62,
                  kScratch[n].name);
    end = array.offset + array.size;
  }
  FUZZ_CHECK(end <= plan.workspace_size);
  FUZZ_CHECK(plan.zeroed_offset + plan.zeroed_size <= plan.workspace_size);
}

}  // namespace fuzz
#endif
