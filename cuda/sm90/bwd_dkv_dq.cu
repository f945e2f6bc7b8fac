// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq: the five products of the backward in one kernel. A workgroup keeps K and V of a tile of keys and walks
// over the query heads of its kv head and their tiles of queries. Transposed, S^T = K Q^T and dP^T = V dO^T, so that P^T
// and dS^T are the left operands of dV += P^T dO and dK += dS^T Q as they lie in registers: each of the two
// multiplying warpgroups owns 64 keys. dS goes through shared memory, where both read all of it for dQ = dS K.
// dQ is summed over the key tiles in the workspace, f32, by bulk adds.
//
// Of the helping warpgroup, warp 0 loads and warp 1 adds dQ. Rows past the end and rows that see nothing have lse = +inf
// in shared memory: their p is 0, and no product needs a mask for them.
#include "../mask.cuh"
#include "bwd.h"
#include "wgmma.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

constexpr float kLog2e = 1.4426950408889634f;

// Named barriers. 0 is __syncthreads(); of the last three one for each multiplying warpgroup.
enum : int { kDsWritten = 1, kDqFull = 2, kDqEmpty = 4, kGroup = 6 };

// The tile of keys that a workgroup works on, and what it walks over.
struct Walk {
  int tile, head_kv, batch, col0;
  TandemBand band;
  TandemTiles span;
};

TANDEM_DEVICE bool find_walk(const BwdDkvDqBlock& u, const BwdShape& shape, Walk* walk) {
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q / u.group, &at)) return false;
  // The first keys first: with a causal mask most rows see them, and they take longest. In turn the last ones come
  // first: with a causal mask the tile on the diagonal is the first to add, and nobody waits.
  walk->tile = u.in_turn ? at.tile : int(u.tiles) - 1 - at.tile;
  walk->head_kv = at.head;
  walk->batch = at.batch;
  walk->col0 = walk->tile * shape.bc;
  walk->band = mask_band(u);
  walk->span =
      tandem_query_tiles(walk->band, walk->col0, shape.bc, shape.br, u.seq_q, u.seq_kv);
  return true;
}

// Barriers in shared memory: kv, then per stage q full, q empty, d_o full, d_o empty.
template <int STAGES>
struct Barriers {
  uint kv, first;
  TANDEM_DEVICE explicit Barriers(uint at) : kv(at), first(at + 8) {}
  TANDEM_DEVICE uint q_full(int stage) const { return first + 8 * stage; }
  TANDEM_DEVICE uint q_empty(int stage) const { return first + 8 * (STAGES + stage); }
  TANDEM_DEVICE uint do_full(int stage) const { return first + 8 * (2 * STAGES + stage); }
  TANDEM_DEVICE uint do_empty(int stage) const { return first + 8 * (3 * STAGES + stage); }
  TANDEM_DEVICE void init() const {
    barrier_init(kv, 1);
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(q_full(stage), 2);  // the boxes, and the numbers of the rows
      barrier_init(do_full(stage), 2);
      barrier_init(q_empty(stage), 8);  // the warps that multiply
      barrier_init(do_empty(stage), 8);
    }
    barrier_init_done();
  }
};

