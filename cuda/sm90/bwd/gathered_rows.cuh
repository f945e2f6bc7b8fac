// SPDX-License-Identifier: MIT OR Apache-2.0
// Query tiles of gathered rows, for bwd_dkv_dq of entmax: of the rows that see a tile of keys,
// those that have support there, in their order. bwd_row_sums leaves a bit for each row and tile of
// keys.
//
// The four producer warps list the rows together, in a ring in shared memory. Each copies a quarter
// of a tile's rows of Q and dO to where TMA boxes would have them. Consumer warps
// get the index of each row with its lse, for the mask and for the dQ accumulator, whose blocks
// here have rows of 64 sums.
#ifndef TANDEM_CUDA_SM90_BWD_GATHERED_ROWS_CUH
#define TANDEM_CUDA_SM90_BWD_GATHERED_ROWS_CUH
#include "../ptx/cp_async.cuh"
#include "../ptx/global_memory.cuh"
#include "far_rows.cuh"
#include "shared_storage.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Listed rows that the ring has room for. A chunk adds up to kListChunk of them, while less than a
// tile of those before is left, and warps are up to two tiles apart.
constexpr int kListChunk = 32 * 64, kListRing = 2 * kListChunk;

// What is true of any of the rows that a producer warp has copied: far (far_rows.cuh); on an edge
// of the mask. A word for each of the warps, in place of the words of put_far().
constexpr uint kFarRows = 1, kEdgeRows = 2, kProducerWarps = 4;

// The support bits of the 64 rows of a block in a work tile's keys, as two words.
struct RowSupport {
  const uint2* words =
      nullptr;  // of the query head and the tile of keys; nullptr: rows have no bits
  int seq_q;
  template <typename Params>
  TANDEM_DEVICE RowSupport(const Params& params, const BwdWorkTile& work, int head)
      : seq_q(work.seq_q) {
    if (!params.support || work.tile >= kSupportTiles) return;
    const int tiles = min((work.seq_kv + kSupportKeys - 1) / kSupportKeys, kSupportTiles);
    words = reinterpret_cast<const uint2*>(params.support) +
            ((int64_t(work.batch) * params.block.heads_q + head) * tiles + work.tile) *
                ((seq_q + 63) / 64);
  }
  TANDEM_DEVICE uint2 operator[](int block) const {
    if (words) return __ldg(words + block);
    const int left = seq_q - 64 * block;
    return make_uint2(left < 32 ? (1u << left) - 1 : ~0u,
                      left < 64 ? left > 32 ? (1u << (left - 32)) - 1 : 0u : ~0u);
  }
};

// The blocks of 64 rows that see a work tile's keys, and which of them see all.
TANDEM_DEVICE TandemTiles row_blocks(const BwdWorkTile& work) {
  return tandem_query_tiles(work.band, work.col0, kSupportKeys, 64, work.seq_q, work.seq_kv);
}

// Iterator of the Q loop: as many tiles as the listed rows of a query head fill.
template <int TILE, typename Params>
struct GatheredQTiles {
  const Params& params;
  const BwdWorkTile& work;
  int end = 0;
  TANDEM_DEVICE GatheredQTiles(const Params& params, const BwdWorkTile& work)
      : params(params), work(work) {}
  TANDEM_DEVICE int next(int n, int t) {
    if (t == work.span.begin) {
      const RowSupport support(params, work, work.head_kv * params.block.group + n);
      const TandemTiles blocks = row_blocks(work);
      int count = 0;
      for (int b = blocks.begin + read_tid_x() % 32; b < blocks.end; b += 32) {
        const uint2 bits = support[b];
        count += __popc(bits.x) + __popc(bits.y);
      }
      count = __reduce_add_sync(kAllLanes, count);
      end = t + (count + kBwdShapes[TILE].br - 1) / kBwdShapes[TILE].br;
    }
    return t < end ? t : work.span.end;
  }
};

