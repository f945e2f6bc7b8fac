// SPDX-License-Identifier: MIT OR Apache-2.0
// What the kernels of bwd_dkv_dq and bwd_dkv have in common: the walk, shared memory and its barriers, loads, and stores of d_k, d_v.
#ifndef TANDEM_CUDA_SM90_BWD_CUH
#define TANDEM_CUDA_SM90_BWD_CUH
#include "../mask.cuh"
#include "bwd.h"
#include "bwd_far.cuh"
#include "wgmma.cuh"
#include "words.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr float kLog2e = 1.4426950408889634f;

// Named barriers. 0 is __syncthreads(); of kDqFull, kDqEmpty and kGroup one for each multiplying warpgroup, and kSecond further
// on those of the second warp that adds.
enum : int {
  kDsWritten = 1,
  kDqFull = 2,
  kDqEmpty = 4,
  kGroup = 6,
  kDsRead = 8,
  kSummed = 9,
  kSecond = 8,
  kAdded = 14
};

// Registers of a thread of the helping warpgroup, and of the multiplying ones. At launch all have 168, and that many, 384
// times, is what they share: with more a warpgroup waits for ever.
template <int HELPING>
struct Registers {
  static constexpr int kHelping = HELPING, kMultiplying = 168 + (168 - HELPING) / 2;
  static_assert(kHelping % 8 == 0 && kMultiplying % 8 == 0, "what setmaxnreg takes");
};

// The tile of keys that a workgroup works on, and what it walks over.
struct Walk {
  int tile, head_kv, batch, col0;
  TandemBand band;
  TandemTiles span;
  int seq_q, seq_kv;      // of the batch entry
  int keys;               // rows of d_k and d_v
  int first_q, first_kv;  // where the entry begins in packed tensors
  int map_q, map_kv;      // its index in the tensor maps
  bool down = false;
  // Of several workgroups that share a tile of keys, each with a part of the tiles of queries: which one, how many, and
  // the number of what they share.
  int part = 0, parts = 1, shared = 0;
  // Of workgroups that go on to further tiles of keys: how many tiles of queries they have gone through before, and which of its passes this is.
  uint begun = 0, pass = 0;
  // The tile of queries that comes when those of span are counted from its end, if they are.
  TANDEM_DEVICE int turned(int at) const { return down ? span.begin + span.end - 1 - at : at; }
};
// Sets whose entries may be shorter than the problem's lengths (bwd_full.cuh).
template <typename Set>
constexpr bool kHasLengths = false;
// Sets whose tiles lie in numbered places, which Consumer asks for (bwd_all.cuh).
template <typename Set>
constexpr bool kHasPlaces = false;
// The set of a dense bias, whose workgroups may share a tile of keys, and whose Consumer says where dS goes.
template <typename Set>
constexpr bool kDense = false;
// Sets whose kernels zero sums of d_q some heads ahead (bwd_zeros.cuh): they have a warp for it.
template <typename Set>
constexpr bool kZeroesAhead = false;
// Sets whose weigh_far() comes in front of weigh(), not in its place: both ways have fewer
// registers to agree on.
template <typename Set>
constexpr bool kFarBefore = false;
// Sets whose workgroups go on to further tiles of keys (bwd_goes_on.cuh), where all gradients are wanted.
template <typename Set>
constexpr bool kGoesOn = false;

// With a causal mask all tiles of keys share the last queries, not the first: who begins there reads what others read. For
// kernels without turns.
template <typename Block>
TANDEM_DEVICE bool best_down(const Block& u) {
  return u.band_right != TANDEM_BAND_OPEN && u.band_left == TANDEM_BAND_OPEN;
}

