// SPDX-License-Identifier: MIT OR Apache-2.0
#include "sm90.h"

namespace tandem {

bool has_sm90_code() { return false; }

bool sm90_loads() { return false; }

Status sm90_recorder(const Plan&, const Launch& launch, const Launching&, Recorder*) {
  return fail(TANDEM_ERROR_BACKEND, "this build holds no code for sm_90a: no %s",
              stem_name(launch.stem));
}

}  // namespace tandem
