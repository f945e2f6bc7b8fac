// SPDX-License-Identifier: MIT OR Apache-2.0
// What the checks of a problem share, and the parts of them that have files of their own.
#ifndef TANDEM_SRC_PROBLEM_CHECKS_H
#define TANDEM_SRC_PROBLEM_CHECKS_H
#include "problem.h"

namespace tandem {

using ll = long long;

struct Field {
  const char* name;
  const tandem_tensor* tensor;
  Strides* strides;
  int64_t size[4];
  bool output;
};

bool is_float(uint32_t dtype);
// Checks strides, and the word that must be 0.
Status check_layout(const Field& field);
// Checks that a size is not negative and below a limit.
Status check_size(const char* name, int64_t value, int64_t limit);

// The optional inputs, and their gradients.
Status check_extras(const tandem_problem& given, Problem* problem);
// What the bits of a batch-invariant problem's rows would depend on, or has no kernels for it.
Status check_batch_invariant(const Problem& problem);
// Fills in the rest of a merge, whose sizes are set.
Status check_merge(const tandem_problem& given, Problem* problem);

}  // namespace tandem
#endif
