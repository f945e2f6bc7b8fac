// SPDX-License-Identifier: MIT OR Apache-2.0
// Lengths and optional inputs in fwd. The copying warp alone knows the lengths: it finds the tiles, writes what the others
// have to know of each into shared memory before it says that q has come, and puts zeros behind the last key of a batch
// entry, as the copy engine brings what lies there (anything, or another sequence). The warps beside it write rows
// that see nothing.
#ifndef TANDEM_CUDA_SM90_FWD_SETS_CUH
#define TANDEM_CUDA_SM90_FWD_SETS_CUH
#include <cfloat>

#include "../mask.cuh"
#include "fwd_store.cuh"
#include "softcap.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// ---- a batch entry ------------------------------------------------------------------------------------

struct Entry {
  int seq_q, seq_kv, first_q, first_kv;  // first: where it begins in packed tensors
  TandemBand band;
};
// address: of the optional inputs.
template <typename Block>
TANDEM_DEVICE Entry find_entry(const Block& u, const ExtraBlock& extra, const Features& f,
                               const uint64_t* address, int batch) {
  int64_t first_q, first_kv;
  Entry e;
  e.seq_q = entry_length(Lengths(f.LENGTHS_Q), address[f.AT_LENGTHS_Q], batch, u.seq_q,
                         extra.total_q, &first_q);
  e.seq_kv = entry_length(Lengths(f.LENGTHS_KV), address[f.AT_LENGTHS_KV], batch, u.seq_kv,
                          extra.total_kv, &first_kv);
  e.first_q = int(first_q), e.first_kv = int(first_kv);
  e.band =
      TandemBand{u.band_left, u.band_right, extra.bottom_right ? e.seq_kv - e.seq_q : u.band_off};
  return e;
}
TANDEM_DEVICE Entry find_entry(const FwdFullParams& params, int batch) {
  return find_entry(params.block, params.extra, params.features, params.push.extra, batch);
}
TANDEM_DEVICE bool is_packed(uint lengths) { return Lengths(lengths) == Lengths::packed; }

// A warp makes rows [from, ROWS) of a tile in panels zero.
template <int PANELS, int ROWS>
TANDEM_DEVICE void clear_rows(uint tile, int from) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll 1
  for (int p = 0; p < PANELS; ++p)
#pragma unroll 1
    for (int n = max(from, 0) * kPanelBytes + 16 * lane; n < ROWS * kPanelBytes; n += 512)
      put_shared(tile + uint(p * ROWS * kPanelBytes + n), 0, 0, 0, 0);
  fence_async();
  __syncwarp();
}

// ---- a tile of query rows, as the computing warpgroups hear of it ----------------------------------------

// Sixteen words, of which a tile has every fourth place: a place is written again two tiles after everybody has read it.
struct FwdNotice {
  int row0;
  uint index;  // of the head, over the batch; kNoMore: there is no tile
  TandemTiles span;
  int seq_kv, off;
  int seq_q, rows;  // of the entry, and of its outputs
  int first_q, head, batch;
  int pad[3];
};
constexpr uint kNoMore = ~0u;
static_assert(sizeof(FwdNotice) == kFwdNoticeBytes, "what the host counts");

template <typename S>
TANDEM_DEVICE uint notice_at(const Shared<S>& shared, uint n) {
  return shared.behind(2) + n % kFwdNotices * kFwdNoticeBytes;
}
TANDEM_DEVICE bool get_place(uint notice, FwdPlace* at) {
  const int4 a = shared_ints(notice), b = shared_ints(notice + 16);
  at->row0 = a.x, at->index = uint(a.y);
  at->span = TandemTiles{a.z, a.w, b.x, b.y};
  return at->index != kNoMore;
}

// ---- the copying warp -----------------------------------------------------------------------------------

// The tiles of this workgroup that see a key. Workgroups share out those of an entry, then those of the next; in pairs as
// Rounds does, or the longest first, where a mask makes later ones longer.
template <typename S>
struct Places {
  const FwdFullParams& params;
  enum : int { kEqual, kPaired, kLongestFirst } order;
  int batches, batch = 0, tiles = 0;
  uint place = 0, before = 0;  // before: of the entries before this one

