// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd_join, the combine: o and lse of rows whose keys were split, from the parts that fwd has
// stored. Twin of shaders/fwd_join.comp.
#include "extra.cuh"
#include "softmax.cuh"

namespace tandem {
namespace cuda {

__global__ void __launch_bounds__(kJoinGroup) fwd_join(const __grid_constant__ FwdJoinFull params) {
  const FwdJoinBlock& u = params.block;
  const FwdJoinPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at)) return;
  const int lanes = int(params.spec.LANES), slices = int(params.spec.SLICES);
  const int tid = int(threadIdx.x), slice = tid / lanes % slices, first = tid - slice * lanes;
  const int row = at.tile * (kJoinGroup / (lanes * slices)) + tid / (lanes * slices);
  const int col = 4 * (tid % lanes);
  const bool packed = Lengths(params.spec.LENGTHS_Q) == Lengths::packed;
  int64_t first_row;
  const int rows = entry_length(Lengths(params.spec.LENGTHS_Q), push.lengths_q, at.batch, u.seq_q,
                                u.total_q, &first_row);
  const int end = row < rows ? u.splits : 0;  // rows behind a length have no parts
  const auto part_row = [&](int split) {
    const int64_t head = (int64_t(at.batch) * u.splits + split) * u.heads_q + at.head;
    return head * u.seq_q + row;
  };
  const auto part_lse = [&](int split) {
    return __ldg(reinterpret_cast<const float*>(push.lse_parts) + part_row(split));
  };
  float4* sums = shared_memory();  // sums of the slices
  // Maxima of the slices, then their weights.
  float* stats = reinterpret_cast<float*>(sums + kJoinGroup);

  float top = -INFINITY;
  for (int split = slice; split < end; split += slices) top = fmaxf(top, part_lse(split));
  stats[tid] = top;
  __syncthreads();
  for (int n = 0; n < slices; ++n) top = fmaxf(top, stats[first + n * lanes]);
  const bool sees = top != -INFINITY;
  float sink = -INFINITY;
  if (params.spec.SINK) sink = __ldg(reinterpret_cast<const float*>(push.sink) + at.head);
  if (sees) top = fmaxf(top, sink);
  __syncthreads();  // the readers of stats are done

  float l = 0.f, sum[4] = {};
  for (int split = slice; split < end; split += slices) {
    const float lse = part_lse(split);
    if (lse == -INFINITY) continue;
    float off = lse - top;
    // Rounded, such an lse does not say how many keys there are: put_part_lse().
    if (fabsf(lse) > kNearLse)
      off += __ldg(reinterpret_cast<const float*>(push.lse_parts) - 1 - part_row(split));
    const float y = expf(off);
    l += y;
    if (col >= u.head_dim_v) continue;
    const View<F32> parts =
        part_view(push.o_parts, u.o_parts, at.batch * u.splits + split, at.head, rows);
    const float4 x = __ldg(reinterpret_cast<const float4*>(parts.base + row * parts.s + col));
    sum[0] = fmaf(y, x.x, sum[0]);
    sum[1] = fmaf(y, x.y, sum[1]);
    sum[2] = fmaf(y, x.z, sum[2]);
    sum[3] = fmaf(y, x.w, sum[3]);
  }
  stats[tid] = l;
  sums[tid] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  __syncthreads();
  if (slice != 0 || row >= u.seq_q) return;
  for (int n = 1; n < slices; ++n) {
    const float4 x = sums[tid + n * lanes];
    l += stats[tid + n * lanes];
    sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
  }
  if (params.spec.SINK && sees) l += expf(sink - top);  // one more score without a value
#pragma unroll
  for (int c = 0; c < 4; ++c) sum[c] = sees ? __fdiv_rn(sum[c], l) : 0.f;
  const View<Any> o = make_any_view(params.spec.DTYPE, push.o, u.o, at.batch, at.head, first_row,
                                    packed ? rows : u.seq_q, u.head_dim_v, push.wide & 1u);
  store_words(o, row, col, sum);
  if (push.lse && col == 0)
    reinterpret_cast<float*>(push.lse)[(int64_t(at.batch) * u.heads_q + at.head) * u.seq_q + row] =
        sees ? top + logf(l) : -INFINITY;
}

Kernel<FwdJoinFull> fwd_join_full_kernel(const Launch&, bool) { return fwd_join; }

}  // namespace cuda
}  // namespace tandem
