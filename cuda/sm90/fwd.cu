// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper: o and lse from q, k, v. A workgroup takes tiles of query rows one after the other. One warp copies, the
// others compute, 64 rows a warpgroup: while the tensor cores form S of the next keys and P V of the present ones, the
// weights are computed. Math as in cuda/fwd.cu, in powers of two; P is rounded to the tensors' type for P V.
#include <cstring>

#include "../../src/tile_range.h"
#include "kernels.h"
#include "wgmma.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// What the copying warpgroup keeps of its registers, and what the others have then; 64 Ki in all.
template <int GROUPS>
constexpr int kProducerRegisters = GROUPS == 1 ? 56 : 32;
template <int GROUPS>
constexpr int kConsumerRegisters = GROUPS == 1   ? 256
                                   : GROUPS == 2 ? 240
                                                 : 160;

template <int ROW>
struct Shape {
  static constexpr FwdTile tile = kFwdTiles[ROW];
  static constexpr int D = tile.d, DV = tile.dv, GROUPS = tile.groups, M = tile.rows(), N = tile.bc;
  static constexpr int STAGES = tile.stages;
  static constexpr bool TURNS = tile.turns && GROUPS > 1;
  static constexpr int D_PANELS = fwd_panels(D), DV_PANELS = fwd_panels(DV);
  static constexpr int Q_PANEL = M * kPanelBytes, K_PANEL = N * kPanelBytes;
  static constexpr int Q_BYTES = D_PANELS * Q_PANEL, K_BYTES = D_PANELS * K_PANEL,
                       V_BYTES = DV_PANELS * K_PANEL;
  static constexpr int Q_AT = 0, K_AT = Q_BYTES, V_AT = K_AT + STAGES * K_BYTES,
                       BARRIERS_AT = V_AT + STAGES * V_BYTES;
};

// Shared memory by address, and its barriers.
template <typename S>
struct Shared {
  uint at;
  TANDEM_DEVICE uint q() const { return at + S::Q_AT; }
  TANDEM_DEVICE uint k(int stage) const { return at + S::K_AT + stage * S::K_BYTES; }
  TANDEM_DEVICE uint v(int stage) const { return at + S::V_AT + stage * S::V_BYTES; }
  TANDEM_DEVICE uint barrier(int n) const { return at + S::BARRIERS_AT + 8 * n; }
  TANDEM_DEVICE uint q_full() const { return barrier(0); }
  TANDEM_DEVICE uint q_empty() const { return barrier(1); }
  TANDEM_DEVICE uint k_full(int stage) const { return barrier(2 + stage); }
  TANDEM_DEVICE uint k_empty(int stage) const { return barrier(2 + S::STAGES + stage); }
  TANDEM_DEVICE uint v_full(int stage) const { return barrier(2 + 2 * S::STAGES + stage); }
  TANDEM_DEVICE uint v_empty(int stage) const { return barrier(2 + 3 * S::STAGES + stage); }
};

// Stage and parity of the n-th step over all tiles of the workgroup.
template <int STAGES>
struct Step {
  int stage = 0, parity = 0;
  TANDEM_DEVICE void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

struct Place {
  int row0, head, batch;
  TandemTiles span;
};

// The tiles of this workgroup, one each round. Without a band, tiles of a head follow each other, so that workgroups at
// work at a time share keys. With one, tiles may differ in length: in each pack of heads whose keys and values fit the
// second-level cache the longest come first, and every other round goes backwards through the workgroups.
template <typename S>
struct Rounds {
  const FwdBlock& u;
  TandemBand band;
  int pack, round = 0;

