// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq on tensor cores: d_k and d_v of Bc keys of a kv head, as bwd_dkv, and these keys' part
// of d_q. The latter is added to the f32 dQ accumulator in the workspace, in the order in which the
// workgroups arrive. There are five products, where bwd_dkv and bwd_dq have seven.
#ifndef TANDEM_CUDA_SM80_BWD_DKV_DQ_CUH
#define TANDEM_CUDA_SM80_BWD_DKV_DQ_CUH
#include "bias_rows.cuh"
#include "bwd_dkv.cuh"

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

// What becomes of dS besides d_k: d_q, and d_bias where each of its elements has one reader.
template <typename T, int ROW, typename Inputs, typename Params>
class DqSums {
  using C = QLoopShape<T, ROW, Inputs::SOME, true>;
  static constexpr int W = C::WIDTH, BR = C::BR, BC = C::BC;
  // A warp forms 16 MQ rows and SUMMED features of d_q. An SM of an H100 adds 25 bytes a clock to
  // global memory, and its loads of shared memory wait behind that. So, where registers are left
  // (HALVES > 1), a warp takes 16 features at a time, and adds them while it multiplies the next:
  // 4 % of the kernel at D 256.
  static constexpr int MQ = kIsF32<T> || C::HALVES == 2 ? 1 : 2;
  static constexpr int PANELS = (C::FEATURES + 63) / 64, Q_BLOCKS = BR / 16 / MQ,
                       COLUMNS = C::WARPS / Q_BLOCKS, SUMMED = C::FEATURES / COLUMNS;
  static_assert(64 % BR == 0 && C::WARPS % Q_BLOCKS == 0 && 64 % SUMMED == 0, "whole blocks");

 public:
  static constexpr bool SUMS = true;
  // row0: the workgroup's first key; span: the query tiles that it visits. The others have zeros.
  TANDEM_DEVICE DqSums(const Params& params, const Inputs& in, const Place& at, int row0,
                       const TandemTiles& span)
      : params_(params), in_(in), at_(at) {
    const auto& u = params.block;
    const uint64_t accumulator = accumulator_of(params);
    // The accumulator consists of blocks of 64 rows and 64 features, in the order of the warps'
    // accumulators.
    const Lane me;
    q_block_ = me.warp % Q_BLOCKS, feature_ = me.warp / Q_BLOCKS * SUMMED;
    head_sums_ = int64_t((u.seq_q + 63) / 64) * PANELS * 4096;
    sums_ = reinterpret_cast<float*>(accumulator) +
            (int64_t(at.batch) * u.heads_q + at.head * u.group) * head_sums_ +
            feature_ / 64 * 4096 + feature_ % 64 * 64 +
            4 * (32 * MQ * q_block_ + int(threadIdx.x) % 32);
    if constexpr (Inputs::SOME) {
      alone_ = accumulator == 0, stores_ = params.d_bias_type != 0;
      if (has_all()) store_zeros<T, BR, BC, C::THREADS>(params, in, at, row0, span);
    }
  }
  // Whether all query tiles of the span are visited, as the workgroup stores d_q itself, where a
  // head has one tile of keys, or d_bias.
  TANDEM_DEVICE bool has_all() const { return alone_ || stores_; }
  TANDEM_DEVICE void next_head() { sums_ += head_sums_; }
  // Where the lane's sums of a query tile are, of the present head.
  TANDEM_DEVICE float* sums_of(int row0) const {
    return sums_ + int64_t(row0 / 64) * PANELS * 4096 + row0 % 64 * 8;
  }

