// SPDX-License-Identifier: MIT OR Apache-2.0
// Shapes of matrices that a device lists: what the paths with matrices ask about them besides
// matrix_shape() and may_copy() (plan/planner.h).
#ifndef TANDEM_SRC_PLAN_COOPMAT_SHAPES_H
#define TANDEM_SRC_PLAN_COOPMAT_SHAPES_H
#include "plan/caps.h"
#include "plan/coopmat/tile.h"
#include "problem/problem.h"

namespace tandem {

bool has_shape(const Caps& caps, const char* operands, const MatrixDims& shape);
// Whether operands of the shape may be copies of accumulators (MatrixShape::copies).
bool has_copies(const Caps& caps, const char* operands, const MatrixDims& shape);
// Why a path does not take a shape that the device has; "" if it does.
String shape_refusal(const Problem& p, const Caps& caps, bool coopmat2, const MatrixDims& shape);

}  // namespace tandem
#endif
