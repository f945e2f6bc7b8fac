// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot: delta_i = <d_o_i, o_i> - d_lse_i. LANES neighbours share a row. Twin of
// shaders/scalar/bwd_dot.comp.
#include "../parts/extra.cuh"
#include "../parts/tf32.cuh"
#include "../parts/zeros.cuh"
#include "bwd_dot.h"

namespace tandem {
namespace cuda {

// f32 in a plan whose products take 11 bits of d_o: delta takes the same 11 bits. In a row that
// sees one key, dp and delta then differ by the order of their sums alone, and so little is left in
// d_q, which is 0 if exact; not 2^-12 of the terms.
struct RoundedF32 : F32 {};
template <typename T>
TANDEM_DEVICE float rounded(float x) {
  if constexpr (std::is_same<T, RoundedF32>::value)
    return tf32_operand(x);
  else
    return x;
}

// Stores delta of row n of all. d_lse, where it is given, is taken from rows that see a key.
TANDEM_DEVICE void put_delta(const BwdDotPush& push, int64_t n, bool exists, float delta) {
  if (push.d_lse != 0 && exists && __ldg(reinterpret_cast<const float*>(push.lse) + n) != -INFINITY)
    delta -= __ldg(reinterpret_cast<const float*>(push.d_lse) + n);
  reinterpret_cast<float*>(push.delta)[n] = delta;
}

// Forms delta of a tile of rows. length: rows of the batch entry; rows behind it have delta 0.
// first: row where the entry starts.
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
    sum = fmaf(x.x, rounded<T>(y.x), sum);
    sum = fmaf(x.y, rounded<T>(y.y), sum);
    sum = fmaf(x.z, rounded<T>(y.z), sum);
    sum = fmaf(x.w, rounded<T>(y.w), sum);
  }
#pragma unroll
  for (int step = kDotLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (lane == 0 && row < u.seq_q)
    put_delta(push, (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q + row, row < length, sum);
}

template <typename T>
TANDEM_DEVICE void dot_plain(const BwdDotParams& params) {
  const BwdDotBlock& u = params.block;
  Place at;
  if (find_place(u.tiles, u.total, u.heads_q, &at, params.first_group))
    dot_rows<T>(u, params.push, at, u.seq_q, 0);
}

TANDEM_DEVICE void dot_full(const BwdDotFull& params) {
  const BwdDotBlock& u = params.block;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q, &at, params.first_group)) return;
  int64_t first;
  const int length = entry_length(Lengths(params.spec.LENGTHS_Q), params.push.lengths_q, at.batch,
                                  u.seq_q, u.total_q, &first);
  with_type(params.spec.DTYPE,
            [&](auto e) { dot_rows<decltype(e)>(u, params.push, at, length, first); });
}

// Zeroes with all threads of the grid. GROUP: threads of a workgroup.
template <uint GROUP, typename P>
TANDEM_DEVICE void put_zeros(const Zeroing<P>& z) {
  const uint64_t group = uint64_t(blockIdx.y) * gridDim.x + blockIdx.x,
                 groups = uint64_t(gridDim.x) * gridDim.y;
  const uint64_t thread = group * GROUP + threadIdx.x, threads = groups * GROUP;
  put_zeros(z.zeroed, z.zeroed_end, thread, threads);
  for (uint n = 0; n < z.entries; ++n)
    put_zeros(z.first + n * z.step, z.first_end + n * z.step, thread, threads);
}

