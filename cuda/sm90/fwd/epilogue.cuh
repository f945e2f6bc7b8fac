// SPDX-License-Identifier: MIT OR Apache-2.0
// Epilogue of the forward kernels: stores of o and lse.
#ifndef TANDEM_CUDA_SM90_FWD_EPILOGUE_CUH
#define TANDEM_CUDA_SM90_FWD_EPILOGUE_CUH
#include "main_loop.cuh"
#include "problem/rounded_weights.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// Brings a thread's part of o, times factor, back to f16's largest value where weights that are
// rounded to f16 have brought it beyond (src/problem/rounded_weights.h). Seldom: o and factor
// otherwise stay as they are.
template <typename T, int DV>
TANDEM_DEVICE void limit_averages(float (&o)[DV / 2], float (&factor)[2]) {
  if constexpr (std::is_same<T, Half>::value) {
    float top[2] = {};
#pragma unroll
    for (int i = 0; i < DV / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], fabsf(o[i]));
    if (top[0] * factor[0] <= 65504.f && top[1] * factor[1] <= 65504.f) return;
#pragma unroll
    for (int i = 0; i < DV / 2; ++i) o[i] = tandem_f16_average(o[i] * factor[i / 2 % 2]);
    factor[0] = factor[1] = 1.f;
  }
}

// Stores accumulators times factor to the rows of a head that are below `rows`. ENDS: rows from
// `length` on become zeros.
template <typename T, int DV, bool ENDS = false>
TANDEM_DEVICE void store_rows(float (&o)[DV / 2], const float (&factors)[2], ushort* base,
                              const FwdBlock& u, int row0, int rows, int length = 0) {
  float factor[2] = {factors[0], factors[1]};
  limit_averages<T, DV>(o, factor);
  const bool chunks = u.o.d == 1 && u.o.s % 8 == 0 && reinterpret_cast<uint64_t>(base) % 16 == 0;
  const int row = row0 + accumulator_row(), lane = read_tid_x() % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + 8 * r;
    ushort* to = base + i * u.o.s + 8 * lane * u.o.d;
#pragma unroll
    for (int j = 0; j < DV / 8; j += 4) {
      uint x[4];
#pragma unroll
      for (int n = 0; n < 4; ++n)
        x[n] = j + n >= DV / 8 || (ENDS && i >= length)
                   ? 0
                   : T::pack(o[4 * (j + n) + 2 * r] * factor[r],
                             o[4 * (j + n) + 2 * r + 1] * factor[r]);
      transpose_quad(x);
      const int left = i < rows ? u.head_dim_v - 8 * (j + lane) : 0;
      if (chunks && left >= 8) {
        *reinterpret_cast<uint4*>(to + 8 * j) = make_uint4(x[0], x[1], x[2], x[3]);
      } else {
        // Seldom taken. The code is short: more would push the loops out of the instruction cache.
        uint64_t low = uint64_t(x[1]) << 32 | x[0], high = uint64_t(x[3]) << 32 | x[2];
        ushort* one = to + 8 * j * u.o.d;
#pragma unroll 1
        for (int n = 0; n < min(left, 8); ++n, one += u.o.d) {
          *one = ushort(low);
          low = low >> 16 | high << 48;
          high >>= 16;
        }
      }
    }
  }
}

template <typename T, int DV>
TANDEM_DEVICE void store_rows(float (&o)[DV / 2], const float (&factor)[2], uint64_t address,
                              const FwdBlock& u, const FwdWorkTile& at) {
  store_rows<T, DV>(
      o, factor,
      reinterpret_cast<ushort*>(address) + batch_of(u, at) * u.o.b + head_of(u, at) * u.o.h, u,
      at.row0, u.seq_q);
}

// Like store_rows(), but faster: where all chunks of four words can be stored at once, no branch
// stands between two of them, so one does not wait for the shuffles of another. head_dim_v is a
// multiple of 8.
template <typename T, int DV, bool ENDS = false>
TANDEM_DEVICE void store_all_rows(float (&o)[DV / 2], const float (&factors)[2], ushort* base,
                                  const FwdBlock& u, int row0, int rows, int length = 0) {
  const bool chunks = u.o.d == 1 && u.o.s % 8 == 0 && reinterpret_cast<uint64_t>(base) % 16 == 0;
  if (!__all_sync(kAllLanes, chunks))
    return store_rows<T, DV, ENDS>(o, factors, base, u, row0, rows, length);
  float factor[2] = {factors[0], factors[1]};
  limit_averages<T, DV>(o, factor);
  const int row = row0 + accumulator_row(), lane = read_tid_x() % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + 8 * r;
    ushort* to = base + i * u.o.s + 8 * lane;
    const int left = i < rows ? u.head_dim_v - 8 * lane : 0;
#pragma unroll
    for (int j = 0; j < DV / 8; j += 4) {
      uint x[4];
#pragma unroll
      for (int n = 0; n < 4; ++n)
        x[n] = j + n >= DV / 8 || (ENDS && i >= length)
                   ? 0
                   : T::pack(o[4 * (j + n) + 2 * r] * factor[r],
                             o[4 * (j + n) + 2 * r + 1] * factor[r]);
      transpose_quad(x);
      if (left > 8 * j) *reinterpret_cast<uint4*>(to + 8 * j) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
}

// lse of a thread's two rows, and the factors of o. reciprocal: 1 / l.
template <int N, typename Reciprocal>
TANDEM_DEVICE void end_rows(const Softmax<N>& softmax, const FwdBlock& u, float (&lse)[2],
                            float (&inverse)[2], const Reciprocal& reciprocal) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float l = quad_sum(softmax.sum(r));
    lse[r] = softmax.lse(r, l, product_unit(u));
    inverse[r] = l == 0.f ? 0.f : reciprocal(l);
  }
}

// Stores lse of a thread's two rows.
TANDEM_DEVICE void store_lse(const FwdBlock& u, const FwdPush& push, const FwdWorkTile& at,
                             const float (&lse)[2]) {
  float* to = reinterpret_cast<float*>(push.lse);
  if (!to || threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = at.row0 + accumulator_row() + 8 * r;
    if (i < u.seq_q) to[int64_t(at.index) * u.seq_q + i] = lse[r];
  }
}
// Stores o and lse of `rows` rows of a head that see no key, by `threads` threads.
TANDEM_DEVICE void store_unseen_rows(const FwdBlock& u, const FwdPush& push, int batch, int head,
                                     int row0, int rows, int thread, int threads) {
  ushort* o = reinterpret_cast<ushort*>(push.o) + batch * u.o.b + head * u.o.h;
  float* lse = reinterpret_cast<float*>(push.lse) + (int64_t(batch) * u.heads_q + head) * u.seq_q;
#pragma unroll 1
  for (int n = thread; n < rows * u.head_dim_v; n += threads) {
    const int i = row0 + n / u.head_dim_v, d = n % u.head_dim_v;
    if (uint(i) >= uint(u.seq_q)) continue;
    o[i * u.o.s + d * u.o.d] = 0;
    if (push.lse && d == 0) lse[i] = -INFINITY;
  }
}
// Those of a work tile, by the consumer warpgroups.
template <typename S>
TANDEM_DEVICE void store_unseen_rows(const FwdBlock& u, const FwdPush& push,
                                     const FwdWorkTile& at) {
  store_unseen_rows(u, push, batch_of(u, at), head_of(u, at), at.row0, S::M, int(threadIdx.x) - 128,
                    128 * S::WARPGROUPS);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