// Where in the ring of stages one is.
template <int STAGES>
struct Turn {
  int stage = 0, parity = 0;
  TANDEM_DEVICE void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

TANDEM_DEVICE float2 shared_float2(uint at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
  return x;
}
TANDEM_DEVICE void put_shared(uint at, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
TANDEM_DEVICE void put_shared(uint at, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}
TANDEM_DEVICE uint4 shared_words(uint at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

template <int ROW>
struct Memory {  // of row ROW of kBwdShapes, addresses from base on
  static constexpr BwdShape kShape = kBwdShapes[ROW];
  static constexpr int kPanels = bwd_panels(kShape), kKBytes = bwd_k_bytes(kShape),
                       kQBytes = bwd_q_bytes(kShape), kDsBytes = bwd_ds_bytes(kShape);
  static constexpr int kAtV = bwd_at_v(kShape), kAtQ = bwd_at_q(kShape), kAtDo = bwd_at_do(kShape),
                       kAtDs = bwd_at_ds(kShape), kAtDq = bwd_at_dq(kShape),
                       kAtStats = bwd_at_stats(kShape), kAtBarriers = bwd_at_barriers(kShape);
  uint base;
  TANDEM_DEVICE uint k() const { return base; }
  TANDEM_DEVICE uint v() const { return base + kAtV; }
  TANDEM_DEVICE uint q(int stage) const { return base + kAtQ + stage * kQBytes; }
  TANDEM_DEVICE uint d_o(int stage) const { return base + kAtDo + stage * kQBytes; }
  TANDEM_DEVICE uint ds(int stage) const { return base + kAtDs + stage * kDsBytes; }
  TANDEM_DEVICE uint dq(int group) const { return base + kAtDq + group * 16384; }
  TANDEM_DEVICE uint lse(int stage) const {
    return base + kAtStats + stage * kShape.br * 8;
  }
  TANDEM_DEVICE uint delta(int stage) const { return lse(stage) + kShape.br * 4; }
  TANDEM_DEVICE uint barriers() const { return base + kAtBarriers; }
};

// Warp 0: K and V once, then Q and dO tile by tile, with lse (times log2 e) and delta of their rows.
template <int ROW>
TANDEM_DEVICE void load_tiles(const BwdDkvDqParams& params, const Walk& walk,
                              const Memory<ROW>& memory) {
  constexpr BwdShape S = kBwdShapes[ROW];
  using M = Memory<ROW>;
  const BwdDkvDqBlock& u = params.block;
  const Barriers<S.stages> barriers(memory.barriers());
  const int lane = int(threadIdx.x) % 32;
  if (lane == 0) {
    barrier_expect(barriers.kv, 2 * M::kKBytes);
    for (int c = 0; c < M::kPanels; ++c) {
      copy_box(memory.k() + c * S.bc * 128, &params.k, barriers.kv, 64 * c, walk.col0, walk.head_kv,
               walk.batch);
      copy_box(memory.v() + c * S.bc * 128, &params.v, barriers.kv, 64 * c, walk.col0, walk.head_kv,
               walk.batch);
    }
  }
  Turn<S.stages> turn;
  for (int n = 0; n < u.group; ++n) {
    const int head = walk.head_kv * u.group + n;
    const int64_t rows0 = (int64_t(walk.batch) * u.heads_q + head) * u.seq_q;
    const float* lse = reinterpret_cast<const float*>(params.push.lse) + rows0;
    const float* delta = reinterpret_cast<const float*>(params.push.delta) + rows0;
#pragma unroll 1
    for (int t = walk.span.begin; t < walk.span.end; ++t, turn.next()) {
      const int row0 = t * S.br;
      barrier_wait(barriers.q_empty(turn.stage), turn.parity ^ 1);
      if (lane == 0) {
        barrier_expect(barriers.q_full(turn.stage), M::kQBytes);
        for (int c = 0; c < M::kPanels; ++c)
          copy_box(memory.q(turn.stage) + c * S.br * 128, &params.q, barriers.q_full(turn.stage),
                   64 * c, row0, head, walk.batch);
      }
#pragma unroll
      for (int r = lane; r < S.br; r += 32) {
        const float x = row0 + r < u.seq_q ? __ldg(lse + row0 + r) : minus_infinity();
        put_shared(memory.lse(turn.stage) + 4 * r, x == minus_infinity() ? -x : x * kLog2e);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.q_full(turn.stage));

      barrier_wait(barriers.do_empty(turn.stage), turn.parity ^ 1);
      if (lane == 0) {
        barrier_expect(barriers.do_full(turn.stage), M::kQBytes);
        for (int c = 0; c < M::kPanels; ++c)
          copy_box(memory.d_o(turn.stage) + c * S.br * 128, &params.d_o,
                   barriers.do_full(turn.stage), 64 * c, row0, head, walk.batch);
      }
#pragma unroll
      for (int r = lane; r < S.br; r += 32)
        put_shared(memory.delta(turn.stage) + 4 * r,
                   row0 + r < u.seq_q ? __ldg(delta + row0 + r) : 0.f);
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.do_full(turn.stage));
    }
  }
}

TANDEM_DEVICE uint turns_taken(const uint* at) {
  uint x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
TANDEM_DEVICE void take_turn(uint* at) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory");
}

// Warp 1: what the multiplying warpgroups leave of dQ is added to the sums in the workspace.
template <int ROW>
TANDEM_DEVICE void add_sums(const BwdDkvDqParams& params, const Walk& walk,
                            const Memory<ROW>& memory) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr int kPanels = Memory<ROW>::kPanels;
  const BwdDkvDqBlock& u = params.block;
  const bool one = int(threadIdx.x) % 32 == 0;
  const int tiles = (u.seq_q + S.br - 1) / S.br;
  for (int n = 0; n < u.group; ++n) {
    const int64_t head = int64_t(walk.batch) * u.heads_q + walk.head_kv * u.group + n;
    float* sums = reinterpret_cast<float*>(params.push.d_q_sums) +
                  head * tiles * (S.br / 64 * kPanels * kSumsBlock);
    uint* turns = reinterpret_cast<uint*>(params.push.turns) + head * tiles;
#pragma unroll 1
    for (int t = walk.span.begin; t < walk.span.end; ++t) {
      float* to = sums + int64_t(t) * (S.br / 64 * kPanels * kSumsBlock);
      if (u.in_turn && one) {
        // Behind all later tiles of keys that these queries see.
        const uint before = uint(
            tandem_key_tiles(walk.band, t * S.br, S.br, S.bc, u.seq_q, u.seq_kv).end - 1 -
            walk.tile);
        while (turns_taken(turns + t) != before) {
        }
      }
      __syncwarp();
      named_sync<kDqFull>(160);
      if (one) {
        add_flat(to, memory.dq(0), 16384);
        bulk_commit();
      }
      named_sync<kDqFull + 1>(160);
      if (one) {
        // Of 96 features the second panel has half.
        add_flat(to + kSumsBlock, memory.dq(1), S.d == 96 ? 8192 : 16384);
        bulk_commit();
        bulk_wait_read<1>();
      }
      __syncwarp();
      named_arrive<kDqEmpty>(160);
      if (one) bulk_wait_read<0>();
      __syncwarp();
      named_arrive<kDqEmpty + 1>(160);
      if (u.in_turn && one) {
        bulk_wait<0>();
        take_turn(turns + t);
      }
    }
  }
  if (one) bulk_wait<0>();
}

// A warp's 16 rows of accumulators, through its own part of V in shared memory, to an output of any strides.
template <typename T, int ROW>
TANDEM_DEVICE void store_rows(const Memory<ROW>& memory, const float (&x)[kBwdShapes[ROW].d / 2],
                              float scale, uint64_t address, const Strides& strides,
                              const Walk& walk, int rows_all, int width) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr int kPieces = S.d / 8;
  const int lane = int(threadIdx.x) % 32;
  const int row0 = (int(threadIdx.x) - 128) / 32 * 16;
  __syncwarp();
  {
    const int row = row0 + lane % 16;
#pragma unroll
    for (int k = 0; k < S.d / 16; ++k) {
      uint r[4];
#pragma unroll
      for (int n = 0; n < 4; ++n)
        r[n] = T::pack(x[8 * k + 2 * n] * scale, x[8 * k + 2 * n + 1] * scale);
      const int piece = 2 * k + lane / 16;
      store_matrices(memory.v() + piece / 8 * S.bc * 128 + panel_at(row, piece % 8), r);
    }
  }
  __syncwarp();
  ushort* to = reinterpret_cast<ushort*>(address) + walk.batch * strides.b +
               walk.head_kv * strides.h + int64_t(walk.col0) * strides.s;
  const bool chunks =
      strides.d == 1 && strides.s % 8 == 0 && (reinterpret_cast<uint64_t>(to) & 15) == 0;
#pragma unroll 1
  for (int n = lane; n < 16 * kPieces; n += 32) {
    const int row = row0 + n / kPieces, piece = n % kPieces;
    if (walk.col0 + row >= rows_all || 8 * piece >= width) continue;
    const uint4 words =
        shared_words(memory.v() + piece / 8 * S.bc * 128 + panel_at(row, piece % 8));
    ushort* at = to + row * strides.s + 8 * piece * strides.d;
    if (chunks && 8 * piece + 8 <= width) {
      *reinterpret_cast<uint4*>(at) = words;
    } else {
      const uint w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (8 * piece + e < width) at[e * strides.d] = ushort(w[e / 2] >> (e % 2 * 16));
    }
  }
}

