// SPDX-License-Identifier: MIT OR Apache-2.0
// Score policy of softmax without optional inputs: the scale and the band.
#ifndef TANDEM_CUDA_SM90_FWD_SCORE_PLAIN_CUH
#define TANDEM_CUDA_SM90_FWD_SCORE_PLAIN_CUH
#include "epilogue.cuh"
#include "main_loop_ping_pong.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

template <typename T, typename S, typename Params>
struct PlainScore : ScorePolicy<T, S> {
  using ScorePolicy<T, S>::c;
  using Tile = FwdWorkTile;
  const Params& params;
  const float scale;
  StaticTileScheduler<S> scheduler;
  TANDEM_DEVICE PlainScore(const Params& p, FwdConsumer<T, S>& consumer,
                           const typename ScorePolicy<T, S>::Held&)
      : ScorePolicy<T, S>(consumer), params(p), scale(step_scale(p.block)), scheduler(p) {}

  TANDEM_DEVICE bool next(Tile* to) {
    return next_visible_tile(scheduler, to, [&](const FwdWorkTile& unseen) {
      store_unseen_rows<S>(params.block, params.push, unseen);
    });
  }
  TANDEM_DEVICE void begin_tile(const Tile&) {
    c.wait_q();
    c.kv.wait_k();
  }
  TANDEM_DEVICE int first_step(const Tile& at) const { return at.span.end - 1; }
  TANDEM_DEVICE bool begin_step(const Tile& at, int t) {
    if (t < at.span.begin) return false;
    c.kv.wait_k();
    return true;
  }
  TANDEM_DEVICE void score(const Tile& at, int t) {
    const FwdBlock& u = params.block;
    scale_products(c.s, u);
    if (t < at.span.full_begin || t >= at.span.full_end)
      mask_tile<S::N>(c.s, scheduler.band(), at.row0 + accumulator_row(),
                      t * S::N + accumulator_col(), u.seq_kv, -INFINITY);
  }
  TANDEM_DEVICE int rows_left(const Tile& at) const {
    return params.block.seq_q - at.row0 - accumulator_row();
  }
  TANDEM_DEVICE void raise_max(const Tile& at) const {
    const FwdBlock& u = params.block;
    raise_max_logit(u, params.push, c.softmax, product_unit(u), [&] {
      return BatchHead{batch_of(u, at), head_of(u, at)};
    });
  }
  TANDEM_DEVICE void store(const Tile& at) {
    float lse[2], inverse[2];
    end_rows(c.softmax, params.block, lse, inverse, [](float l) { return __frcp_rn(l); });
    store_lse(params.block, params.push, at, lse);
    store_rows<T, S::DV>(c.o, inverse, params.push.o, params.block, at);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
