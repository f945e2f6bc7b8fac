// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq with optional inputs and any normaliser. bwd_dq.cu has the kernel without them; both are
// the twin of shaders/scalar/bwd_dq.comp.
#include "../parts/pair.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <int ROW, int BLOCKS, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG, Shape<ROW>::FULL_GROUPS)
    bwd_dq_full(const __grid_constant__ BwdDqFull params) {
  using S = Shape<ROW>;
  const BwdDqBlock& u = params.block;
  const BwdDqPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int features = take_part<S, BLOCKS>(&at, u.seq_q);
  const int row0 = at.tile * S::M;
  const Extra e = make_extra(params, at.batch);
  Pair pair = make_pair(params, e, at.head);
  pair.k.first = features;
  const TandemTiles span = tandem_key_tiles(e.band, row0, S::M, S::N, e.seq_q, e.seq_kv);

  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  Stage<Any, S, WIDE> stage;
  float d_q[BLOCKS][S::RM][4] = {};

  bool fetched = false;
  for (int t = span.begin; t < span.end; ++t) {
    const int col0 = t * S::N;
    float ds[S::RM][4];
    if (!gradient_of_tile<S, WIDE, true>(ds, stage, pool, ptile, e, pair, row0, col0, fetched,
                                         [&] { stage.fetch_nn(pair.k, col0, 0); })) {
      fetched = false;
      continue;
    }
    put_ptile<S>(ptile, ds);
    fetched = fetch_ahead(e) && t + 1 < span.end;
    product_nn(d_q, stage, pool, ptile, pair.k, col0, [&] {
      if (fetched) stage.fetch_nt(pair.q, row0, pair.k, col0 + S::N, 0);
    });
  }
  store_blocks<Any, S>(
      own_features(make_any_view(params.spec.DTYPE, push.d_q, u.d_q, at.batch, at.head, e.first_q,
                                 e.written_q, u.head_dim, push.wide & 16u),
                   features),
      row0, d_q, u.scale);
}

struct BwdDqFullFamily {
  using Pointer = Kernel<BwdDqFull>;
  template <typename, int ROW, int BLOCKS, bool WIDE>
  static Pointer get() {
    return bwd_dq_full<ROW, BLOCKS, WIDE>;
  }
};

Kernel<BwdDqFull> bwd_dq_full_kernel(tandem_dtype, const KernelChoice& of, bool wide) {
  return select_full<BwdDqFullFamily>(wide, of.tile, of.d_blocks);
}

}  // namespace cuda
}  // namespace tandem
