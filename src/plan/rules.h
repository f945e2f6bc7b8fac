// SPDX-License-Identifier: MIT OR Apache-2.0
// Rules of speed: what a path decides because it is faster, where it could decide otherwise. The
// evidence says what was measured, or that nothing was. The rows are in src/plan/<path>/rules.h
// and, of cuda.sm90, rules.cpp.
#ifndef TANDEM_SRC_PLAN_RULES_H
#define TANDEM_SRC_PLAN_RULES_H
#include <algorithm>

#include "caps.h"

namespace tandem {

struct SpeedRule {
  const char* name;      // in TANDEM_DISABLE, which switches it off: "cuda.sm90.rule.few_rows"
  const char* evidence;  // the times that it stands on, of an H100 where nothing else is said
};
// Whether a rule is not switched off.
inline bool in_force(const Caps& caps, const SpeedRule& rule) {
  return std::find(caps.disabled.begin(), caps.disabled.end(), rule.name) == caps.disabled.end();
}
// Those of all paths.
Vec<const SpeedRule*> speed_rules();

}  // namespace tandem
#endif
