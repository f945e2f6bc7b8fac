// SPDX-License-Identifier: MIT OR Apache-2.0
// What decides beside the planner which row of the registry runs: rows that are switched off, and
// the addresses of an execute.
#ifndef TANDEM_SRC_KERNELS_KERNEL_ROWS_H
#define TANDEM_SRC_KERNELS_KERNEL_ROWS_H
#include <initializer_list>

#include "params.h"

namespace tandem {

// Why a plan cannot run: a row is disabled, or does not take an input; "" if it can.
String kernels_refusal(const Caps& caps, const Plan& plan);

// The SPIR-V of a row of a Vulkan path, as cmake/TandemShaders.cmake names it, and of a launch:
// of its row, or of the row whose rows it computes again.
String row_module(const KernelRow& row, tandem_dtype dtype);
String module_name(const Plan& plan, const Launch& launch);

// Whether a tiled kernel of simt has wide loads at addresses of an execute, which the strides have
// to allow, too. If not, its row with trait::narrow runs.
bool takes_wide(const Plan& plan, const Launch& l, const Addresses& a);

// The rows that an execute runs, in order: a member of each launch, and of a second kernel beside
// it, which a device without room for both leaves out.
Vec<int> kernels_at(const Plan& plan, const Addresses& a);
// The same from the buffers of an execute. On Vulkan addresses have no part in it.
Vec<int> kernels_at(const Plan& plan, const tandem_args& args);

// cuda.sm90: whether TMA can read the inputs. Otherwise Plan::unaligned runs. A bias that pack_bias
// copies, or whose one row is read by ordinary loads, may lie anywhere.
inline bool sm90_takes(const Plan& plan, const Addresses& a) {
  bool mapped = false;
  for (const Launch& l : plan.launches) mapped |= l.has(trait::bias_tiles);
  const uint64_t bias = mapped && !plan.scratch[Scratch::packed_bias].present ? a.bias : 0;
  return (a.q | a.k | a.v | a.d_o | bias) % 16 == 0;
}
// CUDA's bwd_dot, with Launch::fast_total > 0: whether bwd_dot_fast runs.
inline bool takes_fast_dot(const Addresses& a) { return (a.o | a.d_o) % 16 == 0; }

// CUDA without tensor cores: whether a kernel's WIDE instantiation may run (cuda/parts/tile.cuh).
// All inputs have to be wide, features have to be whole quads, and a thread's offset inside a tile
// of at most 256 rows has to be below 4 GiB. wide: the member of the push block.
inline bool wide_inputs(const int (&sizes)[2], std::initializer_list<Strides> inputs,
                        uint32_t wide) {
  if (sizes[0] % 4 != 0 || sizes[1] % 4 != 0) return false;
  if ((~wide & ((1u << inputs.size()) - 1)) != 0) return false;
  for (const Strides& s : inputs)
    if (s.s >= int64_t(1) << 22) return false;
  return true;
}
inline bool wide_inputs(const FwdBlock& b, uint32_t wide) {
  return wide_inputs({b.head_dim, b.head_dim_v}, {b.q, b.k, b.v}, wide);
}
template <typename Block>  // of the kernels that form both products
bool wide_inputs(const Block& b, uint32_t wide) {
  return wide_inputs({b.head_dim, b.head_dim_v}, {b.q, b.k, b.v, b.d_o}, wide);
}
// These have one instantiation. The first and the last two of them have no tensors that could be
// wide.
inline bool wide_inputs(const PlaceEntriesBlock&, uint32_t) { return false; }
inline bool wide_inputs(const ExpandBlocksBlock&, uint32_t) { return false; }
inline bool wide_inputs(const ExpandTableBlock&, uint32_t) { return false; }
inline bool wide_inputs(const ReduceTableBlock&, uint32_t) { return false; }
inline bool wide_inputs(const MaskMapBlock&, uint32_t) { return false; }
inline bool wide_inputs(const FwdCombineBlock&, uint32_t) { return false; }
inline bool wide_inputs(const MergeBlock&, uint32_t) { return false; }
inline bool wide_inputs(const BwdMergeBlock&, uint32_t) { return false; }
inline bool wide_inputs(const BwdDotBlock&, uint32_t) { return false; }
inline bool wide_inputs(const BwdOriginBlock&, uint32_t) { return false; }
inline bool wide_inputs(const BwdSumSplitsBlock&, uint32_t) { return false; }
inline bool wide_inputs(const BwdHeadSumsBlock&, uint32_t) { return false; }
template <typename Push>
uint32_t wide_of(const Push& push) {
  return push.wide;
}
inline uint32_t wide_of(const PlaceEntriesPush&) { return 0; }
inline uint32_t wide_of(const ExpandBlocksPush&) { return 0; }
inline uint32_t wide_of(const ExpandTablePush&) { return 0; }
inline uint32_t wide_of(const ReduceTablePush&) { return 0; }
inline uint32_t wide_of(const MaskMapPush&) { return 0; }
inline uint32_t wide_of(const BwdSumSplitsPush&) { return 0; }
inline uint32_t wide_of(const BwdHeadSumsPush&) { return 0; }

}  // namespace tandem
#endif
