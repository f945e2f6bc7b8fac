// SPDX-License-Identifier: MIT OR Apache-2.0
// The combine: o and lse of rows whose keys were split, from the parts that fwd has stored. Twin of
// shaders/scalar/fwd_combine.comp.
#ifndef TANDEM_CUDA_PARTS_COMBINE_CUH
#define TANDEM_CUDA_PARTS_COMBINE_CUH
#include "extra.cuh"
#include "softmax.cuh"

namespace tandem {
namespace cuda {

// fwd_combine by a workgroup. Everything is read past L1, as an SM may run this kernel before the
// one that writes the parts has ended, and L1 may have the numbers that were there before.
TANDEM_DEVICE void combine_parts(const FwdCombineFull& params, const Place& at) {
  const FwdCombineBlock& u = params.block;
  const FwdCombinePush& push = params.push;
  const int lanes = int(params.spec.LANES), slices = int(params.spec.SLICES);
  const int tid = int(threadIdx.x), slice = tid / lanes % slices, first = tid - slice * lanes;
  const int shares = (u.head_dim_v + 4 * lanes - 1) / (4 * lanes);  // of a row
  const int row = at.tile / shares * (kCombineGroup / (lanes * slices)) + tid / (lanes * slices);
  const int col = 4 * (at.tile % shares * lanes + tid % lanes);
  const bool packed = is_packed(params.spec.LENGTHS_Q);
  int64_t first_row;
  const int rows = entry_length(Lengths(params.spec.LENGTHS_Q), push.lengths_q, at.batch, u.seq_q,
                                u.total_q, &first_row, ReadLengthPastL1());
  const int end = row < rows ? u.splits : 0;  // rows behind a length have no parts
  const auto part_row = [&](int split) {
    const int64_t head = (int64_t(at.batch) * u.splits + split) * u.heads_q + at.head;
    return head * u.seq_q + row;
  };
  // lse of a part of the row's keys (x), and its rounding error (y): put_part_lse().
  const float* const lse_parts = reinterpret_cast<const float*>(push.lse_parts);
  const auto with_error = [&](float lse, int split) {
    const bool near = lse == -INFINITY || fabsf(lse) <= kNearLse;
    return make_float2(lse, near ? 0.f : __ldcg(lse_parts - 1 - part_row(split)));
  };
  const auto part_lse = [&](int split) {
    return with_error(__ldcg(lse_parts + part_row(split)), split);
  };
  // What o of a part is where the part has a key of the row; else anything.
  const auto part_o = [&](int split) {
    const View<F32> parts =
        part_view(push.o_parts, u.o_parts, at.batch * u.splits + split, at.head, u.seq_q);
    return __ldcg(reinterpret_cast<const float4*>(parts.base + row * parts.s + col));
  };
  float4* sums = shared_memory();  // sums of the slices
  // Sums of the weights of the slices.
  float* stats = reinterpret_cast<float*>(sums + kCombineGroup);

  // The first parts of the slice are all under way at a time.
  constexpr int FIRST = 8;
  const int later = slice + FIRST * slices;
  const bool has_columns = col < u.head_dim_v;
  float4 first_o[FIRST];
  float2 first_lse[FIRST];
#pragma unroll
  for (int n = 0; n < FIRST; ++n) {
    const int split = slice + n * slices;
    first_o[n] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (has_columns & (split < end)) first_o[n] = part_o(split);
  }
#pragma unroll
  for (int n = 0; n < FIRST; ++n) {
    const int split = slice + n * slices;
    first_lse[n].x = split < end ? __ldcg(lse_parts + part_row(split)) : -INFINITY;
  }
#pragma unroll
  for (int n = 0; n < FIRST; ++n) first_lse[n] = with_error(first_lse[n].x, slice + n * slices);
  // The largest part, which the weights of the others are relative to: a part that is alone, or
  // like the largest, has a weight of exactly 1.
  float2 origin = make_float2(-INFINITY, 0.f);
  const auto raise = [&](float2 part) {
    if (part.x > origin.x) origin = part;
  };
#pragma unroll
  for (int n = 0; n < FIRST; ++n) raise(first_lse[n]);
#pragma unroll 8
  for (int split = later; split < end; split += slices) raise(part_lse(split));
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
    sink = __ldcg(sink_of_row(params.spec.SINK, push.sink,
                              sink_head(params.spec.SINK, u, at.batch, at.head), row, u.seq_q));
  if (sees && sink > origin.x) origin = make_float2(sink, 0.f);
  __syncthreads();  // the readers of sums are done
  const auto weight = [&](float2 x) { return expf(x.x - origin.x + (x.y - origin.y)); };

  float l = 0.f, sum[4] = {};
  const auto add = [&](float2 lse, float4 x) {
    const bool has_keys = lse.x != -INFINITY;
    const float y = has_keys ? weight(lse) : 0.f;
    l += y;
    if (!has_keys) x = make_float4(0.f, 0.f, 0.f, 0.f);
    sum[0] = fmaf(y, x.x, sum[0]);
    sum[1] = fmaf(y, x.y, sum[1]);
    sum[2] = fmaf(y, x.z, sum[2]);
    sum[3] = fmaf(y, x.w, sum[3]);
  };
#pragma unroll
  for (int n = 0; n < FIRST; ++n) add(first_lse[n], first_o[n]);
    // Without branches, so that the loads of several parts are under way: a row may have 100.
#pragma unroll 8
  for (int split = later; split < end; split += slices) {
    const float2 lse = part_lse(split);
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    if ((lse.x != -INFINITY) & has_columns) x = part_o(split);
    add(lse, x);
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

}  // namespace cuda
}  // namespace tandem
#endif
