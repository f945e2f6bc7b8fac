// SPDX-License-Identifier: MIT OR Apache-2.0
// The Q loop: what the kernels share that own keys and stream tiles of query rows past them. Rows
// of a tile of S are keys and columns are queries, so that P and dS are A operands as they lie in
// registers. What turns products into weights (weights.cuh, weights_full.cuh), which query tiles
// come, and what else becomes of dS (bwd_dkv_dq.cuh) are policies.
#ifndef TANDEM_CUDA_SM80_Q_LOOP_CUH
#define TANDEM_CUDA_SM80_Q_LOOP_CUH
#include "../parts/pair.cuh"
#include "scores.cuh"
#include "shape.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// S and dP of 16 keys and 8 N queries for each of two neighbouring warps. The even warp forms 32
// rows of S (a, b: K and Q), the odd one 32 rows of dP (V and dO). tile: 512 N bytes of shared
// memory for each warp of the workgroup.
template <int D, typename T, int N>
TANDEM_DEVICE void product_of_two(float (&s)[1][N][4], float (&dp)[1][N][4],
                                  const SharedLeft<D, 2>& a, const Reach<D>& b, int b_row,
                                  uint tile) {
  float x[2][N][4];
  product_nt<D, T>(x, a, b, b_row);
  const bool odd = threadIdx.x & 32u;
  const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint mine = tile + 16 * (32 * N * warp + lane),
             other = tile + 16 * (32 * N * (warp ^ 1u) + lane);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    uint4 give;
    give.x = __float_as_uint(odd ? x[0][n][0] : x[1][n][0]);
    give.y = __float_as_uint(odd ? x[0][n][1] : x[1][n][1]);
    give.z = __float_as_uint(odd ? x[0][n][2] : x[1][n][2]);
    give.w = __float_as_uint(odd ? x[0][n][3] : x[1][n][3]);
    put_chunk(mine + 512 * n, give);
  }
  sync_two_warps();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const uint4 given = get_chunk(other + 512 * n);
    const uint got[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float of_other = __uint_as_float(got[c]);
      s[0][n][c] = odd ? of_other : x[0][n][c];
      dp[0][n][c] = odd ? x[1][n][c] : of_other;
    }
  }
}

// How the warps of a workgroup share a tile of keys, and a query tile that passes it.
// HALVES = 2: two neighbouring warps own the same keys. Each multiplies half of the queries and
// sums half of the features, and P and dS pass through shared memory.
// HALVES = 4: four warps own the same keys, and sum a fourth of the features each. Of 16 keys each
// multiplies a fourth of the queries. SWAPS, of 32 keys: each two neighbours multiply half of the
// queries. One forms S and the other dP, and each exchanges 16 of its rows for 16 of the other's.
// SUMS_Q: dS also becomes d_q. With HALVES = 1 a warp then takes the queries of a tile TURN at a
// time: 32, or 16 beside a bias (SOME) where it has 32 keys.
template <typename T, int ROW, bool SOME, bool SUMS_Q>
struct QLoopShape : MmaShape<ROW> {
  using S = MmaShape<ROW>;
  static constexpr bool SWAPS = S::tile.swaps();
  // Q and dO are in one stage, and are loaded apart (q_loop_apart()).
  static constexpr bool LOADS_APART = S::HALVES == 4 && !SWAPS;
  static constexpr int TURN = SOME && S::MT > 1 ? 16 : 32;
  static constexpr int TURNS = SUMS_Q && S::HALVES == 1 ? S::BR / TURN : 1;
  // Of a warp in a turn: N blocks of 8 queries, WEIGHED blocks of 16 keys whose P and dS it forms;
  // and F blocks of 8 features that it sums.
  static constexpr int N = S::BR / (SWAPS ? 2 : S::HALVES) / TURNS / 8, WEIGHED = SWAPS ? 1 : S::MT,
                       F = S::FEATURES / S::HALVES / 8;
  using Block = float[WEIGHED][N][4];
  using Operand = uint[WEIGHED][8 * N / kDepth<T>][4];
};

