// SPDX-License-Identifier: MIT OR Apache-2.0
// What the last workgroup of a head does in bwd_dkv_dq. d_q from the f32 sums, in the kernel that forms them: of the workgroups of a
// head of keys, the one that is the last to have added its part rounds all rows of the query heads that read it. And what bwd_head
// would: the last one over all batch entries sums d_sink and d_slope.
//
// How sums get from those who add to who rounds. Bulk adds are of the async proxy; cp.async.bulk.wait_group (not .read) ends when
// they are done and can be seen by the thread that gave them, in the generic proxy, too. That thread, if need be behind a barrier
// with a second one that adds, then adds 1 to the
// head's count in the workspace (acquire and release, of the device). Who finds all others there has acquired what they
// released, all sums; it says so in shared memory, and the warps behind the named barrier that follows see the sums as well.
// They read by way of the second-level cache, as the first-level one is of one multiprocessor alone.
//
// Where all workgroups run at once, those that are done a little earlier wait for the last one and help it: each warp claims pieces
// of the head until none is left. Who has waited for kPatience leaves, so nobody depends on another one's being there: the
// last one rounds what nobody has claimed.
#ifndef TANDEM_CUDA_SM90_BWD_ROUND_CUH
#define TANDEM_CUDA_SM90_BWD_ROUND_CUH
#include "../bwd_head.cuh"
#include "bwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Of query head `head` in its entry: the number of its first tile among all that there are sums of.
template <int ROW, typename Set>
TANDEM_DEVICE int64_t first_tile(const BwdDkvDqBlock& u, const Walk& walk, int head,
                                 int packed_tiles) {
  constexpr int kBr = kBwdShapes[ROW].br;
  if constexpr (kHasLengths<Set>)
    if (packed_tiles > 0) return int64_t(head) * packed_tiles + walk.first_q / kBr + walk.batch;
  return (int64_t(walk.batch) * u.heads_q + head) * ((u.seq_q + kBr - 1) / kBr);
}

// One thread, whose adds are done: tells a bwd_dq_cast that may run already.
TANDEM_DEVICE void tell_cast(const BwdDkvDqParams& params, const Walk& walk) {
  if (!params.d_q.counts) return;
  const BwdDkvDqBlock& u = params.block;
  const uint by =
      uint(kWholeTile * (walk.part + 1) / walk.parts - kWholeTile * walk.part / walk.parts);
  release_add(reinterpret_cast<uint*>(params.d_q.counts) +
                  (walk.batch * (u.heads_q / u.group) + walk.head_kv),
              by);
}

// One thread, whose adds are done. Whether all workgroups of the head have come here; one that has a part of a tile of keys
// counts as a part.
template <typename Set>
TANDEM_DEVICE bool is_last(const typename Set::Params& params, const Walk& walk) {
  if (!params.d_q.address) {
    if constexpr (!kDense<Set>) tell_cast(params, walk);
    return false;
  }
  const BwdDkvDqBlock& u = params.block;
  uint parts = 1;
  if constexpr (kDense<Set>) parts = uint(params.bias.parts);
  const uint by = walk.parts > 1 ? 1u : parts;
  return count_up(
             params.d_q.counts + 4 * uint64_t(walk.batch * (u.heads_q / u.group) + walk.head_kv),
             by) +
             by ==
         u.tiles * parts;
}

// One thread of a workgroup that was not the last one, where those of a head round together: whether the others came in time. A
// workgroup has nothing else to do, but its multiprocessor might have other kernels' work.
constexpr int64_t kPatience = 1 << 17;  // cycles, about 75 us
template <typename Set>
TANDEM_DEVICE bool await_last(const typename Set::Params& params, const Walk& walk) {
  const BwdDkvDqBlock& u = params.block;
  const uint* count = reinterpret_cast<const uint*>(params.d_q.counts) +
                      (walk.batch * (u.heads_q / u.group) + walk.head_kv);
  const int64_t begin = clock64();
  while (turns_taken(count) != u.tiles) {
    if (clock64() - begin > kPatience) return false;
    __nanosleep(100);
  }
  return true;
}

