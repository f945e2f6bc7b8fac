// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of elastic softmax on Hopper, with or without a distance bias. The weights need the row's lse, so each tile of rows
// walks over its keys twice: S for lse, then S again, weights and P V. A step of keys is two halves with accumulators of
// their own: while one half is computed, the tensor cores are at work for the other, from walk to walk and from tile to
// tile. A warpgroup's copy of the head's distance bias lies in shared memory, with zeros around it, so that nothing is
// asked element by element.
#include <cstring>

#include "fwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <int ROW>
struct ElasticShape {
  static constexpr bool BIAS = false;
  static constexpr FwdTile tile = fwd_elastic_tile(kFwdTiles[ROW]);
  static constexpr int D = tile.d, DV = tile.dv, GROUPS = tile.groups, M = tile.rows(), N = tile.bc;
  static constexpr int HALF = N / 2;
  static constexpr int PRODUCER = producer_registers(tile), CONSUMER = consumer_registers(tile);
  static constexpr int Q_STAGES = kFwdElasticQStages, K_STAGES = tile.stages,
                       V_STAGES = kFwdElasticVStages;  // halves of K and of V
  static constexpr int DIST_PAD = fwd_dist_pad(tile), DIST_ENTRIES = fwd_dist_entries(tile);
  static constexpr int D_PANELS = fwd_panels(D), DV_PANELS = fwd_panels(DV);
  static constexpr int Q_PANEL = M * kPanelBytes, K_PANEL = HALF * kPanelBytes;
  static constexpr int Q_BYTES = D_PANELS * Q_PANEL, K_BYTES = D_PANELS * K_PANEL,
                       V_BYTES = DV_PANELS * K_PANEL;
  static constexpr int K_AT = Q_STAGES * Q_BYTES, V_AT = K_AT + K_STAGES * K_BYTES,
                       DIST_AT = V_AT + V_STAGES * V_BYTES,
                       BARRIERS_AT = DIST_AT + GROUPS * DIST_ENTRIES * 4;
};

// Places of q, k and v: each with a barrier that says it is full, and one that says it is empty.
template <typename S>
struct Places {
  uint at;
  TANDEM_DEVICE uint q(int stage) const { return at + stage * S::Q_BYTES; }
  TANDEM_DEVICE uint k(int stage) const { return at + S::K_AT + stage * S::K_BYTES; }
  TANDEM_DEVICE uint v(int stage) const { return at + S::V_AT + stage * S::V_BYTES; }
  TANDEM_DEVICE uint dist(int group) const { return at + S::DIST_AT + group * (S::DIST_ENTRIES * 4); }
  TANDEM_DEVICE uint full(int place) const { return at + S::BARRIERS_AT + 16 * place; }
  TANDEM_DEVICE uint q_full(int stage) const { return full(stage); }
  TANDEM_DEVICE uint k_full(int stage) const { return full(S::Q_STAGES + stage); }
  TANDEM_DEVICE uint v_full(int stage) const { return full(S::Q_STAGES + S::K_STAGES + stage); }
  static TANDEM_DEVICE uint empty(uint full) { return full + 8; }
  TANDEM_DEVICE void init() const {
    for (int n = 0; n < S::Q_STAGES + S::K_STAGES + S::V_STAGES; ++n) {
      barrier_init(full(n), 1);
      barrier_init(empty(full(n)), S::GROUPS);
    }
  }
};