// A query tile in the loop.
struct QueryTile {
  int row0, head;  // its first query row, and its query head
  int stage;
  bool edge;      // some pairs are hidden by their position
  bool far;       // some row is far (src/problem/far_row.h)
  int64_t rows0;  // index of the head's first row among all rows
  float* sums;    // of d_q, in the dQ accumulator
};

// The loop over the query tiles of `queries`. load_keys() starts copies of K and V. use(tile) is
// for each tile.
template <typename C, typename Queries, typename LoadKeys, typename Use>
TANDEM_DEVICE void q_loop(Queries& queries, const LoadKeys& load_keys, const Use& use) {
  load_keys();
  queries.find();
  if (queries.more()) {
    queries.load(0);
    queries.fetch_numbers();
    queries.put_numbers(0);
  }
  commit();
  int stage = 0;
#pragma unroll 1
  while (queries.more()) {
    QueryTile tile = queries.tile(stage);
    wait<0>();
    tile.far = __syncthreads_or(queries.far) != 0;
    queries.advance();
    queries.find();
    if (queries.more()) {
      if constexpr (C::STAGES > 1) queries.load(1 - stage);
      queries.fetch_numbers();
    }
    if constexpr (C::STAGES > 1) commit();
    use(tile);
    if constexpr (C::STAGES > 1) {
      stage = 1 - stage;
    } else {
      __syncthreads();
      if (queries.more()) queries.load(0);
      commit();
    }
    if (queries.more()) queries.put_numbers(stage);
  }
  wait<0>();
}

// Sums of d_k and d_v of a warp's keys, of some features.
template <typename C>
struct KeySums {
  float d_k[C::MT][C::F][4], d_v[C::MT][C::F][4];
};

// What a warp owns: keys, of which it sums some features of d_k and d_v.
template <typename T, typename C>
struct WarpKeys {
  static constexpr int W = C::WIDTH, MT = C::MT, BR = C::BR;
  Lane me;
  SharedArrays<C> tiles;
  int half = C::HALVES > 1 ? me.warp % C::HALVES : 0;
  int own = 16 * MT * (me.warp / C::HALVES);  // its first key
  int weighed = own + (C::SWAPS ? 16 * (half % 2) : 0), row;
  int feature = half * (C::FEATURES / C::HALVES),
      query = (C::SWAPS ? half / 2 : half) * (8 * C::N);  // its first feature and query
  SharedLeft<W, MT> k_at{tiles.k, own}, v_at{tiles.v, own};
  RowsReach<T, W> q_at{tiles.q, false}, o_at{tiles.d_o, false};
  AcrossReach<T, W> q_across{tiles.q, true}, o_across{tiles.d_o, true};
  // Operands of product_of_two().
  SharedLeft<W, MT> swap_left{half % 2 ? tiles.v : tiles.k, own};
  RowsReach<T, W> swap_right{half % 2 ? tiles.d_o : tiles.q, false};
  KeySums<C> inner_sums;  // used as sums_of_keys() says

  // row0: the workgroup's first key.
  explicit TANDEM_DEVICE WarpKeys(int row0) : row(row0 + weighed + me.g) {}
};

// Where the sums of a warp's keys are. nvcc splits a struct with an array into values only after it
// has unrolled the loops over the array, too late to move what addresses consist of out of the loop
// over turns. So sums of half operands in turns are apart: a_dkvq64 then spills 8 bytes instead of
// 24 (sm_90). Other kernels have more instructions with that, and those of f32 more spills.
template <typename T, typename C>
TANDEM_DEVICE KeySums<C>& sums_of_keys(WarpKeys<T, C>& keys, KeySums<C>& apart) {
  KeySums<C>& sums = C::TURNS > 1 && !kIsF32<T> ? apart : keys.inner_sums;
  clear(sums.d_k), clear(sums.d_v);
  return sums;
}

