// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with masks, dropout and a distance bias beside everything of fwd_sets.cuh, heads up to 128. Of the helping
// warps one copies, the others make bits (bits.cuh) of the tiles of keys in the order in which they are visited; a tile that
// keeps nothing is left out, and nobody else hears of it. What computes is as in fwd.cu, but asks each place which tile it has.
#include <cstring>

#include "bits.cuh"
#include "fwd_sets.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

constexpr int kMakers = 96, kMakersBarrier = 8;

template <typename S>
using Bits = TilePlaces<S::M>;
template <typename S>
TANDEM_DEVICE Bits<S> bits_of(const Shared<S>& shared) {
  const uint at = notice_at<S>(shared, 0) + kFwdNotices * kFwdNoticeBytes;
  return {at, at + kBitsPlaces * Bits<S>::kPlace};
}

// Warps 1 to 3. A place's tile: keys' tile, flags, first row, head over the batch.
template <typename S>
TANDEM_DEVICE void make_bits(const FwdFullParams& params, const Shared<S>& shared) {
  const FwdBlock& u = params.block;
  const int thread = int(threadIdx.x) - 32;
  const Bits<S> bits = bits_of(shared);
  BitMaker<S::M, kMakers, kMakersBarrier, 6> maker(params.features, params.extra, params.push.extra,
                                                   params.push.drop_offset, u.heads_q);
  uint n = 0;
  const auto tell = [&](int t, int flags, int row0, uint index) {
    if (thread == 0) put_shared(bits.tile(n), t, flags, row0, int(index));
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(bits.full(n));
    ++n;
  };
  Places<S> places(params);
  FwdPlace at;
  Entry entry;
  while (places.next(&at, &entry)) {
    maker.batch = places.batch;
    maker.head = int(at.index - uint(places.batch) * uint(u.heads_q));
    maker.seq_q = entry.seq_q, maker.seq_kv = entry.seq_kv;
    bool first = true;
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      barrier_wait(bits.empty(n), bits.parity(n) ^ 1);
      bool hides = false;
      if (params.features.KEEP && !maker.keep(bits.keep(n), at.row0, t * S::N, &hides)) continue;
      if (params.features.DROPOUT) maker.drop(bits.drop(n), at.row0, t * S::N);
      tell(t, (hides ? kHides : 0) | (first ? kFirst : 0), at.row0, at.index);
      first = false;
    }
    if (first)
      store_unseen<S>(params, find_entry(params, int(at.index / uint(u.heads_q))), at.index,
                      at.row0);
  }
  barrier_wait(bits.empty(n), bits.parity(n) ^ 1);
  tell(0, kEnd, 0, 0);
  store_unseen<S>(params);
}

// Like produce_entries(), of the tiles that the makers leave; all of warp 0.
template <typename S>
TANDEM_DEVICE void produce_kept(const FwdFullParams& params, const Shared<S>& shared) {
  const FwdBlock& u = params.block;
  const Features& f = params.features;
  const bool one = threadIdx.x == 0;
  const Bits<S> bits = bits_of(shared);
  const uint raw = shared.behind(0);
  int raw_parity = 0;
  Step<S::Q_STAGES> q_step;
  const auto copy_v = [&](const FwdKeys& keys, uint n) {
    const Step<S::STAGES> v_step{n};
    const int stage = v_step.stage();
    const bool ends = keys.count < S::N;
    if (one) {  // alone: others that come late might wait for a phase that is over
      barrier_wait(shared.v_empty(stage), v_step.parity() ^ 1);
      copy_tile<S::DV_PANELS>(shared.v(stage), &params.v, ends ? raw : shared.v_full(stage), S::N,
                              keys.row, keys.head, keys.batch);
    }
    if (ends) {
      barrier_wait(raw, raw_parity);
      raw_parity ^= 1;
      clear_rows<S::DV_PANELS, S::N>(shared.v(stage), keys.count);
      if (one) barrier_arrive(shared.v_full(stage));
    }
  };
  Entry entry{};
  FwdKeys keys{}, last{};
  for (uint n = 0;; ++n) {
    const Step<S::STAGES> k_step{n};
    const int4 tile = bits.wait_tile(n);
    __syncwarp();
    if (one) barrier_arrive(bits.empty(n));
    if (tile.y & kFirst) {
      const int batch = int(uint(tile.w) / uint(u.heads_q)), head = tile.w - batch * u.heads_q;
      const int stage = q_step.stage();
      entry = find_entry(params, batch);
      if (one) {
        barrier_wait(shared.q_empty(stage), q_step.parity() ^ 1);
        const uint notice = notice_at<S>(shared, q_step.n);
        const TandemTiles span =
            tandem_key_tiles(entry.band, tile.z, S::M, S::N, entry.seq_q, entry.seq_kv);
        put_shared(notice, tile.z, tile.w, span.begin, span.end);
        put_shared(notice + 16, span.full_begin, span.full_end, entry.seq_kv, entry.band.off);
        put_shared(notice + 32, entry.seq_q, is_packed(f.LENGTHS_Q) ? entry.seq_q : u.seq_q,
                   entry.first_q, head);
        put_shared(notice + 48, batch, 0, 0, 0);
        copy_tile<S::D_PANELS>(shared.q(stage), &params.q, shared.q_full(stage), S::M,
                               entry.first_q + tile.z, head, is_packed(f.LENGTHS_Q) ? 0 : batch);
      }
      q_step.next();
      keys = FwdKeys{0, head / u.group, is_packed(f.LENGTHS_KV) ? 0 : batch, 0};
    }
    if (one) barrier_wait(shared.k_empty(k_step.stage()), k_step.parity() ^ 1);
    if (tile.y & kEnd) {
      if (one) barrier_arrive(shared.k_full(k_step.stage()));
    } else {
      keys.row = entry.first_kv + tile.x * S::N, keys.count = entry.seq_kv - tile.x * S::N;
      if (one)
        copy_tile<S::D_PANELS>(shared.k(k_step.stage()), &params.k, shared.k_full(k_step.stage()),
                               S::N, keys.row, keys.head, keys.batch);
    }
    if (n > 0) copy_v(last, n - 1);
    last = keys;
    if (tile.y & kEnd) return;
  }
}