  TANDEM_DEVICE explicit Places(const FwdFullParams& p) : params(p) {
    const FwdBlock& u = p.block;
    batches = int(u.total / u.tiles / uint(u.heads_q));
    uint pairs = 0;
    for (int b = int(threadIdx.x) % 32; b < batches; b += 32) pairs += uint(tiles_of(b) + 1) / 2;
    pairs = __reduce_add_sync(kAllLanes, pairs) * uint(u.heads_q);
    order = (u.band_right == TANDEM_BAND_OPEN) == (u.band_left == TANDEM_BAND_OPEN) ? kEqual
            : pairs >= 3 * gridDim.x                                                ? kPaired
                                                                                    : kLongestFirst;
    tiles = tiles_of(0);
  }
  TANDEM_DEVICE int tiles_of(int b) const {
    return (find_entry(params, b).seq_q + S::M - 1) / S::M;
  }
  TANDEM_DEVICE bool next(FwdPlace* at, Entry* entry) {
    const uint heads = uint(params.block.heads_q);
    for (;;) {
      const uint index = place / 2 * gridDim.x + blockIdx.x;
      uint each;
      for (;;) {
        each = uint(order == kPaired ? (tiles + 1) / 2 : tiles);
        if (index - before < heads * each) break;
        before += heads * each;
        if (++batch >= batches) return false;
        tiles = tiles_of(batch);
      }
      const uint rest = index - before;
      uint head, tile;
      if (order == kPaired) {
        head = rest / each;
        const uint pair = rest - head * each;
        tile = place % 2 ? pair : uint(tiles) - 1 - pair;
        place += pair == tile && place % 2 == 0 ? 2 : 1;
      } else {
        place += 2;
        if (order == kEqual) {
          head = rest / each, tile = rest - head * each;
        } else {
          const uint many = rest / heads;
          head = rest - many * heads, tile = uint(tiles) - 1 - many;
        }
      }
      *entry = find_entry(params, batch);
      at->index = uint(batch) * heads + head;
      at->row0 = int(tile) * S::M;
      at->span = tandem_key_tiles(entry->band, at->row0, S::M, S::N, entry->seq_q, entry->seq_kv);
      if (at->span.begin < at->span.end) return true;
    }
  }
};

// A step of keys: where they lie, and how many rows of the tile are the entry's.
struct FwdKeys {
  int row, head, batch, count;
};

// Like produce() in fwd.cu; all of warp 0.
template <typename S>
TANDEM_DEVICE void produce_entries(const FwdFullParams& params, const Shared<S>& shared) {
  static_assert(S::Q_STAGES <= 2, "how long a notice stays");
  const FwdBlock& u = params.block;
  const Features& f = params.features;
  const bool one = threadIdx.x == 0;
  const uint raw = shared.behind(0);  // of values that are looked through
  int raw_parity = 0;
  Step<S::Q_STAGES> q_step;
  Step<S::STAGES> k_step;
  const auto copy_v = [&](const FwdKeys& keys, uint n) {
    const Step<S::STAGES> v_step{n};
    const int stage = v_step.stage();
    const bool ends = keys.count < S::N;
    if (one) {  // alone: others that come late might wait for a phase that is over
      barrier_wait(shared.v_empty(stage), v_step.parity() ^ 1);
      copy_tile<S::DV_PANELS>(shared.v(stage), &params.v, ends ? raw : shared.v_full(stage), S::N,
                              keys.row, keys.head, keys.batch);
    }
    if (ends) {  // weights there are 0, but 0 times anything is not
      barrier_wait(raw, raw_parity);
      raw_parity ^= 1;
      clear_rows<S::DV_PANELS, S::N>(shared.v(stage), keys.count);
      if (one) barrier_arrive(shared.v_full(stage));
    }
  };

  Places<S> places(params);
  FwdPlace at;
  Entry entry;
  FwdKeys last{};  // v lags behind k by a step
  while (places.next(&at, &entry)) {
    const int batch = places.batch, head = int(at.index - uint(batch) * uint(u.heads_q));
    const int stage = q_step.stage();
    if (one) {
      barrier_wait(shared.q_empty(stage), q_step.parity() ^ 1);
      const uint notice = notice_at<S>(shared, q_step.n);
      put_shared(notice, at.row0, int(at.index), at.span.begin, at.span.end);
      put_shared(notice + 16, at.span.full_begin, at.span.full_end, entry.seq_kv, entry.band.off);
      put_shared(notice + 32, entry.seq_q, is_packed(f.LENGTHS_Q) ? entry.seq_q : u.seq_q,
                 entry.first_q, head);
      put_shared(notice + 48, batch, 0, 0, 0);
      copy_tile<S::D_PANELS>(shared.q(stage), &params.q, shared.q_full(stage), S::M,
                             entry.first_q + at.row0, head, is_packed(f.LENGTHS_Q) ? 0 : batch);
    }
    q_step.next();
    FwdKeys keys{0, head / u.group, is_packed(f.LENGTHS_KV) ? 0 : batch, 0};
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      keys.row = entry.first_kv + t * S::N, keys.count = entry.seq_kv - t * S::N;
      if (one) {
        barrier_wait(shared.k_empty(k_step.stage()), k_step.parity() ^ 1);
        copy_tile<S::D_PANELS>(shared.k(k_step.stage()), &params.k, shared.k_full(k_step.stage()),
                               S::N, keys.row, keys.head, keys.batch);
      }
      if (k_step.n > 0) copy_v(last, k_step.n - 1);
      k_step.next();
      last = keys;
    }
  }
  if (k_step.n > 0) copy_v(last, k_step.n - 1);
  if (one) {
    barrier_wait(shared.q_empty(q_step.stage()), q_step.parity() ^ 1);
    put_shared(notice_at<S>(shared, q_step.n), 0, int(kNoMore), 0, 0);
    barrier_arrive(shared.q_full(q_step.stage()));
  }
}

