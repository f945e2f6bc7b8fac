// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with a dense bias, and a keep mask of one row for all queries or lengths. Warps of the
// producer warpgroup write which keys of each tile are hidden, for the consumers, and zero V behind
// the last key of a batch entry.
#ifndef TANDEM_CUDA_SM90_FWD_HIDDEN_COLUMNS_CUH
#define TANDEM_CUDA_SM90_FWD_HIDDEN_COLUMNS_CUH
#include "../keep_mask.cuh"
#include "../panels.cuh"
#include "score_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Zeroes the rows of V behind the last key of a batch entry, by one warp: their weights are 0, but
// 0 times infinity or NaN is not. Of a work tile only the key tile that it visits first has these
// rows.
template <typename S>
struct VEnds {
  const FwdSharedStorage<S>& shared;
  PipelineState<S::STAGES, kCounted> v;  // V of the first key tile of the present work tile
  uint phases = 0;                       // of the mbarriers v_landed(): a bit for each stage
  TANDEM_DEVICE explicit VEnds(const FwdSharedStorage<S>& s) : shared(s) {}
  // keys: how many of the tile belong to the entry. All of them do if there are S::N or more.
  TANDEM_DEVICE void clear(int keys) {
    if (keys >= S::N) return;
    const int stage = v.stage();
    mbarrier_wait(shared.v_landed(stage), int(phases >> stage & 1));
    phases ^= 1u << stage;
    clear_rows<S::DV_PANELS, S::N>(shared.v(stage), keys);
    fence_proxy_async_shared();
    __syncwarp();
    if (read_tid_x() % 32 == 0) mbarrier_arrive(shared.v_full(stage));
  }
};

// The warp that writes the words of a warpgroup; that of the first one also zeroes rows of V. It
// takes the work tiles of the descriptors that the producer thread writes, and releases each
// descriptor as a consumer does. Without a mask of one row (has_hidden_columns()) it has nothing to
// write, and tiles of the bias arrive where consumers wait for them.
//
// The producer loads V of a key tile behind K of the next one and before the bias of that one, so
// the warp waits for them in this order.
template <typename S>
TANDEM_DEVICE void produce_hidden_columns(const FwdBiasParams& params,
                                          const FwdSharedStorage<S>& shared, int warpgroup) {
  const FwdBlock& u = params.block;
  const Strides& strides = params.extra.keep;
  PipelineState<S::Q_STAGES, kCounted> tile;
  PipelineState<S::BIAS_STAGES, kCounted> pipe;
  VEnds<S> v_ends(shared);
  const auto arrive = [](uint barrier) {
    __syncwarp();
    if (read_tid_x() % 32 == 0) mbarrier_arrive(barrier);
  };
#pragma unroll 1
  for (;; tile.next()) {
    mbarrier_wait(shared.q_full(tile.stage()), tile.phase());
    const int4 span = ld_shared_v4_s32(shared.bias_descriptor(tile.n));
    const int warpgroups = ld_shared_v4_s32(shared.bias_descriptor(tile.n) + 16).x;
    const int steps = span.y - span.x;
    int keys = S::N;
    if constexpr (S::ENDS) {
      const int seq_kv = ld_shared_v4_s32(shared.bias_entry(tile.n)).y;
      if (warpgroup == 0 && steps > 0 && v_ends_early<S>(u, span.y, seq_kv))
        keys = seq_kv - (span.y - 1) * S::N;
    }
    arrive(shared.q_empty(tile.stage()));
    if (warpgroups == 0) return;
    if (warpgroup >= warpgroups || !has_hidden_columns<S>(params)) {
      v_ends.clear(keys);
      v_ends.v.n += steps;
      continue;
    }
#pragma unroll 1
    for (int t = span.y - 1; t >= span.x; --t, pipe.next()) {
      // Read again at each step, as registers are short. No consumer is done with the tile, so the
      // producer is at most two tiles ahead.
      const int4 at = ld_shared_v4_s32(shared.bias_descriptor(tile.n) + 16);
      const KeepRows mask{
          reinterpret_cast<const char*>(params.push.extra[params.features.AT_KEEP]) +
              group_of(at.z, params.extra.keep_entries) * strides.b +
              at.w / params.extra.keep_group * strides.h + t * S::N * strides.d,
          0, strides.d, u.seq_kv - t * S::N};
      const uint4 hidden = hidden_columns<S::N>(mask);
      mbarrier_wait(shared.bias_landed(warpgroup, pipe.stage()), pipe.phase());
      if (read_tid_x() % 32 == 0)
        st_shared(shared.hidden_columns(warpgroup, pipe.stage()), int(hidden.x), int(hidden.y),
                  int(hidden.z), int(hidden.w));
      arrive(shared.bias_full(warpgroup, pipe.stage()));
      if (t == span.y - 1) v_ends.clear(keys);
    }
    v_ends.v.n += steps;
  }
}

// Roles (kernel.cuh) of the variants with a mask. Score is their score policy.
template <template <typename, typename, typename> class Score>
struct MaskedBiasRoles {
  static constexpr bool kDependentLaunch = false;  // produce_bias() does this later
  template <typename S>
  static TANDEM_DEVICE void init(const FwdSharedStorage<S>&) {}
  template <typename S>
  static TANDEM_DEVICE void produce(const FwdBiasParams& params,
                                    const FwdSharedStorage<S>& shared) {
    static_assert(S::WARPGROUPS <= 3, "a warp each, beside the producer thread's");
    const int warp = __shfl_sync(kAllLanes, read_tid_x() / 32, 0);
    if (read_tid_x() == 0)
      produce_bias<S>(params, shared);
    else if (1 <= warp && warp <= S::WARPGROUPS) {
      grid_dependency_wait();  // a kernel before may have written the mask
      produce_hidden_columns<S>(params, shared, warp - 1);
    }
  }
  template <typename T, typename S>
  static TANDEM_DEVICE void consume(const FwdBiasParams& params,
                                    const FwdSharedStorage<S>& shared) {
    main_loop_ping_pong<Score<T, S, FwdBiasParams>, T>(params, shared);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