// The index-th tile of keys. in_turn: 0, or in a fixed order of sums how many heads' tiles of keys come side by side: the first ones of all,
// then the second ones. Who waits for a turn waits for workgroups that were started before it.
template <typename Block>
TANDEM_DEVICE bool place_of(const Block& u, int in_turn, uint index, Place* at) {
  const uint heads_kv = uint(u.heads_q / u.group);
  uint head = index / u.tiles, n = index % u.tiles;
  if (index >= u.total) return false;
  if (in_turn > 1) {
    const uint heads = u.total / u.tiles;
    const uint first = index / (uint(in_turn) * u.tiles) * uint(in_turn);
    const uint beside = min(uint(in_turn), heads - first);
    n = index - first * u.tiles;
    head = first + n % beside, n /= beside;
  }
  at->tile = int(u.tiles - 1 - n);
  at->head = int(head % heads_kv), at->batch = int(head / heads_kv);
  return true;
}
// inner: the batch, if workgroups that follow each other are to differ in its entry alone; else 1.
template <typename Block>
TANDEM_DEVICE bool find_walk(const Block& u, const BwdShape& shape, int inner, int in_turn,
                             uint index, Walk* walk) {
  Place at;
  if (inner == 1) {
    if (!place_of(u, in_turn, index, &at)) return false;
  } else {
    if (index >= u.total) return false;
    const uint n = index / uint(inner);
    at.batch = int(index % uint(inner));
    at.tile = int(u.tiles - 1 - n % u.tiles);
    at.head = int(n / u.tiles);
  }
  // The first keys first: with a causal mask most rows see them, and they take longest. In turn the last ones come
  // first: with a causal mask the tile on the diagonal is the first to add, and nobody waits.
  walk->tile = in_turn ? at.tile : int(u.tiles) - 1 - at.tile;
  walk->head_kv = at.head;
  walk->batch = at.batch;
  walk->col0 = walk->tile * shape.bc;
  walk->band = mask_band(u);
  walk->seq_q = u.seq_q, walk->seq_kv = walk->keys = u.seq_kv;
  walk->first_q = walk->first_kv = 0;
  walk->map_q = walk->map_kv = walk->batch;
  walk->span = tandem_query_tiles(walk->band, walk->col0, shape.bc, shape.br, u.seq_q, u.seq_kv);
  return true;
}
TANDEM_DEVICE uint own_index() { return blockIdx.y * gridDim.x + blockIdx.x; }

// Barriers in shared memory: kv; then, per stage, of q full and empty, of d_o full and empty.
template <int ROW>
struct Barriers {
  static constexpr int kQ = kBwdShapes[ROW].q_stages, kDo = kBwdShapes[ROW].do_stages;
  // The warps that read the last of a tile. Of 192 features only one warpgroup needs q, the other d_o.
  static constexpr int kReaders = kBwdShapes[ROW].d == 192 ? 4 : 8;
  uint kv, first;
  TANDEM_DEVICE explicit Barriers(uint at) : kv(at), first(at + 8) {}
  TANDEM_DEVICE uint q_full(int stage) const { return first + 8 * stage; }
  TANDEM_DEVICE uint q_empty(int stage) const { return first + 8 * (kQ + stage); }
  TANDEM_DEVICE uint do_full(int stage) const { return first + 8 * (2 * kQ + stage); }
  TANDEM_DEVICE uint do_empty(int stage) const { return first + 8 * (2 * kQ + kDo + stage); }
  TANDEM_DEVICE void init() const {
    barrier_init(kv, 1);
    for (int stage = 0; stage < kQ; ++stage) {
      barrier_init(q_full(stage), 2);  // the boxes, and the numbers of the rows
      barrier_init(q_empty(stage), kReaders);
    }
    for (int stage = 0; stage < kDo; ++stage) {
      barrier_init(do_full(stage), 2);
      barrier_init(do_empty(stage), kReaders);
    }
    barrier_init_done();
  }
};

