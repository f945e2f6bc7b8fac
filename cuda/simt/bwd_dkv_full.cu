// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv with optional inputs and any normaliser. bwd_dkv.cu has the kernel without them; both are
// the twin of shaders/scalar/bwd_dkv.comp.
#include "../parts/pair.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <int ROW, int BLOCKS, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG, Shape<ROW>::FULL_GROUPS)
    bwd_dkv_full(const __grid_constant__ BwdDkvFull params) {
  using S = Shape<ROW>;
  const BwdDkvBlock& u = params.block;
  const BwdDkvPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q / u.group, &at, params.first_group)) return;
  const int features = take_part<S, BLOCKS>(&at, u.seq_kv);
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = ((u.seq_kv + S::M - 1) / S::M - 1 - at.tile) * S::M;
  const bool grad_k = push.d_k != 0, grad_v = push.d_v != 0;
  const Extra e = make_extra(params, at.batch);
  const bool skip = e.f.SKIP != 0;
  // Wide heads leave no registers to prefetch in before the scores are weighed.
  const bool ahead = 2 * BLOCKS * S::RM * 4 <= 64 && fetch_ahead(e);
  const TandemTiles span = tandem_query_tiles(e.band, row0, S::M, S::N, e.seq_q, e.seq_kv);

  const Invocation<S> me;
  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  Stage<Any, S, WIDE> stage;
  float d_k[BLOCKS][S::RM][4] = {}, d_v[BLOCKS][S::RM][4] = {};

#pragma unroll 1
  for (int n = 0; n < u.group; ++n) {
    Pair p = make_pair(params, e, at.head * u.group + n);
    p.q.first = p.d_o.first = features;
    bool fetched = false;
#pragma unroll 1
    for (int t = span.begin; t < span.end; ++t) {
      const int col0 = t * S::N;
      if (skip && tile_hidden<S, true>(e, p.of, col0, row0)) continue;
      if (!fetched) stage.fetch_nt(p.k, row0, p.q, col0, 0);
      const auto second = [&] {
        if (grad_v)
          stage.fetch_nn(p.d_o, col0, 0);
        else
          stage.fetch_nt(p.v, row0, p.d_o, col0, 0);
      };
      float s[S::RM][4] = {};
      product_nt(s, stage, pool, p.k, row0, p.q, col0, u.head_dim, [&] {
        if (ahead) second();
      });
      put_ptile<S>(ptile, s);
      const uint kept = kept_tile_transposed<S>(pool, e, p.of, col0, row0);
      float4 g_of[S::RM];  // in local memory, as it waits for two products
      uint counted = 0;
      bool some = false;
      {
        float origin[4], shift[4], from[4];
        bool some_far = false;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int i = col0 + me.col(c);
          origin[c] = i < e.seq_q ? __ldg(p.lse + i) : minus_infinity();
          from[c] = INFINITY;  // origin of a far row
          if (tandem_is_far(origin[c])) {
            const FarRow far = p.far(i);
            origin[c] = far.relative, from[c] = far.origin, some_far = true;
          }
          shift[c] = elastic_shift(e, p.of, i);
        }
        each_quad<S>(ptile, [&](int r, float(&x)[4]) {
          float slope[4], y[4], g[4];
          const uint seen =
              score_quad<false>(x, slope, e, p.of, col0 + me.col(0), row0 + me.row(r));
          if (some_far)
#pragma unroll
            for (int c = 0; c < 4; ++c)
              if (from[c] != INFINITY) x[c] = from_origin(x[c], from[c]);
          counted |= weigh_quad(e, seen, x, origin, shift, y, g) << 4 * r;
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            some |= g[c] != 0.f;
            g[c] *= slope[c];
            x[c] = kept >> (4 * r + c) & 1u ? y[c] * e.x.drop_scale : 0.f;
          }
          g_of[r] = make_float4(g[0], g[1], g[2], g[3]);
        });
      }
      fetched = false;
      if (is_entmax(e) && skip && !__syncthreads_or(some)) continue;
      if (!ahead) second();

      fetched = ahead && t + 1 < span.end;
      const auto next_tile = [&] {
        if (fetched) stage.fetch_nt(p.k, row0, p.q, col0 + S::N, 0);
      };
      if (grad_v)
        product_nn(d_v, stage, pool, ptile, p.d_o, col0, [&] {
          if (grad_k)
            stage.fetch_nt(p.v, row0, p.d_o, col0, 0);
          else
            next_tile();
        });
      if (grad_k) {
        float dp[S::RM][4] = {};
        product_nt(dp, stage, pool, p.v, row0, p.d_o, col0, u.head_dim_v,
                   [&] { stage.fetch_nn(p.q, col0, 0); });
        float delta[4];
        load_deltas<S>(delta, p, col0, e.seq_q);
#pragma unroll
        for (int r = 0; r < S::RM; ++r) {
          const float4 g = g_of[r];
#pragma unroll
          for (int c = 0; c < 4; ++c)
            dp[r][c] = (c == 0   ? g.x
                        : c == 1 ? g.y
                        : c == 2 ? g.z
                                 : g.w) *
                       (counted_dp(dp[r][c], counted, kept, e.x.drop_scale, r, c) - delta[c]);
        }
        put_ptile<S>(ptile, dp);
        product_nn(d_k, stage, pool, ptile, p.q, col0, next_tile);
      }
    }
  }
  const uint dtype = params.spec.DTYPE;
  if (grad_k)
    store_blocks<Any, S>(
        own_features(make_any_view(dtype, push.d_k, u.d_k, at.batch, at.head, e.first_kv,
                                   e.written_kv, u.head_dim, push.wide & 16u),
                     features),
        row0, d_k, u.scale);
  if (grad_v)
    store_blocks<Any, S>(
        own_features(make_any_view(dtype, push.d_v, u.d_v, at.batch, at.head, e.first_kv,
                                   e.written_kv, u.head_dim_v, push.wide & 32u),
                     features),
        row0, d_v, 1.f);
}

struct BwdDkvFullFamily {
  using Pointer = Kernel<BwdDkvFull>;
  template <typename, int ROW, int BLOCKS, bool WIDE>
  static Pointer get() {
    return bwd_dkv_full<ROW, BLOCKS, WIDE>;
  }
};

Kernel<BwdDkvFull> bwd_dkv_full_kernel(tandem_dtype, const KernelChoice& of, bool wide) {
  return select_full<BwdDkvFullFamily>(wide, of.tile,
                                       of.d_blocks > of.dv_blocks ? of.d_blocks : of.dv_blocks);
}

}  // namespace cuda
}  // namespace tandem
