// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd_combine, the combine: o and lse of rows whose keys were split, from the parts that fwd has
// stored. Twin of shaders/scalar/fwd_combine.comp.
#include "../parts/extra.cuh"
#include "../parts/softmax.cuh"

namespace tandem {
namespace cuda {

__global__ void __launch_bounds__(kCombineGroup)
    fwd_combine(const __grid_constant__ FwdCombineFull params) {
  const FwdCombineBlock& u = params.block;
  const FwdCombinePush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  const int lanes = int(params.spec.LANES), slices = int(params.spec.SLICES);
  const int tid = int(threadIdx.x), slice = tid / lanes % slices, first = tid - slice * lanes;
  const int shares = (u.head_dim_v + 4 * lanes - 1) / (4 * lanes);  // of a row
  const int row = at.tile / shares * (kCombineGroup / (lanes * slices)) + tid / (lanes * slices);
  const int col = 4 * (at.tile % shares * lanes + tid % lanes);
  const bool packed = is_packed(params.spec.LENGTHS_Q);
  int64_t first_row;
  const int rows = entry_length(Lengths(params.spec.LENGTHS_Q), push.lengths_q, at.batch, u.seq_q,
                                u.total_q, &first_row);
  const int end = row < rows ? u.splits : 0;  // rows behind a length have no parts
  const auto part_row = [&](int split) {
    const int64_t head = (int64_t(at.batch) * u.splits + split) * u.heads_q + at.head;
    return head * u.seq_q + row;
  };
  // lse of a part of the row's keys (x), and its rounding error (y): put_part_lse().
  const auto part_lse = [&](int split) {
    const float* parts = reinterpret_cast<const float*>(push.lse_parts);
    const float lse = __ldg(parts + part_row(split));
    const bool near = lse == -INFINITY || fabsf(lse) <= kNearLse;
    return make_float2(lse, near ? 0.f : __ldg(parts - 1 - part_row(split)));
  };
  float4* sums = shared_memory();  // sums of the slices
  // Sums of the weights of the slices.
  float* stats = reinterpret_cast<float*>(sums + kCombineGroup);

  // The largest part, which the weights of the others are relative to: a part that is alone, or
  // like the largest, has a weight of exactly 1.
  float2 origin = make_float2(-INFINITY, 0.f);
#pragma unroll 8
  for (int split = slice; split < end; split += slices) {
    const float2 part = part_lse(split);
    if (part.x > origin.x) origin = part;
  }
  sums[tid] = make_float4(origin.x, origin.y, 0.f, 0.f);
  __syncthreads();
  origin = make_float2(-INFINITY, 0.f);
  for (int n = 0; n < slices; ++n) {
    const float4 other = sums[first + n * lanes];
    if (other.x > origin.x) origin = make_float2(other.x, other.y);
  }
  const bool sees = origin.x != -INFINITY;
  float sink = -INFINITY;
  if (params.spec.SINK)
    sink = __ldg(sink_of_row(params.spec.SINK, push.sink,
                             sink_head(params.spec.SINK, u, at.batch, at.head), row, u.seq_q));
  if (sees && sink > origin.x) origin = make_float2(sink, 0.f);
  __syncthreads();  // the readers of sums are done
  const auto weight = [&](float2 x) { return expf(x.x - origin.x + (x.y - origin.y)); };

  // Without branches, so that the loads of several parts are under way: a row may have 100.
  float l = 0.f, sum[4] = {};
#pragma unroll 8
  for (int split = slice; split < end; split += slices) {
    const float2 lse = part_lse(split);
    const bool has_keys = lse.x != -INFINITY;
    const float y = has_keys ? weight(lse) : 0.f;
    l += y;
    const View<F32> parts =
        part_view(push.o_parts, u.o_parts, at.batch * u.splits + split, at.head, rows);
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    if (has_keys & (col < u.head_dim_v))
      x = __ldg(reinterpret_cast<const float4*>(parts.base + row * parts.s + col));
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
  if (params.spec.SINK && sees)
    l += weight(make_float2(sink, 0.f));  // one more score without a value
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    sum[c] = sees ? __fdiv_rn(sum[c], l) : 0.f;
    if (params.spec.DTYPE == TANDEM_F16) sum[c] = tandem_f16_average(sum[c]);
  }
  const View<Any> o = make_any_view(params.spec.DTYPE, push.o, u.o, at.batch, at.head, first_row,
                                    packed ? rows : u.seq_q, u.head_dim_v, push.wide & 1u);
  store_words(o, row, col, sum);
  if (push.lse && col == 0)
    reinterpret_cast<float*>(push.lse)[(int64_t(at.batch) * u.heads_q + at.head) * u.seq_q + row] =
        sees ? origin.x + (origin.y + logf(l)) : -INFINITY;
}

Kernel<FwdCombineFull> fwd_combine_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return fwd_combine;
}

}  // namespace cuda
}  // namespace tandem
