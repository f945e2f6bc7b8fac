// SPDX-License-Identifier: MIT OR Apache-2.0
#include "rules.h"

#include "coopmat/rules.h"
#include "sm80/rules.h"
#include "sm90/rules.h"

namespace tandem {

Vec<const SpeedRule*> speed_rules() {
  Vec<const SpeedRule*> all;
  for (int n = 0; n < kSm90RuleCount; ++n) all.push_back(&kSm90Rules[n]);
  for (const SpeedRule* rule : sm80_rule::kAll) all.push_back(rule);
  for (const SpeedRule* rule : coopmat_rule::kAll) all.push_back(rule);
  return all;
}

}  // namespace tandem
