// SPDX-License-Identifier: MIT OR Apache-2.0
// Rules of speed: rows of src/plan/<path>/rules.cpp. A path that can take a problem, and has room
// for it, refuses it by a rule of speed alone, as something else is faster.
#ifndef TANDEM_SRC_PLAN_RULES_H
#define TANDEM_SRC_PLAN_RULES_H
#include "caps.h"

namespace tandem {

struct SpeedRule {
  const char* name;      // in TANDEM_DISABLE, which switches it off: "cuda.sm90.rule.few_rows"
  const char* evidence;  // the times that it stands on
};
// Those of all paths.
Vec<const SpeedRule*> speed_rules();

}  // namespace tandem
#endif