// One turn of a tile: the queries from `from` on. Forms P and dS, and from these sums of d_v and
// d_k, or leaves them in shared memory. Returns false if the tile has no weights.
template <typename T, typename C, typename Weights, typename Dq>
TANDEM_DEVICE bool take_turn(const WarpKeys<T, C>& keys, KeySums<C>& sums, const Weights& weights,
                             const QueryTile& tile, int from, bool grad_k, bool grad_v,
                             const Dq& d_q) {
  constexpr int W = C::WIDTH, BR = C::BR;
  const int first = tile.stage * BR + from;  // row of the staged queries
  typename Weights::State state;
  weights.begin(state, tile, from);
  typename C::Block s, dp;
  typename C::Operand p;
  if constexpr (C::SWAPS)
    product_of_two<W, T>(s, dp, keys.swap_left, keys.swap_right, first, keys.tiles.swap);
  else
    product_nt<W, T>(s, keys.k_at, keys.q_at, first);
  if (!weights.weigh(s, p, state, tile, from)) return false;
  if constexpr (C::HALVES == 1) {
    if (grad_v) product_nn<W, T>(sums.d_v, p, keys.o_across, first);
  } else {
    put_rows<BR>(keys.tiles.p, keys.weighed, from, p);
  }
  if (!grad_k) return true;
  weights.apply_slope(s, state);
  if constexpr (!C::SWAPS) product_nt<W, T>(dp, keys.v_at, keys.o_at, first);
  weights.differentiate(dp, s, state, tile, from);
  d_q.store_bias(dp, tile, keys.row, tile.row0 + from + 2 * keys.me.t);
  pack_rows<T>(p, dp);
  if constexpr (Dq::SUMS && kIsF32<T>)
    put_numbers_of<2 * BR>(keys.tiles.ds, keys.weighed, from, p);
  else if constexpr (Dq::SUMS || C::HALVES > 1)
    put_rows<BR>(keys.tiles.ds, keys.weighed, from, p);
  if constexpr (C::HALVES == 1) product_nn<W, T>(sums.d_k, p, keys.q_across, first);
  return true;
}

// A query tile: all of its turns, then what the warps do with P and dS of one another.
template <typename T, typename C, typename Weights, typename Dq>
TANDEM_DEVICE void take_queries(const WarpKeys<T, C>& keys, KeySums<C>& sums,
                                const Weights& weights, const QueryTile& tile, bool grad_k,
                                bool grad_v, const Dq& d_q) {
  constexpr int W = C::WIDTH, BR = C::BR;
  if constexpr (C::TURNS == 1) {
    if (!take_turn<T>(keys, sums, weights, tile, keys.query, grad_k, grad_v, d_q)) return;
  } else {
#pragma unroll 1
    for (int turn = 0; turn < C::TURNS; ++turn)
      take_turn<T>(keys, sums, weights, tile, keys.query + C::TURN * turn, grad_k, grad_v, d_q);
  }
  if constexpr (Dq::SUMS || C::HALVES > 1) __syncthreads();
  if constexpr (C::HALVES > 1) {
    const SharedLeft<BR, C::MT> p_at(keys.tiles.p, keys.own), ds_at(keys.tiles.ds, keys.own);
    const int first = tile.stage * BR;
    if (grad_v) product_nn<W, T, BR / 16>(sums.d_v, p_at, keys.o_across, first, keys.feature);
    if (grad_k) product_nn<W, T, BR / 16>(sums.d_k, ds_at, keys.q_across, first, keys.feature);
  }
  d_q.add(keys.tiles, tile);
}