// A thread loads 8 elements of each of kFastDotRows rows, all in flight at once. With fewer, memory
// would idle.
template <typename T, int LANES>
__global__ void __launch_bounds__(kFastDot)
    bwd_dot_fast(const __grid_constant__ Zeroing<BwdDotParams> params) {
  constexpr int ROWS = kFastDotRows;
  const BwdDotBlock& u = params.dot.block;
  Place at{};
  const bool here = find_place(u.tiles, u.total, u.heads_q, &at);
  const int lane = int(threadIdx.x) % LANES;
  const int row = (at.tile * (kFastDot / LANES) + int(threadIdx.x) / LANES) * ROWS;
  uint4 a[ROWS], b[ROWS];
#pragma unroll
  for (int n = 0; n < ROWS; ++n) {
    a[n] = b[n] = make_uint4(0u, 0u, 0u, 0u);
    if (here && row + n < u.seq_q && 8 * lane < u.head_dim_v) {
      const auto address = [&](uint64_t base, const Strides& s) {
        return reinterpret_cast<const uint4*>(
            base + 2 * (at.batch * s.b + at.head * s.h + (row + n) * s.s + 8 * lane));
      };
      a[n] = __ldcs(address(params.dot.push.o, u.o));
      b[n] = __ldcs(address(params.dot.push.d_o, u.d_o));
    }
  }
  put_zeros<kFastDot>(params);
  float sums[ROWS];
#pragma unroll
  for (int n = 0; n < ROWS; ++n) {
    const uint x[4] = {a[n].x, a[n].y, a[n].z, a[n].w}, y[4] = {b[n].x, b[n].y, b[n].z, b[n].w};
    sums[n] = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto element = [&](uint word) {
        return T::to_float(typename T::Element(word >> i % 2 * 16));
      };
      sums[n] = fmaf(element(x[i / 2]), element(y[i / 2]), sums[n]);
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
      sums[n] += __shfl_xor_sync(kAllLanes, sums[n], step);
  }
  if (!here || lane >= ROWS || row + lane >= u.seq_q) return;
  float sum = sums[0];
#pragma unroll
  for (int n = 1; n < ROWS; ++n) sum = lane == n ? sums[n] : sum;
  put_delta(params.dot.push, (int64_t(at.batch) * u.heads_q + at.head) * u.seq_q + row + lane, true,
            sum);
}

template <typename T>
__global__ void __launch_bounds__(kDotRows* kDotLanes)
    bwd_dot(const __grid_constant__ BwdDotParams params) {
  dot_plain<T>(params);
}

template <typename T>
__global__ void __launch_bounds__(kDotRows* kDotLanes)
    bwd_dot_zero(const __grid_constant__ Zeroing<BwdDotParams> params) {
  put_zeros<kDotRows * kDotLanes>(params);
  dot_plain<T>(params.dot);
}

__global__ void __launch_bounds__(kDotRows* kDotLanes)
    bwd_dot_full(const __grid_constant__ BwdDotFull params) {
  dot_full(params);
}

__global__ void __launch_bounds__(kDotRows* kDotLanes)
    bwd_dot_zero_full(const __grid_constant__ Zeroing<BwdDotFull> params) {
  put_zeros<kDotRows * kDotLanes>(params);
  dot_full(params.dot);
}

Kernel<BwdDotParams> bwd_dot_kernel(tandem_dtype dtype, const KernelChoice& of, bool) {
  switch (dtype) {
    case TANDEM_F32:
      return of.tf32 ? bwd_dot<RoundedF32> : bwd_dot<F32>;
    case TANDEM_F16:
      return bwd_dot<F16>;
    case TANDEM_BF16:
      return bwd_dot<BF16>;
    default:
      return nullptr;
  }
}

Kernel<BwdDotFull> bwd_dot_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return bwd_dot_full;
}

Kernel<BwdDotZeroParams> bwd_dot_zero_kernel(tandem_dtype dtype, const KernelChoice& of, bool) {
  return dtype == TANDEM_F16    ? bwd_dot_zero<F16>
         : dtype == TANDEM_BF16 ? bwd_dot_zero<BF16>
         : of.tf32              ? bwd_dot_zero<RoundedF32>
                                : bwd_dot_zero<F32>;
}

Kernel<BwdDotZeroFull> bwd_dot_zero_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return bwd_dot_zero_full;
}

namespace {

template <typename T>
Kernel<BwdDotZeroParams> fast_dot(int head_dim_v) {
  const int lanes = bwd_dot_lanes(head_dim_v);
  return lanes == 8 ? bwd_dot_fast<T, 8> : lanes == 16 ? bwd_dot_fast<T, 16> : bwd_dot_fast<T, 32>;
}

}  // namespace

Kernel<BwdDotZeroParams> bwd_dot_fast_kernel(tandem_dtype dtype, int head_dim_v) {
  return dtype == TANDEM_F16 ? fast_dot<F16>(head_dim_v) : fast_dot<BF16>(head_dim_v);
}

}  // namespace cuda
}  // namespace tandem
