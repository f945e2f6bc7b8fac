// SPDX-License-Identifier: MIT OR Apache-2.0
// Partial sums of d_k and d_v of workgroups that share a tile of keys.
#ifndef TANDEM_CUDA_SM90_BWD_DKV_PARTIALS_CUH
#define TANDEM_CUDA_SM90_BWD_DKV_PARTIALS_CUH
#include "shared_storage.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Partial sums in the workspace: for each shared tile and consumer warpgroup, `pitch` times the
// accumulators of d_k and d_v of its threads, bwd_partial_floats() for both warpgroups. counts: for
// each shared tile and consumer warpgroup, how many parts have left theirs; zeroed before.
struct DkvPartials {
  uint64_t sums, counts;
  int pitch;  // room for so many parts of a tile
};

// Sums d_k and d_v over the workgroups that share a tile of keys, in the order of the parts, in the
// last warpgroup to arrive. Returns false in the others. scratch: a word of the warpgroup in shared
// memory.
template <int N>
TANDEM_DEVICE bool gather_partials(const DkvPartials& partials, const BwdWorkTile& work,
                                   uint scratch, float (&d_k)[N], float (&d_v)[N]) {
  constexpr int kFours = 2 * N / 4;
  const int warpgroup = read_tid_x() / 128 - 1, own = read_tid_x() % 128;
  const int place = 2 * work.shared + warpgroup;
  float4* all = reinterpret_cast<float4*>(partials.sums) +
                int64_t(place) * partials.pitch * (kFours * 128) + own;
  float4* mine = all + work.part * (kFours * 128);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    mine[i * 128] = make_float4(d_k[4 * i], d_k[4 * i + 1], d_k[4 * i + 2], d_k[4 * i + 3]);
    mine[(N / 4 + i) * 128] =
        make_float4(d_v[4 * i], d_v[4 * i + 1], d_v[4 * i + 2], d_v[4 * i + 3]);
  }
  __threadfence();
  named_barrier_sync(kWarpgroup + warpgroup, 128);
  if (own == 0)
    st_shared(scratch,
              __int_as_float(atomicAdd(reinterpret_cast<int*>(partials.counts) + place, 1)));
  named_barrier_sync(kWarpgroup + warpgroup, 128);
  const int before = __float_as_int(ld_shared_v2_f32(scratch).x);
  named_barrier_sync(kWarpgroup + warpgroup, 128);  // the scratch word is written again
  if (before != work.parts - 1) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < N; ++i) d_k[i] = d_v[i] = 0.f;
#pragma unroll 1
  for (int part = 0; part < work.parts; ++part, all += kFours * 128) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const float4 x = __ldcg(all + i * 128), y = __ldcg(all + (N / 4 + i) * 128);
      d_k[4 * i] += x.x, d_k[4 * i + 1] += x.y, d_k[4 * i + 2] += x.z, d_k[4 * i + 3] += x.w;
      d_v[4 * i] += y.x, d_v[4 * i + 1] += y.y, d_v[4 * i + 2] += y.z, d_v[4 * i + 3] += y.w;
    }
  }
  return true;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
