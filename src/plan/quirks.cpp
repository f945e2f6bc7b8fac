// SPDX-License-Identifier: MIT OR Apache-2.0
#include "quirks.h"

#include <cstring>

namespace tandem {
namespace {

bool matches(const char* pattern, const char* end, const char* name) {
  if (pattern == end) return *name == 0;
  if (*pattern == '*') {
    for (;; ++name) {
      if (matches(pattern + 1, end, name)) return true;
      if (*name == 0) return false;
    }
  }
  const bool fits = *pattern == '#' ? *name >= '0' && *name <= '9' : *pattern == *name;
  return fits && *name != 0 && matches(pattern + 1, end, name + 1);
}

}  // namespace

bool name_matches(const char* patterns, const char* name) {
  const bool not_these = *patterns == '!';
  if (not_these) ++patterns;
  for (;;) {
    const char* end = patterns + std::strcspn(patterns, "|");
    if (matches(patterns, end, name)) return !not_these;
    if (*end == 0) return not_these;
    patterns = end + 1;
  }
}

bool quirk_applies(const Quirk& q, const Caps& caps) {
  return caps.backend == Backend::vulkan &&
         (q.driver_id == kAnyDriver || q.driver_id == caps.driver_id) &&
         caps.driver_version >= q.from && caps.driver_version <= q.until &&
         name_matches(q.device, caps.name.c_str());
}

const Quirk* find_quirk(const Caps& caps, QuirkAction action, uint32_t number) {
  for (const Quirk& q : kQuirks)
    if (q.action == action && (number == 0 || q.number == number) && quirk_applies(q, caps))
      return &q;
  return nullptr;
}

const char* Quirk::what() const {
  switch (action) {
    case QuirkAction::no_matrices:
      return "no matrix paths";
    case QuirkAction::no_bf16:
      return "no bf16 matrices";
    case QuirkAction::no_shape:
      return "no matrices of one shape";
    case QuirkAction::fwd_shape:
      return "matrices of one shape come first in forward";
    case QuirkAction::pin:
      return "subgroup size pinned";
    case QuirkAction::doubled:
      return "operands of matrices take twice the registers";
    case QuirkAction::few_registers:
      return "few registers";
    case QuirkAction::pairs:
      return "tiles of pairs come first";
  }
  return "?";
}

}  // namespace tandem