template <typename T, int ROW, bool GRAD_Q, bool GRAD_KV>
TANDEM_DEVICE void multiply(const BwdDkvDqParams& params, const Walk& walk,
                            const Memory<ROW>& memory) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr int BR = S.br, BC = S.bc, D = S.d;
  constexpr int kKPanel = BC * 128, kQPanel = BR * 128;
  const BwdDkvDqBlock& u = params.block;
  const Barriers<S.stages> barriers(memory.barriers());
  const int group = int(threadIdx.x) / 128 - 1, thread = int(threadIdx.x) % 128;
  const int warp = thread / 32, lane = thread % 32;
  const uint own = uint(group) * 64 * 128;  // this warpgroup's keys in a panel
  const float scale2 = u.scale * kLog2e;

  float d_k[D / 2], d_v[D / 2];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) d_k[i] = d_v[i] = 0.f;

  // Queries that this thread's two keys see: [from, from + wide], the second key 8 further.
  const int key = walk.col0 + group * 64 + warp * 16 + lane / 4;

  barrier_wait(barriers.kv, 0);
  Turn<S.stages> turn;
  Turn<S.ds_stages> ds_turn;
  bool first = true;
  for (int n = 0; n < u.group; ++n) {
#pragma unroll 1
    for (int t = walk.span.begin; t < walk.span.end; ++t, turn.next(), ds_turn.next()) {
      const uint q = memory.q(turn.stage), d_o = memory.d_o(turn.stage);
      float s[BR / 2], dp[BR / 2];
      barrier_wait(barriers.q_full(turn.stage), turn.parity);
      fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Product<T, BR>::template from_shared<0, 0>(
            s, along(memory.k() + own + k / 4 * kKPanel + k % 4 * 32),
            along(q + k / 4 * kQPanel + k % 4 * 32), k > 0);
      commit();
      barrier_wait(barriers.do_full(turn.stage), turn.parity);
      fence();
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        Product<T, BR>::template from_shared<0, 0>(
            dp, along(memory.v() + own + k / 4 * kKPanel + k % 4 * 32),
            along(d_o + k / 4 * kQPanel + k % 4 * 32), k > 0);
      commit();

      wait<1>();
      const uint lse = memory.lse(turn.stage) + 8 * (lane % 4);
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        const float2 l = shared_float2(lse + 32 * j);
        s[4 * j] = exp2_fast(fmaf(s[4 * j], scale2, -l.x));
        s[4 * j + 1] = exp2_fast(fmaf(s[4 * j + 1], scale2, -l.y));
        s[4 * j + 2] = exp2_fast(fmaf(s[4 * j + 2], scale2, -l.x));
        s[4 * j + 3] = exp2_fast(fmaf(s[4 * j + 3], scale2, -l.y));
      }
      if (t < walk.span.full_begin || t >= walk.span.full_end || walk.col0 + BC > u.seq_kv) {
        const int i0 = t * BR + 2 * (lane % 4);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int j = key + 8 * r;
          // Queries that see key j, from i0 on.
          const int low =
              j < u.seq_kv ? j - walk.band.off - walk.band.right - i0 : TANDEM_BAND_OPEN;
          const int high = j - walk.band.off + walk.band.left - i0;
#pragma unroll
          for (int c = 0; c < BR / 8; ++c)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if ((8 * c + e < low) | (8 * c + e > high)) s[4 * c + 2 * r + e] = 0.f;
        }
      }
      uint p[BR / 4];