  // Stores dS as d_bias. row, col: the lane's first key and query.
  TANDEM_DEVICE void store_bias([[maybe_unused]] const typename C::Block& ds,
                                [[maybe_unused]] const QueryTile& tile, [[maybe_unused]] int row,
                                [[maybe_unused]] int col) const {
    if constexpr (Inputs::SOME) {
      if (!stores_) return;
      const BiasRows d_bias =
          bias_rows_of(params_.d_bias_type, params_.d_bias_at, params_.d_bias, at_.batch, tile.head,
                       params_.block.seq_q, params_.block.seq_kv);
#pragma unroll
      for (int n = 0; n < C::N; ++n)
#pragma unroll
        for (int r = 0; r < C::WEIGHED; ++r)
#pragma unroll
          for (int x = 0; x < 4; ++x)
            d_bias.put_one(col + 8 * n + x % 2, row + 16 * r + 8 * (x / 2), ds[r][n][x]);
    }
  }

  // Forms d_q of a query tile from dS and K in shared memory.
  TANDEM_DEVICE void add(const SharedArrays<C>& tiles, const QueryTile& tile) const {
    float* const to = tile.sums;
    const AcrossReach<T, W> k_across(tiles.k, true);
    if constexpr (!kIsF32<T> && C::HALVES > 1) {
      uint a[BC / 16][MQ][4];
#pragma unroll
      for (int key = 0; key < BC; key += 16)
        load_across<MQ>(a[key / 16], Reach<BR>(tiles.ds, false), key, 16 * MQ * q_block_);
// Unrolled, ptxas keeps more values alive: D 256 S 1024 causal is 4 % slower, D 128 1 % (H100).
#pragma unroll 1
      for (int n = 0; n < SUMMED / 16; ++n) {
        float d_q[MQ][2][4];
        clear(d_q);
#pragma unroll
        for (int key = 0; key < BC; key += 16)
          multiply_across<T>(d_q, a[key / 16], k_across, key, feature_ + 16 * n);
        add_sums(to + 1024 * n, d_q);
      }
    } else {
      float d_q[MQ][SUMMED / 8][4];
      clear(d_q);
      if constexpr (kIsF32<T>) {
        product_nn_of<W, T, BC / 8>(d_q, TurnedLeft<2 * BR>(tiles.ds, 16 * MQ * q_block_), k_across,
                                    0, feature_);
      } else {
#pragma unroll
        for (int key = 0; key < BC; key += 16) {
          uint a[MQ][4];
          load_across<MQ>(a, Reach<BR>(tiles.ds, false), key, 16 * MQ * q_block_);
          multiply_across<T>(d_q, a, k_across, key, feature_);
        }
      }
      if constexpr (Inputs::SOME) {
        if (alone_) {
          store_columns(
              written(tile.head, params_.block.head_dim), tile.row0 + 16 * MQ * q_block_ + Lane().g,
              d_q, [&](float sum, int, int) { return sum * params_.block.scale; }, feature_);
          return;
        }
      }
      add_sums(to, d_q);
    }
  }
  TANDEM_DEVICE void finish() const {
    if constexpr (kIsF32<T>) {
      const auto& u = params_.block;
      if (params_.d_q.address && !alone_ &&
          comes_last(
              params_.d_q.counts + 4 * uint64_t(at_.batch * (u.heads_q / u.group) + at_.head),
              u.tiles))
        round_sums<T, PANELS, C::WARPS>(params_, in_, at_.batch, at_.head);
    }
  }

 private:
  TANDEM_DEVICE View<T> written(int head, int width) const {
    return in_.written_queries(params_.d_q.address, params_.d_q.strides, head, width,
                               params_.d_q.wide != 0);
  }

  const Params& params_;
  const Inputs& in_;
  const Place& at_;
  float* sums_;
  int64_t head_sums_;
  int q_block_, feature_;
  bool alone_ = false, stores_ = false;
};

template <typename T, int ROW, typename Params>
using DqSumsOf = DqSums<T, ROW, InputsOf<T, ROW, Params>, Params>;

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dkv_dq(const __grid_constant__ BwdDkvDqParams params) {
  form_d_kv<T, ROW, DqSumsOf<T, ROW, BwdDkvDqParams>>(params);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