// Where the ring of listed rows is, and for each stage of Q the indices of the tile's rows, -1
// behind the last one: in the room of the dQ stages, which these kernels do not have.
template <int TILE, typename Variant>
struct GatheredStorage {
  using M = BwdSharedStorage<TILE, Variant>;
  static constexpr BwdShape S = kBwdShapes[TILE];
  static constexpr int kAtRows = M::kAtDq + kListRing * 4;
  static_assert(kListRing * 4 + S.q_stages * S.br * 4 <= 2 * 16384, "the room of the dQ stages");
  uint base;
  TANDEM_DEVICE uint listed(int n) const { return base + M::kAtDq + uint(n % kListRing) * 4; }
  TANDEM_DEVICE uint rows(int stage) const { return base + kAtRows + uint(stage * S.br * 4); }
  // What is true of any row of a stage.
  TANDEM_DEVICE uint of_rows(int stage) const {
    const uint4 x = ld_shared_v4_u32(M{base}.far(stage));
    return x.x | x.y | x.z | x.w;
  }
};

// The producer warps.
template <int TILE, typename Variant>
struct RowGatherer {
  using Params = typename Variant::Params;
  using M = BwdSharedStorage<TILE, Variant>;
  static constexpr BwdShape S = kBwdShapes[TILE];
  const Params& params;
  const BwdWorkTile& work;
  const M& memory;
  static constexpr int kOwn = S.br / int(kProducerWarps);  // rows of a tile that a warp copies
  const TandemTiles blocks = row_blocks(work);

  TANDEM_DEVICE GatheredStorage<TILE, Variant> storage() const { return {memory.base}; }

