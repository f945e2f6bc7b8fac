// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with a dense bias, heads over 64: three consumer warpgroups with steps of 128 keys, so that
// each load of K and V serves 192 rows. A warpgroup has registers for S and o and nothing else, so
// its products and its weights follow each other. While it computes weights, the tensor cores have
// the products of the two others. As in main_loop_wide_heads.cuh, each warpgroup has a part of the
// stage of Q to itself, and the work-tile descriptor of a tile is published with its first keys.
#ifndef TANDEM_CUDA_SM90_FWD_MAIN_LOOP_BIAS_192_ROWS_CUH
#define TANDEM_CUDA_SM90_FWD_MAIN_LOOP_BIAS_192_ROWS_CUH
#include "score_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The producer thread. Descriptors are those of produce_bias(), of tiles that see keys. A warp that
// reads a descriptor holds keys of its tile or of the tile before, so the producer is at most
// STAGES tiles ahead.
template <typename S, typename Params>
TANDEM_DEVICE void produce_bias_192(const Params& params, const FwdSharedStorage<S>& shared) {
  static_assert(S::STAGES + 1 < kBiasDescriptors && S::BIAS_STAGES == 1,
                "how long a work-tile descriptor stays");
  const FwdBlock& u = params.block;
  StaticTileScheduler<S> scheduler(params);
  TmaProducer<S, Params> producer(params, shared);
  uint described = 0;
  const auto publish = [&](const FwdWorkTile& at, int warpgroups, int batch, int head) {
    producer.wait_k();
    const uint descriptor = shared.bias_descriptor(described++);
    st_shared(descriptor, at.span.begin, at.span.end, at.span.full_begin, at.span.full_end);
    st_shared(descriptor + 16, warpgroups, at.row0, batch, head);
  };
  // Tiles and steps that each warpgroup has had.
  PipelineState<1, kCounted> q_pipe[S::WARPGROUPS], bias_pipe[S::WARPGROUPS];
  // V is loaded one step behind K here, too: a warpgroup waits for the next tile, whose descriptor
  // comes with keys, while it still holds the last V of this one.
  FwdWorkTile to;
  const auto find = [&] { return next_visible_tile(scheduler, &to); };
  bool more = find();
  launch_dependent_grids();  // as in produce_bias()
  grid_dependency_wait();
  while (more) {
    const FwdWorkTile at = to;
    const int warpgroups = min(S::WARPGROUPS, (u.seq_q - at.row0 + 63) / 64);
    const int batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q,
              kv_head = head / u.group, bias_head = head / params.extra.bias_group,
              bias_batch = params.extra.bias.b ? group_of(batch, params.extra.bias_entries) : 0;
    publish(at, warpgroups, batch, head);
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      producer.kv(t, kv_head, batch);
#pragma unroll
      for (int n = 0; n < S::WARPGROUPS; ++n) {
        if (n >= warpgroups) break;
        const int row0 = at.row0 + 64 * n;
        if (t == at.span.end - 1) {
          mbarrier_wait(shared.q_empty(n), q_pipe[n].take() ^ 1);
          tma_load_rows<S::D_PANELS>(shared.q(0) + uint(64 * n * kPanelBytes), &params.q,
                                     shared.q_full(n), 64, S::M, row0, head, batch);
        }
        mbarrier_wait(shared.bias_empty(n, 0), bias_pipe[n].take() ^ 1);
        producer.bias_rows(n, 0, t, row0, bias_head, bias_batch);
      }
      if (t == at.span.end - 1) more = find();
    }
  }
  producer.last_v();
  publish(FwdWorkTile{}, 0, 0, 0);
  mbarrier_arrive(shared.k_full(producer.k_pipe.stage()));
}

// Turns products into scores: times the scale, plus the bias. The first two parts of a bias tile
// are loaded at once, each later part when another has been added.
template <typename T, int N>
TANDEM_DEVICE void add_bias(float (&s)[N / 2], uint at, float scale) {
  uint r[2][4];
#pragma unroll
  for (int n = 0; n < 2; ++n) load_bias<N>(r[n], at, n);
#pragma unroll
  for (int n = 0; n < N / 16; ++n) {
    float* to = s + 8 * bias_keys<N>(n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint x = r[n % 2][i];
      to[2 * i] = fmaf(to[2 * i], scale, T::low(x));
      to[2 * i + 1] = fmaf(to[2 * i + 1], scale, T::high(x));
    }
    if (n + 2 < N / 16) load_bias<N>(r[n % 2], at, n + 2);
  }
}

