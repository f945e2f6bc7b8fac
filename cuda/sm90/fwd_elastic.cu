// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of elastic softmax on Hopper, with or without a distance bias. The weights need the row's lse, so each tile of rows
// walks over its keys twice: S for lse, then S again, weights and P V as in fwd.cu. A warpgroup's copy of the head's
// distance bias lies in shared memory, with zeros around it, so that nothing is asked element by element.
#include <cstring>

#include "fwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename S>
TANDEM_DEVICE void produce(const FwdFullParams& params, const Shared<S>& shared) {
  Rounds<S> rounds(params.block);
  Copier<S, FwdFullParams> copy(params, shared);
  FwdPlace at;
  while (rounds.next(&at, [](const FwdPlace&) {})) {
    const int own_head = head_of(params.block, at), batch = batch_of(params.block, at);
    const int kv_head = own_head / params.block.group;
    copy.q(at.row0, own_head, batch);
    for (int t = at.span.end - 1; t >= at.span.begin; --t) copy.k(t, kv_head, batch);
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      copy.k(t, kv_head, batch);
      if (t + 1 < at.span.end) copy.v(t + 1, kv_head, batch);
    }
    copy.v(at.span.begin, kv_head, batch);
  }
}

TANDEM_DEVICE float shared_float(uint at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE void put_shared(uint at, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}

// Adds the bias of the thread's elements; at: of the entry of its first element. Elements on a diagonal share entries.
template <int N>
TANDEM_DEVICE void add_dist(float (&s)[N / 2], uint at) {
#pragma unroll
  for (int j = 0; j <= N / 8; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float x = shared_float(at + uint(4 * (8 - 8 * j - c)));
      if (j < N / 8) s[4 * j + 2 + c] += x;
      if (j > 0) s[4 * (j - 1) + c] += x;
    }
}

template <typename T, typename S>
TANDEM_DEVICE void consume(const FwdFullParams& params, const Shared<S>& shared) {
  constexpr int N = S::N, PAD = S::DIST_PAD;
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const bool speaks = threadIdx.x % 128 == 0;  // for its warpgroup
  const float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  const uint64_t q_at = along(shared.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(shared.k(0)), v_at = across(shared.v(0), S::K_PANEL);
  const uint table = shared.barrier(4 + 4 * S::STAGES) + uint(group * S::DIST_ENTRIES * 4);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  Step<S::Q_STAGES> q_step;
  Step<S::STAGES> k_step, v_step;
  const auto product_s = [&] {
    const uint64_t q = further(q_at, q_step.stage() * S::Q_BYTES);
    const uint64_t k = further(k_at, k_step.stage() * S::K_BYTES);
    barrier_wait(shared.k_full(k_step.stage()), k_step.parity());
    product_along<T, S>(s, q, k);
  };
  const auto product_o = [&] {
    barrier_wait(shared.v_full(v_step.stage()), v_step.parity());
    product_across<T, S>(o, p, further(v_at, v_step.stage() * S::V_BYTES));
  };
  const auto release_k = [&] {
    if (speaks) barrier_arrive(shared.k_empty(k_step.stage()));
    k_step.next();
  };
  const auto release_v = [&] {
    if (speaks) barrier_arrive(shared.v_empty(v_step.stage()));
    v_step.next();
  };

  Rounds<S> rounds(u);
  FwdPlace at;
  uint index = ~0u;  // of the head whose distance bias the table has
  while (rounds.next(&at, [&](const FwdPlace& p) { store_nothing<S>(u, params.push, p); })) {
    const int window = params.features.DIST ? params.extra.dist_window : 0;
    if (window > 0 && at.index != index) {
      index = at.index;
      const float* dist =
          reinterpret_cast<const float*>(params.push.extra[params.features.AT_DIST]) +
          int64_t(head_of(u, at)) * window;
      const float factor = plain_scale(u) ? 1.f / u.scale : kLog2e;
      named_sync(4 + group, 128);
      for (int n = int(threadIdx.x) % 128; n < window + 2 * PAD; n += 128) {
        const int t = n - PAD;
        put_shared(table + uint(4 * n), t >= 0 && t < window ? __ldg(dist + t) * factor : 0.f);
      }
      named_sync(4 + group, 128);
    }
    const auto score = [&](int t) {
      if (!plain_scale(u)) {
        const float first = fresh(u.scale) * kLog2e;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) s[i] *= first;
      }
      // Of the warpgroup's first element.
      const int distance = at.row0 + 64 * group + u.band_off - t * N;
      const int window = params.features.DIST ? params.extra.dist_window : 0;
      if (window > 0 && distance + 63 >= 0 && distance - (N - 1) < window)
        add_dist<N>(s, table + uint(4 * (PAD + at.row0 + fresh_row() + u.band_off -
                                         (t * N + fresh_col()))));
    };
    const auto edge = [&](int t) { return t < at.span.full_begin || t >= at.span.full_end; };

    Softmax<N> softmax;
    float factor[2];
    barrier_wait(shared.q_full(q_step.stage()), q_step.parity());
#pragma unroll 1
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      product_s();
      wait<0>();
      release_k();
      score(t);
      if (edge(t))
        mask_tile<N>(s, rounds.band(), at.row0 + fresh_row(), t * N + fresh_col(), u.seq_kv,
                     -INFINITY);
      softmax.step(s, scale, factor);
    }

    float origin[2], shift[2];
    const float tau = __ldg(
        reinterpret_cast<const float*>(params.push.extra[params.features.AT_TAU]) + head_of(u, at));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int count =
          tandem_key_count(rounds.band(), at.row0 + fresh_row() + 8 * r, u.seq_q, u.seq_kv);
      const float l = quad_sum(softmax.l[r]);
      origin[r] = softmax.m[r] + log2f(l);
      shift[r] = count > 0 ? __fdiv_rn(tau, float(count)) : 0.f;
    }
#pragma unroll
    for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
    const auto weigh = [&](int t) {
      score(t);
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        s[i] = exp2_fast(fmaf(s[i], scale, -origin[i / 2 % 2])) + shift[i / 2 % 2];
      settle(s);  // and not behind the wait that follows
      if (edge(t))
        mask_tile<N>(s, rounds.band(), at.row0 + fresh_row(), t * N + fresh_col(), u.seq_kv, 0.f);
    };
    product_s();
    wait<0>();
    release_k();
    weigh(at.span.end - 1);
    pack_tile<T, N, true>(p, s);
#pragma unroll 1
    for (int t = at.span.end - 2; t >= at.span.begin; --t) {
      product_s();
      product_o();
      wait<1>();
      release_k();
      weigh(t);
      wait<0>();
      release_v();
      pack_tile<T, N, true>(p, s);
    }
    if (speaks) barrier_arrive(shared.q_empty(q_step.stage()));
    q_step.next();
    product_o();
    wait<0>();
    release_v();
    const float one[2] = {1.f, 1.f};
    const float lse[2] = {origin[0] * kLn2, origin[1] * kLn2};
    store_lse(u, params.push, at, lse);
    store_rows<T, S::DV>(o, one, params.push.o, u, at);
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(FwdShape<ROW>::tile.threads(), 1)
    fwd_elastic(const __grid_constant__ FwdFullParams params) {
  using S = FwdShape<ROW>;
  const Shared<S> shared = begin_fwd<S>(params);
  if (threadIdx.x < 128) {
    give_registers<S::PRODUCER>();
    if (threadIdx.x == 0) produce<S>(params, shared);
  } else {
    take_registers<S::CONSUMER>();
    consume<T, S>(params, shared);
  }
}

template <typename T, int ROW = 0>
Kernel<FwdFullParams> select(const char* name) {
  if constexpr (ROW < kFwdTileCount) {
    if constexpr (fwd_elastic_shared_bytes(kFwdTiles[ROW]) <= kMaxShared)
      if (std::strcmp(name, kFwdTiles[ROW].name) == 0) return fwd_elastic<T, ROW>;
    return select<T, ROW + 1>(name);
  } else {
    return nullptr;
  }
}

}  // namespace

Kernel<FwdFullParams> fwd_elastic_kernel(tandem_dtype dtype, const Launch& launch) {
  if (!launch.tile.name) return nullptr;
  if (dtype == TANDEM_F16) return select<Half>(launch.tile.name);
  if (dtype == TANDEM_BF16) return select<Bfloat>(launch.tile.name);
  return nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