  TANDEM_DEVICE explicit Rounds(const FwdBlock& block) : u(block) {
    band = TandemBand{u.band_left, u.band_right, u.band_off};
    pack = 1;
    if (u.band_right != TANDEM_BAND_OPEN || u.band_left != TANDEM_BAND_OPEN) {
      const int64_t bytes = int64_t(u.seq_kv) * (u.head_dim + u.head_dim_v) * 2;
      const int64_t heads = bytes > 0 ? (int64_t(24) << 20) / bytes : 1;
      pack = int(heads < 1 ? 1 : heads > 4096 ? 4096 : heads) * u.group;
    }
  }
  TANDEM_DEVICE bool next(Place* at) {
    const uint inside = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const uint index = uint(round) * gridDim.x + inside;
    ++round;
    if (uint(round - 1) * gridDim.x >= u.total) return false;
    at->span = TandemTiles{0, 0, 0, 0};
    at->row0 = -1;  // nothing to do in the last round
    if (index >= u.total) return true;
    const uint heads = u.total / u.tiles, packed = uint(pack) * u.tiles;
    const uint of = index / packed, rest = index - of * packed;
    const uint first = of * uint(pack), size = min(uint(pack), heads - first);
    const uint tile = u.tiles - 1 - rest / size, head = first + rest % size;
    at->batch = int(head / uint(u.heads_q));
    at->head = int(head - uint(at->batch) * uint(u.heads_q));
    at->row0 = int(tile) * S::M;
    at->span = tandem_key_tiles(band, at->row0, S::M, S::N, u.seq_q, u.seq_kv);
    return true;
  }
};

// ---- the copying warp: one thread -------------------------------------------------------------------

template <int PANELS>
TANDEM_DEVICE void copy_tile(uint to, const CUtensorMap* map, uint barrier, int rows, int row,
                             int head, int batch) {
  barrier_expect(barrier, PANELS * rows * kPanelBytes);
#pragma unroll
  for (int p = 0; p < PANELS; ++p)
    copy_box(to + uint(p * rows * kPanelBytes), map, barrier, p * kPanel, row, head, batch);
}

template <typename S>
TANDEM_DEVICE void produce(const FwdParams& params, const Shared<S>& shared) {
  const FwdBlock& u = params.block;
  Rounds<S> rounds(u);
  Step<S::STAGES> k_step, v_step;
  Step<1> q_step;
  Place at;
  while (rounds.next(&at)) {
    if (at.span.begin >= at.span.end) continue;
    const int kv_head = at.head / u.group;
    const auto copy_k = [&](int t) {
      barrier_wait(shared.k_empty(k_step.stage), k_step.parity ^ 1);
      copy_tile<S::D_PANELS>(shared.k(k_step.stage), &params.k, shared.k_full(k_step.stage), S::N,
                             t * S::N, kv_head, at.batch);
      k_step.next();
    };
    const auto copy_v = [&](int t) {
      barrier_wait(shared.v_empty(v_step.stage), v_step.parity ^ 1);
      copy_tile<S::DV_PANELS>(shared.v(v_step.stage), &params.v, shared.v_full(v_step.stage), S::N,
                              t * S::N, kv_head, at.batch);
      v_step.next();
    };
    barrier_wait(shared.q_empty(), q_step.parity ^ 1);
    copy_tile<S::D_PANELS>(shared.q(), &params.q, shared.q_full(), S::M, at.row0, at.head,
                           at.batch);
    q_step.next();
    copy_k(at.span.end - 1);
    for (int t = at.span.end - 2; t >= at.span.begin; --t) {
      copy_k(t);
      copy_v(t + 1);
    }
    copy_v(at.span.begin);
  }
}

// ---- the computing warpgroups -----------------------------------------------------------------------

// Turns of the warpgroups at the tensor cores: barrier 1 + n is group n's, whoever was before it arrives there.
template <typename S>
TANDEM_DEVICE void wait_turn(int group) {
  if constexpr (S::TURNS) named_sync(1 + group, 256);
}
template <typename S>
TANDEM_DEVICE void pass_turn(int group) {
  if constexpr (S::TURNS) named_arrive(1 + (group + 1 == S::GROUPS ? 0 : group + 1), 256);
}

TANDEM_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
TANDEM_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Hidden scores become -inf. row, col: of the thread's first element.
template <int N>
TANDEM_DEVICE void mask_tile(float (&s)[N / 2], TandemBand band, int row, int col, int seq_kv) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r + band.off;
    const int most = min(seq_kv - 1, at + band.right) - col, least = at - band.left - col;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int x = 8 * j + c;
        s[4 * j + 2 * r + c] = (x > most) | (x < least) ? -INFINITY : s[4 * j + 2 * r + c];
      }
  }
}

// The state of a thread's two rows, in powers of two: weights are relative to 2^m.
template <int N>
struct Softmax {
  float m[2], l[2];  // l: the sum of this thread's columns
  TANDEM_DEVICE Softmax() : m{-INFINITY, -INFINITY}, l{0.f, 0.f} {}

