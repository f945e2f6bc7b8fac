// SPDX-License-Identifier: MIT OR Apache-2.0
// dQ postprocess and gradients of heads, by the last workgroup of a head in bwd_dkv_dq. Of the
// workgroups of a kv head, the last one to add to the dQ accumulator converts the accumulator of
// its query heads to d_q. The last one over all batch entries reduces d_sink and d_slope, as
// bwd_head_sums would.
//
// How sums become visible. Bulk adds belong to the async proxy. cp.async.bulk.wait_group (not
// .read) ends when they are complete and visible to the thread that issued them, in the generic
// proxy, too. That thread, if need be behind a barrier with the second dQ warp, then adds 1 to the
// count of the head in the workspace, with acquire and release at device scope. A thread that finds
// all others there has acquired all sums. It writes so to shared memory, and the warps behind the
// named barrier that follows see the sums as well. They read through the L2 cache, as the L1 cache
// belongs to one SM.
//
// Cooperative form: where all workgroups run at a time, those that end earlier wait for the last
// one and share the work: each warp claims pieces of the head until none is left. A workgroup
// leaves after kPatience, so none depends on another; the last one converts what is unclaimed.
#ifndef TANDEM_CUDA_SM90_BWD_DQ_POSTPROCESS_CUH
#define TANDEM_CUDA_SM90_BWD_DQ_POSTPROCESS_CUH
#include "../../parts/bwd_head_sums.cuh"
#include "dq_semaphore.cuh"
#include "epilogue.cuh"
#include "softmax.cuh"
#include "tma_producer.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// How many entries of packed queries come before this one in memory.
template <typename Variant>
TANDEM_DEVICE int rank_of(const typename Variant::Params& params, const BwdWorkTile& work) {
  if constexpr (Variant::kIsVarlen)
    if (params.ranks)
      return __ldg(reinterpret_cast<const int*>(params.ranks) + work.batch * TANDEM_PLACE_NUMBERS);
  return work.batch;
}
// Index of the first query tile of a query head, in the dQ accumulator.
template <int TILE, typename Variant>
TANDEM_DEVICE int64_t first_tile(const BwdDkvDqBlock& u, const BwdWorkTile& work, int rank,
                                 int head, int packed_tiles) {
  constexpr int kBr = kBwdShapes[TILE].br;
  if constexpr (Variant::kIsVarlen)
    if (packed_tiles > 0) return int64_t(head) * packed_tiles + work.first_q / kBr + rank;
  return (int64_t(work.batch) * u.heads_q + head) * ((u.seq_q + kBr - 1) / kBr);
}

// What a workgroup adds to the count of its head: its share of kWholeTile.
TANDEM_DEVICE uint share_of_tile(const BwdWorkTile& work) {
  return uint(kWholeTile * (work.part + 1) / work.parts - kWholeTile * work.part / work.parts);
}
// What a tile of keys adds to the count by which the last workgroup of a head is found.
template <typename Variant>
constexpr uint kTileCount = Variant::kHasParts ? uint(kWholeTile) : 1;

// One thread, after its adds: signals a bwd_dq_cast that may already run.
TANDEM_DEVICE void signal_postprocess(const BwdDkvDqParams& params, const BwdWorkTile& work) {
  if (!params.d_q.counts) return;
  const BwdDkvDqBlock& u = params.block;
  const uint by = share_of_tile(work);  // before the address: the order decides the machine code
  red_add_release(reinterpret_cast<uint*>(params.d_q.counts) +
                      (work.batch * (u.heads_q / u.group) + work.head_kv),
                  by);
}

// One thread, after its adds: whether it is the last one of the head. A workgroup with a part of a
// tile of keys counts as a part.
template <typename Variant>
TANDEM_DEVICE bool is_last(const typename Variant::Params& params, const BwdWorkTile& work) {
  if (!params.d_q.address) {
    if constexpr (!Variant::kHasBias) signal_postprocess(params, work);
    return false;
  }
  const BwdDkvDqBlock& u = params.block;
  uint parts = kTileCount<Variant>;
  if constexpr (Variant::kHasBias) parts = uint(params.bias.parts);
  uint by = work.parts > 1 ? 1u : parts;
  if constexpr (Variant::kHasParts) by = share_of_tile(work);
  return atom_add_acq_rel(
             params.d_q.counts + 4 * uint64_t(work.batch * (u.heads_q / u.group) + work.head_kv),
             by) +
             by ==
         u.tiles * parts;
}

