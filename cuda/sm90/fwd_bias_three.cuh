// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with a dense bias, heads over 64: three warpgroups with steps of 128 keys, so that keys and values are copied for 192 rows. S
// and o are all that one has registers for: its products and its weights follow each other, and while it computes weights the
// tensor cores have the products of the two others. As in fwd_wide.cuh, each has a place for q to itself, and a notice of each
// tile comes with its first keys.
#ifndef TANDEM_CUDA_SM90_FWD_BIAS_THREE_CUH
#define TANDEM_CUDA_SM90_FWD_BIAS_THREE_CUH
#include "fwd_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Notices as produce_bias() leaves them, of tiles with keys to see. Whoever reads one holds keys of its tile, or of the one before, so the
// copying thread is at most STAGES tiles further.
template <typename S, typename Params>
TANDEM_DEVICE void produce_three(const Params& params, const Shared<S>& shared) {
  static_assert(S::STAGES + 1 < kBiasNotices && S::BIAS_STAGES == 1, "how long a notice stays");
  const FwdBlock& u = params.block;
  Rounds<S> rounds(params);
  Copier<S, Params> copy(params, shared);
  uint told = 0;
  const auto tell = [&](const FwdPlace& at, int groups, int batch, int head) {
    copy.wait_k();
    const uint notice = shared.bias_notice(told++);
    put_shared(notice, at.span.begin, at.span.end, at.span.full_begin, at.span.full_end);
    put_shared(notice + 16, groups, at.row0, batch, head);
  };
  uint q_n[S::GROUPS], bias_n[S::GROUPS];  // how many tiles and steps each warpgroup has had
#pragma unroll
  for (int n = 0; n < S::GROUPS; ++n) q_n[n] = bias_n[n] = 0;
  // v lags behind k by a step: a warpgroup looks for the next tile, whose notice comes with keys, while it holds the last values of
  // this one.
  int t = -1, kv_head = 0, kv_batch = 0;
  FwdPlace to;
  const auto find = [&] { return rounds.next(&to, [](const FwdPlace&) {}); };
  bool more = find();
  launch_dependents();  // as in produce_bias()
  wait_kernel_before();
  while (more) {
    const FwdPlace at = to;
    const int groups = min(S::GROUPS, (u.seq_q - at.row0 + 63) / 64);
    const int batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q,
              of_head = head / u.group, bias_head = head / params.extra.bias_group,
              bias_batch = params.extra.bias.b ? batch : 0;
    tell(at, groups, batch, head);
    for (int next = at.span.end - 1; next >= at.span.begin; --next) {
      copy.k(next, of_head, batch);
      if (t >= 0) copy.v(t, kv_head, kv_batch);
      t = next, kv_head = of_head, kv_batch = batch;
#pragma unroll
      for (int n = 0; n < S::GROUPS; ++n) {
        if (n >= groups) break;
        const int row0 = at.row0 + 64 * n;
        if (next == at.span.end - 1) {
          barrier_wait(shared.q_empty(n), int(q_n[n]++ % 2) ^ 1);
          copy_rows<S::D_PANELS>(shared.q(0) + uint(64 * n * kPanelBytes), &params.q,
                                 shared.q_full(n), 64, S::M, row0, head, batch);
        }
        barrier_wait(shared.bias_empty(n, 0), int(bias_n[n]++ % 2) ^ 1);
        copy.bias_rows(n, 0, next, row0, bias_head, bias_batch);
      }
      if (next == at.span.end - 1) more = find();
    }
  }
  if (t >= 0) copy.v(t, kv_head, kv_batch);
  tell(FwdPlace{}, 0, 0, 0);
  barrier_arrive(shared.k_full(copy.k_step.stage()));
}

