// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with a dense bias of f32, with or without a keep mask, and as a kernel of its own
// with lengths. The producer thread and the main loop are those of a bias of 16 bits
// (score_bias.cuh). Tiles of the bias take twice the room, so the kernel has tiles of its own, of
// two warpgroups. These leave registers for a mask of any kind (hidden_columns.cuh).
#include "hidden_columns.cuh"
#include "kernel.cuh"
#include "score_f32_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <>
struct FwdRoles<FwdVariant::bias_f32> : MaskedBiasRoles<F32BiasScore> {
  static constexpr bool has_tile(const FwdTile& t) { return t.f32_bias; }
};

template <>
struct FwdRoles<FwdVariant::bias_f32_lengths> : FwdRoles<FwdVariant::bias_f32> {};

}  // namespace

Kernel<FwdBiasParams> fwd_f32_bias_kernel(tandem_dtype dtype, const char* tile, bool lengths) {
  return lengths ? select_kernel<FwdVariant::bias_f32_lengths, FwdBiasParams>(dtype, tile)
                 : select_kernel<FwdVariant::bias_f32, FwdBiasParams>(dtype, tile);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