template <typename T, typename S, typename Params>
TANDEM_DEVICE void main_loop_bias_192(const Params& params, const FwdSharedStorage<S>& shared) {
  constexpr int N = S::N;
  static_assert(S::PING_PONG, "else all would compute weights at the same time");
  const FwdBlock& u = params.block;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const uint64_t q_at = k_major(shared.q(0) + uint(warpgroup * 64 * kPanelBytes));
  const uint64_t k_at = k_major(shared.k(0)), v_at = mn_major(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  uint tile = 0;
  PipelineState<1, kCounted> q_pipe, bias_pipe;
  KvPipeline<S> kv(shared);
  const auto product_s = [&] { gemm_qk<T, S>(s, q_at, advance(k_at, kv.k.stage() * S::K_BYTES)); };
  const auto product_o = [&] { gemm_pv<T, S>(o, p, advance(v_at, kv.v.stage() * S::V_BYTES)); };
  const auto release_q = [&] {
    if (kv.elected) mbarrier_arrive(shared.q_empty(warpgroup));
    q_pipe.next();
  };
  // Called after a vote on S, for the reason that BiasScore gives.
  const auto release_bias = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.bias_empty(warpgroup, 0));
    bias_pipe.next();
  };
  const auto score = [&](const TandemTiles& at, int t) {
    const uint part = bias_part();
    mbarrier_wait(shared.bias_full(warpgroup, 0), bias_pipe.phase());
    add_bias<T, N>(s, shared.bias(warpgroup, 0) + part, u.scale);
    if (t < at.full_begin || t >= at.full_end)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, u.band_off},
                   bias_work_tile(shared, tile).row0 + accumulator_row(), t * N + accumulator_col(),
                   u.seq_kv, -INFINITY);
  };
  Softmax<N> softmax(wants_largest(params.push));
  const auto rows_left = [&] {
    return u.seq_q - bias_work_tile(shared, tile).row0 - accumulator_row();
  };
  const auto step = [&] {
    float factor[2];
    if (softmax.step(s, kLog2e, u.slack, factor, rows_left, release_bias)) rescale_rows(o, factor);
    pack_tile<T, N>(p, s);
  };

  TandemTiles at;
  // Reads the descriptor of the next tile. Returns how many warpgroups have rows in it. 0: there is
  // no further tile.
  const auto look_up = [&] {
    kv.wait_k();
    const uint descriptor = shared.bias_descriptor(tile);
    const int4 span = ld_shared_v4_s32(descriptor);
    at.begin = same(span.x), at.end = same(span.y);
    at.full_begin = same(span.z), at.full_end = same(span.w);
    return same(ld_shared_v4_s32(descriptor + 16).x);
  };
  // Synchronises the warpgroup before it releases a stage that it has not multiplied: a warp that
  // lags behind would wait for a phase that is long over.
  const auto sync_warpgroup = [&] { named_barrier_sync(warpgroup_barrier<S>(warpgroup), 128); };
  // Advances to a tile in which this warpgroup has rows. It releases the stages of the tiles
  // before, and passes its turns of the ping-pong on. Returns whether there is one.
  const auto next_tile = [&](int warpgroups) {
    while (__any_sync(kAllLanes, warpgroups > 0 && warpgroup >= warpgroups)) {
#pragma unroll 1
      for (int t = at.begin; t < at.end; ++t) {
        kv.wait_k();
        ping_pong_wait<S>(warpgroup);
        ping_pong_pass<S>(warpgroup);
        kv.release_k();
        kv.wait_v();
        sync_warpgroup();
        kv.release_v();
      }
      ++tile;
      warpgroups = look_up();
    }
    return bool(__any_sync(kAllLanes, warpgroups > 0));
  };
  const auto first_product = [&] {
    mbarrier_wait(shared.q_full(warpgroup), q_pipe.phase());
    ping_pong_wait<S>(warpgroup);
    product_s();
    ping_pong_pass<S>(warpgroup);
  };

  grid_dependency_wait();
  if (warpgroup == S::WARPGROUPS - 1) ping_pong_pass<S>(warpgroup);
  if (!next_tile(look_up())) return;
  first_product();
  for (;;) {
    clear(o);
    softmax = Softmax<N>(wants_largest(params.push));
#pragma unroll 1
    for (int t = at.end - 1;; --t) {
      wgmma_wait_group<0>();
      kv.release_k();
      if (t == at.begin) release_q();
      score(at, t);
      step();
      if (t == at.begin) break;
      // P V, then S of the next keys, which reuses the registers of P.
      kv.wait_k();
      kv.wait_v();
      ping_pong_wait<S>(warpgroup);
      product_o();
      wgmma_wait_group<0>();
      product_s();
      ping_pong_pass<S>(warpgroup);
      kv.release_v();
    }
    const uint done = tile++;
    const BiasWorkTile of = same_work_tile(bias_work_tile(shared, done));
    raise_max_logit(u, params.push, softmax, 1.f, [&] { return BatchHead{of.batch, of.head}; });
    const int warpgroups = look_up();
    // S of the next tile waits until o is stored. In flight meanwhile it made every step slower, as
    // its registers and the descriptors of the products no longer all fit (4 %, H100 80GB HBM3,
    // 580.159.04).
    kv.wait_v();
    sync_warpgroup();
    product_o();
    wgmma_wait_group<0>();
    kv.release_v();
    store_combined<T, S>(params, done, of, o, softmax, 1.f);
    if (!next_tile(warpgroups)) return;
    first_product();
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
