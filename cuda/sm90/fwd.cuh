// SPDX-License-Identifier: MIT OR Apache-2.0
// What the forward kernels on Hopper are made of: shared memory, the order of work, the copying thread, weights, stores.
#ifndef TANDEM_CUDA_SM90_FWD_CUH
#define TANDEM_CUDA_SM90_FWD_CUH
#include "../../src/hopper_tiles.h"
#include "../../src/tile_range.h"
#include "kernels.h"
#include "wgmma.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// What the copying warpgroup keeps of its registers, and what the others have then: together no more than the launch
// allocated, 168 for each of 3 warpgroups, 128 for each of 4; whoever asks for more waits for ever.
template <int GROUPS>
constexpr int kProducerRegisters = GROUPS == 2 ? 24 : 32;
template <int GROUPS>
constexpr int kConsumerRegisters = GROUPS == 2 ? 240 : 160;

template <int ROW>
struct FwdShape {
  static constexpr FwdTile tile = kFwdTiles[ROW];
  static constexpr int D = tile.d, DV = tile.dv, GROUPS = tile.groups, M = tile.rows(), N = tile.bc;
  static constexpr int STAGES = tile.stages, Q_STAGES = fwd_q_stages(tile);
  static_assert(GROUPS == 2 || GROUPS == 3, "registers are shared out for these");
  static constexpr bool TURNS = tile.turns && GROUPS > 1;
  static constexpr int DIST_PAD = fwd_dist_pad(tile), DIST_ENTRIES = fwd_dist_entries(tile);
  static constexpr int D_PANELS = fwd_panels(D), DV_PANELS = fwd_panels(DV);
  static constexpr int Q_PANEL = M * kPanelBytes, K_PANEL = N * kPanelBytes;
  static constexpr int Q_BYTES = D_PANELS * Q_PANEL, K_BYTES = D_PANELS * K_PANEL,
                       V_BYTES = DV_PANELS * K_PANEL;
  static constexpr int K_AT = Q_STAGES * Q_BYTES, V_AT = K_AT + STAGES * K_BYTES,
                       BARRIERS_AT = V_AT + STAGES * V_BYTES;
};

// Shared memory by address, and its barriers.
template <typename S>
struct Shared {
  uint at;
  TANDEM_DEVICE uint q(int stage) const { return at + stage * S::Q_BYTES; }
  TANDEM_DEVICE uint k(int stage) const { return at + S::K_AT + stage * S::K_BYTES; }
  TANDEM_DEVICE uint v(int stage) const { return at + S::V_AT + stage * S::V_BYTES; }
  TANDEM_DEVICE uint barrier(int n) const { return at + S::BARRIERS_AT + 8 * n; }
  TANDEM_DEVICE uint q_full(int stage) const { return barrier(stage); }
  TANDEM_DEVICE uint q_empty(int stage) const { return barrier(2 + stage); }
  TANDEM_DEVICE uint k_full(int stage) const { return barrier(4 + stage); }
  TANDEM_DEVICE uint k_empty(int stage) const { return barrier(4 + S::STAGES + stage); }
  TANDEM_DEVICE uint v_full(int stage) const { return barrier(4 + 2 * S::STAGES + stage); }
  TANDEM_DEVICE uint v_empty(int stage) const { return barrier(4 + 3 * S::STAGES + stage); }
  TANDEM_DEVICE void init() const {
    for (int n = 0; n < S::Q_STAGES; ++n) {
      barrier_init(q_full(n), 1);
      barrier_init(q_empty(n), S::GROUPS);
    }
    for (int n = 0; n < S::STAGES; ++n) {
      barrier_init(k_full(n), 1);
      barrier_init(v_full(n), 1);
      barrier_init(k_empty(n), S::GROUPS);
      barrier_init(v_empty(n), S::GROUPS);
    }
  }
};

