// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot: delta_i = <d_o_i, o_i>. LANES neighbours share a row. Twin of shaders/bwd_dot.comp.
#include "bwd_dot.h"
#include "extra.cuh"
#include "zeros.cuh"

namespace tandem {
namespace cuda {

// length: rows that the batch entry has; those behind have delta 0. first: row where the entry starts.
template <typename T>
TANDEM_DEVICE void dot_rows(const BwdDotBlock& u, const BwdDotPush& push, const Place& at,
                            int length, int64_t first) {
  const int lane = int(threadIdx.x) % kDotLanes;
  const int row = at.tile * kDotRows + int(threadIdx.x) / kDotLanes;
  View<T> o = make_view<T>(push.o, u.o, at.batch, at.head, length, u.head_dim_v, push.wide & 1u);
  View<T> d_o =
      make_view<T>(push.d_o, u.d_o, at.batch, at.head, length, u.head_dim_v, push.wide & 2u);
  o.base += first * u.o.s, d_o.base += first * u.d_o.s;
  float sum = 0.f;
  for (int col = 4 * lane; col < u.head_dim_v; col += 4 * kDotLanes) {
    typename T::Raw a, b;
    load_words<T, false, 1, 1>(&a, o, 0, row, 0, col);
    load_words<T, false, 1, 1>(&b, d_o, 0, row, 0, col);
    const float4 x = T::to_floats(a), y = T::to_floats(b);
    sum = fmaf(x.x, y.x, sum);
    sum = fmaf(x.y, y.y, sum);
    sum = fmaf(x.z, y.z, sum);
    sum = fmaf(x.w, y.w, sum);
  }
#pragma unroll
  for (int step = kDotLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (lane == 0 && row < u.seq_q)
    reinterpret_cast<float*>(
        push.delta)[(int64_t(at.batch) * u.heads_q + at.head) * u.seq_q + row] = sum;
}

template <typename T>
TANDEM_DEVICE void dot_plain(const BwdDotParams& params) {
  const BwdDotBlock& u = params.block;
  Place at;
  if (find_place(u.tiles, u.total, u.heads_q, &at)) dot_rows<T>(u, params.push, at, u.seq_q, 0);
}

TANDEM_DEVICE void dot_full(const BwdDotFull& params) {
  const BwdDotBlock& u = params.block;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at)) return;
  int64_t first;
  const int length = entry_length(Lengths(params.spec.LENGTHS_Q), params.push.lengths_q, at.batch,
                                  u.seq_q, &first);
  with_type(params.spec.DTYPE,
            [&](auto e) { dot_rows<decltype(e)>(u, params.push, at, length, first); });
}

// All threads of the grid.
TANDEM_DEVICE void put_zeros(uint64_t to, uint64_t end) {
  constexpr uint kGroup = kDotRows * kDotLanes;
  const uint64_t group = uint64_t(blockIdx.y) * gridDim.x + blockIdx.x,
                 groups = uint64_t(gridDim.x) * gridDim.y;
  put_zeros(to, end, group * kGroup + threadIdx.x, groups * kGroup);
}

template <typename T>
__global__ void __launch_bounds__(kDotRows* kDotLanes)
    bwd_dot(const __grid_constant__ BwdDotParams params) {
  dot_plain<T>(params);
}

template <typename T>
__global__ void __launch_bounds__(kDotRows* kDotLanes)
    bwd_dot_zero(const __grid_constant__ Zeroing<BwdDotParams> params) {
  put_zeros(params.zeroed, params.zeroed_end);
  dot_plain<T>(params.dot);
}

__global__ void __launch_bounds__(kDotRows* kDotLanes)
    bwd_dot_full(const __grid_constant__ BwdDotFull params) {
  dot_full(params);
}

__global__ void __launch_bounds__(kDotRows* kDotLanes)
    bwd_dot_zero_full(const __grid_constant__ Zeroing<BwdDotFull> params) {
  put_zeros(params.zeroed, params.zeroed_end);
  dot_full(params.dot);
}

Kernel<BwdDotParams> bwd_dot_kernel(tandem_dtype dtype, const Launch&, bool) {
  switch (dtype) {
    case TANDEM_F32:
      return bwd_dot<F32>;
    case TANDEM_F16:
      return bwd_dot<F16>;
    case TANDEM_BF16:
      return bwd_dot<BF16>;
    default:
      return nullptr;
  }
}

Kernel<BwdDotFull> bwd_dot_full_kernel(const Launch&, bool) { return bwd_dot_full; }

Kernel<Zeroing<BwdDotParams>> bwd_dot_zero_kernel(tandem_dtype dtype) {
  return dtype == TANDEM_F16    ? bwd_dot_zero<F16>
         : dtype == TANDEM_BF16 ? bwd_dot_zero<BF16>
                                : bwd_dot_zero<F32>;
}

Kernel<Zeroing<BwdDotFull>> bwd_dot_zero_full_kernel() { return bwd_dot_zero_full; }

}  // namespace cuda
}  // namespace tandem
