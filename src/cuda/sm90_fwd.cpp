// SPDX-License-Identifier: MIT OR Apache-2.0
// Table of the forward kernels for Hopper, as the host launches them, and of pack_bias.
#include <atomic>
#include <chrono>
#include <iterator>

#include "../../cuda/sm90/fwd/kernels.h"
#include "../../cuda/sm90/pack_bias.h"
#include "sm90_kernel.h"

namespace tandem {
namespace {

using cuda::Kernel;
using cuda::sm90::FwdBiasParams;
using cuda::sm90::FwdOptionalParams;
using cuda::sm90::FwdParams;

// An even number that no other execute gets, by which workgroups recognise their flags in a
// workspace that is not zeroed. Its first bits are 01, which flags full of zeros or of ones do not
// have. The others start at an arbitrary value, so other garbage, also that of another process,
// matches with a probability of 2^-62. A replay of a graph has the number that was recorded, so
// workgroups put zeros in place of their flags (cuda/sm90/fwd/stream_k.cuh).
uint64_t unique_number() {
  static std::atomic<uint64_t> next{[] {
    const auto now = [](auto clock) { return uint64_t(clock.now().time_since_epoch().count()); };
    uint64_t x = now(std::chrono::system_clock()) ^ now(std::chrono::steady_clock()) << 32 ^
                 uint64_t(reinterpret_cast<uintptr_t>(&next));
    for (uint64_t factor : {0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu})
      x = (x ^ x >> 30) * factor, x ^= x >> 27;
    return x;
  }()};
  return (next.fetch_add(2, std::memory_order_relaxed) & ~uint64_t(0) >> 2 & ~uint64_t(1)) |
         uint64_t(1) << 62;
}

class FwdPlain : public Sm90Kernel<FwdParams> {
 public:
  using Sm90Kernel::Sm90Kernel;
  Kernel<Params> kernel() const { return cuda::sm90::fwd_kernel(problem.dtype, launch.tile.name); }
};

template <Kernel<FwdOptionalParams> (*select)(tandem_dtype, const char* tile)>
class FwdOptional : public Sm90Kernel<FwdOptionalParams> {
 public:
  using Sm90Kernel::Sm90Kernel;
  Kernel<Params> kernel() const { return select(problem.dtype, launch.tile.name); }
};

// The selectors of FwdBias.
Kernel<FwdBiasParams> scaled_bias_kernel(tandem_dtype, const char* tile) {  // of bf16 alone
  return cuda::sm90::fwd_scaled_bias_kernel(tile);
}
template <bool LENGTHS>
Kernel<FwdBiasParams> bias_keep_kernel(tandem_dtype dtype, const char* tile) {
  return cuda::sm90::fwd_bias_keep_kernel(dtype, tile, LENGTHS);
}
template <bool LENGTHS>
Kernel<FwdBiasParams> f32_bias_kernel(tandem_dtype dtype, const char* tile) {
  return cuda::sm90::fwd_f32_bias_kernel(dtype, tile, LENGTHS);
}

template <Kernel<FwdBiasParams> (*select)(tandem_dtype, const char* tile)>
class FwdBias : public Sm90Kernel<FwdBiasParams> {
 public:
  using Sm90Kernel::Sm90Kernel;
  Kernel<Params> kernel() const { return select(problem.dtype, launch.tile.name); }
  void set_fixed(Params* params) const {
    Sm90Kernel::set_fixed(params);
    const int steps = int((problem.seq_kv + launch.tile.bc - 1) / launch.tile.bc);
    cuda::sm90::FwdStreamKParams& stream_k = params->stream_k;
    stream_k.units = choice.stream_k_units, stream_k.unit = choice.stream_k_unit;
    stream_k.short_tiles = choice.short_tiles;
    stream_k.shares = fwd_stream_k_shares(stream_k, steps, int(launch.groups_x));
    stream_k.batches = int(problem.batch);
    params->bias_row_step = bias_row_step(problem);
  }
  void set_addresses(const Addresses& a, Params* params) const {
    Sm90Kernel::set_addresses(a, params);
    params->stream_k.partials = a.stream_k_partials;
    params->stream_k.flags = a.stream_k_flags;
    params->stream_k.number = unique_number();
  }
};

// Before fwd and before bwd_dkv_dq.
class PackBias : public Sm90Kernel<cuda::sm90::PackBiasParams> {
 public:
  using Sm90Kernel::Sm90Kernel;
  Kernel<Params> kernel() const {
    return cuda::sm90::pack_bias_kernel(launch.has(trait::f32_bias));
  }
};

constexpr Sm90Row kRows[] = {
    {KernelId::cuda_sm90_pack_bias_only, record_sm90<PackBias>},
    {KernelId::cuda_sm90_pack_bias_f32, record_sm90<PackBias>},
    {KernelId::cuda_sm90_fwd_plain, record_sm90<FwdPlain>},
    {KernelId::cuda_sm90_fwd_decoupled, record_sm90<FwdPlain>},
    {KernelId::cuda_sm90_fwd_wide_heads, record_sm90<FwdPlain>},
    {KernelId::cuda_sm90_fwd_bias, record_sm90<FwdBias<cuda::sm90::fwd_bias_kernel>>},
    {KernelId::cuda_sm90_fwd_bias_192_rows, record_sm90<FwdBias<cuda::sm90::fwd_bias_kernel>>},
    {KernelId::cuda_sm90_fwd_scaled_bias, record_sm90<FwdBias<scaled_bias_kernel>>},
    {KernelId::cuda_sm90_fwd_bias_keep, record_sm90<FwdBias<bias_keep_kernel<false>>>},
    {KernelId::cuda_sm90_fwd_bias_lengths, record_sm90<FwdBias<bias_keep_kernel<true>>>},
    {KernelId::cuda_sm90_fwd_bias_f32, record_sm90<FwdBias<f32_bias_kernel<false>>>},
    {KernelId::cuda_sm90_fwd_bias_f32_lengths, record_sm90<FwdBias<f32_bias_kernel<true>>>},
    {KernelId::cuda_sm90_fwd_row_bias, record_sm90<FwdOptional<cuda::sm90::fwd_row_bias_kernel>>},
    {KernelId::cuda_sm90_fwd_varlen, record_sm90<FwdOptional<cuda::sm90::fwd_varlen_kernel>>},
    {KernelId::cuda_sm90_fwd_softcap_alibi,
     record_sm90<FwdOptional<cuda::sm90::fwd_softcap_alibi_kernel>>},
    {KernelId::cuda_sm90_fwd_masked, record_sm90<FwdOptional<cuda::sm90::fwd_masked_kernel>>},
    {KernelId::cuda_sm90_fwd_elastic, record_sm90<FwdOptional<cuda::sm90::fwd_elastic_kernel>>},
    {KernelId::cuda_sm90_fwd_elastic_decoupled,
     record_sm90<FwdOptional<cuda::sm90::fwd_elastic_kernel>>},
    {KernelId::cuda_sm90_fwd_entmax, record_sm90<FwdOptional<cuda::sm90::fwd_entmax_kernel>>},
    {KernelId::cuda_sm90_fwd_entmax_any,
     record_sm90<FwdOptional<cuda::sm90::fwd_entmax_any_kernel>>},
};

}  // namespace

Sm90Rows sm90_fwd_rows() { return {std::begin(kRows), std::end(kRows)}; }

}  // namespace tandem