template <int STAGES>
struct Ring {
  int stage = 0, parity = 0;
  TANDEM_DEVICE void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

template <typename S>
TANDEM_DEVICE void produce(const FwdFullParams& params, const Places<S>& places) {
  Rounds<S> rounds(params.block);
  FwdPlace at;
  Ring<S::Q_STAGES> q;
  Ring<S::K_STAGES> k;
  Ring<S::V_STAGES> v;
  while (rounds.next(&at, [](const FwdPlace&) {})) {
    const int head = head_of(params.block, at), batch = batch_of(params.block, at);
    const int kv_head = head / params.block.group;
    const auto copy_k = [&](int key) {
      const uint full = places.k_full(k.stage);
      barrier_wait(places.empty(full), k.parity ^ 1);
      copy_tile<S::D_PANELS>(places.k(k.stage), &params.k, full, S::HALF, key, kv_head, batch);
      k.next();
    };
    const auto copy_v = [&](int key) {
      const uint full = places.v_full(v.stage);
      barrier_wait(places.empty(full), v.parity ^ 1);
      copy_tile<S::DV_PANELS>(places.v(v.stage), &params.v, full, S::HALF, key, kv_head, batch);
      v.next();
    };
    const uint full = places.q_full(q.stage);
    barrier_wait(places.empty(full), q.parity ^ 1);
    copy_tile<S::D_PANELS>(places.q(q.stage), &params.q, full, S::M, at.row0, head, batch);
    q.next();
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      copy_k(t * S::N);
      copy_k(t * S::N + S::HALF);
    }
    // V lags behind by a step: S of the next keys comes before P V of the present ones.
    for (int t = at.span.end - 1; t >= at.span.begin - 1; --t)
      for (int half = 0; half < 2; ++half) {
        if (t >= at.span.begin) copy_k(t * S::N + half * S::HALF);
        if (t + 1 < at.span.end) copy_v((t + 1) * S::N + half * S::HALF);
      }
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

// lse of a thread's two rows. The base of the sum is the largest of the first numbers that a row sees; only if later ones
// are beyond it by more than a factor of 2^8 is it looked for anew.
template <int N>
struct Sum : Softmax<N> {
  bool known = false;  // every row of the warp has a base
  TANDEM_DEVICE void add(float (&s)[N / 2], float scale) {
    if (known) {
      float x[2][2] = {};
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          x[i / 2][i % 2] += exp2_fast(fmaf(s[4 * j + i], scale, -this->m[i / 2]));
      const float a = x[0][0] + x[0][1], b = x[1][0] + x[1][1];
      if (__all_sync(kAllLanes, fmaxf(a, b) <= 256.f)) {
        this->l[0] += a, this->l[1] += b;
        return;
      }
    }
    float factor[2];
    this->step(s, scale, factor);
    known = __all_sync(kAllLanes, fminf(this->m[0], this->m[1]) > -INFINITY);
  }
};

template <typename T, typename S>
TANDEM_DEVICE void consume(const FwdFullParams& params, const Places<S>& places) {
  constexpr int H = S::HALF, PAD = S::DIST_PAD;
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const bool speaks = threadIdx.x % 128 == 0;  // for its warpgroup
  const float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  const int window = params.features.DIST ? params.extra.dist_window : 0;
  const uint64_t q_at = along(places.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(places.k(0)), v_at = across(places.v(0), S::K_PANEL);
  const uint table = places.dist(group);

  float sa[H / 2], sb[H / 2], o[S::DV / 2];
  uint pa[H / 4], pb[H / 4];
  Ring<S::Q_STAGES> q;
  Ring<S::K_STAGES> k;
  Ring<S::V_STAGES> v;
  const auto product_s = [&](float(&s)[H / 2]) {
    const uint64_t left = further(q_at, q.stage * S::Q_BYTES);
    const uint64_t right = further(k_at, k.stage * S::K_BYTES);
    fence();
#pragma unroll
    for (int n = 0; n < S::D / 16; ++n)
      Product<T, H>::template from_shared<0, 0>(s, further(left, n / 4 * S::Q_PANEL + n % 4 * 32),
                                                further(right, n / 4 * S::K_PANEL + n % 4 * 32),
                                                n > 0);
  };
  const auto product_o = [&](const uint(&p)[H / 4]) {
    const uint64_t right = further(v_at, v.stage * S::V_BYTES);
    fence();
#pragma unroll
    for (int n = 0; n < H / 16; ++n)
      Product<T, S::DV>::template from_registers<1>(o, p[4 * n], p[4 * n + 1], p[4 * n + 2],
                                                    p[4 * n + 3],
                                                    further(right, n * 16 * kPanelBytes), 1);
  };
  const auto wait_k = [&] { barrier_wait(places.k_full(k.stage), k.parity); };
  const auto release = [&](uint full) {
    if (speaks) barrier_arrive(places.empty(full));
  };
  const auto release_k = [&] {
    release(places.k_full(k.stage));
    k.next();
  };
  const auto release_v = [&] {
    release(places.v_full(v.stage));
    v.next();
  };

  Rounds<S> rounds(u);
  const auto nothing = [&](const FwdPlace& p) { store_nothing<S>(u, params.push, p); };
  FwdPlace at, to;
  uint index = ~0u;  // of the head whose distance bias the table has
  if (!rounds.next(&at, nothing)) return;
  // From here on a half of S is always there, and the other one next.
  barrier_wait(places.q_full(q.stage), q.parity);
  wait_k();
  product_s(sa);
  commit();
  wait<0>();
  release_k();
  bool more = true;
#pragma unroll 1
  for (; more; at = to) {
    if (window > 0 && at.index != index) {
      index = at.index;
      const float* dist =
          reinterpret_cast<const float*>(params.push.extra[params.features.AT_DIST]) +
          int64_t(head_of(u, at)) * window;
      const float factor = plain_scale(u) ? 1.f / u.scale : kLog2e;
      named_sync(4 + group, 128);
#pragma unroll 4
      for (int n = int(threadIdx.x) % 128; n < window + 2 * PAD; n += 128) {
        const int t = n - PAD;
        put_shared(table + uint(4 * n), t >= 0 && t < window ? __ldg(dist + t) * factor : 0.f);
      }
      named_sync(4 + group, 128);
    }
    // Of the warpgroup's rows, as keys: what they all see, and what none of them sees.
    const int row = at.row0 + 64 * group, first = row + u.band_off, last = first + 63;
    const bool idle = row >= u.seq_q;
    const auto hidden = [&](int key) {
      return idle | (key > last + u.band_right) | (key + H - 1 < first - u.band_left) |
             (key >= u.seq_kv);
    };
    const auto edge = [&](int key) {
      return (key + H - 1 > min(first + u.band_right, u.seq_kv - 1)) | (key < last - u.band_left);
    };
    const auto score = [&](float(&s)[H / 2], int key) {
      if (!plain_scale(u)) {
        const float by = fresh(u.scale) * kLog2e;
#pragma unroll
        for (int i = 0; i < H / 2; ++i) s[i] *= by;
      }
      const int distance = first - key;
      if (window > 0 && distance + 63 >= 0 && distance - (H - 1) < window)
        add_dist<H>(
            s, table + uint(4 * (PAD + at.row0 + fresh_row() + u.band_off - (key + fresh_col()))));
    };

    Sum<H> sum;
    const auto add = [&](float(&s)[H / 2], int key) {
      if (hidden(key)) return;
      score(s, key);
      if (edge(key))
        mask_tile<H>(s, rounds.band(), at.row0 + fresh_row(), key + fresh_col(), u.seq_kv,
                     -INFINITY);
      sum.add(s, scale);
    };
    const auto next_s = [&](float(&s)[H / 2]) {
      wait_k();
      product_s(s);
      commit();
    };
    const auto finish_s = [&] {
      wait<0>();
      release_k();
    };
#pragma unroll 1
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      next_s(sb);
      add(sa, t * S::N);
      finish_s();
      next_s(sa);
      add(sb, t * S::N + H);
      finish_s();
    }

    float origin[2], shift[2];
    const float tau = __ldg(
        reinterpret_cast<const float*>(params.push.extra[params.features.AT_TAU]) + head_of(u, at));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int count =
          tandem_key_count(rounds.band(), at.row0 + fresh_row() + 8 * r, u.seq_q, u.seq_kv);
      origin[r] = sum.m[r] + log2f(quad_sum(sum.l[r]));
      shift[r] = count > 0 ? __fdiv_rn(tau, float(count)) : 0.f;
    }
#pragma unroll
    for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
    const auto weigh = [&](uint(&p)[H / 4], float(&s)[H / 2], int key) {
      if (hidden(key)) {
#pragma unroll
        for (int i = 0; i < H / 4; ++i) p[i] = 0;
        return;
      }
      score(s, key);
#pragma unroll
      for (int i = 0; i < H / 2; ++i)
        s[i] = exp2_fast(fmaf(s[i], scale, -origin[i / 2 % 2])) + shift[i / 2 % 2];
      if (edge(key))
        mask_tile<H>(s, rounds.band(), at.row0 + fresh_row(), key + fresh_col(), u.seq_kv, 0.f);
      pack_tile<T, H, true>(p, s);
    };
    next_s(sb);
    more = rounds.next(&to, nothing);
    weigh(pa, sa, (at.span.end - 1) * S::N);
    finish_s();
#pragma unroll 1
    for (int t = at.span.end - 1;; --t) {
      const bool last = t == at.span.begin;
      if (last) {  // on to the first keys of the next tile; there is none: the product of what lies there
        release(places.q_full(q.stage));
        q.next();
        if (more) barrier_wait(places.q_full(q.stage), q.parity);
      }
      if (!last || more) wait_k();
      product_s(sa);
      barrier_wait(places.v_full(v.stage), v.parity);
      product_o(pa);
      commit();
      weigh(pb, sb, t * S::N + H);
      wait<0>();
      if (!last || more) release_k();
      release_v();
      if (last) break;
      wait_k();
      product_s(sb);
      barrier_wait(places.v_full(v.stage), v.parity);
      product_o(pb);
      commit();
      weigh(pa, sa, (t - 1) * S::N);
      wait<0>();
      release_k();
      release_v();
    }
    barrier_wait(places.v_full(v.stage), v.parity);
    product_o(pb);
    commit();
    wait<0>();
    release_v();
    const float one[2] = {1.f, 1.f};
    const float lse[2] = {origin[0] * kLn2, origin[1] * kLn2};
    store_lse(u, params.push, at, lse);
    store_rows<T, S::DV>(o, one, params.push.o, u, at);
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(ElasticShape<ROW>::tile.threads(), 1)
    fwd_elastic(const __grid_constant__ FwdFullParams params) {
  using S = ElasticShape<ROW>;
  const Places<S> places{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    prefetch_map(&params.q);
    prefetch_map(&params.k);
    prefetch_map(&params.v);
    places.init();
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<S::PRODUCER>();
    if (threadIdx.x == 0) produce<S>(params, places);
  } else {
    take_registers<S::CONSUMER>();
    consume<T, S>(params, places);
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