// Elements whose bit is not set become `other`. words: of the place; row: of the thread's first element.
template <int N, int PITCH>
TANDEM_DEVICE void apply_bits(float (&s)[N / 2], uint words, int row, float other) {
  const int column = fresh_col();
#pragma unroll
  for (int w = 0; w < N / 32; ++w)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint x = shared_word(words + uint(w * PITCH + row + 8 * r) * 4) >> column;
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& y = s[4 * (4 * w + j) + 2 * r + c];
          y = x & 1u << (8 * j + c) ? y : other;
        }
    }
}

// distance: i + off - j of the thread's first element. In pieces, most of which the window does not reach.
template <int N>
TANDEM_DEVICE void add_distances(float (&s)[N / 2], const float* dist, int window, int distance,
                                 float factor) {
  constexpr int kPiece = 16;
#pragma unroll
  for (int first = 0; first < N / 2; first += kPiece) {
    const int t0 = distance - 2 * first;
    if (!__any_sync(kAllLanes, t0 + 8 >= 0 && t0 - 2 * kPiece < window)) continue;
#pragma unroll
    for (int i = first; i < first + kPiece; ++i) {
      const int t = distance + 8 * (i / 2 % 2) - 8 * (i / 4) - i % 2;
      if (t >= 0 && t < window) s[i] = fmaf(__ldg(dist + t), factor, s[i]);
    }
  }
}