// Cooperative form, one thread of a workgroup that was not the last one: whether the last one came
// in time. The workgroup has nothing else to do, but its SM might have work of other kernels.
constexpr int64_t kPatience = 1 << 17;  // cycles, about 75 us
template <typename Variant>
TANDEM_DEVICE bool await_last(const typename Variant::Params& params, const BwdWorkTile& work) {
  const BwdDkvDqBlock& u = params.block;
  const uint* count = reinterpret_cast<const uint*>(params.d_q.counts) +
                      (work.batch * (u.heads_q / u.group) + work.head_kv);
  const int64_t begin = clock64();
  while (semaphore_load(count) != u.tiles * kTileCount<Variant>) {
    if (clock64() - begin > kPatience) return false;
    __nanosleep(100);
  }
  return true;
}

// The rows of d_q of a query head.
struct HeadRows {
  ushort* to;
  const Strides& strides;
  int rows, columns;
  // Stores 8 columns of a row.
  TANDEM_DEVICE void put(int row, int column, const uint (&w)[4]) const {
    if (row >= rows || column >= columns) return;
    ushort* at = to + row * strides.s + column * strides.d;
    if (strides.d == 1 && column + 8 <= columns && (reinterpret_cast<uint64_t>(at) & 15) == 0) {
      *reinterpret_cast<uint4*>(at) = make_uint4(w[0], w[1], w[2], w[3]);
      return;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (column + e < columns) at[e * strides.d] = ushort(w[e / 2] >> (e % 2 * 16));
  }
  // Stores 16 rows x 64 columns by a warp. x: in the layout of accumulators.
  template <typename T>
  TANDEM_DEVICE void put(int row, int column, const float4 (&x)[8], float scale) const {
    const int lane = int(threadIdx.x) % 32;
    row += lane / 4, column += lane % 4 * 8;
#pragma unroll
    for (int n = 0; n < 8; n += 4) {
      uint low[4], high[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        low[i] = T::pack(x[n + i].x * scale, x[n + i].y * scale);
        high[i] = T::pack(x[n + i].z * scale, x[n + i].w * scale);
      }
      transpose_quad(low);
      put(row, column + 8 * n, low);
      transpose_quad(high);
      put(row + 8, column + 8 * n, high);
    }
  }
};

// Converts the dQ accumulator of the query heads of a kv head, by the consumer warps. A piece is 16
// rows of a panel. A warp takes two at a time, either every kWarps-th two or those that it claims.
template <typename T, int TILE, typename Variant>
TANDEM_DEVICE void postprocess_dq(const typename Variant::Params& params, const BwdWorkTile& work,
                                  int packed_tiles) {
  constexpr BwdShape S = kBwdShapes[TILE];
  constexpr int kPanels = BwdSharedStorage<TILE, Variant>::kPanels, kWarps = 8;
  const BwdDkvDqBlock& u = params.block;
  const Strides& strides = params.d_q.strides;
  const int warp = int(threadIdx.x) / 32 - 4, lane = int(threadIdx.x) % 32;
  const int rank = rank_of<Variant>(params, work);
  const int rows = packed_tiles > 0 ? work.seq_q : u.seq_q;
  const int panels = (u.head_dim + 63) / 64, pieces = (rows + 15) / 16 * panels;
  // Converts pieces `piece` and `piece + step` of the n-th query head.
  const auto round_two = [&](int n, int piece, int step) {
    const int head = work.head_kv * u.group + n;
    const float4* sums = reinterpret_cast<const float4*>(params.push.d_q_accum) +
                         first_tile<TILE, Variant>(u, work, rank, head, packed_tiles) *
                             (S.br / 64 * kPanels * kDqAccumBlock / 4) +
                         lane;
    const HeadRows out{reinterpret_cast<ushort*>(params.d_q.address) + work.batch * strides.b +
                           head * strides.h + work.first_q * strides.s,
                       strides, rows, u.head_dim};
    float4 x[2][8];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int at = piece + m * step, row = at / panels, panel = at % panels;
      const float4* from =
          sums + (int64_t(row / 4) * kPanels + panel) * (kDqAccumBlock / 4) + row % 4 * 32;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        x[m][i] = at < pieces && 64 * panel + 8 * i < u.head_dim ? __ldcg(from + 128 * i)
                                                                 : make_float4(0.f, 0.f, 0.f, 0.f);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int at = piece + m * step;
      if (at < pieces) out.template put<T>(at / panels * 16, at % panels * 64, x[m], u.scale);
    }
  };
  if constexpr (!Variant::kHasBias) {
    if (params.d_q.claims) {
      const int twos = (pieces + 1) / 2, all = u.group * twos;
      uint* const claims = reinterpret_cast<uint*>(params.d_q.claims) +
                           (work.batch * (u.heads_q / u.group) + work.head_kv);
      const auto claim = [&] {
        uint at = 0;
        if (lane == 0) at = atomicAdd(claims, 1u);
        return int(__shfl_sync(kAllLanes, at, 0));
      };
#pragma unroll 1
      for (int at = claim(); at < all;) {
        const int next = claim();
        round_two(at / twos, at % twos * 2, 1);
        at = next;
      }
      return;
    }
  }
  for (int n = 0; n < u.group; ++n) {
#pragma unroll 1
    for (int piece = warp; piece < pieces; piece += 2 * kWarps) round_two(n, piece, kWarps);
  }
}