#pragma unroll
      for (int i = 0; i < BR / 4; ++i) p[i] = T::pack(s[2 * i], s[2 * i + 1]);
      wait<0>();
      uint ds[BR / 4];
      const uint delta = memory.delta(turn.stage) + 8 * (lane % 4);
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        const float2 l = shared_float2(delta + 32 * j);
        ds[2 * j] = T::pack(s[4 * j] * (dp[4 * j] - l.x), s[4 * j + 1] * (dp[4 * j + 1] - l.y));
        ds[2 * j + 1] =
            T::pack(s[4 * j + 2] * (dp[4 * j + 2] - l.x), s[4 * j + 3] * (dp[4 * j + 3] - l.y));
      }
      const uint ds_tile = memory.ds(ds_turn.stage);
      if constexpr (GRAD_Q) {
        // As [query][key]. With two places the readers of this one were done before the last barrier.
        if constexpr (S.ds_stages == 1) named_sync<kDsWritten>(256);
        const int piece = 2 * warp + (lane / 8 & 1);
#pragma unroll
        for (int k = 0; k < BR / 16; ++k) {
          const uint r[4] = {ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]};
          store_matrices_transposed(
              ds_tile + group * kQPanel + panel_at(16 * k + lane % 8 + lane / 16 * 8, piece), r);
        }
      }
      if constexpr (GRAD_KV) {
        fence();
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Product<T, D>::template from_registers<1>(d_v, p[4 * k], p[4 * k + 1], p[4 * k + 2],
                                                    p[4 * k + 3], across(d_o + k * 2048, kQPanel),
                                                    1);
        commit();
      }
      float dq[32];
      if constexpr (GRAD_Q) {
        fence_async();
        named_sync<kDsWritten>(256);
        fence();
        if constexpr (D == 64) {  // 64 rows each
#pragma unroll
          for (int k = 0; k < BC / 16; ++k)
            Product<T, 64>::template from_shared<0, 1>(
                dq, along(ds_tile + own + k / 4 * kQPanel + k % 4 * 32),
                across(memory.k() + k * 2048, kKPanel), k > 0);
        } else {  // 64 features each
#pragma unroll
          for (int k = 0; k < BC / 16; ++k)
            Product<T, 64>::template from_shared<0, 1>(
                dq, along(ds_tile + k / 4 * kQPanel + k % 4 * 32),
                across(memory.k() + group * kKPanel + k * 2048, kKPanel), k > 0);
        }
        commit();
      }
      if constexpr (GRAD_KV) {
        if constexpr (GRAD_Q)
          wait<1>();
        else
          wait<0>();
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.do_empty(turn.stage));
      if constexpr (GRAD_KV) {
        fence();
#pragma unroll
        for (int k = 0; k < BR / 16; ++k)
          Product<T, D>::template from_registers<1>(d_k, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2],
                                                    ds[4 * k + 3], across(q + k * 2048, kQPanel),
                                                    1);
        commit();
      }
      if constexpr (GRAD_Q) {
        if constexpr (GRAD_KV)
          wait<1>();
        else
          wait<0>();
        if (!first) named_sync(kDqEmpty + group, 160);
        first = false;
        const uint to = memory.dq(group) + 16 * thread;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          put_shared(to + 2048 * i, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
        fence_async();
        named_arrive(kDqFull + group, 160);
      }
      if constexpr (GRAD_KV) wait<0>();
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.q_empty(turn.stage));
    }
  }
  if constexpr (GRAD_KV) {
    // All that read this warpgroup's part of V are past it.
    named_sync(kGroup + group, 128);
    if (params.push.d_v)
      store_rows<T, ROW>(memory, d_v, 1.f, params.push.d_v, u.d_v, walk, u.seq_kv, u.head_dim_v);
    if (params.push.d_k)
      store_rows<T, ROW>(memory, d_k, u.scale, params.push.d_k, u.d_k, walk, u.seq_kv, u.head_dim);
  }
}

