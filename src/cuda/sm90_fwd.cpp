// SPDX-License-Identifier: MIT OR Apache-2.0
// How the forward kernels for Hopper and pack_bias are recorded.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "sm90_kernel.h"

namespace tandem {
namespace {

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

// What all forward kernels have: they are persistent, and a slice has whole heads.
template <typename ParamsOfKernel>
class AnyFwd : public Sm90Kernel<ParamsOfKernel> {
 public:
  using Sm90Kernel<ParamsOfKernel>::Sm90Kernel;
  Sm90Grid grid() const {
    Sm90Grid grid = sm90_grid(this->launch);
    const int cluster = kFwdTiles[this->choice.row].cluster();
    if (cluster > 1) grid.cluster = unsigned(cluster);
    return grid;
  }
  bool cut(const LaunchOn& on, ParamsOfKernel* params, Sm90Grid* grid) const {
    params->first_head = on.first_group / params->block.tiles;
    params->block.total = on.groups;
    const unsigned workgroups = on.groups * std::max(grid->cluster, 1u);
    grid->groups = dim3(std::min(grid->groups.x, workgroups));
    return true;
  }
};

class FwdBias : public AnyFwd<FwdBiasParams> {
 public:
  using AnyFwd::AnyFwd;
  // Heads are numbered over the batch, so a slice deals them in order.
  bool cut(const LaunchOn& on, Params* params, Sm90Grid* grid) const {
    params->stream_k.batches = 1;
    return AnyFwd::cut(on, params, grid);
  }
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

}  // namespace

TANDEM_RECORDS(FwdParams, AnyFwd<FwdParams>)
TANDEM_RECORDS(FwdOptionalParams, AnyFwd<FwdOptionalParams>)
TANDEM_RECORDS(FwdBiasParams, FwdBias)
TANDEM_RECORDS(cuda::sm90::PackKeepParams, Sm90Kernel<cuda::sm90::PackKeepParams>)
TANDEM_RECORDS(cuda::sm90::PackBiasParams, Sm90Kernel<cuda::sm90::PackBiasParams>)

}  // namespace tandem
