// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with optional inputs and any normaliser. fwd.cu has the kernel without them; both are the
// twin of shaders/scalar/fwd.comp.
#include "../parts/entmax.cuh"
#include "../parts/max_logit.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

template <int ROW, int BLOCKS, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG, Shape<ROW>::FULL_GROUPS)
    fwd_full(const __grid_constant__ FwdFull params) {
  using S = Shape<ROW>;
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  const uint dtype = params.spec.DTYPE;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int features = take_part<S, BLOCKS>(&at, u.seq_q);
  const int part = at.batch;  // over batch and splits
  at.batch = part / u.splits;
  const int kv_head = at.head / u.group;
  const int row0 = at.tile * S::M;
  const Extra e = make_extra(params, at.batch);
  const HeadExtra of = head_extra(e, at.head);
  const View<Any> q = query_view(e, dtype, push.q, u.q, at.head, u.head_dim, push.wide & 1u);
  const View<Any> k = key_view(e, dtype, push.k, u.k, kv_head, u.head_dim, push.wide & 2u);
  const View<Any> v = own_features(
      key_view(e, dtype, push.v, u.v, kv_head, u.head_dim_v, push.wide & 4u), features);
  const TandemTiles span = tandem_split_tiles(
      tandem_key_tiles(e.band, row0, S::M, S::N, e.seq_q, e.seq_kv), part % u.splits, u.splits);
  const auto sink_at = [&](int row) {
    const uint which = params.spec.SINK;
    return sink_of_row(which, push.sink, sink_head(which, u, at.batch, at.head), row, u.seq_q);
  };

  const Invocation<S> me;
  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  const LiveTiles live{reinterpret_cast<uint*>(ptile + S::PTILE), span.begin};
  Stage<Any, S, WIDE> stage;
  const bool online = Normalizer(e.f.NORM) == Normalizer::softmax, entmax = is_entmax(e);
  const bool skip = e.f.SKIP != 0;
  RowOrigin origin[S::RM];
  if (!online)
    find_origin<S, WIDE>(origin, e, of, sink_at(row0), stage, pool, ptile, live, q, row0, k, span);
  OnlineSoftmax<S> softmax;
  float o[BLOCKS][S::RM][4] = {};

  bool fetched = false;
  for (int t = span.begin; t < span.end; ++t) {
    const int col0 = t * S::N;
    if (entmax && skip && !live.has(t)) continue;
    if (skip && tile_hidden<S, false>(e, of, row0, col0)) continue;
    if (!fetched) stage.fetch_nt(q, row0, k, col0, 0);
    float s[S::RM][4] = {};
    product_nt(s, stage, pool, q, row0, k, col0, u.head_dim, [&] {
      if (!skip) stage.fetch_nn(v, col0, 0);
    });
    put_ptile<S>(ptile, s);
    bool some = false;
    each_quad<S>(ptile, [&](int r, float(&x)[4]) {
      const int i = row0 + me.row(r);
      float slope[4];
      const uint seen = score_quad<true>(x, slope, e, of, i, col0 + me.col(0));
      if (online) return;
      float y[4], g[4], from[4], shift[4];
      from[0] = origin[r].at, shift[0] = elastic_shift(e, of, i);
      if (origin[r].from != 0.f)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[c] = __fsub_rn(x[c], origin[r].from);
#pragma unroll
      for (int c = 1; c < 4; ++c) from[c] = from[0], shift[c] = shift[0];
      weigh_quad(e, seen, x, from, shift, y, g);
#pragma unroll
      for (int c = 0; c < 4; ++c) some |= y[c] != 0.f, x[c] = y[c];
    });
    fetched = false;
    if (entmax && skip && !__syncthreads_or(some)) continue;
    if (skip) stage.fetch_nn(v, col0, 0);
    if (online) {
      take_ptile<S>(ptile, s);
      float factor[S::RM];
      softmax.step(s, factor);
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < S::RM; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) o[block][i][c] *= factor[i];
      put_ptile<S>(ptile, s);
    }
    if (e.f.DROPOUT) {
      const uint kept = kept_tile<S>(e, of, row0, col0);
      each_quad<S>(ptile, [&](int r, float(&x)[4]) {
#pragma unroll
        for (int c = 0; c < 4; ++c) x[c] = kept >> (4 * r + c) & 1u ? x[c] * e.x.drop_scale : 0.f;
      });
    }
    fetched = !skip && t + 1 < span.end;
    product_nn(o, stage, pool, ptile, v, col0, [&] {
      if (fetched) stage.fetch_nt(q, row0, k, col0 + S::N, 0);
    });
  }

  const bool split = u.splits > 1;  // then o is this split's part
  const View<Any> out =
      make_any_view(split ? uint(TANDEM_F32) : dtype, push.o, u.o, part, at.head,
                    split ? 0 : e.first_q, e.written_q, u.head_dim_v, push.wide & 8u);
  float* lse = reinterpret_cast<float*>(push.lse);
  const int64_t lse0 = (int64_t(part) * u.heads_q + at.head) * u.seq_q;
  float largest = minus_infinity();
#pragma unroll
  for (int i = 0; i < S::RM; ++i)
    if (row0 + me.row(i) < e.seq_q) largest = fmaxf(largest, softmax.m[i]);
  raise_max_logit(u, push, at.batch, at.head, largest);
#pragma unroll
  for (int i = 0; i < S::RM; ++i) {
    const int row = row0 + me.row(i);
    const float* sink = sink_at(row);
    float factor = 1.f, divisor = 1.f, from = 0.f;
    if (online) {
      const float l = row_sum<S>(softmax.l[i]);
      from = minus_infinity();
      if (l > 0.f) {
        from = joined_lse(sink, softmax.m[i], l), divisor = l;
        if (sink) {
          const float x = __ldg(sink), top = fmaxf(softmax.m[i], x);
          factor = expf(softmax.m[i] - top);
          divisor = fmaf(l, factor, expf(x - top));
        }
      }
    } else {
      from = origin[i].lse(sink);
    }
    if (lse && me.tc == 0 && row < u.seq_q) {
      if (split && from != minus_infinity())
        put_part_lse(lse, lse0 + row, softmax.m[i], logf(divisor));
      else
        lse[lse0 + row] = from;
    }
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
      float x[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = __fdiv_rn(o[block][i][c] * factor, divisor);
      store_words(out, row, features + block * S::COLS + me.col(0), x);
    }
  }
}

struct FwdFullFamily {
  using Pointer = Kernel<FwdFull>;
  template <typename, int ROW, int BLOCKS, bool WIDE>
  static Pointer get() {
    return fwd_full<ROW, BLOCKS, WIDE>;
  }
};

Kernel<FwdFull> fwd_full_kernel(tandem_dtype, const KernelChoice& of, bool wide) {
  return select_full<FwdFullFamily>(wide, of.tile, of.dv_blocks);
}

}  // namespace cuda
}  // namespace tandem