// Products times the scale plus the bias, scores. The first two parts of a tile of the bias come
// before products are there, each later one when one has been added.
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
TANDEM_DEVICE void consume_three(const Params& params, const Shared<S>& shared) {
  constexpr int N = S::N;
  static_assert(S::TURNS, "else all would compute weights at the same time");
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const uint64_t q_at = along(shared.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(shared.k(0)), v_at = across(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  uint tile = 0, q_n = 0, bias_n = 0;
  KvPlaces<S> kv(shared);
  const auto product_s = [&] {
    product_along<T, S>(s, q_at, further(k_at, kv.k.stage() * S::K_BYTES));
  };
  const auto product_o = [&] {
    product_across<T, S>(o, p, further(v_at, kv.v.stage() * S::V_BYTES));
  };
  const auto release_q = [&] {
    if (kv.speaks) barrier_arrive(shared.q_empty(group));
    ++q_n;
  };
  // Behind a vote on S, as in consume_bias().
  const auto release_bias = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.bias_empty(group, 0));
    ++bias_n;
  };
  const auto score = [&](const TandemTiles& at, int t) {
    const uint part = bias_part();
    barrier_wait(shared.bias_full(group, 0), int(bias_n % 2));
    add_bias<T, N>(s, shared.bias(group, 0) + part, u.scale);
    if (t < at.full_begin || t >= at.full_end)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, u.band_off},
                   bias_place(shared, tile).row0 + fresh_row(), t * N + fresh_col(), u.seq_kv,
                   -INFINITY);
  };
  Softmax<N> softmax;
  const auto step = [&] {
    float factor[2];
    if (softmax.step(s, kLog2e, factor, release_bias)) rescale_rows(o, factor);
    pack_tile<T, N>(p, s);
  };

  TandemTiles at;
  // How many warpgroups have rows in the next tile; 0: there is none.
  const auto look_up = [&] {
    kv.wait_k();
    const uint notice = shared.bias_notice(tile);
    const int4 span = shared_ints(notice);
    at.begin = same(span.x), at.end = same(span.y);
    at.full_begin = same(span.z), at.full_end = same(span.w);
    return same(shared_ints(notice + 16).x);
  };
  // Lest a warp that lags behind wait for a phase that is long over, once the others have let go of the place.
  const auto together = [&] { named_sync(1 + S::GROUPS + group, 128); };
  // To a tile where this warpgroup has rows: it lets go of the places of others, and passes its turns on.
  const auto go_on = [&](int groups) {
    while (__any_sync(kAllLanes, groups > 0 && group >= groups)) {
#pragma unroll 1
      for (int t = at.begin; t < at.end; ++t) {
        kv.wait_k();
        wait_turn<S>(group);
        pass_turn<S>(group);
        kv.release_k();
        kv.wait_v();
        together();
        kv.release_v();
      }
      ++tile;
      groups = look_up();
    }
    return bool(__any_sync(kAllLanes, groups > 0));
  };
  const auto first_product = [&] {
    barrier_wait(shared.q_full(group), int(q_n % 2));
    wait_turn<S>(group);
    product_s();
    pass_turn<S>(group);
  };

  wait_kernel_before();
  if (group == S::GROUPS - 1) pass_turn<S>(group);
  if (!go_on(look_up())) return;
  first_product();
  for (;;) {
    clear(o);
    softmax = Softmax<N>();
#pragma unroll 1
    for (int t = at.end - 1;; --t) {
      wait<0>();
      kv.release_k();
      if (t == at.begin) release_q();
      score(at, t);
      step();
      if (t == at.begin) break;
      // P V, then S of the next keys, in registers that P had.
      kv.wait_k();
      kv.wait_v();
      wait_turn<S>(group);
      product_o();
      wait<0>();
      product_s();
      pass_turn<S>(group);
      kv.release_v();
    }
    const uint done = tile++;
    const BiasPlace of = same_place(bias_place(shared, done));
    const int groups = look_up();
    // S of the next tile waits until o is stored: on its way meanwhile it made every step slower, as its registers and the
    // descriptors of products no longer all fit. (4 %, H100 80GB HBM3, 580.159.04.)
    kv.wait_v();
    together();
    product_o();
    wait<0>();
    kv.release_v();
    store_joined<T, S>(params, done, of, o, softmax, 1.f);
    if (!go_on(groups)) return;
    first_product();
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
