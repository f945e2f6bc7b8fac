// SPDX-License-Identifier: MIT OR Apache-2.0
// Elastic softmax in fwd: what its two main loops share. These are shared memory, the
// distance bias and lse.
#ifndef TANDEM_CUDA_SM90_FWD_ELASTIC_CUH
#define TANDEM_CUDA_SM90_FWD_ELASTIC_CUH
#include <cfloat>

#include "../elastic_shift.cuh"
#include "score_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Compile-time geometry of a kernel. TILE: of kFwdTiles.
template <int TILE>
struct ElasticShape {
  static constexpr bool BIAS = false;
  static constexpr FwdTile tile = kFwdTiles[TILE];
  static constexpr int D = tile.d, DV = tile.dv, WARPGROUPS = tile.warpgroups, M = tile.rows(),
                       N = tile.bc;
  static constexpr int PRODUCER = producer_registers(tile), CONSUMER = consumer_registers(tile);
  static constexpr int Q_STAGES = fwd_elastic_q_stages(tile), STAGES = fwd_elastic_stages(tile);
  // The stages of keys of decoupled warpgroups are no power of two.
  using KeysState = PipelineState<STAGES, !tile.decoupled>;
  // Number of key tiles whose exponentials fit in registers.
  static constexpr int KEPT = tile.decoupled && D > 64 ? 2 : 0;
  static constexpr int DIST_PAD = fwd_dist_pad(tile), DIST_ENTRIES = fwd_dist_entries(tile);
  static constexpr int D_PANELS = fwd_panels(D), DV_PANELS = fwd_panels(DV);
  static constexpr int Q_PANEL = M * kPanelBytes, K_PANEL = N * kPanelBytes;
  static constexpr int Q_BYTES = D_PANELS * Q_PANEL, STAGE_BYTES = fwd_elastic_stage_bytes(tile);
  static constexpr int KEYS_AT = Q_STAGES * Q_BYTES, DIST_AT = KEYS_AT + STAGES * STAGE_BYTES,
                       BARRIERS_AT = DIST_AT + WARPGROUPS * DIST_ENTRIES * 4,
                       DESCRIPTORS_AT = BARRIERS_AT + 16 * (Q_STAGES + STAGES);
};

// Addresses of shared memory: stages of Q, and stages that K and V share, each with a full and an
// empty mbarrier; the distance biases; work-tile descriptors.
template <typename S>
struct ElasticStorage {
  uint at;
  TANDEM_DEVICE uint q(int stage) const { return at + stage * S::Q_BYTES; }
  TANDEM_DEVICE uint keys(int stage) const { return at + S::KEYS_AT + stage * S::STAGE_BYTES; }
  TANDEM_DEVICE uint dist(int warpgroup) const {
    return at + S::DIST_AT + warpgroup * (S::DIST_ENTRIES * 4);
  }
  TANDEM_DEVICE uint q_full(int stage) const { return at + S::BARRIERS_AT + 16 * stage; }
  TANDEM_DEVICE uint keys_full(int stage) const { return q_full(S::Q_STAGES + stage); }
  static TANDEM_DEVICE uint empty(uint full) { return full + 8; }
  // The descriptor of the n-th tile of the workgroup. It is overwritten when all warps are two
  // tiles ahead.
  TANDEM_DEVICE uint descriptor(uint n) const {
    return at + S::DESCRIPTORS_AT + n % kDecoupledDescriptors * kElasticDescriptorBytes;
  }
  TANDEM_DEVICE void init() const {
    for (int n = 0; n < S::Q_STAGES + S::STAGES; ++n) {
      mbarrier_init(q_full(n), 1);
      mbarrier_init(empty(q_full(n)), S::WARPGROUPS);
    }
  }
};

// Copies the distance bias of a work tile's head to the warpgroup's table in shared memory. hides:
// distances below 0 get minus infinity.
template <typename S>
TANDEM_DEVICE void put_dist(const FwdOptionalParams& params, uint table, const FwdWorkTile& at,
                            bool hides) {
  const FwdBlock& u = params.block;
  const int barrier = kWarpgroupBarrier - 1 + __shfl_sync(kAllLanes, int(threadIdx.x) / 128, 0);
  const float* dist = reinterpret_cast<const float*>(params.push.extra[params.features.AT_DIST]) +
                      int64_t(head_of(u, at)) * params.extra.dist_window;
  const float factor = plain_scale(u) ? 1.f / u.scale : kLog2e;
  named_barrier_sync(barrier, 128);
#pragma unroll 4
  for (int n = int(threadIdx.x) % 128; n < params.extra.dist_window + 2 * S::DIST_PAD; n += 128) {
    const int t = n - S::DIST_PAD;
    float x = t < 0 && hides ? -INFINITY : 0.f;
    if (t >= 0 && t < params.extra.dist_window) {
      const float given = __ldg(dist + t);
      x = given * factor;
      // A finite bias over the scale may overflow f32. It stays finite.
      if (fabsf(x) == INFINITY && fabsf(given) < INFINITY) x = copysignf(FLT_MAX, x);
    }
    st_shared(table + uint(4 * n), x);
  }
  named_barrier_sync(barrier, 128);
}

// Adds the distance bias to a thread's elements. at: address of the entry of its first element.
// Elements on a diagonal share entries.
template <int N>
TANDEM_DEVICE void add_dist(float (&s)[N / 2], uint at) {
#pragma unroll
  for (int j = 0; j <= N / 8; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float x = ld_shared_f32(at + uint(4 * (8 - 8 * j - c)));
      if (j < N / 8) s[4 * j + 2 + c] += x;
      if (j > 0) s[4 * (j - 1) + c] += x;
    }
}