  // Products become weights; factor is what earlier results are to be multiplied by. m follows the row's maximum only
  // when that has grown by more than a factor of 2^8: until then weights are at most 2^8, exact as ever.
  // Returns whether a factor is not 1, the same in the whole warp.
  TANDEM_DEVICE bool step(float (&s)[N / 2], float scale, float (&factor)[2]) {
    bool grown[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float a = fmaxf(s[2 * r], s[2 * r + 1]), b = fmaxf(s[2 * r + 4], s[2 * r + 5]);
#pragma unroll
      for (int j = 2; j < N / 8; j += 2) {
        a = fmaxf(a, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
        b = fmaxf(b, fmaxf(s[4 * j + 2 * r + 4], s[4 * j + 2 * r + 5]));
      }
      const float top = quad_max(fmaxf(a, b)) * scale;
      grown[r] = top > m[r] + 8.f;
      factor[r] = grown[r] ? exp2_fast(m[r] - top) : 1.f;
      if (grown[r]) m[r] = top;
      // Nothing visible yet: any finite number gives weights of 0.
      const float base = m[r] == -INFINITY ? 0.f : m[r];
      float x = 0.f, y = 0.f;
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        s[4 * j + 2 * r] = exp2_fast(fmaf(s[4 * j + 2 * r], scale, -base));
        s[4 * j + 2 * r + 1] = exp2_fast(fmaf(s[4 * j + 2 * r + 1], scale, -base));
        x += s[4 * j + 2 * r];
        y += s[4 * j + 2 * r + 1];
      }
      l[r] = fmaf(l[r], factor[r], x + y);
    }
    return __any_sync(kAllLanes, grown[0] | grown[1]);
  }
};

// Weights as the A operand of P V.
template <typename T, int N>
TANDEM_DEVICE void pack_tile(uint (&p)[N / 4], const float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) p[i] = T::pack(s[2 * i], s[2 * i + 1]);
}

// Lane n of a quad has a word of each of four chunks of four words; then it has chunk n.
TANDEM_DEVICE void transpose_quad(uint (&x)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint other = __shfl_xor_sync(kAllLanes, odd ? x[i] : x[i + 1], 1);
    (odd ? x[i] : x[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint other = __shfl_xor_sync(kAllLanes, high ? x[i] : x[i + 2], 2);
    (high ? x[i] : x[i + 2]) = other;
  }
}

// Accumulators times factor to a tensor; row: of the thread's first one.
template <typename T, int DV>
TANDEM_DEVICE void store_rows(const float (&o)[DV / 2], const float (&factor)[2], uint64_t address,
                              const Strides& strides, int batch, int head, int row, int rows,
                              int width) {
  ushort* base = reinterpret_cast<ushort*>(address) + batch * strides.b + head * strides.h;
  const bool chunks =
      strides.d == 1 && strides.s % 8 == 0 && reinterpret_cast<uint64_t>(base) % 16 == 0;
  const int lane = int(threadIdx.x) % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + 8 * r;
    ushort* to = base + i * strides.s;
#pragma unroll
    for (int j = 0; j < DV / 8; j += 4) {
      uint x[4];
#pragma unroll
      for (int n = 0; n < 4; ++n)
        x[n] = T::pack(o[4 * (j + n) + 2 * r] * factor[r], o[4 * (j + n) + 2 * r + 1] * factor[r]);
      transpose_quad(x);
      const int col = 8 * (j + lane);
      if (i >= rows || col >= width) continue;
      if (chunks && col + 8 <= width) {
        *reinterpret_cast<uint4*>(to + col) = make_uint4(x[0], x[1], x[2], x[3]);
      } else {
#pragma unroll
        for (int n = 0; n < 8; ++n)
          if (col + n < width)
            to[(col + n) * strides.d] = ushort(n % 2 ? x[n / 2] >> 16 : x[n / 2]);
      }
    }
  }
}

