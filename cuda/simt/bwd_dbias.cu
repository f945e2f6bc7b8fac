// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias: a tile of d_bias, or a split's part of it: ds, summed over the members in order. Twin
// of shaders/scalar/bwd_dbias.comp.
#include "../parts/pair.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <int ROW, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG, Shape<ROW>::FULL_GROUPS)
    bwd_dbias(const __grid_constant__ BwdDbiasFull params) {
  using S = Shape<ROW>;
  const BwdDbiasBlock& u = params.block;
  const BwdDbiasPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.bias_heads, &at, params.first_group)) return;
  const int bias_batch = at.batch % u.bias_batch, split = at.batch / u.bias_batch;
  const int key_tiles = (u.seq_kv + S::N - 1) / S::N;
  const int tile0 = at.tile / key_tiles * S::M, col0 = at.tile % key_tiles * S::N;
  const bool one_row = params.spec.ONE_ROW != 0;

  const Invocation<S> me;
  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  Stage<Any, S, WIDE> stage;
  float sum[S::RM][4] = {};

  const int begin = int(int64_t(split) * u.members / u.splits);
  const int end = int(int64_t(split + 1) * u.members / u.splits);
  for (int member = begin; member < end; ++member) {
    const int row0 = one_row ? member % u.q_tiles * S::M : tile0;
    const int reader = member / u.q_tiles, group = params.extra.bias_group;
    // One entry's first reader is entry 0.
    const Extra e = make_extra(params, bias_batch * params.extra.bias_entries + reader / group);
    if (!tile_visible(e, row0, S::M, col0, S::N)) continue;
    const Pair pair = make_pair(params, e, at.head * group + reader % group);
    float ds[S::RM][4];
    if (!gradient_of_tile<S, WIDE, false>(ds, stage, pool, ptile, e, pair, row0, col0, false,
                                          [] {}))
      continue;
#pragma unroll
    for (int r = 0; r < S::RM; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[r][c] += ds[r][c];
  }

  if (one_row) {  // sums the columns into the first row, rows in a fixed order
    __syncthreads();
    float x[4] = {};
#pragma unroll
    for (int r = 0; r < S::RM; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] += sum[r][c];
    pool[me.tr * S::TC + me.tc] = make_float4(x[0], x[1], x[2], x[3]);
    __syncthreads();
    if (me.tr == 0) {
      float4 y = pool[me.tc];
#pragma unroll
      for (int n = 1; n < S::TR; ++n) {
        const float4 z = pool[n * S::TC + me.tc];
        y.x += z.x, y.y += z.y, y.z += z.z, y.w += z.w;
      }
      sum[0][0] = y.x, sum[0][1] = y.y, sum[0][2] = y.z, sum[0][3] = y.w;
    }
  }
  const int rows = one_row ? 1 : u.seq_q;
  const int64_t first = bias_batch * u.d_bias.b + at.head * u.d_bias.h + int64_t(split) * u.part;
  with_type(params.spec.D_BIAS, [&](auto type) {
    using T = decltype(type);
    auto* to = reinterpret_cast<typename T::Element*>(push.d_bias) + first;
#pragma unroll
    for (int r = 0; r < S::RM; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = tile0 + me.row(r), j = col0 + me.col(c);
        if (i < rows && j < u.seq_kv)
          to[i * u.d_bias.s + j * u.d_bias.d] = T::from_float(sum[r][c]);
      }
  });
}

struct BwdDbias {
  using Pointer = Kernel<BwdDbiasFull>;
  template <typename, int ROW, int, bool WIDE>
  static Pointer get() {
    return bwd_dbias<ROW, WIDE>;
  }
};

Kernel<BwdDbiasFull> bwd_dbias_full_kernel(tandem_dtype, const KernelChoice& of, bool wide) {
  return select_full<BwdDbias>(wide, of.tile, 1);
}

}  // namespace cuda
}  // namespace tandem