template <typename T, int ROW, bool GRAD_Q, bool GRAD_KV>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq(const __grid_constant__ BwdDkvDqParams params) {
  constexpr BwdShape S = kBwdShapes[ROW];
  Walk walk;
  if (!find_walk(params.block, S, &walk)) return;
  const Memory<ROW> memory{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) Barriers<S.stages>(memory.barriers()).init();
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<40>();
    const int warp = int(threadIdx.x) / 32;
    if (warp == 0)
      load_tiles<ROW>(params, walk, memory);
    else if (warp == 1 && GRAD_Q)
      add_sums<ROW>(params, walk, memory);
  } else {
    take_registers<232>();
    multiply<T, ROW, GRAD_Q, GRAD_KV>(params, walk, memory);
  }
}

template <typename T, int ROW>
Kernel<BwdDkvDqParams> select(int row, bool grad_q, bool grad_kv) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1>(row, grad_q, grad_kv);
    if (grad_q) return grad_kv ? bwd_dkv_dq<T, ROW, true, true> : bwd_dkv_dq<T, ROW, true, false>;
    return grad_kv ? bwd_dkv_dq<T, ROW, false, true> : nullptr;
  } else {
    return nullptr;
  }
}

}  // namespace

Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, int row, bool grad_q, bool grad_kv) {
  if (dtype == TANDEM_F16) return select<Half, 0>(row, grad_q, grad_kv);
  return dtype == TANDEM_BF16 ? select<Bfloat, 0>(row, grad_q, grad_kv) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
