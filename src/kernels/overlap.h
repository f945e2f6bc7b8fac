// SPDX-License-Identifier: MIT OR Apache-2.0
// Whether the buffers of an execute share memory that they may not share. Outputs may interleave
// with other tensors, so it is elements that are compared, not ranges.
#ifndef TANDEM_SRC_KERNELS_OVERLAP_H
#define TANDEM_SRC_KERNELS_OVERLAP_H
#include <array>
#include <cstdint>

#include "args.h"

namespace tandem {

// The bytes of a tensor's elements, relative to its address: runs of `run` bytes, repeated along
// `dims` dimensions whose strides, in bytes, go up. run = 0: it has no element.
struct Footprint {
  struct Dim {
    uint64_t stride, count;
  };
  uint64_t run = 0;
  uint64_t extent = 0;  // up to the end of the last run
  int dims = 0;
  std::array<Dim, 4> dim{};
};

// strides: in elements. Dimensions that leave no gap are joined, those that repeat are dropped.
Footprint footprint(uint64_t element_size, const std::array<int64_t, 4>& size,
                    const std::array<int64_t, 4>& stride);

// Whether a at address at_a and b at address at_b have a byte in common. Exact but for pairs with
// many dimensions of unequal strides, where the search gives up and answers no.
bool share_memory(const Footprint& a, uint64_t at_a, const Footprint& b, uint64_t at_b);

// The check of one plan's executes: no output, nor the workspace, shares an element with another
// tensor.
class OverlapCheck {
 public:
  OverlapCheck() = default;
  explicit OverlapCheck(const Plan& plan);

  // at(name, buffer, address) returns the address of a buffer, all in one space; 0: not given. The
  // arguments are members of ArgUse.
  template <typename At>
  Status check(At&& at) const {
    std::array<uint64_t, kArgCount> addresses;
    for (int n = 0; n < count_; ++n) addresses[size_t(n)] = at(args_[size_t(n)]);
    return compare(addresses);
  }

  struct Arg {
    const char* name;
    tandem_buffer tandem_args::*buffer;
    uint64_t Addresses::*address;
    Footprint footprint;
  };

 private:
  Status compare(const std::array<uint64_t, kArgCount>& at) const;

  // What the plan accesses; first the outputs and the workspace.
  std::array<Arg, kArgCount> args_{};
  int count_ = 0, outputs_ = 0;
};

}  // namespace tandem
#endif
