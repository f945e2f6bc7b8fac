// SPDX-License-Identifier: MIT OR Apache-2.0
#include "shapes.h"

#include <algorithm>
#include <cstring>

#include "plan/planner.h"
#include "plan/quirks.h"

namespace tandem {

String MatrixDims::name() const { return text("%dx%dx%d", m, n, k); }

namespace {

const MatrixShape* find_shape(const Caps& caps, const char* operands, const MatrixDims& shape) {
  for (const MatrixShape& m : caps.matrices)
    if (m.m == shape.m && m.n == shape.n && m.k == shape.k &&
        std::strcmp(m.operands, operands) == 0)
      return &m;
  return nullptr;
}

}  // namespace

bool has_shape(const Caps& caps, const char* operands, const MatrixDims& shape) {
  return find_shape(caps, operands, shape) != nullptr;
}
bool has_copies(const Caps& caps, const char* operands, const MatrixDims& shape) {
  const MatrixShape* found = find_shape(caps, operands, shape);
  return found && found->copies && !is_disabled(caps, kCopiesWord);
}

String shape_refusal(const Problem& p, const Caps& caps, bool coopmat2, const MatrixDims& shape) {
  const String name = shape.name();
  if (is_disabled(caps, name)) return name + " is " + kDisabled;
  const uint32_t number = shape_number(shape.m, shape.n, shape.k);
  if (const Quirk* q = find_quirk(caps, QuirkAction::no_shape, number))
    return text("%s is not for this driver: %s (%s)", name.c_str(), q->reason, q->link);
  if (coopmat2 && shape.k != shape.n)
    return name + " would change its edges where an accumulator becomes an operand";
  if (p.dtype != TANDEM_F16 && shape.k != shape.n) return name + " serves f16 alone";
  const MatrixShape* found = find_shape(caps, dtype_name(p.dtype), shape);
  if (found && !found->f16_accumulators)
    return text("the device has no accumulators of f16 of %dx%d beside %s", shape.m, shape.n,
                name.c_str());
  return "";
}

MatrixDims matrix_shape(const Problem& p, const Caps& caps, bool coopmat2) {
  const auto taken = [&](const MatrixDims& shape) {
    return has_shape(caps, dtype_name(p.dtype), shape) &&
           shape_refusal(p, caps, coopmat2, shape).empty();
  };
  const bool scores = p.bias || p.alibi || p.dist_window > 0 || p.softcap > 0,
             wide = std::max(p.head_dim, p.head_dim_v) > kWholeFeatures;  // K has to be N
  MatrixDims first;  // in the order of the table
  for (const MatrixDims& s : kMatrixDims)
    if (first.m == 0 && taken(s)) first = s;
  // The quirk is about operands that pass through shared memory.
  const bool copies = !coopmat2 && has_copies(caps, dtype_name(p.dtype), first);
  for (const MatrixDims& s : kMatrixDims)
    if (!p.backward && !scores && !wide && !copies &&
        find_quirk(caps, QuirkAction::fwd_shape, shape_number(s.m, s.n, s.k)) && taken(s))
      return s;
  return first;
}

bool may_copy(const Caps& caps, const MatrixShape& shape) {
  const bool coopmat2 = caps.coopmat_reductions && caps.coopmat_conversions &&
                        caps.coopmat_per_element && !is_disabled(caps, "vulkan.coopmat2");
  if (coopmat2 || !caps.coopmat || !caps.coopmat_compute || !caps.float16 || !caps.memory_model ||
      !caps.full_subgroups || is_disabled(caps, "vulkan.coopmat") ||
      is_disabled(caps, kCopiesWord) || shape.k != shape.n ||
      find_quirk(caps, QuirkAction::no_matrices))
    return false;
  if (!caps.subgroup_pin && caps.subgroup_min != caps.subgroup_max) return false;
  if (std::strcmp(shape.operands, "bf16") == 0 &&
      (!caps.bfloat16_coopmat || find_quirk(caps, QuirkAction::no_bf16)))
    return false;
  for (const MatrixDims& s : kMatrixDims)
    if (s.m == shape.m && s.n == shape.n && s.k == shape.k) return true;
  return false;
}

uint32_t matrix_subgroup(const Caps& caps) {
  const Quirk* quirk = find_quirk(caps, QuirkAction::pin);
  const bool possible =
      quirk && quirk->number >= caps.subgroup_min && quirk->number <= caps.subgroup_max;
  return possible ? quirk->number : caps.subgroup_size;
}

}  // namespace tandem
