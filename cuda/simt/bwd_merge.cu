// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_merge: the gradients of o and lse of the parts that merge joins
// (src/kernels/abi/bwd_merge.inc). A part's product with d_o waits in d_part_lse until the row's
// average is known. Twin of shaders/scalar/bwd_merge.comp.
#include "../kernels.h"
#include "../parts/extra.cuh"
#include "../parts/merge.cuh"

namespace tandem {
namespace cuda {

namespace {
// P: type of the parts and of their gradients.
template <typename P>
TANDEM_DEVICE void bwd_merge_rows(const BwdMergeFull& params, const Place& at) {
  const BwdMergeBlock& u = params.block;
  const BwdMergePush& push = params.push;
  const int lanes = int(params.spec.LANES), lane = int(threadIdx.x) % lanes;
  const int row = at.tile * (kLineGroup / lanes) + int(threadIdx.x) / lanes;
  const bool exists = row < u.seq_q;
  const int end = exists ? u.parts : 0;
  const int64_t own_row = (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q + row,
                all_rows = int64_t(u.heads) * u.seq_q;
  const auto lse_of = [&](int n) {
    return __ldg(reinterpret_cast<const float*>(push.part_lse) + n * all_rows + own_row);
  };
  PartSums sums;
#pragma unroll 4
  for (int n = 0; n < end; ++n) sums.add_origin(lse_of(n));
#pragma unroll 4
  for (int n = 0; n < end; ++n) sums.sum += sums.raw_weight(lse_of(n));

  const View<Any> d_o = make_any_view(params.spec.OTHER_DTYPE, push.d_o, u.d_o, at.batch, at.head,
                                      0, u.seq_q, u.head_dim_v, push.wide & 1u);
  const View<P> parts = make_view<P>(push.part_o, u.part_o, at.batch, at.head, u.seq_q,
                                     u.head_dim_v, push.wide & 2u),
                d_parts = make_view<P>(push.d_part_o, u.d_part_o, at.batch, at.head, u.seq_q,
                                       u.head_dim_v, push.wide & 4u);
  float given[kMergeQuads][4] = {};  // d_o
#pragma unroll
  for (int c = 0; c < kMergeQuads; ++c) {
    const int col = 4 * (lane + c * lanes);
    if (sums.seen > 0 && col < u.head_dim_v)
      with_type(params.spec.OTHER_DTYPE, [&](auto e) {
        const float4 x = load_quad(d_o.as<decltype(e)>(), row, col);
        given[c][0] = x.x, given[c][1] = x.y, given[c][2] = x.z, given[c][3] = x.w;
      });
  }

  float average = 0.f;
  float* const d_lse_of_parts = reinterpret_cast<float*>(push.d_part_lse);
#pragma unroll 2
  for (int n = 0; n < u.parts; ++n) {  // rows that do not exist join the sums of a warp
    const float lse = exists ? lse_of(n) : -INFINITY;
    const bool sees = lse != -INFINITY;
    const float weight = !sees ? 0.f : sums.seen == 1 ? 1.f : sums.weight(lse);
    View<P> part = parts, d_part = d_parts;
    part.base += n * u.part_step.b, d_part.base += n * u.d_part_step.b;
    float product = 0.f;
#pragma unroll
    for (int c = 0; c < kMergeQuads; ++c) {
      const int col = 4 * (lane + c * lanes);
      if (!exists || col >= u.head_dim_v) continue;
      if (sees) {
        const float4 x = load_quad(part, row, col);
        product = fmaf(x.x, given[c][0], product);
        product = fmaf(x.y, given[c][1], product);
        product = fmaf(x.z, given[c][2], product);
        product = fmaf(x.w, given[c][3], product);
      }
      float scaled[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scaled[i] = !sees ? 0.f : sums.seen == 1 ? given[c][i] : weight * given[c][i];
      store_words(d_part, row, col, scaled);
    }
    for (int step = lanes / 2; step > 0; step /= 2)
      product += __shfl_xor_sync(kAllLanes, product, step);
    if (weight > 0.f) average = fmaf(weight, product, average);
    if (exists && n % lanes == lane) d_lse_of_parts[n * all_rows + own_row] = product;
  }

  float d_lse = 0.f;
  if (params.spec.D_LSE && sums.seen > 0)
    d_lse = __ldg(reinterpret_cast<const float*>(push.d_lse) + own_row);
  for (int n = lane; n < end; n += lanes) {  // those that this thread has stored
    float* const to = d_lse_of_parts + n * all_rows + own_row;
    const float lse = lse_of(n);
    const float x = sums.weight(lse) * (d_lse + (*to - average));
    *to = lse == -INFINITY ? 0.f : sums.seen == 1 ? d_lse : x;
  }
}
}  // namespace

__global__ void __launch_bounds__(kLineGroup)
    bwd_merge(const __grid_constant__ BwdMergeFull params) {
  Place at;
  if (!find_place(params.block.tiles, params.block.total, params.block.heads_q, &at)) return;
  with_type(params.spec.DTYPE, [&](auto e) { bwd_merge_rows<decltype(e)>(params, at); });
}

Kernel<BwdMergeFull> bwd_merge_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return bwd_merge;
}

}  // namespace cuda
}  // namespace tandem