// Running sum for lse of a thread's two rows. The origin of a row is the largest score of the first
// tile that it sees. It is searched again only if later scores are beyond it by more than a factor
// of 2^8. Weights are computed from lse without another sum, so rows are far beyond kFarSum
// already.
constexpr float kFarSum = 1024.f;
template <int N>
struct Sum : Softmax<N> {
  using Softmax<N>::m;
  using Softmax<N>::l;
  // Adds a tile to the sums. KEEPS: stores the exponentials in `kept`, as pairs of f16. On return,
  // s of far rows is relative to their origin.
  template <bool KEEPS = false>
  TANDEM_DEVICE void add(float (&s)[N / 2], float scale, uint* kept = nullptr) {
#pragma unroll 1
    for (bool again = false;; again = true) {
      float x[2][2] = {};
      float base[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) base[r] = this->origin(r).far ? 0.f : m[r];
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float y = exp2_fast(fmaf(s[4 * j + 2 * r], scale, -base[r])),
                      z = exp2_fast(fmaf(s[4 * j + 2 * r + 1], scale, -base[r]));
          x[r][0] += y, x[r][1] += z;
          if constexpr (KEEPS) kept[2 * j + r] = Half::pack(y, z);
        }
      const float a = x[0][0] + x[0][1], b = x[1][0] + x[1][1];
      const bool fits = (fmaxf(a, b) <= 256.f) & ((float_bits(l[0]) | float_bits(l[1])) >= 0);
      if (again || __all_sync(kAllLanes, fits)) {
        l[0] += copysignf(a, l[0]), l[1] += copysignf(b, l[1]);
        return;
      }
      float top[2];
      find_tops<N>(top, s);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float powers = top[r] * scale;
        if (this->origin(r).far ? top[r] > m[r] : powers > m[r]) {
          const bool far = !(fabsf(powers) <= kFarSum);
          const Origin to{far ? top[r] : powers, far};
          l[r] *= exp2_fast(this->origin(r).above(to, scale));
          this->move(r, to);
        }
        if (this->origin(r).far & (m[r] > -INFINITY)) {
#pragma unroll
          for (int i = 0; i < N / 4; ++i) s[i / 2 * 4 + 2 * r + i % 2] -= m[r];
        }
      }
    }
  }
};

// What the weights of a row are computed from: 2^(scale (s - origin) - base). origin: 0, or the
// largest product of a far row.
struct ElasticRow {
  float origin, base;
  template <int N>
  TANDEM_DEVICE ElasticRow(const Sum<N>& sum, int r, float unit, float* lse) {
    const Origin of = sum.origin(r);
    const float powers = log2f(quad_sum(sum.sum(r)));
    const bool far = of.far & (powers > -INFINITY);
    origin = far ? of.m : 0.f, base = far ? powers : of.m + powers;
    *lse = fmaf(origin, unit, base * kLn2);
  }
  // Whether the row has seen a key.
  TANDEM_DEVICE bool sees() const { return base > -INFINITY; }
};

// The consumer side of the pipelines of Q and of keys, whose stages K and V share. One thread of a
// warpgroup releases its stages.
template <typename S>
struct ElasticPipeline {
  const ElasticStorage<S>& storage;
  PipelineState<S::Q_STAGES, kCounted> q;
  typename S::KeysState keys;
  TANDEM_DEVICE explicit ElasticPipeline(const ElasticStorage<S>& s) : storage(s) {}
  TANDEM_DEVICE void wait_q() const { mbarrier_wait(storage.q_full(q.stage()), q.phase()); }
  TANDEM_DEVICE void wait_keys() const {
    mbarrier_wait(storage.keys_full(keys.stage()), keys.phase());
  }
  // Bytes from the first stage of keys to the one in use.
  TANDEM_DEVICE int offset() const { return keys.stage() * S::STAGE_BYTES; }
  // Returns the full mbarrier of the stage in use, and advances to the next stage.
  TANDEM_DEVICE uint take() {
    const uint full = storage.keys_full(keys.stage());
    keys.next();
    return full;
  }
  TANDEM_DEVICE void release(uint full) const {
    if (read_tid_x() % 128 == 0) mbarrier_arrive(storage.empty(full));
  }
  TANDEM_DEVICE void release_keys() { release(take()); }
  TANDEM_DEVICE void release_q() {
    release(storage.q_full(q.stage()));
    q.next();
  }
};

// A step of the second pass: S of these keys and P V of those before. product_s() issues S, and
// product_o() P V; weigh() turns S into weights.
template <typename T, typename S, typename ProductS, typename ProductO, typename Weigh>
TANDEM_DEVICE void second_pass_step(const FwdBlock& u, ElasticPipeline<S>& pipeline,
                                    float (&s)[S::N / 2], float (&o)[S::DV / 2],
                                    uint (&p)[S::N / 4], const ProductS& product_s,
                                    const ProductO& product_o, const Weigh& weigh) {
  pipeline.wait_keys();
  product_s();
  const uint k = pipeline.take();
  product_o();
  const uint v = pipeline.take();
  wgmma_wait_group<1>();
  pipeline.release(k);
  weigh();
  wait_products(u, o);
  pipeline.release(v);
  pack_tile<T, S::N, true>(p, s);
}

template <typename T, typename S>
TANDEM_DEVICE void gemm_held_qk(float (&s)[S::N / 2], const uint (&q)[S::D / 16][4], uint64_t k) {
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < S::D / 16; ++n)
    Wgmma<T, S::N>::template rs<0>(s, q[n][0], q[n][1], q[n][2], q[n][3],
                                   advance(k, n / 4 * S::K_PANEL + n % 4 * 32), n > 0);
  wgmma_commit_group();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