// The sum of part(n), n < count, in one thread, in a fixed order: each of the 256 consumer threads
// adds every 256th, ascending. scratch: 8 numbers in shared memory that are no longer read.
template <typename Part>
TANDEM_DEVICE float sum_parts(uint scratch, int count, const Part& part) {
  const int thread = int(threadIdx.x) - 128;
  float sum = 0.f;
#pragma unroll 1
  for (int n = thread; n < count; n += 4 * 256) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = n + 256 * i < count ? part(n + 256 * i) : 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += x[i];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  named_barrier_sync<kDsWritten>(256);
  if (thread % 32 == 0) st_shared(scratch + uint(thread / 32 * 4), sum);
  named_barrier_sync<kDsWritten>(256);
  sum = 0.f;
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    const float2 two = ld_shared_v2_f32(scratch + uint(4 * n));
    sum += two.x;
    sum += two.y;
  }
  return sum;
}

// Reduces d_sink and d_slope of the query heads of a kv head, by the consumer warps of its last
// workgroup. These warps also write the partial sums of d_slope, and each thread makes its own
// visible before one thread counts.
template <typename Variant>
TANDEM_DEVICE void reduce_head_gradients(const typename Variant::Params& params,
                                         const BwdWorkTile& work, uint scratch) {
  if (!params.heads.counts) return;
  const BwdDkvDqBlock& u = params.block;
  const int batch = int(u.total / u.tiles) / (u.heads_q / u.group);
  __threadfence();
  named_barrier_sync<kDsWritten>(256);
  uint by = 1;
  if constexpr (Variant::kHasParts) by = share_of_tile(work);
  if (threadIdx.x == 128)
    st_shared(scratch,
              atom_add_acq_rel(params.heads.counts + 4 * uint64_t(work.head_kv), by) + by ==
                      u.tiles * kTileCount<Variant> * uint(batch)
                  ? 1.f
                  : 0.f);
  named_barrier_sync<kDsWritten>(256);
  if (ld_shared_v2_f32(scratch).x == 0.f) return;
  __threadfence();
#pragma unroll 1
  for (int n = 0; n < u.group; ++n) {
    const int head = work.head_kv * u.group + n;
    // Index of a part of this head among the parts of all batch entries, `each` an entry.
    const auto index = [&](int part, int each) {
      return (int64_t(part / each) * u.heads_q + head) * each + part % each;
    };
    if (params.heads.d_sink) {
      const float sink = __ldg(reinterpret_cast<const float*>(params.heads.sink) + head);
      const float sum = sum_parts(scratch, batch * u.seq_q, [&](int part) {
        return sink_part(sink, params.push.lse, params.push.delta, index(part, u.seq_q));
      });
      if (threadIdx.x == 128) reinterpret_cast<float*>(params.heads.d_sink)[head] = -sum;
    }
    if constexpr (Variant::kIsVarlen) {
      if (params.heads.d_slope) {
        const int each = int(u.tiles) * kBwdParts;
        const float sum = sum_parts(scratch, batch * each, [&](int part) {
          return __ldcg(reinterpret_cast<const float*>(params.slope_parts) + index(part, each));
        });
        if (threadIdx.x == 128) reinterpret_cast<float*>(params.heads.d_slope)[head] = -sum;
      }
    }
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