// The loop over the query tiles of `queries`, and what take_queries() does, with LOADS_APART: the
// copy of the next Q is under the sums of d_v, and that of the next dO under the next S.
template <typename T, typename C, typename Weights, typename Queries, typename LoadKeys>
TANDEM_DEVICE void q_loop_apart(Queries& queries, const WarpKeys<T, C>& keys, KeySums<C>& sums,
                                const Weights& weights, bool grad_k, bool grad_v,
                                const LoadKeys& load_keys) {
  constexpr int W = C::WIDTH, BR = C::BR;
  static_assert(C::STAGES == 1 && C::TURNS == 1, "barriers as they are");
  const SharedLeft<BR, C::MT> p_at(keys.tiles.p, keys.own), ds_at(keys.tiles.ds, keys.own);
  const int from = keys.query;
  load_keys();
  queries.find();
  if (queries.more()) {
    queries.load_q(0);
    queries.fetch_numbers();
    queries.put_numbers(0);
  }
  commit();
  if (queries.more()) queries.load_d_o(0);
  commit();
#pragma unroll 1
  while (queries.more()) {
    QueryTile tile = queries.tile(0);
    wait<1>();  // Q
    tile.far = __syncthreads_or(queries.far) != 0;
    typename Weights::State state;
    typename C::Block s, dp;
    typename C::Operand p;
    weights.begin(state, tile, from);
    product_nt<W, T>(s, keys.k_at, keys.q_at, from);
    weights.weigh(s, p, state, tile, from);
    put_rows<BR>(keys.tiles.p, keys.weighed, from, p);
    wait<0>();  // dO
    __syncthreads();
    if (grad_k) {
      weights.apply_slope(s, state);
      product_nt<W, T>(dp, keys.v_at, keys.o_at, from);
      weights.differentiate(dp, s, state, tile, from);
      pack_rows<T>(p, dp);
      put_rows<BR>(keys.tiles.ds, keys.weighed, from, p);
      __syncthreads();
    }
    queries.advance();
    queries.find();
    if (queries.more()) queries.fetch_numbers();
    if (grad_k) product_nn<W, T, BR / 16>(sums.d_k, ds_at, keys.q_across, 0, keys.feature);
    __syncthreads();  // all warps have left Q and the numbers
    if (queries.more()) {
      queries.load_q(0);
      queries.put_numbers(0);
    }
    commit();
    if (grad_v) product_nn<W, T, BR / 16>(sums.d_v, p_at, keys.o_across, 0, keys.feature);
    __syncthreads();  // all warps have left dO and P
    if (queries.more()) queries.load_d_o(0);
    commit();
  }
  wait<0>();
}

// Stores d_k and d_v of a workgroup's keys, from row0 on.
template <typename T, typename C>
TANDEM_DEVICE void store_keys(const WarpKeys<T, C>& keys, const KeySums<C>& sums, float scale,
                              int row0, const View<T>& to_k, const View<T>& to_v, bool grad_k,
                              bool grad_v) {
  constexpr int W = C::WIDTH;
  if (grad_k)
    store_rows<W>(
        to_k, row0, keys.tiles.k, keys.own, sums.d_k, [&](float x, int, int) { return x * scale; },
        keys.feature);
  if (grad_v)
    store_rows<W>(
        to_v, row0, keys.tiles.v, keys.own, sums.d_v, [](float x, int, int) { return x; },
        keys.feature);
}

// d_q is no concern of the kernel.
struct NoDq {
  static constexpr bool SUMS = false;
  NoDq() = default;
  template <typename Params, typename Inputs>
  TANDEM_DEVICE NoDq(const Params&, const Inputs&, const Place&, int, const TandemTiles&) {}
  TANDEM_DEVICE bool has_all() const { return false; }
  TANDEM_DEVICE void next_head() {}
  TANDEM_DEVICE float* sums_of(int) const { return nullptr; }
  template <typename Block>
  TANDEM_DEVICE void store_bias(const Block&, const QueryTile&, int, int) const {}
  template <typename Tiles>
  TANDEM_DEVICE void add(const Tiles&, const QueryTile&) const {}
  TANDEM_DEVICE void finish() const {}
};

