// SPDX-License-Identifier: MIT OR Apache-2.0
// How an execute is cut into slices of bounded work. A slice is a run of workgroups of the plan's
// pieces, in their order, so that all slices in order do what one execute does. A piece is cut
// between any two workgroups on Vulkan (vkCmdDispatchBase) and on CUDA (cuda/kernels.h:
// first_group), but between whole heads in forwards of cuda.sm90. On the CPU there is one slice.
#ifndef TANDEM_SRC_PLAN_SLICES_H
#define TANDEM_SRC_PLAN_SLICES_H
#include "plan.h"

namespace tandem {

class Slicing {
 public:
  Slicing() = default;
  explicit Slicing(const Plan& plan);

  struct Sizes {
    uint64_t count = 0;
    double largest = 0, whole = 0;  // operations of the largest slice, and of all
  };
  // Slices of at most so many operations each, but for a workgroup or a piece that has more.
  Sizes sizes(double most) const;
  // The workgroups of a piece that belong to slice n; false: none do. whole: all of them do.
  struct Range {
    uint32_t from = 0, to = 0;
    bool whole = false;
  };
  bool range(double most, uint64_t n, size_t piece, Range* range) const;

 private:
  struct Work {
    size_t first = 0, last = 0;  // its pieces
    uint32_t groups = 1, run = 1, grain = 1;
    double each = 0;    // operations of the workgroup that has most
    double of_run = 0;  // of any `run` workgroups side by side
    double of(uint32_t n) const;
    uint32_t fit(double room) const;  // most groups within so many operations
  };
  // each(slice, count, work, from, n): work's workgroups from + i n to from + (i + 1) n are slice
  // + i's, i < count.
  template <typename Each>
  void for_each_cut(double most, const Each& each) const;
  Vec<Work> works_;
};

// A slice of an execute, for what records it.
struct Slice {
  const Slicing& slicing;
  double most;
  uint64_t number;
  bool range(size_t piece, Slicing::Range* r) const {
    return slicing.range(most, number, piece, r);
  }
};

// A dispatch of workgroups whose numbers are those of a range, where kernels number a workgroup by
// y times the dispatch's width + x (vkCmdDispatchBase).
struct BaseDispatch {
  uint32_t base_x, base_y, width;
};
// The smallest width of a dispatch that begins at a base: its row, and the one behind it, are at
// most 65,535, which every device has.
inline uint32_t least_width(const Launch& l) { return l.total / 65535 + 1; }
// Calls each(BaseDispatch) for a range of a launch.
template <typename Each>
void for_each_dispatch(const Launch& l, uint32_t from, uint32_t to, const Each& each) {
  if (l.groups_y <= 1) return each(BaseDispatch{from, 0, to - from});
  // A width n begins at row from / n: base_y * n + base_x is from. base_x + n stays within the
  // width of the launch, which the device allows.
  const uint32_t most = l.groups_x / 2, parts = (to - from + most - 1) / most;
  for (uint32_t part = 0; part < parts; ++part) {
    uint32_t n = (to - from) / (parts - part);
    if (n < least_width(l)) n = least_width(l);  // those behind the last do nothing
    each(BaseDispatch{from % n, from / n, n});
    from += n;
  }
}

}  // namespace tandem
#endif