// d_q of a head: its first row, and how much there is of it.
struct HeadRows {
  ushort* to;
  const Strides& strides;
  int rows, columns;
  // 8 columns of a row.
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
  // 16 rows x 64 columns by a warp, x as accumulators lie.
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

// The multiplying warps. A piece is 16 rows of a panel; a warp takes two at a time, every kWarps-th two or those that it claims.
template <typename T, int ROW, typename Set>
TANDEM_DEVICE void round_sums(const typename Set::Params& params, const Walk& walk,
                              int packed_tiles) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr int kPanels = Memory<ROW, Set>::kPanels, kWarps = 8;
  const BwdDkvDqBlock& u = params.block;
  const Strides& strides = params.d_q.strides;
  const int warp = int(threadIdx.x) / 32 - 4, lane = int(threadIdx.x) % 32;
  const int rows = packed_tiles > 0 ? walk.seq_q : u.seq_q;
  const int panels = (u.head_dim + 63) / 64, pieces = (rows + 15) / 16 * panels;
  // Pieces `piece` and `piece + step` of the n-th query head.
  const auto round_two = [&](int n, int piece, int step) {
    const int head = walk.head_kv * u.group + n;
    const float4* sums =
        reinterpret_cast<const float4*>(params.push.d_q_sums) +
        first_tile<ROW, Set>(u, walk, head, packed_tiles) * (S.br / 64 * kPanels * kSumsBlock / 4) +
        lane;
    const HeadRows out{reinterpret_cast<ushort*>(params.d_q.address) + walk.batch * strides.b +
                           head * strides.h + walk.first_q * strides.s,
                       strides, rows, u.head_dim};
    float4 x[2][8];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int at = piece + m * step, row = at / panels, panel = at % panels;
      const float4* from =
          sums + (int64_t(row / 4) * kPanels + panel) * (kSumsBlock / 4) + row % 4 * 32;
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
  if constexpr (!kDense<Set>) {
    if (params.d_q.claims) {
      const int twos = (pieces + 1) / 2, all = u.group * twos;
      uint* const claims = reinterpret_cast<uint*>(params.d_q.claims) +
                           (walk.batch * (u.heads_q / u.group) + walk.head_kv);
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

// The sum of part(n), n < count, in one thread: each of the 256 multiplying ones takes every 256th, ascending, and their sums are
// added in a fixed order. scratch: 8 numbers in shared memory, which nobody reads any more.
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
  named_sync<kDsWritten>(256);
  if (thread % 32 == 0) put_shared(scratch + uint(thread / 32 * 4), sum);
  named_sync<kDsWritten>(256);
  sum = 0.f;
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    const float2 two = shared_float2(scratch + uint(4 * n));
    sum += two.x;
    sum += two.y;
  }
  return sum;
}

// d_sink and d_slope of the query heads of a head of keys, by the multiplying warps of the last workgroup that is done with it. Parts of
// d_slope are written by those warps themselves; each thread lets its own be seen before the one that counts does.
template <typename Set>
TANDEM_DEVICE void sum_heads(const typename Set::Params& params, const Walk& walk, uint scratch) {
  if (!params.heads.counts) return;
  const BwdDkvDqBlock& u = params.block;
  const int batch = int(u.total / u.tiles) / (u.heads_q / u.group);
  __threadfence();
  named_sync<kDsWritten>(256);
  if (threadIdx.x == 128)
    put_shared(scratch, count_up(params.heads.counts + 4 * uint64_t(walk.head_kv), 1) + 1 ==
                                u.tiles * uint(batch)
                            ? 1.f
                            : 0.f);
  named_sync<kDsWritten>(256);
  if (shared_float2(scratch).x == 0.f) return;
  __threadfence();
#pragma unroll 1
  for (int n = 0; n < u.group; ++n) {
    const int head = walk.head_kv * u.group + n;
    // Of a part of all entries' parts of this head, `each` an entry.
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
    if constexpr (kHasLengths<Set>) {
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
