// SPDX-License-Identifier: MIT OR Apache-2.0
// Rules of speed of cuda.sm90: why it leaves a problem to another path, or a problem's fwd to
// another tile, that it could take itself. What it cannot take, and what does not fit the device,
// is in planner.cpp.
#ifndef TANDEM_SRC_PLAN_SM90_RULES_H
#define TANDEM_SRC_PLAN_SM90_RULES_H
#include "plan/rules.h"
#include "tiles.h"

namespace tandem {

// What a rule judges. kernel, tile: of fwd; nullptr for a rule of the path.
struct Sm90Case {
  const Problem& p;
  const Caps& caps;
  const KernelRow* kernel = nullptr;
  const FwdTile* tile = nullptr;
};

struct Sm90Rule : SpeedRule {
  bool of_tiles;
  String (*why)(const Sm90Case& c);  // the sentence; "" if the rule does not hold
};
extern const Sm90Rule kSm90Rules[];
extern const int kSm90RuleCount;

// Whether plain softmax with a tile of 192 or 256 rows pays (the rule rows_192).
bool pays_more_rows(const Problem& p, int64_t cores, const FwdTile& t);

// The sentence of the first rule that holds, of those of the path or, where the case has a tile, of
// tiles; "": none does. A problem that forces its tile is judged by the path's alone.
String sm90_slower(const Sm90Case& c);

}  // namespace tandem
#endif
