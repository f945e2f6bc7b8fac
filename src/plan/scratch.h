// SPDX-License-Identifier: MIT OR Apache-2.0
// scratch.inc as C++ values: the arrays of the workspace, and where they lie in a plan's.
#ifndef TANDEM_SRC_PLAN_SCRATCH_H
#define TANDEM_SRC_PLAN_SCRATCH_H
#include <cstddef>
#include <cstdint>

namespace tandem {

enum class Scratch : uint8_t {
#define TANDEM_SCRATCH(name, element, zeroed) name,
#include "scratch.inc"
};
enum class Zeroed : uint8_t { never, first_kernel, bwd_row_sums_dq };

struct ScratchRow {
  const char* name;
  size_t element_size;  // bytes
  Zeroed zeroed;
};
constexpr ScratchRow kScratch[] = {
#define TANDEM_SCRATCH(name, element, zeroed) {#name, sizeof(element), Zeroed::zeroed},
#include "scratch.inc"
};
constexpr int kScratchCount = int(sizeof(kScratch) / sizeof(kScratch[0]));

constexpr bool first_kernel_zeroes_one_range() {
  int ranges = 0;
  for (int n = 0; n < kScratchCount; ++n)
    ranges += kScratch[n].zeroed == Zeroed::first_kernel &&
              (n == 0 || kScratch[n - 1].zeroed != Zeroed::first_kernel);
  return ranges == 1;
}
static_assert(first_kernel_zeroes_one_range(), "rows of scratch.inc that it zeroes stand together");

// Size of an array. A plan may have an array of no elements, whose address it needs.
struct ScratchExtent {
  int64_t elements = -1;  // -1: the plan does not have the array
  int64_t front = 0;      // elements that lie in front of it, indexed downwards
};
struct ScratchExtents {
#define TANDEM_SCRATCH(name, element, zeroed) ScratchExtent name;
#include "scratch.inc"
  uint64_t least_bytes = 0;  // the workspace is at least as large
};

// Where an array lies in the workspace, in bytes.
struct ScratchArray {
  bool present = false;
  uint64_t offset = 0, size = 0;
};
class ScratchLayout {
 public:
  ScratchArray& operator[](Scratch name) { return arrays_[int(name)]; }
  const ScratchArray& operator[](Scratch name) const { return arrays_[int(name)]; }

 private:
  ScratchArray arrays_[kScratchCount];
};

}  // namespace tandem
#endif
