// SPDX-License-Identifier: MIT OR Apache-2.0
// What the parts of the planner share: plan.cpp goes through the paths and chooses among the tiles without matrices,
// plan_matrix.cpp among those of the matrix paths, plan_sm80.cpp and plan_sm90.cpp among those of cuda.sm80 and
// cuda.sm90, plan_launches.cpp makes launches of the choice.
#ifndef TANDEM_SRC_PLANNER_H
#define TANDEM_SRC_PLANNER_H

#include "plan.h"

namespace tandem {

// Hears of a candidate that was looked at and not taken, and why; false, for who returns that.
using Refuse = Function<bool(const String& who, const String& why)>;
// Gives a tiled kernel its tile and what follows from it.
using Form = Function<void(Launch* launch)>;

constexpr const char* kDisabled = "disabled by TANDEM_DISABLE or the device's options";
bool is_disabled(const Caps& caps, const String& name);

String candidate(const PathRow& row);  // "vulkan.scalar"
bool is_path(const PathRow& row, Backend backend, const char* name);
bool is_matrix_path(const PathRow& row);  // of Vulkan
bool is_sm80(const PathRow& row);
bool is_sm90(const PathRow& row);

// Whether a tile is of the size that the problem asks for, if it does.
bool forced_size(const Problem& p, const Tile& t);

// Shared memory of a tiled kernel beside its tile's.
uint32_t skip_shared_bytes(const Problem& p, const PathRow& row, Stem stem);

// The tile of kernels without matrices on a path that has them, whatever size the problem asks of the others; nullptr
// if the device has room for none.
const Tile* plain_tile(Problem p, const Caps& caps, const PathRow& row);
void form_plain(const Problem& p, const PathRow& row, const Tile& tile, Launch* launch);

// plan_matrix.cpp: the shape of matrices that a path takes for a problem, m = 0 if the device has none that do; what of a
// problem's element type keeps the matrix paths from it ("" if nothing), and their tiles.
MatrixDims matrix_shape(const Problem& p, const Caps& caps, const PathRow& row);
String matrix_type_refusal(const Problem& p, const Caps& caps, const PathRow& row);
bool choose_matrix_tiles(const Problem& p, const Caps& caps, const PathRow& row,
                         const Refuse& refuse, Form* form);

// plan_sm90.cpp: what of a problem keeps the path cuda.sm90 from it ("" if nothing), and its tiles.
String sm90_refusal(const Problem& p, const Caps& caps);
bool choose_sm90_tiles(const Problem& p, const Caps& caps, const PathRow& row, const Refuse& refuse,
                       Form* form);

// plan_sm80.cpp: the same of the path cuda.sm80.
String sm80_refusal(const Problem& p);
bool choose_sm80_tiles(const Problem& p, const Caps& caps, const PathRow& row, bool fused_q,
                       const Refuse& refuse, Form* form);
// Whether bwd_dkv_dq may run instead of bwd_dkv and bwd_dq: with sums of d_q in any order.
bool sm80_fuses(const Problem& p);
// Then, whether bwd_dkv_dq leaves d_q itself, not sums of it for bwd_dq_cast.
bool sm80_rounds(const Problem& p);

// plan_launches.cpp. fixed: a row of kFixed, -1 for none. fused_q: with bwd_dkv_dq, on cuda.sm80. A launch whose output is
// empty is left out. make_launches() says why it cannot; "" if it can.
Vec<Stem> stems_of(const Problem& p, const Caps& caps, const PathRow& row, int fixed,
                   bool fused_q = false);
String make_launches(const Problem& p, const Caps& caps, const PathRow& row, int fixed,
                     const Form& form, Vec<Launch>* launches, bool fused_q = false);
// Of the ds of a head, where bwd_dkv leaves it for bwd_dq.
int64_t ds_bytes(const Problem& p);

// plan_workspace.cpp.
void lay_out_workspace(Plan* plan);

}  // namespace tandem
#endif
