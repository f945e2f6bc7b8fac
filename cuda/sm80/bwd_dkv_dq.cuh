// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq on tensor cores: d_k and d_v of Bc keys of a kv head, as bwd_dkv, and these keys' part
// of d_q. The latter is added to the f32 dQ accumulator in the workspace, in the order in which the
// workgroups arrive. There are five products, where bwd_dkv and bwd_dq have seven.
#ifndef TANDEM_CUDA_SM80_BWD_DKV_DQ_CUH
#define TANDEM_CUDA_SM80_BWD_DKV_DQ_CUH
#include "bias_rows.cuh"
#include "inputs.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Adds four numbers to global memory.
TANDEM_DEVICE void add_numbers(float* to, const float (&x)[4]) {
#if !defined(__CUDACC__)
  for (int n = 0; n < 4; ++n) to[n] += x[n];
#elif __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int n = 0; n < 4; ++n)
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to + n), "f"(x[n]) : "memory");
#endif
}

// Adds sums of MQ blocks of 16 rows and 8 N features to the dQ accumulator.
template <int MQ, int N>
TANDEM_DEVICE void add_sums(float* to, const float (&x)[MQ][N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int m = 0; m < MQ; ++m) add_numbers(to + 512 * n + 128 * m, x[m][n]);
}

// d_q += dS K of 16 keys: loads dS of 16 MQ queries, then multiplies it by 8 N features of K.
template <int MQ, int D>
TANDEM_DEVICE void load_across(uint (&a)[MQ][4], const Reach<D>& ds, int key, int query) {
#pragma unroll
  for (int m = 0; m < MQ; ++m) load_matrices_transposed(a[m], ds.at(key, query + 16 * m));
}
template <typename T, int MQ, int N, int D>
TANDEM_DEVICE void multiply_across(float (&d_q)[MQ][N][4], const uint (&a)[MQ][4],
                                   const Reach<D>& k, int key, int feature) {
#pragma unroll
  for (int n = 0; n < N / 2; ++n) {
    uint b[4];
    load_matrices_transposed(b, k.at(key, feature + 16 * n));
#pragma unroll
    for (int m = 0; m < MQ; ++m) {
      multiply<T>(d_q[m][2 * n], a[m], b[0], b[1]);
      multiply<T>(d_q[m][2 * n + 1], a[m], b[2], b[3]);
    }
  }
}

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

// Whether a workgroup is the last one of `all` to arrive. It then sees what the others have stored
// to global memory, but only through the L2 cache.
TANDEM_DEVICE bool comes_last(uint64_t count, uint all) {
  uint* const at = reinterpret_cast<uint*>(count);
#if defined(__CUDACC__)
  __threadfence();
  __syncthreads();
  const bool last = __syncthreads_or(threadIdx.x == 0 && atomicAdd(at, 1u) + 1 == all);
  __threadfence();
  return last;
#else
  __syncthreads();
  return __syncthreads_or(threadIdx.x == 0 && ++*at == all);
#endif
}
TANDEM_DEVICE float4 load_sums(const float4* at) {
#if defined(__CUDACC__)
  return __ldcg(at);
#else
  return *at;
#endif
}

// Address of the dQ accumulator.
TANDEM_DEVICE uint64_t accumulator_of(const BwdDkvDqParams& params) {
  return params.push.d_q_accum;
}
TANDEM_DEVICE uint64_t accumulator_of(const BwdDkvDqInputs& params) { return params.d_q_accum; }

// The dQ postprocess of the query heads of a kv head, by its last workgroup. It is for f32 only:
// with other operands registers do not suffice. A piece is 16 rows of a panel.
template <typename T, int PANELS, int WARPS, typename Params, typename Inputs>
TANDEM_DEVICE void round_sums(const Params& params, const Inputs& in, int batch, int head_kv) {
  const auto& u = params.block;
  const Lane me;
  const int blocks = (u.seq_q + 63) / 64, pieces = 4 * blocks * PANELS;
  for (int n = 0; n < u.group; ++n) {
    const int head = head_kv * u.group + n;
    const float4* sums = reinterpret_cast<const float4*>(accumulator_of(params)) +
                         (int64_t(batch) * u.heads_q + head) * blocks * PANELS * 1024 +
                         threadIdx.x % 32;
#pragma unroll 1
    for (int piece = me.warp; piece < pieces; piece += WARPS) {
      const int panel = piece % PANELS, part = piece / PANELS;
      const float4* from = sums + (int64_t(part / 4) * PANELS + panel) * 1024 + part % 4 * 32;
      float x[1][8][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 four = load_sums(from + 128 * i);
        x[0][i][0] = four.x, x[0][i][1] = four.y, x[0][i][2] = four.z, x[0][i][3] = four.w;
      }
      View<T> to = in.written_queries(params.d_q.address, params.d_q.strides, head,
                                      u.head_dim - 64 * panel, params.d_q.wide != 0);
      to.base += 64 * panel * params.d_q.strides.d;
      store_columns(to, 16 * part + me.g, x, [&](float sum, int, int) { return sum * u.scale; });
    }
  }
}

