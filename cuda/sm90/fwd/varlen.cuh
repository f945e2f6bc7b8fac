// SPDX-License-Identifier: MIT OR Apache-2.0
// Lengths and optional inputs in fwd. Only the producer warp knows the lengths. It finds the work
// tiles, and writes a work-tile descriptor to shared memory before Q of the tile arrives. It zeroes
// what lies behind the last key of a batch entry, as TMA loads what is there (anything, or another
// sequence). The auxiliary warps beside it write rows that see no key.
#ifndef TANDEM_CUDA_SM90_FWD_VARLEN_CUH
#define TANDEM_CUDA_SM90_FWD_VARLEN_CUH
#include "../panels.cuh"
#include "../tile_scheduler/fwd_varlen.cuh"
#include "epilogue.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// ---- work-tile descriptors --------------------------------------------------------------------

// Work-tile descriptor in shared memory: sixteen words. There are four, so one is written again two
// tiles after all warps have read it.
struct FwdTileDescriptor {
  int row0;
  uint index;  // of the head, over the batch; kNoWorkTile: there is no tile
  TandemTiles span;
  int seq_kv, off;
  int seq_q, rows;  // of the entry, and of its outputs
  int first_q, head, batch;
  int pad[3];
};
static_assert(sizeof(FwdTileDescriptor) == kFwdDescriptorBytes, "what the host counts");

template <typename S>
TANDEM_DEVICE uint tile_descriptor_at(const FwdSharedStorage<S>& shared, uint n) {
  return shared.variant_at(2) + n % kFwdDescriptors * kFwdDescriptorBytes;
}
TANDEM_DEVICE bool read_work_tile(uint descriptor, FwdWorkTile* at) {
  const int4 a = ld_shared_v4_s32(descriptor), b = ld_shared_v4_s32(descriptor + 16);
  at->row0 = a.x, at->index = uint(a.y);
  at->span = TandemTiles{a.z, a.w, b.x, b.y};
  return at->index != kNoWorkTile;
}

// ---- the producer warp ------------------------------------------------------------------------

// The producer side of the pipelines of Q, K and V, by all of warp 0. It zeroes rows of V, and V is
// loaded one step behind K.
template <typename S>
struct VarlenTmaProducer {
  // A tile of keys: where it lies, and how many of its rows belong to the batch entry.
  struct Keys {
    int row, head, batch, count;
  };
  const FwdOptionalParams& params;
  const FwdSharedStorage<S>& shared;
  // One thread waits for empty stages and loads: a late one might wait for a phase that is over.
  const bool one = threadIdx.x == 0;
  const uint raw;  // mbarrier of a tile of V that has to be zeroed in part
  int raw_phase = 0;
  PipelineState<S::Q_STAGES, kCounted> q_pipe;
  PipelineState<S::STAGES, kCounted> k_pipe;
  Keys keys{}, last{};

  TANDEM_DEVICE VarlenTmaProducer(const FwdOptionalParams& p, const FwdSharedStorage<S>& s)
      : params(p), shared(s), raw(s.variant_at(0)) {}

  // Begins a work tile: writes its descriptor, and loads Q.
  TANDEM_DEVICE void q(int row0, uint index, const TandemTiles& span, const Entry& entry, int batch,
                       int head) {
    const FwdBlock& u = params.block;
    const Features& f = params.features;
    const int stage = q_pipe.stage();
    if (one) {
      mbarrier_wait(shared.q_empty(stage), q_pipe.phase() ^ 1);
      const uint descriptor = tile_descriptor_at<S>(shared, q_pipe.n);
      st_shared(descriptor, row0, int(index), span.begin, span.end);
      st_shared(descriptor + 16, span.full_begin, span.full_end, entry.seq_kv, entry.band.off);
      st_shared(descriptor + 32, entry.seq_q, is_packed(f.LENGTHS_Q) ? entry.seq_q : u.seq_q,
                entry.first_q, head);
      st_shared(descriptor + 48, batch, 0, 0, 0);
      tma_load_tile<S::D_PANELS>(shared.q(stage), &params.q, shared.q_full(stage), S::M,
                                 entry.first_q + row0, head, is_packed(f.LENGTHS_Q) ? 0 : batch);
    }
    q_pipe.next();
    keys = Keys{0, head / u.group, is_packed(f.LENGTHS_KV) ? 0 : batch, 0};
  }
  // K of tile t, then V of the tile before it. end: there is no tile t, and its stage stays empty.
  TANDEM_DEVICE void kv(int t, const Entry& entry, bool end = false) {
    const int stage = k_pipe.stage();
    if (one) mbarrier_wait(shared.k_empty(stage), k_pipe.phase() ^ 1);
    if (end) {
      if (one) mbarrier_arrive(shared.k_full(stage));
    } else {
      keys.row = entry.first_kv + t * S::N, keys.count = entry.seq_kv - t * S::N;
      if (one)
        tma_load_tile<S::D_PANELS>(shared.k(stage), &params.k, shared.k_full(stage), S::N, keys.row,
                                   keys.head, keys.batch);
    }
    last_v();
    k_pipe.next();
    last = keys;
  }
  // V of the tile of keys that was loaded last.
  TANDEM_DEVICE void last_v() {
    if (k_pipe.n == 0) return;
    const PipelineState<S::STAGES, kCounted> v_pipe{k_pipe.n - 1};
    const int stage = v_pipe.stage();
    const bool ends = last.count < S::N;
    if (one) {
      mbarrier_wait(shared.v_empty(stage), v_pipe.phase() ^ 1);
      tma_load_tile<S::DV_PANELS>(shared.v(stage), &params.v, ends ? raw : shared.v_full(stage),
                                  S::N, last.row, last.head, last.batch);
    }
    if (ends) {  // weights there are 0, but 0 times infinity or NaN is not
      mbarrier_wait(raw, raw_phase);
      raw_phase ^= 1;
      clear_rows<S::DV_PANELS, S::N>(shared.v(stage), last.count);
      fence_proxy_async_shared();
      __syncwarp();
      if (one) mbarrier_arrive(shared.v_full(stage));
    }
  }
};