template <typename T, typename S>
TANDEM_DEVICE void consume(const FwdParams& params, const Shared<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4;
  const bool speaks = threadIdx.x % 128 == 0;  // for its warpgroup
  const int row = 64 * group + 16 * warp + lane / 4, col = lane % 4 * 2;
  // A scale that is not positive turns scores over before anything is compared.
  const float turn = u.scale == 0.f ? 0.f : u.scale > 0.f ? 1.f : -1.f;
  const float scale = u.scale == 0.f ? 1.f : fabsf(u.scale) * kLog2e;
  const uint64_t q_at = along(shared.q() + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(shared.k(0)), v_at = across(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  const auto product_s = [&](int stage) {
    const uint64_t k = k_at + uint64_t(uint(stage * S::K_BYTES) >> 4);
#pragma unroll
    for (int n = 0; n < S::D / 16; ++n)
      Product<T, N>::template from_shared<0, 0>(s, q_at + ((n / 4 * S::Q_PANEL + n % 4 * 32) >> 4),
                                                k + ((n / 4 * S::K_PANEL + n % 4 * 32) >> 4),
                                                n > 0);
  };
  const auto product_o = [&](int stage) {
    const uint64_t v = v_at + uint64_t(uint(stage * S::V_BYTES) >> 4);
#pragma unroll
    for (int n = 0; n < N / 16; ++n)
      Product<T, S::DV>::template from_registers<1>(o, p[4 * n], p[4 * n + 1], p[4 * n + 2],
                                                    p[4 * n + 3], v + ((n * 16 * kPanelBytes) >> 4),
                                                    1);
  };

  if (S::TURNS && group == S::GROUPS - 1) pass_turn<S>(group);
  Rounds<S> rounds(u);
  Step<S::STAGES> k_step, v_step;
  Step<1> q_step;
  Place at;
  while (rounds.next(&at)) {
    if (at.row0 < 0) continue;
    const TandemTiles span = at.span;
    Softmax<N> softmax;
#pragma unroll
    for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
    const auto score = [&](int t) {
      if (turn != 1.f) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) s[i] *= turn;
      }
      if (t < span.full_begin || t >= span.full_end)
        mask_tile<N>(s, rounds.band, at.row0 + row, t * N + col, u.seq_kv);
    };
    if (span.begin < span.end) {
      float factor[2];
      barrier_wait(shared.q_full(), q_step.parity);
      barrier_wait(shared.k_full(k_step.stage), k_step.parity);
      fence();
      product_s(k_step.stage);
      commit();
      wait<0>();
      if (speaks) barrier_arrive(shared.k_empty(k_step.stage));
      k_step.next();
      score(span.end - 1);
      softmax.step(s, scale, factor);
      pack_tile<T, N>(p, s);
#pragma unroll 1
      for (int t = span.end - 2; t >= span.begin; --t) {
        barrier_wait(shared.k_full(k_step.stage), k_step.parity);
        wait_turn<S>(group);
        fence();
        product_s(k_step.stage);
        commit();
        barrier_wait(shared.v_full(v_step.stage), v_step.parity);
        fence();
        product_o(v_step.stage);
        commit();
        pass_turn<S>(group);
        wait<1>();
        if (speaks) barrier_arrive(shared.k_empty(k_step.stage));
        k_step.next();
        score(t);
        const bool rescale = softmax.step(s, scale, factor);
        wait<0>();
        if (speaks) barrier_arrive(shared.v_empty(v_step.stage));
        v_step.next();
        if (rescale) {
#pragma unroll
          for (int i = 0; i < S::DV / 2; ++i) o[i] *= factor[i / 2 % 2];
        }
        pack_tile<T, N>(p, s);
      }
      if (speaks) barrier_arrive(shared.q_empty());
      q_step.next();
      barrier_wait(shared.v_full(v_step.stage), v_step.parity);
      fence();
      product_o(v_step.stage);
      commit();
      wait<0>();
      if (speaks) barrier_arrive(shared.v_empty(v_step.stage));
      v_step.next();
    }

    float inverse[2];
    float* lse = reinterpret_cast<float*>(params.push.lse);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float l = quad_sum(softmax.l[r]);
      const int i = at.row0 + row + 8 * r;
      // o is 0 where nothing was visible.
      inverse[r] = l > 0.f ? __frcp_rn(l) : l == 0.f ? 0.f : l;
      if (lse && col == 0 && i < u.seq_q)
        lse[(int64_t(at.batch) * u.heads_q + at.head) * u.seq_q + i] =
            l > 0.f    ? fmaf(softmax.m[r], kLn2, logf(l))
            : l == 0.f ? -INFINITY
                       : l;
    }
    store_rows<T, S::DV>(o, inverse, params.push.o, u.o, at.batch, at.head, at.row0 + row, u.seq_q,
                         u.head_dim_v);
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(Shape<ROW>::tile.threads(), 1)
    fwd(const __grid_constant__ FwdParams params) {
  using S = Shape<ROW>;
  Shared<S> shared{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    prefetch_map(&params.q);
    prefetch_map(&params.k);
    prefetch_map(&params.v);
    barrier_init(shared.q_full(), 1);
    barrier_init(shared.q_empty(), S::GROUPS);
    for (int n = 0; n < S::STAGES; ++n) {
      barrier_init(shared.k_full(n), 1);
      barrier_init(shared.v_full(n), 1);
      barrier_init(shared.k_empty(n), S::GROUPS);
      barrier_init(shared.v_empty(n), S::GROUPS);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<kProducerRegisters<S::GROUPS>>();
    if (threadIdx.x == 0) produce<S>(params, shared);
  } else {
    take_registers<kConsumerRegisters<S::GROUPS>>();
    consume<T, S>(params, shared);
  }
}

template <typename T, int ROW = 0>
Kernel<FwdParams> select(const char* name) {
  if constexpr (ROW < kFwdTileCount) {
    if (std::strcmp(name, kFwdTiles[ROW].name) == 0) return fwd<T, ROW>;
    return select<T, ROW + 1>(name);
  } else {
    return nullptr;
  }
}

}  // namespace

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch) {
  if (!launch.tile.name) return nullptr;
  if (dtype == TANDEM_F16) return select<Half>(launch.tile.name);
  if (dtype == TANDEM_BF16) return select<Bfloat>(launch.tile.name);
  return nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