// The query tiles that a tile of keys is for, of some query heads one after the other.
template <typename T, typename C, typename Weights, typename Dq, typename Params>
struct QueryStream {
  const Params& params;
  const Weights& weights;
  Dq& d_q;
  SharedArrays<C> tiles;
  View<T> q, d_o;       // of the query head
  int64_t rows0;        // index of the head's first row among all rows
  int end_head, keys0;  // keys0: the first key of the tile
  bool grad_k;
  TandemTiles span;
  int t, heads;  // t: of span; heads: that are left
  // Of a query row of the tile, on their way to shared memory; each thread has a row.
  float lse = 0.f, delta = 0.f, share = 0.f;
  bool far = false;  // lse is relative (src/problem/far_row.h)

  TANDEM_DEVICE QueryStream(const Params& params, const Weights& weights, Dq& d_q,
                            const SharedArrays<C>& tiles, const View<T>& q, const View<T>& d_o,
                            int64_t rows0, int head, int heads, int keys0, bool grad_k,
                            const TandemTiles& span)
      : params(params),
        weights(weights),
        d_q(d_q),
        tiles(tiles),
        q(q),
        d_o(d_o),
        rows0(rows0),
        end_head(head + heads),
        keys0(keys0),
        grad_k(grad_k),
        span(span),
        t(span.begin),
        heads(span.begin < span.end ? heads : 0) {}
  TANDEM_DEVICE bool more() const { return heads > 0; }
  TANDEM_DEVICE int head() const { return end_head - heads; }
  TANDEM_DEVICE QueryTile tile(int stage) const {
    bool edge = t < span.full_begin || t >= span.full_end;
    // d_q is summed over keys: those behind the last one, whose scores are 0, must not count. Rows
    // behind the entry's length are written where it is padded.
    if constexpr (Dq::SUMS || Weights::SOME) edge |= keys0 + C::BC > weights.seq_kv();
    return {t * C::BR, head(), stage, edge, false, rows0, d_q.sums_of(t * C::BR)};
  }
  TANDEM_DEVICE void advance() {
    if (++t < span.end) return;
    t = span.begin, --heads;
    q.base += params.block.q.h, d_o.base += params.block.d_o.h, rows0 += params.block.seq_q;
    d_q.next_head();
  }
  // Goes on to a tile that keep leaves something of.
  TANDEM_DEVICE void find() {
    if constexpr (Weights::SOME)
      while (heads > 0 && !d_q.has_all() && weights.leaves_out(head(), t * C::BR, keys0)) advance();
  }
  TANDEM_DEVICE void load_q(int stage) const {
    load_rows<C::WIDTH, C::BR, C::THREADS>(tiles.q + stage * C::Q_TILE, q, t * C::BR);
  }
  TANDEM_DEVICE void load_d_o(int stage) const {
    load_rows<C::WIDTH, C::BR, C::THREADS>(tiles.d_o + stage * C::Q_TILE, d_o, t * C::BR);
  }
  TANDEM_DEVICE void load(int stage) const {
    load_q(stage);
    load_d_o(stage);
  }
  TANDEM_DEVICE void fetch_numbers() {
    const int i = t * C::BR + int(threadIdx.x);
    if (int(threadIdx.x) >= C::BR) return;
    const auto& push = params.push;
    const bool there = i < weights.seq_q();
    lse = there ? __ldg(reinterpret_cast<const float*>(push.lse) + rows0 + i) : minus_infinity();
    far = tandem_is_far(lse);
    if (far) lse = far_row(push.delta, rows0 + i).relative;
    delta = there && grad_k ? __ldg(reinterpret_cast<const float*>(push.delta) + rows0 + i) : 0.f;
    if constexpr (Weights::SHARES) share = weights.share(i);
  }
  TANDEM_DEVICE void put_numbers(int stage) const {
    const int me = int(threadIdx.x);
    if (me >= C::BR) return;
    put_number(tiles.number(stage, 0, me), weights.base(lse));
    put_number(tiles.number(stage, 1, me), delta);
    if constexpr (Weights::SHARES) put_number(tiles.number(stage, 2, me), share);
  }
};

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