// Stores zeros to d_q and d_bias, of those that the kernel stores itself, for the query tiles that
// it does not visit: those outside of span.
template <typename T, int BR, int BC, int THREADS, typename Params, typename Inputs>
TANDEM_DEVICE void store_zeros(const Params& params, const Inputs& in, const Place& at, int row0,
                               const TandemTiles& span) {
  const auto& u = params.block;
  const int tid = int(threadIdx.x);
  const float zeros[4] = {};
#pragma unroll 1
  for (int head = at.head * u.group; head < (at.head + 1) * u.group; ++head)
#pragma unroll 1
    for (int t = 0; t * BR < u.seq_q; ++t) {
      if (t >= span.begin && t < span.end) continue;
      if (params.d_q_accum == 0) {
        const View<T> d_q = in.written_queries(params.d_q.address, params.d_q.strides, head,
                                               u.head_dim, params.d_q.wide != 0);
        const int quads = (u.head_dim + 3) / 4;
#pragma unroll 1
        for (int n = tid; n < BR * quads; n += THREADS)
          store_words(d_q, t * BR + n / quads, 4 * (n % quads), zeros);
      }
      if (!params.d_bias_type) continue;
      const BiasRows d_bias = bias_rows_of(params.d_bias_type, params.d_bias_at, params.d_bias,
                                           at.batch, head, u.seq_q, u.seq_kv);
#pragma unroll 1
      for (int n = tid; n < BR * BC; n += THREADS)
        d_bias.put_one(t * BR + n / BC, row0 + n % BC, 0.f);
    }
}