template <typename S>
TANDEM_DEVICE void produce_varlen(const FwdOptionalParams& params,
                                  const FwdSharedStorage<S>& shared) {
  static_assert(S::Q_STAGES <= 2, "how long a work-tile descriptor stays");
  VarlenTmaProducer<S> producer(params, shared);
  VarlenTileScheduler<S> scheduler(params);
  FwdVarlenTile at;
  while (scheduler.next(&at)) {
    const int head = int(at.index - uint(at.batch) * uint(params.block.heads_q));
    producer.q(at.row0, at.index, at.span, at.entry, at.batch, head);
    for (int t = at.span.end - 1; t >= at.span.begin; --t) producer.kv(t, at.entry);
  }
  producer.last_v();
  if (producer.one) {
    const auto& q_pipe = producer.q_pipe;
    mbarrier_wait(shared.q_empty(q_pipe.stage()), q_pipe.phase() ^ 1);
    st_shared(tile_descriptor_at<S>(shared, q_pipe.n), 0, int(kNoWorkTile), 0, 0);
    mbarrier_arrive(shared.q_full(q_pipe.stage()));
  }
}

// Warps WARP to 3: they store o and lse of a tile whose rows see no key.
template <typename S, int WARP = 1>
TANDEM_DEVICE void store_unseen(const FwdOptionalParams& params, const Entry& entry, uint index,
                                int row0) {
  constexpr int kThreads = (4 - WARP) * 32;
  const FwdBlock& u = params.block;
  const int thread = int(threadIdx.x) - WARP * 32, chunks_a_row = u.head_dim_v / 8;
  const int batch = int(index / uint(u.heads_q)), head = int(index) - batch * u.heads_q;
  float* lse = reinterpret_cast<float*>(params.push.lse);
  if (lse)
    for (int i = row0 + thread; i < min(row0 + S::M, u.seq_q); i += kThreads)
      lse[int64_t(index) * u.seq_q + i] = -INFINITY;
  const int rows = is_packed(params.features.LENGTHS_Q) ? entry.seq_q : u.seq_q;
  ushort* o = reinterpret_cast<ushort*>(params.push.o) + batch * u.o.b + head * u.o.h +
              int64_t(entry.first_q) * u.o.s;
  const bool chunks = u.o.d == 1 && u.o.s % 8 == 0 && reinterpret_cast<uint64_t>(o) % 16 == 0;
  for (int m = thread; m < min(S::M, rows - row0) * chunks_a_row; m += kThreads) {
    ushort* to = o + (row0 + m / chunks_a_row) * u.o.s + 8 * (m % chunks_a_row) * u.o.d;
    if (chunks)
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    else
      for (int e = 0; e < 8; ++e) to[e * u.o.d] = 0;
  }
}
// The same for all tiles that see no key by their position, those behind the length of an entry
// included.
template <typename S, int WARP = 1>
TANDEM_DEVICE void store_unseen(const FwdOptionalParams& params) {
  const FwdBlock& u = params.block;
#pragma unroll 1
  for (uint n = blockIdx.x; n < u.total; n += gridDim.x) {
    const uint head = n / u.tiles, index = params.first_head + head;
    const int row0 = int(n - head * u.tiles) * S::M;
    const Entry entry = find_entry(params, int(index / uint(u.heads_q)));
    const TandemTiles span =
        tandem_key_tiles(entry.band, row0, S::M, S::N, entry.seq_q, entry.seq_kv);
    if (span.begin >= span.end) store_unseen<S, WARP>(params, entry, index, row0);
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
