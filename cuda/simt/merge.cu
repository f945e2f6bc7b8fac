// SPDX-License-Identifier: MIT OR Apache-2.0
// merge: o and lse of parts of the keys, which become those of all their keys. Parts are added in
// order. A row of which one part alone saw keys has that part's numbers, untouched. Twin of
// shaders/scalar/merge.comp.
#include "../kernels.h"
#include "../parts/extra.cuh"
#include "../parts/merge.cuh"
#include "../parts/softmax.cuh"

namespace tandem {
namespace cuda {

namespace {
// P: type of the parts.
template <typename P>
TANDEM_DEVICE void merge_rows(const MergeFull& params, const Place& at) {
  const MergeBlock& u = params.block;
  const MergePush& push = params.push;
  const int lanes = int(params.spec.LANES), lane = int(threadIdx.x) % lanes;
  const int row = at.tile * (kLineGroup / lanes) + int(threadIdx.x) / lanes;
  const bool exists = row < u.seq_q;
  const int begin = params.spec.INTO ? -1 : 0, end = exists ? u.parts : begin;
  const int64_t own_row = (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q + row,
                all_rows = int64_t(u.heads) * u.seq_q;
  // lse of part n; -1: what o and lse hold.
  float own = -INFINITY;
  if (params.spec.INTO && exists) own = reinterpret_cast<const float*>(push.lse)[own_row];
  const auto lse_of = [&](int n) {
    return n < 0 ? own
                 : __ldg(reinterpret_cast<const float*>(push.part_lse) + n * all_rows + own_row);
  };
  PartSums sums;
#pragma unroll 4
  for (int n = begin; n < end; ++n) sums.add_origin(lse_of(n));
#pragma unroll 4
  for (int n = begin; n < end; ++n) sums.sum += sums.raw_weight(lse_of(n));

  const View<Any> o = make_any_view(params.spec.DTYPE, push.o, u.o, at.batch, at.head, 0, u.seq_q,
                                    u.head_dim_v, push.wide & 1u);
  const View<P> parts =
      make_view<P>(push.part_o, u.part_o, at.batch, at.head, u.seq_q, u.head_dim_v, push.wide & 2u);
  for (int col = 4 * lane; exists && col < u.head_dim_v; col += 4 * lanes) {
    float sum[4] = {}, last[4] = {};
    const auto add = [&](float weight, const float4& x) {
      last[0] = x.x, last[1] = x.y, last[2] = x.z, last[3] = x.w;
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[c] = fmaf(weight, last[c], sum[c]);
    };
    if (own != -INFINITY)
      with_type(params.spec.DTYPE, [&](auto e) {
        add(sums.weight(own), load_own_quad(o.as<decltype(e)>(), row, col));
      });
#pragma unroll 4
    for (int n = 0; n < end; ++n) {
      const float lse = lse_of(n);
      if (lse == -INFINITY) continue;  // whatever its o holds
      View<P> part = parts;
      part.base += n * u.part_step.b;
      add(sums.weight(lse), load_quad(part, row, col));
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (params.spec.DTYPE == TANDEM_F16) sum[c] = tandem_f16_average(sum[c]);
      if (sums.seen == 1) sum[c] = last[c];
    }
    store_words(o, row, col, sum);
  }
  __syncwarp();  // the readers of lse are done; a row's are of one warp
  if (exists && lane == 0 && push.lse)
    reinterpret_cast<float*>(push.lse)[own_row] = sums.seen == 0   ? -INFINITY
                                                  : sums.seen == 1 ? sums.origin
                                                                   : sums.origin + logf(sums.sum);
}
}  // namespace

__global__ void __launch_bounds__(kLineGroup) merge(const __grid_constant__ MergeFull params) {
  Place at;
  if (!find_place(params.block.tiles, params.block.total, params.block.heads_q, &at)) return;
  with_type(params.spec.OTHER_DTYPE, [&](auto e) { merge_rows<decltype(e)>(params, at); });
}

Kernel<MergeFull> merge_full_kernel(tandem_dtype, const KernelChoice&, bool) { return merge; }

}  // namespace cuda
}  // namespace tandem