  // The bits of the lane's block of 32 from `block` on.
  TANDEM_DEVICE uint2 load_bits(const RowSupport& support, int block) const {
    const int own = block + int(threadIdx.x) % 32;
    return own < blocks.end ? support[own] : make_uint2(0, 0);
  }
  // Lists the rows of 32 blocks from `block` on, behind `count` rows; returns how many. Each warp
  // lists a quarter of each block.
  TANDEM_DEVICE int list(uint2 bits, int block, int count) const {
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    const int own = __popc(bits.x) + __popc(bits.y);
    int end = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_sync(kAllLanes, end, (lane - step) & 31);
      if (lane >= step) end += before;
    }
    int at = count + end - own;
    if (warp >= 2) at += __popc(bits.x);
    uint half = warp >= 2 ? bits.y : bits.x;
    if (warp % 2 == 1) at += __popc(half & 0xffffu);
    half = warp % 2 == 1 ? half >> 16 : half & 0xffffu;
    const int first = 64 * (block + lane) + 16 * warp - 1;
    for (; half; half &= half - 1, ++at) st_shared(storage().listed(at), first + __ffs(int(half)));
    return __shfl_sync(kAllLanes, end, 31);
  }

  // Copies the warp's rows of a tensor whose rows are `width` features wide. first: the first row.
  TANDEM_DEVICE void copy(uint to, uint rows, int first, uint64_t from, int64_t row_stride,
                          int width) const {
    const int lane = int(threadIdx.x) % 32, piece = lane % 8;
#pragma unroll 1
    for (int panel = 0; panel < M::kPanels; ++panel) {
      const int bytes = min(max(2 * width - 128 * panel - 16 * piece, 0), 16);
      const uint64_t column = from + uint64_t(bytes > 0 ? 128 * panel + 16 * piece : 0);
#pragma unroll 4
      for (int r = first + lane / 8; r < first + kOwn; r += 4) {
        const int row = ld_shared_s32(rows + 4 * uint(r));
        cp_async_16(to + uint(panel * S.br * kPanelBytes) + swizzle_128b(r, piece),
                    reinterpret_cast<const void*>(column + 2 * row_stride * max(row, 0)),
                    row < 0 ? 0 : bytes);
      }
    }
    cp_async_commit_group();
  }

  // Copies the warp's part of the tile of `count` listed rows from `first` on into a stage.
  TANDEM_DEVICE void gather(int head, int first, int count, int stage) const {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const auto& u = params.block;
    const Barriers<TILE> barriers(memory.barriers());
    const uint rows = storage().rows(stage);
    // A lane has a row, or the first lanes do.
    const int r = warp * kOwn + lane;
    const bool own = lane < kOwn;
    const int row = own && r < count ? ld_shared_s32(storage().listed(first + r)) : -1;
    if (own) st_shared(rows + 4 * uint(r), row);
    __syncwarp();
    copy(memory.q(stage), rows, warp * kOwn,
         params.q_rows + 2 * (work.batch * u.q.b + head * u.q.h), u.q.s, u.head_dim);
    copy(memory.d_o(stage), rows, warp * kOwn,
         params.d_o_rows + 2 * (work.batch * u.d_o.b + head * u.d_o.h), u.d_o.s, u.head_dim_v);
    // While those are in flight: the statistics of the rows.
    const int64_t at = (int64_t(work.batch) * u.heads_q + head) * u.seq_q + row;
    const float x =
        row >= 0 ? __ldg(reinterpret_cast<const float*>(params.push.lse) + at) : minus_infinity();
    const float d = row >= 0 ? __ldg(reinterpret_cast<const float*>(params.push.delta) + at) : 0.f;
    if (own) {
      st_shared(memory.lse(stage) + 4 * uint(r), x == minus_infinity() ? -x : x);
      st_shared(memory.delta(stage) + 4 * uint(r), d);
    }
    const bool far = __any_sync(kAllLanes, tandem_is_far(x));
    const bool edge = work.col0 + S.bc > work.seq_kv ||
                      __any_sync(kAllLanes, row >= 0 && (row < 64 * blocks.full_begin ||
                                                         row >= 64 * blocks.full_end));
    if (lane == 0)
      st_shared(memory.far(stage) + 4 * uint(warp),
                (far ? kFarRows : 0u) | (edge ? kEdgeRows : 0u));
    cp_async_wait_group<1>();
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barriers.q_full(stage));
    cp_async_wait_group<0>();
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barriers.do_full(stage));
  }

  TANDEM_DEVICE void run() const {
    const auto& u = params.block;
    const Barriers<TILE> barriers(memory.barriers());
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(barriers.kv, 2 * M::kKBytes);
      for (int c = 0; c < M::kPanels; ++c) {
        tma_load(memory.k() + c * S.bc * 128, &params.k, barriers.kv, 64 * c, work.col0,
                 work.head_kv, work.batch);
        tma_load(memory.v() + c * S.bc * 128, &params.v, barriers.kv, 64 * c, work.col0,
                 work.head_kv, work.batch);
      }
    }
    __syncwarp();
    PipelineState<S.q_stages> pipe;
    for (int n = 0; n < u.group; ++n) {
      const int head = work.head_kv * u.group + n;
      const RowSupport support(params, work, head);
      int block = blocks.begin, listed = 0;
      uint2 bits = load_bits(support, block);
#pragma unroll 1
      for (int first = 0;; first += S.br) {
        if (listed - first < S.br && block < blocks.end) {
          for (; listed - first < S.br && block < blocks.end; block += 32) {
            const uint2 own = bits;
            bits = load_bits(support, block + 32);  // in flight while those before are listed
            listed += list(own, block, listed);
          }
          named_barrier_sync(kRowsListed, 128);
        }
        if (first >= listed) break;
        mbarrier_wait(barriers.q_empty(pipe.stage()), pipe.phase() ^ 1);
        mbarrier_wait(barriers.do_empty(pipe.stage()), pipe.phase() ^ 1);
        gather(head, first, min(listed - first, S.br), pipe.stage());
        pipe.next();
      }
      named_barrier_sync(kRowsListed, 128);  // no warp still reads what the next head overwrites
    }
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