template <typename T, typename S>
TANDEM_DEVICE void consume_kept(const FwdFullParams& params, const Shared<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const Features& f = params.features;
  const Bits<S> bits = bits_of(shared);
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = step_scale(params);
  const uint64_t q_at = along(shared.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(shared.k(0)), v_at = across(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  Step<S::Q_STAGES> q_step;
  KvPlaces<S> kv(shared);
  const auto product_s = [&] {
    product_along<T, S>(s, further(q_at, q_step.stage() * S::Q_BYTES),
                        further(k_at, kv.k.stage() * S::K_BYTES));
  };
  const auto product_o = [&] {
    kv.wait_v();
    product_across<T, S>(o, p, further(v_at, kv.v.stage() * S::V_BYTES));
  };
  // Places and steps of keys are the same; kv.k is one ahead of the tile whose scores are formed.
  const auto next_flags = [&] {
    kv.wait_k();
    return bits.read_tile(kv.k.n).y;
  };
  const auto score = [&] {
    const uint place = kv.k.n - 1;
    const uint notice = notice_at<S>(shared, q_step.n);
    const int4 tile = bits.read_tile(place), of = shared_ints(notice + 16);
    const int row = tile.z + fresh_row(), column = tile.x * N + fresh_col();
    change_scores<N>(s, params, shared_ints(notice + 32).w, row + of.w - column);
    if (f.DIST) {
      const bool powers = f.SOFTCAP || !plain_scale(u);
      add_distances<N>(s,
                       reinterpret_cast<const float*>(params.push.extra[f.AT_DIST]) +
                           int64_t(shared_ints(notice + 32).w) * params.extra.dist_window,
                       params.extra.dist_window, row + of.w - column,
                       powers ? kLog2e : 1.f / fresh(u.scale));
    }
    if (tile.x < of.x || tile.x >= of.y)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, of.w}, row, column, of.z, -INFINITY);
    if (tile.y & kHides)
      apply_bits<N, Bits<S>::kPitch>(s, bits.keep(place), fresh_row(), -INFINITY);
  };
  // Weights that stay; and the place is free. When no product is on its way: there are registers then.
  const auto drop = [&] {
    const uint place = kv.k.n - 1;
    if (f.DROPOUT) apply_bits<N, Bits<S>::kPitch>(s, bits.drop(place), fresh_row(), 0.f);
    __syncwarp();
    if (fresh_thread() % 32 == 0) barrier_arrive(bits.empty(place));
  };

  if (next_flags() & kEnd) return;
  if (S::TURNS && group == S::GROUPS - 1) pass_turn<S>(group);
  float factor[2];
  Softmax<N> softmax;
  const auto store = [&] {
    FwdPlace at;
    float lse[2], inverse[2];
    const uint notice = notice_at<S>(shared, q_step.n - 1);
    get_place(notice, &at);
    const int4 of = shared_ints(notice + 32);  // length, rows, first row, head
    const int row = at.row0 + fresh_row();
    const float more = f.DROPOUT ? params.extra.drop_scale : 1.f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      end_row(params, of.w, softmax.origin(r), quad_sum(softmax.sum(r)), &lse[r], &inverse[r]);
      inverse[r] *= more;
      if (row + 8 * r >= of.x) lse[r] = -INFINITY;
    }
    store_lse(u, params.push, at, lse);
    store_rows<T, S::DV, true>(o, inverse,
                               reinterpret_cast<ushort*>(params.push.o) +
                                   shared_ints(notice + 48).x * u.o.b + of.w * u.o.h +
                                   int64_t(of.z) * u.o.s,
                               u, at.row0, of.y, of.x);
  };
  const auto clear = [&] {
#pragma unroll
    for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
  };
  clear();
  barrier_wait(shared.q_full(q_step.stage()), q_step.parity());
  product_s();
  wait<0>();
  kv.release_k();
  score();
  softmax.step(s, scale, factor);
  drop();
  pack_tile<T, N>(p, s);
  for (;;) {
    int flags;
#pragma unroll 1
    for (;;) {
      flags = next_flags();
      if (flags & (kFirst | kEnd)) break;
      wait_turn<S>(group);
      product_s();
      product_o();
      pass_turn<S>(group);
      wait<1>();
      kv.release_k();
      score();
      const bool rescale = softmax.step(s, scale, factor);
      settle(s);
      wait_products(u, o);
      if (rescale) rescale_rows(o, factor);
      kv.release_v();
      drop();
      pack_tile<T, N>(p, s);
    }
    if (kv.speaks) barrier_arrive(shared.q_empty(q_step.stage()));
    q_step.next();
    const bool more = !(flags & kEnd);
    Softmax<N> fresh;
    if (more) {
      barrier_wait(shared.q_full(q_step.stage()), q_step.parity());
      wait_turn<S>(group);
      product_s();
      product_o();
      pass_turn<S>(group);
      wait<1>();
      kv.release_k();
      score();
      fresh.step(s, scale, factor);
      settle(s);
    } else {
      product_o();
    }
    wait<0>();
    kv.release_v();
    store();
    if (!more) break;
    clear();
    softmax = fresh;
    drop();
    pack_tile<T, N>(p, s);
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(FwdShape<ROW, FwdSet::all>::tile.threads(), 1)
    fwd_all(const __grid_constant__ FwdFullParams params) {
  using S = FwdShape<ROW, FwdSet::all>;
  static_assert(S::Q_STAGES == 2 && S::N == kBitsKeys, "as it is written");
  if (threadIdx.x == 0)
    bits_of(Shared<S>{(shared_address(shared_memory()) + 1023u) & ~1023u})
        .init(kMakers / 32, 4 * S::GROUPS + 1);
  const Shared<S> shared = begin_fwd<S>(params);
  if (threadIdx.x < 128) {
    give_registers<S::PRODUCER>();
    if (threadIdx.x < 32)
      produce_kept<S>(params, shared);
    else
      make_bits<S>(params, shared);
  } else {
    take_registers<S::CONSUMER>();
    consume_kept<T, S>(params, shared);
  }
}

template <typename T, int ROW = 0>
Kernel<FwdFullParams> select(const char* name) {
  if constexpr (ROW < kFwdTileCount) {
    if constexpr (fwd_all_shared_bytes(kFwdTiles[ROW]) > 0)
      if (std::strcmp(name, kFwdTiles[ROW].name) == 0) return fwd_all<T, ROW>;
    return select<T, ROW + 1>(name);
  } else {
    return nullptr;
  }
}

}  // namespace

Kernel<FwdFullParams> fwd_all_kernel(tandem_dtype dtype, const Launch& launch) {
  if (!launch.tile.name) return nullptr;
  if (dtype == TANDEM_F16) return select<Half>(launch.tile.name);
  return dtype == TANDEM_BF16 ? select<Bfloat>(launch.tile.name) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
