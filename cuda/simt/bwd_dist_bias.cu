// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dist_bias: entries of d_dist_bias of one head, or a split's part of them: ds, summed along
// diagonals over the members in order. Twin of shaders/scalar/bwd_dist_bias.comp.
#include "../parts/pair.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <int ROW, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG, Shape<ROW>::FULL_GROUPS)
    bwd_dist_bias(const __grid_constant__ BwdDistBiasFull params) {
  using S = Shape<ROW>;
  static_assert(S::WG >= S::M, "an invocation a diagonal");
  const BwdDistBiasBlock& u = params.block;
  const BwdDistBiasPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int split = at.batch, t0 = at.tile * S::M;
  const int diagonal = t0 + int(threadIdx.x);  // each of the first M invocations has one

  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  Stage<Any, S, WIDE> stage;
  float sum = 0.f;

  const int begin = int(int64_t(split) * u.members / u.splits);
  const int end = int(int64_t(split + 1) * u.members / u.splits);
  for (int member = begin; member < end; ++member) {
    const int row0 = member % u.q_tiles * S::M;
    const Extra e = make_extra(params, member / u.q_tiles);
    const Pair pair = make_pair(params, e, at.head);
    // The keys that the diagonals cross in these rows: two tiles, which may begin at any key.
    const int key0 = tandem_max(row0 + e.band.off - t0 - (S::M - 1), 0);
    for (int col0 = key0; col0 < key0 + 2 * S::N; col0 += S::N) {
      if (!tile_visible(e, row0, S::M, col0, S::N)) continue;
      float ds[S::RM][4];
      if (!gradient_of_tile<S, WIDE, false>(ds, stage, pool, ptile, e, pair, row0, col0, false,
                                            [] {}))
        continue;
      put_ptile<S>(ptile, ds);
      __syncthreads();
      if (int(threadIdx.x) < S::M) {
        // Column of the diagonal's element in the tile's first row. Rows are added in ascending
        // order, first here and then in the tile to the right.
        const int col = row0 + e.band.off - diagonal - col0;
        const float* x = reinterpret_cast<const float*>(ptile) + col;
        const int last = tandem_min(S::M, S::N - col);
        for (int r = tandem_max(0, -col); r < last; ++r) sum += x[r * (4 * S::P_PITCH + 1)];
      }
    }
  }
  if (int(threadIdx.x) < S::M && diagonal < params.extra.dist_window)
    reinterpret_cast<float*>(
        push.d_dist)[(int64_t(split) * u.heads_q + at.head) * params.extra.dist_window + diagonal] =
        sum;
}

struct BwdDistBias {
  using Pointer = Kernel<BwdDistBiasFull>;
  template <typename, int ROW, int, bool WIDE>
  static Pointer get() {
    return bwd_dist_bias<ROW, WIDE>;
  }
};

Kernel<BwdDistBiasFull> bwd_dist_bias_full_kernel(tandem_dtype, const KernelChoice& of, bool wide) {
  return select_full<BwdDistBias>(wide, of.tile, 1);
}

}  // namespace cuda
}  // namespace tandem