// Warps 1 to 3: o and lse of a tile whose rows see no key.
template <typename S>
TANDEM_DEVICE void store_unseen(const FwdFullParams& params, const Entry& entry, uint index,
                                int row0) {
  const FwdBlock& u = params.block;
  const int thread = int(threadIdx.x) - 32, pieces = u.head_dim_v / 8;
  const int batch = int(index / uint(u.heads_q)), head = int(index) - batch * u.heads_q;
  float* lse = reinterpret_cast<float*>(params.push.lse);
  if (lse)
    for (int i = row0 + thread; i < min(row0 + S::M, u.seq_q); i += 96)
      lse[int64_t(index) * u.seq_q + i] = -INFINITY;
  const int rows = is_packed(params.features.LENGTHS_Q) ? entry.seq_q : u.seq_q;
  ushort* o = reinterpret_cast<ushort*>(params.push.o) + batch * u.o.b + head * u.o.h +
              int64_t(entry.first_q) * u.o.s;
  const bool chunks = u.o.d == 1 && u.o.s % 8 == 0 && reinterpret_cast<uint64_t>(o) % 16 == 0;
  for (int m = thread; m < min(S::M, rows - row0) * pieces; m += 96) {
    ushort* to = o + (row0 + m / pieces) * u.o.s + 8 * (m % pieces) * u.o.d;
    if (chunks)
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    else
      for (int e = 0; e < 8; ++e) to[e * u.o.d] = 0;
  }
}
// Of all that have no key by their position, those behind an entry's length among them.
template <typename S>
TANDEM_DEVICE void store_unseen(const FwdFullParams& params) {
  const FwdBlock& u = params.block;
#pragma unroll 1
  for (uint n = blockIdx.x; n < u.total; n += gridDim.x) {
    const uint index = n / u.tiles;
    const int row0 = int(n - index * u.tiles) * S::M;
    const Entry entry = find_entry(params, int(index / uint(u.heads_q)));
    const TandemTiles span =
        tandem_key_tiles(entry.band, row0, S::M, S::N, entry.seq_q, entry.seq_kv);
    if (span.begin >= span.end) store_unseen<S>(params, entry, index, row0);
  }
}

// ---- the computing warpgroups ---------------------------------------------------------------------------

// What scores are multiplied by after they are compared: softcap leaves them as powers of two.
TANDEM_DEVICE float step_scale(const FwdFullParams& params) {
  return plain_scale(params.block) && !params.features.SOFTCAP ? params.block.scale * kLog2e : 1.f;
}

TANDEM_DEVICE float product_unit(const FwdFullParams& params) {
  return params.features.SOFTCAP ? kLn2 : product_unit(params.block);
}

// Products become scores, but for step_scale(). distance: i + off - j of the thread's first element.
template <int N>
TANDEM_DEVICE void change_scores(float (&s)[N / 2], const FwdFullParams& params, int head,
                                 int distance) {
  const float scale = fresh(params.block.scale);
  if (params.features.SOFTCAP) {
    soft_cap(s, scale, params.extra.softcap, [](int, int) {});
  } else if (!plain_scale(params.block)) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) s[i] *= scale * kLog2e;
  }
  if (params.features.ALIBI) {
    const bool powers = params.features.SOFTCAP || !plain_scale(params.block);
    // No infinity, of which a distance of 0 would make NaN.
    const float slope = fminf(
        fmaxf(__ldg(reinterpret_cast<const float*>(params.push.extra[params.features.AT_SLOPE]) +
                    head) *
                  (powers ? kLog2e : 1.f / scale),
              -FLT_MAX),
        FLT_MAX);
    const float first = float(distance);
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      s[i] = fmaf(-slope, fabsf(first + float(8 * (i / 2 % 2) - 8 * (i / 4) - i % 2)), s[i]);
  }
}

// lse of a row whose weights, relative to its origin, add up to l, and what o is multiplied by. A
// sink may be any number: it is compared with the origin by a difference that is rounded once.
TANDEM_DEVICE void end_row(const FwdFullParams& params, int head, const Origin& origin, float l,
                           float* lse, float* inverse) {
  *lse = -INFINITY, *inverse = 0.f;
  if (l == 0.f) return;
  const float unit = origin.ln_unit(product_unit(params));
  const FwdPush& push = params.push;
  if (!push.sink) {
    *lse = fmaf(origin.m, unit, logf(l));
    *inverse = __fdiv_rn(1.f, l);
    return;
  }
  const float sink = __ldg(reinterpret_cast<const float*>(push.sink) + head),
              above = fmaf(origin.m, unit, -sink), factor = expf(fminf(above, 0.f));
  l = fmaf(l, factor, expf(-fmaxf(above, 0.f)));
  *lse = above > 0.f ? fmaf(origin.m, unit, logf(l)) : sink + logf(l);
  *inverse = __fdiv_rn(factor, l);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