// Stage and parity of the n-th step over all tiles of the workgroup.
template <int STAGES>
struct Step {
  int stage = 0, parity = 0;
  TANDEM_DEVICE void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

struct FwdPlace {
  int row0, head, batch;
  TandemTiles span;
};

// The tiles of this workgroup. Those of a head follow each other, so that workgroups at work at a time share its keys.
// Where later tiles are longer, a workgroup takes the last and the first, the last but one and the second, and so on: two
// are as long as any other two. If there are too few for that, the longest of all heads come first, and every other round
// goes backwards through the workgroups.
template <typename S>
struct Rounds {
  enum Order { kEqual, kPairs, kSorted };
  const FwdBlock& u;
  TandemBand band;
  Order order = kEqual;
  uint round = 0, heads, pairs;
  bool second = false;  // of a pair

  TANDEM_DEVICE explicit Rounds(const FwdBlock& block) : u(block) {
    band = TandemBand{u.band_left, u.band_right, u.band_off};
    heads = u.total / u.tiles;
    pairs = (u.tiles + 1) / 2;
    if ((u.band_right == TANDEM_BAND_OPEN) != (u.band_left == TANDEM_BAND_OPEN))
      order = heads * pairs >= 3 * gridDim.x ? kPairs : kSorted;
  }
  TANDEM_DEVICE bool place(uint tile, uint head, FwdPlace* at) const {
    at->batch = int(head / uint(u.heads_q));
    at->head = int(head - uint(at->batch) * uint(u.heads_q));
    at->row0 = int(tile) * S::M;
    at->span = tandem_key_tiles(band, at->row0, S::M, S::N, u.seq_q, u.seq_kv);
    return at->span.begin < at->span.end;
  }
  // The next tile with keys to see; nothing(place) is called for those without.
  template <typename Nothing>
  TANDEM_DEVICE bool next(FwdPlace* at, const Nothing& nothing) {
    for (;;) {
      const uint first = round * gridDim.x;
      bool some;
      if (order == kPairs) {
        const uint index = first + blockIdx.x;
        if (index >= heads * pairs) return false;
        const uint head = index / pairs, pair = index - head * pairs;
        const uint tile = second ? pair : u.tiles - 1 - pair;
        second = !second && pair != tile;
        if (!second) ++round;
        some = place(tile, head, at);
      } else {
        if (first >= u.total) return false;
        const bool back = order == kSorted && (round & 1);
        const uint index = first + (back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        ++round;
        if (index >= u.total) continue;
        const uint each = order == kSorted ? heads : u.tiles, down = index / each;
        const uint rest = index - down * each;
        some = order == kSorted ? place(u.tiles - 1 - down, rest, at) : place(rest, down, at);
      }
      if (some) return true;
      nothing(*at);
    }
  }
};

// ---- the copying thread -----------------------------------------------------------------------------

template <int PANELS>
TANDEM_DEVICE void copy_tile(uint to, const CUtensorMap* map, uint barrier, int rows, int row,
                             int head, int batch) {
  barrier_expect(barrier, PANELS * rows * kPanelBytes);
#pragma unroll
  for (int p = 0; p < PANELS; ++p)
    copy_box(to + uint(p * rows * kPanelBytes), map, barrier, p * kPanel, row, head, batch);
}

// Fills the places of q, k and v in the order in which they are read.
template <typename S, typename Params>
struct Copier {
  const Params& params;
  const Shared<S>& shared;
  Step<S::Q_STAGES> q_step;
  Step<S::STAGES> k_step, v_step;
  TANDEM_DEVICE Copier(const Params& p, const Shared<S>& s) : params(p), shared(s) {}
  TANDEM_DEVICE void q(int row0, int head, int batch) {
    barrier_wait(shared.q_empty(q_step.stage), q_step.parity ^ 1);
    copy_tile<S::D_PANELS>(shared.q(q_step.stage), &params.q, shared.q_full(q_step.stage), S::M,
                           row0, head, batch);
    q_step.next();
  }
  TANDEM_DEVICE void k(int t, int head, int batch) {
    barrier_wait(shared.k_empty(k_step.stage), k_step.parity ^ 1);
    copy_tile<S::D_PANELS>(shared.k(k_step.stage), &params.k, shared.k_full(k_step.stage), S::N,
                           t * S::N, head, batch);
    k_step.next();
  }
  TANDEM_DEVICE void v(int t, int head, int batch) {
    barrier_wait(shared.v_empty(v_step.stage), v_step.parity ^ 1);
    copy_tile<S::DV_PANELS>(shared.v(v_step.stage), &params.v, shared.v_full(v_step.stage), S::N,
                            t * S::N, head, batch);
    v_step.next();
  }
};

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

// Elements that the band hides become `hidden`. row, col: of the thread's first element.
template <int N>
TANDEM_DEVICE void mask_tile(float (&s)[N / 2], TandemBand band, int row, int col, int seq_kv,
                             float hidden) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r + band.off;
    const int most = min(seq_kv - 1, at + band.right) - col, least = at - band.left - col;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int x = 8 * j + c;
        s[4 * j + 2 * r + c] = (x > most) | (x < least) ? hidden : s[4 * j + 2 * r + c];
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

// S = Q K^T and O += P V: q and k as along(), v as across() describe them.
template <typename T, typename S>
TANDEM_DEVICE void product_along(float (&s)[S::N / 2], uint64_t q, uint64_t k) {
  fence();
#pragma unroll
  for (int n = 0; n < S::D / 16; ++n)
    Product<T, S::N>::template from_shared<0, 0>(s, q + ((n / 4 * S::Q_PANEL + n % 4 * 32) >> 4),
                                                 k + ((n / 4 * S::K_PANEL + n % 4 * 32) >> 4),
                                                 n > 0);
  commit();
}
template <typename T, typename S>
TANDEM_DEVICE void product_across(float (&o)[S::DV / 2], const uint (&p)[S::N / 4], uint64_t v) {
  fence();
#pragma unroll
  for (int n = 0; n < S::N / 16; ++n)
    Product<T, S::DV>::template from_registers<1>(o, p[4 * n], p[4 * n + 1], p[4 * n + 2],
                                                  p[4 * n + 3], v + ((n * 16 * kPanelBytes) >> 4),
                                                  1);
  commit();
}

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

// row: of the thread's first one in the tile.
TANDEM_DEVICE void store_lse(const FwdBlock& u, const FwdPush& push, const FwdPlace& at, int row,
                             const float (&lse)[2]) {
  float* to = reinterpret_cast<float*>(push.lse);
  if (!to || threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = at.row0 + row + 8 * r;
    if (i < u.seq_q) to[(int64_t(at.batch) * u.heads_q + at.head) * u.seq_q + i] = lse[r];
  }
}

// o and lse of a tile whose rows see no key.
template <typename S>
TANDEM_DEVICE void store_nothing(const FwdBlock& u, const FwdPush& push, const FwdPlace& at) {
  ushort* o = reinterpret_cast<ushort*>(push.o) + at.batch * u.o.b + at.head * u.o.h;
  float* lse =
      reinterpret_cast<float*>(push.lse) + (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q;
#pragma unroll 1
  for (int n = int(threadIdx.x) - 128; n < S::M * u.head_dim_v; n += 128 * S::GROUPS) {
    const int i = at.row0 + n / u.head_dim_v, d = n % u.head_dim_v;
    if (i >= u.seq_q) continue;
    o[i * u.o.s + d * u.o.d] = 0;
    if (push.lse && d == 0) lse[i] = -INFINITY;
  }
}

// Barriers, and where shared memory begins.
template <typename S, typename Params>
TANDEM_DEVICE Shared<S> begin_fwd(const Params& params) {
  const Shared<S> shared{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    prefetch_map(&params.q);
    prefetch_map(&params.k);
    prefetch_map(&params.v);
    shared.init();
    barrier_init_done();
  }
  __syncthreads();
  return shared;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