// Where in the ring of stages one is.
template <int STAGES>
struct Turn {
  int stage = 0, parity = 0;
  TANDEM_DEVICE Turn() {}
  TANDEM_DEVICE explicit Turn(uint before) : stage(before % STAGES), parity(before / STAGES % 2) {}
  TANDEM_DEVICE void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// The first one of a tile of keys.
template <typename Set, int STAGES>
TANDEM_DEVICE Turn<STAGES> first_turn(const Walk& walk) {
  if constexpr (kGoesOn<Set>)
    return Turn<STAGES>(walk.begun);
  else
    return Turn<STAGES>();
}

// Of row ROW of kBwdShapes, addresses from base on. Set's own part lies before the numbers of the rows, its barriers at the
// end.
template <int ROW, typename Set>
struct Memory {
  static constexpr BwdShape kShape = kBwdShapes[ROW];
  static constexpr int kPanels = bwd_panels(kShape), kKBytes = bwd_k_bytes(kShape),
                       kQBytes = bwd_q_bytes(kShape), kDsBytes = bwd_ds_bytes(kShape),
                       kDqBytes = bwd_second_dq_bytes(kShape);
  static constexpr int kAtV = bwd_at_v(kShape), kAtQ = bwd_at_q(kShape), kAtDo = bwd_at_do(kShape),
                       kAtDs = bwd_at_ds(kShape), kAtDq = bwd_at_dq(kShape),
                       kAtSet = bwd_at_stats(kShape), kSetBytes = Set::bytes(kShape),
                       kAtStats = kAtSet + kSetBytes, kAtFar = bwd_at_far(kShape) + kSetBytes,
                       kAtBarriers = bwd_at_barriers(kShape) + kSetBytes,
                       kAtSetBarriers = bwd_shared_bytes(kShape) + kSetBytes;
  uint base;
  TANDEM_DEVICE uint k() const { return base; }
  TANDEM_DEVICE uint v() const { return base + kAtV; }
  TANDEM_DEVICE uint q(int stage) const { return base + kAtQ + stage * kQBytes; }
  TANDEM_DEVICE uint d_o(int stage) const { return base + kAtDo + stage * kQBytes; }
  TANDEM_DEVICE uint ds(int stage) const { return base + kAtDs + stage * kDsBytes; }
  // The second place is the first of Set's own part, if Set has two.
  TANDEM_DEVICE uint dq(int group, int place) const {
    return base + kAtDq + group * 16384 + place * kDqBytes;
  }
  TANDEM_DEVICE uint lse(int stage) const { return base + kAtStats + stage * kShape.br * 4; }
  TANDEM_DEVICE uint delta(int stage) const { return lse(kShape.q_stages + stage); }
  TANDEM_DEVICE uint far(int stage) const { return base + kAtFar + stage * kBwdFarBytes; }
  TANDEM_DEVICE uint barriers() const { return base + kAtBarriers; }
  TANDEM_DEVICE uint set() const { return base + kAtSet; }
  TANDEM_DEVICE uint set_barriers() const { return base + kAtSetBarriers; }
};

// Tiles of keys that add to the sums of a tile of queries before this one: all later ones that the queries see.
template <int ROW>
TANDEM_DEVICE uint turns_before(const BwdDkvDqBlock&, const Walk& walk, int t) {
  constexpr BwdShape S = kBwdShapes[ROW];
  return uint(tandem_key_tiles(walk.band, t * S.br, S.br, S.bc, walk.seq_q, walk.seq_kv).end - 1 -
              walk.tile);
}

// The tiles of queries that are visited, the same for all warps: all of them.
template <int ROW>
struct EveryTile {
  template <typename Params>
  TANDEM_DEVICE EveryTile(const Params&, const Walk&) {}
  // The first from t on, walk.span.end or beyond if there is none; n: query head of the group.
  TANDEM_DEVICE int next(int, int t) { return t; }
  // Tiles of keys that add to the sums of tile t before this one: all later ones that the queries see.
  template <typename Block>
  TANDEM_DEVICE uint before(const Block& u, const Walk& walk, int, int t) const {
    return turns_before<ROW>(u, walk, t);
  }
};

// A warp makes rows [from, ROWS) of a tile in panels zero.
template <int PANELS, int ROWS>
TANDEM_DEVICE void clear_rows(uint tile, int from) {
#pragma unroll 1
  for (int c = 0; c < PANELS; ++c)
#pragma unroll 1
    for (int n = max(from, 0) * 128 + int(threadIdx.x) % 32 * 16; n < ROWS * 128; n += 512)
      put_shared(tile + uint(c * ROWS * 128 + n), 0.f, 0.f, 0.f, 0.f);
}

// Warp 0: K and V once, then Q and dO tile by tile, with lse (times Set::kLse) and delta of their rows. What the copy engine
// brings from behind the end of a batch entry (anything, or another sequence) becomes zeros before the others hear of it.
template <int ROW, typename Set>
TANDEM_DEVICE void load_tiles(const typename Set::Params& params, const Walk& walk,
                              const Memory<ROW, Set>& memory) {
  constexpr BwdShape S = kBwdShapes[ROW];
  using M = Memory<ROW, Set>;
  const auto& u = params.block;
  const Barriers<ROW> barriers(memory.barriers());
  const int lane = int(threadIdx.x) % 32;
  // The boxes of a tile that has to be cleared arrive at a barrier of their own.
  int arrivals = 0;
  const auto wait_boxes = [&] { barrier_wait(memory.set_barriers(), arrivals++ & 1); };
  const auto cleared = [&](uint barrier) {
    fence_async();
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  };
  const auto ends = [](int left, int rows) { return kHasLengths<Set> && left < rows; };

  if constexpr (kHasLengths<Set>) {
    if (walk.span.begin >= walk.span.end) {  // nobody reads what would come
      if (lane == 0) barrier_arrive(barriers.kv);
      return;
    }
  }
  const bool last_keys = ends(walk.seq_kv - walk.col0, S.bc);
  if (lane == 0) {
    const uint barrier = last_keys ? memory.set_barriers() : barriers.kv;
    barrier_expect(barrier, 2 * M::kKBytes);
    for (int c = 0; c < M::kPanels; ++c) {
      copy_box(memory.k() + c * S.bc * 128, &params.k, barrier, 64 * c, walk.first_kv + walk.col0,
               walk.head_kv, walk.map_kv);
      copy_box(memory.v() + c * S.bc * 128, &params.v, barrier, 64 * c, walk.first_kv + walk.col0,
               walk.head_kv, walk.map_kv);
    }
  }
  if (last_keys) {
    wait_boxes();
    clear_rows<M::kPanels, S.bc>(memory.k(), walk.seq_kv - walk.col0);
    clear_rows<M::kPanels, S.bc>(memory.v(), walk.seq_kv - walk.col0);
    cleared(barriers.kv);
  }
  auto q = first_turn<Set, S.q_stages>(walk);
  auto d_o = first_turn<Set, S.do_stages>(walk);
  typename Set::template Loader<ROW> set(params, walk, memory);
  typename Set::template Tiles<ROW> tiles(params, walk);
  for (int n = 0; n < u.group; ++n) {
    const int head = walk.head_kv * u.group + n;
    const int64_t rows0 = (int64_t(walk.batch) * u.heads_q + head) * u.seq_q;
    const float* lse = reinterpret_cast<const float*>(params.push.lse) + rows0;
    const float* delta = reinterpret_cast<const float*>(params.push.delta) + rows0;
#pragma unroll 1
    for (int at = tiles.next(n, walk.span.begin); at < walk.span.end;
         at = tiles.next(n, at + 1), q.next(), d_o.next()) {
      const int t = walk.turned(at), row0 = t * S.br;
      const bool last_rows = ends(walk.seq_q - row0, S.br);
      barrier_wait(barriers.q_empty(q.stage), q.parity ^ 1);
      if (lane == 0) {
        const uint barrier = last_rows ? memory.set_barriers() : barriers.q_full(q.stage);
        barrier_expect(barrier, M::kQBytes);
        for (int c = 0; c < M::kPanels; ++c)
          copy_box(memory.q(q.stage) + c * S.br * 128, &params.q, barrier, 64 * c,
                   walk.first_q + row0, head, walk.map_q);
      }
      bool far = false;
#pragma unroll
      for (int r = lane; r < S.br; r += 32) {
        const float x = row0 + r < walk.seq_q ? __ldg(lse + row0 + r) : minus_infinity();
        put_shared(memory.lse(q.stage) + 4 * r, x == minus_infinity() ? -x : x * Set::kLse);
        far |= tandem_is_far(x);
      }
      far = __any_sync(kAllLanes, far);
      if (lane == 0) put_far(memory.far(q.stage), far ? walk.seq_q - row0 : 0, lse + row0);
      set.rows(t, head, q.stage);
      if (last_rows) {
        wait_boxes();
        clear_rows<M::kPanels, S.br>(memory.q(q.stage), walk.seq_q - row0);
        cleared(barriers.q_full(q.stage));
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.q_full(q.stage));

      set.load(row0, head);
      barrier_wait(barriers.do_empty(d_o.stage), d_o.parity ^ 1);
      if (lane == 0) {
        const uint barrier = last_rows ? memory.set_barriers() : barriers.do_full(d_o.stage);
        barrier_expect(barrier, M::kQBytes);
        for (int c = 0; c < M::kPanels; ++c)
          copy_box(memory.d_o(d_o.stage) + c * S.br * 128, &params.d_o, barrier, 64 * c,
                   walk.first_q + row0, head, walk.map_q);
      }
#pragma unroll
      for (int r = lane; r < S.br; r += 32)
        put_shared(memory.delta(d_o.stage) + 4 * r,
                   row0 + r < walk.seq_q ? __ldg(delta + row0 + r) : 0.f);
      if (last_rows) {
        wait_boxes();
        clear_rows<M::kPanels, S.br>(memory.d_o(d_o.stage), walk.seq_q - row0);
        cleared(barriers.do_full(d_o.stage));
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.do_full(d_o.stage));
    }
  }
}

// Whether any row of the tile of queries at a place is far: the same for all warps. It costs least
// while products are on their way.
template <int ROW, typename Set>
TANDEM_DEVICE bool has_far(const Memory<ROW, Set>& memory, int stage) {
  return __any_sync(kAllLanes, shared_word(memory.far(stage)) != 0u);
}

TANDEM_DEVICE uint turns_taken(const uint* at) { return acquire_word(at); }
TANDEM_DEVICE void take_turn(uint* at) { release_add(at, 1); }

// No !=, which would wait for ever where offsets that go down make two batch entries count in one
// word.
TANDEM_DEVICE void wait_turn(const uint* at, uint before) {
  while (turns_taken(at) < before) {
  }
}

// Scores of 64 keys x COUNT queries become p: exp2(s scale2 - lse2), lse at 8 bytes a pair of queries.
template <int COUNT>
TANDEM_DEVICE void weigh(float (&s)[COUNT / 2], float scale2, uint lse) {
#pragma unroll
  for (int j = 0; j < COUNT / 8; ++j) {
    const float2 l = shared_float2(lse + 32 * j);
    s[4 * j] = exp2_fast(fmaf(s[4 * j], scale2, -l.x));
    s[4 * j + 1] = exp2_fast(fmaf(s[4 * j + 1], scale2, -l.y));
    s[4 * j + 2] = exp2_fast(fmaf(s[4 * j + 2], scale2, -l.x));
    s[4 * j + 3] = exp2_fast(fmaf(s[4 * j + 3], scale2, -l.y));
  }
}
// What stands for hidden where the mask hides. key: of the thread's first row, the second is 8 further; row: the query of its first column.
template <int COUNT>
TANDEM_DEVICE void hide(float (&p)[COUNT / 2], const TandemBand& band, int key, int keys, int row,
                        float hidden) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int j = key + 8 * r;
    const int low = j < keys ? j - band.off - band.right - row : TANDEM_BAND_OPEN;
    const int high = j - band.off + band.left - row;
#pragma unroll
    for (int c = 0; c < COUNT / 8; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if ((8 * c + e < low) | (8 * c + e > high)) p[4 * c + 2 * r + e] = hidden;
  }
}
// dS = p (dP - delta), rounded, as pairs.
template <typename T, int COUNT>
TANDEM_DEVICE void differentiate(uint (&ds)[COUNT / 4], const float (&p)[COUNT / 2],
                                 const float (&dp)[COUNT / 2], uint delta) {
#pragma unroll
  for (int j = 0; j < COUNT / 8; ++j) {
    const float2 l = shared_float2(delta + 32 * j);
    ds[2 * j] = T::pack(p[4 * j] * (dp[4 * j] - l.x), p[4 * j + 1] * (dp[4 * j + 1] - l.y));
    ds[2 * j + 1] =
        T::pack(p[4 * j + 2] * (dp[4 * j + 2] - l.x), p[4 * j + 3] * (dp[4 * j + 3] - l.y));
  }
}
// Pairs of 64 keys x COUNT queries into a tile [query][key] of one panel; warp: of the warpgroup.
template <int COUNT>
TANDEM_DEVICE void store_transposed(uint tile, const uint (&x)[COUNT / 4], int warp, int lane) {
  const uint to = tile + panel_at(lane % 8 + lane / 16 * 8, 2 * warp + (lane / 8 & 1));
#pragma unroll
  for (int k = 0; k < COUNT / 16; ++k) {
    const uint r[4] = {x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]};
    store_matrices_transposed(to + 2048 * k, r);
  }
}
// Whether a tile of queries needs hide().
TANDEM_DEVICE bool on_edge(const Walk& walk, int t, int cols, int keys) {
  return t < walk.span.full_begin || t >= walk.span.full_end || walk.col0 + cols > keys;
}