template <typename T, int ROW, typename Params>
TANDEM_DEVICE void form_d_kv_and_d_q(const Params& params) {
  using S = MmaShape<ROW>;
  using Inputs = InputsOf<T, ROW, Params>;
  // HALVES as in bwd_dkv. With 4, four warps own the same keys, and each two neighbours of them
  // half of the queries: one forms S and the other dP, and each exchanges 16 of its rows for 16 of
  // the other's. With 1, a warp takes the queries of a tile 32 at a time. Beside a bias
  // it takes 16, where it has 32 keys.
  constexpr int W = S::WIDTH, MT = S::MT, BR = S::BR, BC = S::BC, TILE = BR * 2 * W;
  constexpr int TURN = Inputs::SOME && MT > 1 ? 16 : 32;
  constexpr int HALVES = S::HALVES, TURNS = HALVES > 1 ? 1 : BR / TURN;
  constexpr bool SWAPS = HALVES == 4;
  // WEIGHED: blocks of 16 rows whose P and dS a warp forms.
  constexpr int N = BR / (SWAPS ? 2 : HALVES) / TURNS / 8, F = S::FEATURES / HALVES / 8,
                WEIGHED = SWAPS ? 1 : MT;
  // A warp forms 16 MQ rows and SUMMED features of d_q. An SM of an H100 adds 25 bytes a clock to
  // global memory, and its loads of shared memory wait behind that. So, where registers are left
  // (HALVES > 1), a warp takes 16 features at a time, and adds them while it multiplies the next:
  // 4 % of the kernel at D 256.
  constexpr int MQ = kIsF32<T> || HALVES == 2 ? 1 : 2;
  constexpr int PANELS = (S::FEATURES + 63) / 64, Q_BLOCKS = BR / 16 / MQ,
                COLUMNS = S::WARPS / Q_BLOCKS, SUMMED = S::FEATURES / COLUMNS;
  static_assert(64 % BR == 0 && S::WARPS % Q_BLOCKS == 0 && 64 % SUMMED == 0, "whole blocks");
  const auto& u = params.block;
  const auto& push = params.push;
  const auto& io = [&]() -> const auto& {
    if constexpr (Inputs::SOME)
      return params.push;
    else
      return params;
  }
  ();
  const uint64_t accumulator = accumulator_of(params);
  Place at;
  if (!find_keys<ROW>(u, &at)) return;
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = (int(u.tiles) - 1 - at.tile) * BC;
  const Inputs in(params, at.batch);
  const View<T> k = in.keys(io.k, u.k, at.head, u.head_dim, io.wide & 2u);
  const View<T> v = in.keys(io.v, u.v, at.head, u.head_dim_v, io.wide & 4u);
  // Rows of the group's first query head. base moves from head to head.
  View<T> q = in.queries(io.q, u.q, at.head * u.group, u.head_dim, io.wide & 1u);
  View<T> d_o = in.queries(io.d_o, u.d_o, at.head * u.group, u.head_dim_v, io.wide & 8u);
  const int64_t head0 = int64_t(at.batch) * u.heads_q + at.head * u.group;
  int64_t queries0 = head0 * u.seq_q;
  const TandemBand band = in.band();
  const TandemTiles span = tandem_query_tiles(band, row0, BC, BR, in.seq_q(), in.seq_kv());

  const Lane me;
  const int half = HALVES > 1 ? me.warp % HALVES : 0;
  const uint k_tile = shared_start(), v_tile = k_tile + BC * 2 * W, q_tile = v_tile + BC * 2 * W,
             o_tile = q_tile + S::STAGES * TILE, numbers = o_tile + S::STAGES * TILE,
             s_tile = numbers + S::STAGES * 12 * BR, p_tile = s_tile + BC * 2 * BR,
             swap_tile = p_tile + BC * 2 * BR;
  const int own = 16 * MT * (me.warp / HALVES);  // the warp's first key
  const int weighed = own + (SWAPS ? 16 * (half % 2) : 0), row = row0 + weighed + me.g;
  const int feature = half * (S::FEATURES / HALVES),
            query = (SWAPS ? half / 2 : half) * (8 * N);  // the warp's first feature and query
  const SharedLeft<W, MT> k_at(k_tile, own), v_at(v_tile, own);
  const RowsReach<T, W> q_at(q_tile, false), o_at(o_tile, false);
  const AcrossReach<T, W> q_across(q_tile, true), o_across(o_tile, true), k_across(k_tile, true);
  // The warp's rows of a query tile in d_q, and its features. The accumulator consists of blocks of
  // 64 rows and 64 features, in the order of the warps' accumulators.
  const int q_block = me.warp % Q_BLOCKS, d_q_feature = me.warp / Q_BLOCKS * SUMMED;
  const int64_t head_sums = int64_t((u.seq_q + 63) / 64) * PANELS * 4096;
  float* sums = reinterpret_cast<float*>(accumulator) + head0 * head_sums +
                d_q_feature / 64 * 4096 + d_q_feature % 64 * 64 +
                4 * (32 * MQ * q_block + int(threadIdx.x) % 32);
  const Exponent e(u.scale, kIsF32<T>);
  float d_k[MT][F][4], d_v[MT][F][4];
  clear(d_k), clear(d_v);

  // Of a query row: the base that is subtracted from the exponent, and delta.
  float lse = 0.f, delta = 0.f;
  bool far = false;  // lse is relative (src/problem/far_row.h)
  const auto fetch_numbers = [&](int first) {
    const int i = first + int(threadIdx.x);
    if (int(threadIdx.x) >= BR) return;
    const bool there = i < in.seq_q();
    lse = there ? __ldg(reinterpret_cast<const float*>(push.lse) + queries0 + i) : minus_infinity();
    far = tandem_is_far(lse);
    if (far) lse = far_row(push.delta, queries0 + i).relative;
    delta = there ? __ldg(reinterpret_cast<const float*>(push.delta) + queries0 + i) : 0.f;
  };
  const auto put_numbers = [&](int stage) {
    if (int(threadIdx.x) >= BR) return;
    put_number(numbers + uint(stage * 12 * BR + 4 * int(threadIdx.x)), base_of_row<T>(lse));
    put_number(numbers + uint(stage * 12 * BR + 4 * BR + 4 * int(threadIdx.x)), delta);
  };
  const auto load_queries = [&](int stage, int first) {
    load_rows<W, BR, S::THREADS>(q_tile + stage * TILE, q, first);
    load_rows<W, BR, S::THREADS>(o_tile + stage * TILE, d_o, first);
  };

  int t = span.begin, heads = span.begin < span.end ? u.group : 0;
  const auto advance = [&] {
    if (++t == span.end) {
      t = span.begin, --heads;
      q.base += u.q.h, d_o.base += u.d_o.h, queries0 += u.seq_q, sums += head_sums;
    }
  };
  // Where a head has one tile of keys, the workgroup stores d_q itself; and d_bias, where each of
  // its elements has one reader. Query tiles that are not visited have zeros in them.
  [[maybe_unused]] bool alone = false, stores = false;
  if constexpr (Inputs::SOME) {
    alone = accumulator == 0, stores = params.d_bias_type != 0;
    if (alone || stores) store_zeros<T, BR, BC, S::THREADS>(params, in, at, row0, span);
  }
  // Goes on to a tile that keep leaves something of.
  const auto skip = [&] {
    if constexpr (Inputs::SOME)
      while (
          heads > 0 && !alone && !stores &&
          in.template leaves_out<S::THREADS>((at.head + 1) * u.group - heads, t * BR, BR, row0, BC))
        advance();
  };
  skip();
  load_rows<W, BC, S::THREADS>(k_tile, k, row0);
  load_rows<W, BC, S::THREADS>(v_tile, v, row0);
  if (heads > 0) {
    load_queries(0, t * BR);
    fetch_numbers(t * BR);
    put_numbers(0);
  }
  commit();
  int stage = 0;
#pragma unroll 1
  while (heads > 0) {
    const int col0 = t * BR;
    // d_q is summed over keys: those behind Sk, whose scores are 0, must not count.
    const bool edge = t < span.full_begin || t >= span.full_end || row0 + BC > in.seq_kv();
    float* const to = sums + int64_t(col0 / 64) * PANELS * 4096 + col0 % 64 * 8;
    const int64_t rows0 = queries0;
    [[maybe_unused]] const int q_head = (at.head + 1) * u.group - heads;
    wait<0>();
    const bool some_far = __syncthreads_or(far) != 0;
    advance();
    skip();
    if (heads > 0) {
      if constexpr (S::STAGES > 1) load_queries(1 - stage, t * BR);
      fetch_numbers(t * BR);
    }
    if constexpr (S::STAGES > 1) commit();
#pragma unroll 1
    for (int turn = 0; turn < TURNS; ++turn) {
      const int from = query + TURN * turn;
      [[maybe_unused]] BiasBlock<WEIGHED, N> bias;
      if constexpr (Inputs::SOME)
        in.template load_bias<false>(bias, q_head, row, col0 + from + 2 * me.t);
      float s[WEIGHED][N][4], dp[WEIGHED][N][4];
      uint p[WEIGHED][8 * N / kDepth<T>][4];
      if constexpr (SWAPS)
        product_of_two<W, T>(s, dp, half % 2 ? v_at : k_at, half % 2 ? o_at : q_at,
                             stage * BR + from, swap_tile);
      else
        product_nt<W, T>(s, k_at, q_at, stage * BR + from);
      e.apply(s);
      if constexpr (Inputs::SOME)
        in.template apply<false>(s, bias, q_head, row, col0 + from + 2 * me.t);
      if (edge)
        hide(
            s, row, col0 + from + 2 * me.t, [&](int j) { return j - band.off - band.right; },
            [&](int j) { return j < in.seq_kv() ? j - band.off + band.left : -1; });
      if (some_far)
        take_far_rows<true>(s, e, push.lse, push.delta, rows0, col0 + from + 2 * me.t, in.seq_q());
      const uint first = numbers + uint(stage * 12 * BR + 4 * (from + 2 * me.t));
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float base[2];
        get_numbers(base, first + 32 * n);
#pragma unroll
        for (int r = 0; r < WEIGHED; ++r)
#pragma unroll
          for (int x = 0; x < 4; ++x) s[r][n][x] = weight_of<T>(s[r][n][x], e, base[x % 2]);
      }
      pack_rows<T>(p, s);
      if constexpr (HALVES == 1)
        product_nn<W, T>(d_v, p, o_across, stage * BR + from);
      else
        put_rows<BR>(p_tile, weighed, from, p);
      if constexpr (!SWAPS) product_nt<W, T>(dp, v_at, o_at, stage * BR + from);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float less[2];
        get_numbers(less, first + 4 * BR + 32 * n);
#pragma unroll
        for (int r = 0; r < WEIGHED; ++r)
#pragma unroll
          for (int x = 0; x < 4; ++x) dp[r][n][x] = s[r][n][x] * (dp[r][n][x] - less[x % 2]);
      }
      if constexpr (Inputs::SOME)
        if (stores) {
          const BiasRows d_bias = bias_rows_of(params.d_bias_type, params.d_bias_at, params.d_bias,
                                               at.batch, q_head, u.seq_q, u.seq_kv);
#pragma unroll
          for (int n = 0; n < N; ++n)
#pragma unroll
            for (int r = 0; r < WEIGHED; ++r)
#pragma unroll
              for (int x = 0; x < 4; ++x)
                d_bias.put_one(col0 + from + 8 * n + 2 * me.t + x % 2, row + 16 * r + 8 * (x / 2),
                               dp[r][n][x]);
        }
      pack_rows<T>(p, dp);
      if constexpr (kIsF32<T>)
        put_numbers_of<2 * BR>(s_tile, weighed, from, p);
      else
        put_rows<BR>(s_tile, weighed, from, p);
      if constexpr (HALVES == 1) product_nn<W, T>(d_k, p, q_across, stage * BR + from);
    }
    __syncthreads();
    if constexpr (HALVES > 1) {
      const SharedLeft<BR, MT> p_at(p_tile, own), s_at(s_tile, own);
      product_nn<W, T, BR / 16>(d_v, p_at, o_across, stage * BR, feature);
      product_nn<W, T, BR / 16>(d_k, s_at, q_across, stage * BR, feature);
    }
    if constexpr (!kIsF32<T> && HALVES > 1) {
      uint a[BC / 16][MQ][4];
#pragma unroll
      for (int key = 0; key < BC; key += 16)
        load_across<MQ>(a[key / 16], Reach<BR>(s_tile, false), key, 16 * MQ * q_block);
// Unrolled, ptxas keeps more values alive: D 256 S 1024 causal is 4 % slower, D 128 1 % (H100).
#pragma unroll 1
      for (int n = 0; n < SUMMED / 16; ++n) {
        float d_q[MQ][2][4];
        clear(d_q);
#pragma unroll
        for (int key = 0; key < BC; key += 16)
          multiply_across<T>(d_q, a[key / 16], k_across, key, d_q_feature + 16 * n);
        add_sums(to + 1024 * n, d_q);
      }
    } else {
      float d_q[MQ][SUMMED / 8][4];
      clear(d_q);
      if constexpr (kIsF32<T>) {
        product_nn_of<W, T, BC / 8>(d_q, TurnedLeft<2 * BR>(s_tile, 16 * MQ * q_block), k_across, 0,
                                    d_q_feature);
      } else {
#pragma unroll
        for (int key = 0; key < BC; key += 16) {
          uint a[MQ][4];
          load_across<MQ>(a, Reach<BR>(s_tile, false), key, 16 * MQ * q_block);
          multiply_across<T>(d_q, a, k_across, key, d_q_feature);
        }
      }
      if (Inputs::SOME && alone) {
        if constexpr (Inputs::SOME)
          store_columns(
              in.written_queries(params.d_q.address, params.d_q.strides, q_head, u.head_dim,
                                 params.d_q.wide != 0),
              col0 + 16 * MQ * q_block + me.g, d_q,
              [&](float sum, int, int) { return sum * u.scale; }, d_q_feature);
      } else {
        add_sums(to, d_q);
      }
    }
    if constexpr (S::STAGES > 1) {
      stage = 1 - stage;
    } else {
      __syncthreads();
      if (heads > 0) load_queries(0, t * BR);
      commit();
    }
    if (heads > 0) put_numbers(stage);
  }
  wait<0>();
  __syncthreads();  // two warps may share rows of K and V
  if (push.d_k)
    store_rows<W>(
        in.written_keys(push.d_k, u.d_k, at.head, u.head_dim, io.wide & 16u), row0, k_tile, own,
        d_k, [&](float x, int, int) { return x * u.scale; }, feature);
  if (push.d_v)
    store_rows<W>(
        in.written_keys(push.d_v, u.d_v, at.head, u.head_dim_v, io.wide & 32u), row0, v_tile, own,
        d_v, [](float x, int, int) { return x; }, feature);
  if constexpr (kIsF32<T>) {
    if (params.d_q.address && !alone &&
        comes_last(params.d_q.counts + 4 * uint64_t(at.batch * (u.heads_q / u.group) + at.head),
                   u.tiles))
      round_sums<T, PANELS, S::WARPS>(params, in, at.batch, at.head);
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dkv_dq(const __grid_constant__ BwdDkvDqParams params) {
  form_d_kv_and_d_q<T, ROW>(params);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
