// SPDX-License-Identifier: MIT OR Apache-2.0
// What the files of the planner share. plan.cpp tries the paths and chooses tiles without matrices.
// plan_matrix.cpp chooses tiles of the matrix paths, plan_sm80.cpp and plan_sm90.cpp those of
// cuda.sm80 and cuda.sm90. plan_launches.cpp makes launches of the choice.
#ifndef TANDEM_SRC_PLANNER_H
#define TANDEM_SRC_PLANNER_H

#include "plan.h"

namespace tandem {

// Records a refused candidate and the reason. It always returns false, so that callers can return
// it.
using Refuse = Function<bool(const String& who, const String& why)>;
// Sets a tiled kernel's tile, and what follows from it.
using Form = Function<void(Launch* launch)>;

constexpr const char* kDisabled = "disabled by TANDEM_DISABLE or the device's options";
bool is_disabled(const Caps& caps, const String& name);

String candidate(const PathRow& row);  // "vulkan.scalar"
bool is_path(const PathRow& row, Backend backend, const char* name);
bool is_matrix_path(const PathRow& row);  // coopmat or coopmat2, of Vulkan
bool is_sm80(const PathRow& row);
bool is_sm90(const PathRow& row);

// Whether the problem forces no tile size, or the size of this tile.
bool forced_size(const Problem& p, const Tile& t);

// Bytes of shared memory that a tiled kernel needs besides its tile.
uint32_t skip_shared_bytes(const Problem& p, const PathRow& row, Stem stem);

// The tile for kernels without matrices on a path that has matrices. A tile size that the problem
// forces does not apply to it. nullptr: the device has room for no tile.
const Tile* plain_tile(Problem p, const Caps& caps, const PathRow& row);
void form_plain(const Problem& p, const PathRow& row, const Tile& tile, Launch* launch);

// plan_matrix.cpp. matrix_shape(): the shape of matrices that a path takes for a problem; m = 0:
// the device has none that fits. matrix_type_refusal(): why the matrix paths do not take the
// problem's element type; "" if they do.
MatrixDims matrix_shape(const Problem& p, const Caps& caps, const PathRow& row);
String matrix_type_refusal(const Problem& p, const Caps& caps, const PathRow& row);
bool choose_matrix_tiles(const Problem& p, const Caps& caps, const PathRow& row,
                         const Refuse& refuse, Form* form);

// plan_sm90.cpp. sm90_refusal(): why the path cuda.sm90 does not take a problem; "" if it does.
String sm90_refusal(const Problem& p, const Caps& caps);
bool choose_sm90_tiles(const Problem& p, const Caps& caps, const PathRow& row, const Refuse& refuse,
                       Form* form);

// plan_sm80.cpp: the same for the path cuda.sm80.
String sm80_refusal(const Problem& p);
bool choose_sm80_tiles(const Problem& p, const Caps& caps, const PathRow& row, bool fused_q,
                       const Refuse& refuse, Form* form);
// Whether bwd_dkv_dq may replace bwd_dkv and bwd_dq, which adds to dQ in no fixed order.
bool sm80_fuses(const Problem& p);
// Whether that bwd_dkv_dq stores d_q itself, so that there is no bwd_dq_cast.
bool sm80_rounds(const Problem& p);

// plan_launches.cpp. fixed: a row of kFixed, -1 for none. fused_q: with bwd_dkv_dq, on cuda.sm80. A
// launch whose output is empty is left out. make_launches() returns why it cannot make them; "" if
// it can.
Vec<Stem> stems_of(const Problem& p, const Caps& caps, const PathRow& row, int fixed,
                   bool fused_q = false);
String make_launches(const Problem& p, const Caps& caps, const PathRow& row, int fixed,
                     const Form& form, Vec<Launch>* launches, bool fused_q = false);
// Bytes of the dS of a head, where bwd_dkv leaves it for bwd_dq.
int64_t ds_bytes(const Problem& p);

// plan_workspace.cpp.
void lay_out_workspace(Plan* plan);

}  // namespace tandem
#endif