// N columns of a warpgroup's 64 rows of accumulators, each warp's own 16 by themselves, through shared memory (panels of 64
// rows, stride bytes apart) to an output of any strides. key: of the first row, column: the first one.
template <typename T, int N>
TANDEM_DEVICE void store_rows(uint memory, int stride, const float (&x)[N / 2], float scale,
                              uint64_t address, const Strides& strides, const Walk& walk, int key,
                              int keys, int column, int width) {
  constexpr int kPieces = N / 8;
  [[maybe_unused]] constexpr int kFly = N > 64 ? 4 : 1;  // with heads of 64 registers spill
  const int lane = fresh_thread() % 32, row0 = fresh_thread() % 128 / 32 * 16;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
    uint r[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      r[n] = T::pack(x[8 * k + 2 * n] * scale, x[8 * k + 2 * n + 1] * scale);
    const int piece = 2 * k + lane / 16;
    store_matrices(memory + piece / 8 * stride + panel_at(row0 + lane % 16, piece % 8), r);
  }
  __syncwarp();
  ushort* to = reinterpret_cast<ushort*>(address) + walk.batch * strides.b +
               walk.head_kv * strides.h + int64_t(walk.first_kv + key) * strides.s +
               column * strides.d;
  const bool chunks =
      strides.d == 1 && strides.s % 8 == 0 && (reinterpret_cast<uint64_t>(to) & 15) == 0;
  const auto words = [&](int row, int piece) {
    return shared_words(memory + piece / 8 * stride + panel_at(row, piece % 8));
  };
  if (__all_sync(kAllLanes, chunks && width % 8 == 0)) {  // without branches
#pragma unroll kFly
    for (int n = lane; n < 16 * kPieces; n += 32) {
      const int row = row0 + n / kPieces, piece = n % kPieces;
      const uint4 chunk = words(row, piece);
      if (key + row < keys && column + 8 * piece < width)
        *reinterpret_cast<uint4*>(to + row * strides.s + 8 * piece) = chunk;
    }
    return;
  }
#pragma unroll 1
  for (int n = lane; n < 16 * kPieces; n += 32) {
    const int row = row0 + n / kPieces, piece = n % kPieces, left = width - column - 8 * piece;
    if (key + row >= keys || left <= 0) continue;
    const uint4 chunk = words(row, piece);
    const uint w[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
    ushort* at = to + row * strides.s + 8 * piece * strides.d;
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e < left) at[e * strides.d] = ushort(w[e / 2] >> (e % 2 * 16));
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
