// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias and its gradient: the set (bwd_sets.cuh), and the kernel, whose clusters go on to further tiles of keys.
#ifndef TANDEM_CUDA_SM90_BWD_BIAS_CUH
#define TANDEM_CUDA_SM90_BWD_BIAS_CUH
#include "bwd_later.cuh"
#include "bwd_narrow.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// A dense bias of the tensors' type, with a row for every query, and its gradient. Workgroups of all batch entries that
// share a bias are a cluster: they go through the same tiles side by side, and each sums its share of a tile of dS over
// all of them, in f32 and in the order of the batch. Nothing S x S is kept.
struct Bias;
template <>
constexpr bool kDense<Bias> = true;

TANDEM_DEVICE uint shared_uint(uint at) {
  return __reduce_or_sync(~0u, shared_word(at));  // one of the registers that the warp shares
}

struct Bias {
  using Params = BwdDkvDqBiasParams;
  static constexpr bool kAnyOrder = false;
  static constexpr int kAdders = 1;
  using Registers = sm90::Registers<56>;
  static constexpr int bytes(const BwdShape& s) { return bwd_bias_stages(s) * bwd_ds_bytes(s); }
  static constexpr float kHidden = 0.f;
  static constexpr float kLse = kLog2e;  // what lse is multiplied by
  template <int ROW>
  using Tiles = EveryTile<ROW>;
  // Tiles of keys are numbered for all heads, those from params.bias.whole on several times, as parts of them.
  static TANDEM_DEVICE bool find(const Params& params, const BwdShape& shape, uint item, uint entry,
                                 Walk* walk) {
    const uint inner = uint(params.bias.shared), whole = uint(params.bias.whole);
    const bool cut = inner > 1 && item >= whole;
    uint index = item;
    if (cut) {
      const uint parts = uint(params.bias.parts), n = index - whole;
      walk->part = int(n % parts), walk->parts = int(parts);
      index = whole + n / parts;
    }
    if (!find_walk(params.block, shape, int(inner), params.block.in_turn, walk,
                   index * inner + entry))
      return false;
    if (cut) {
      const int tiles = walk->span.end - walk->span.begin, from = walk->span.begin;
      walk->span.begin = from + tiles * walk->part / walk->parts;
      walk->span.end = from + tiles * (walk->part + 1) / walk->parts;
      walk->shared = int((index - whole) * inner + entry);
    }
    return true;
  }

  // Places for a tile of the bias, which dS of the same tile takes over: a warp writes it where it has read. A place is free
  // again when d_bias is summed; the products of dQ were done before the tile after next came. Barriers, per place: the bias
  // is there; dS is written, and d_bias read, by the whole cluster.
  template <int ROW>
  struct At {
    static constexpr BwdShape kShape = kBwdShapes[ROW];
    static constexpr int kPlaces = bwd_bias_places(kShape), kDs = kShape.ds_stages;
    static_assert(kPlaces >= kShape.q_stages, "a free place for q says that products are done");
    static constexpr int kBytes = bwd_ds_bytes(kShape);
    uint ds, set, first;
    TANDEM_DEVICE explicit At(const Memory<ROW, Bias>& memory)
        : ds(memory.ds(0)), set(memory.set()), first(memory.set_barriers()) {}
    TANDEM_DEVICE uint tile(int place) const {
      return (place < kDs ? ds : set - uint(kDs * kBytes)) + uint(place * kBytes);
    }
    TANDEM_DEVICE uint full(int place) const { return first + 8 * place; }
    TANDEM_DEVICE uint written(int place) const { return first + 8 * (kPlaces + place); }
    TANDEM_DEVICE uint read(int place) const { return first + 8 * (2 * kPlaces + place); }
  };

  template <int ROW>
  static TANDEM_DEVICE void init(const Memory<ROW, Bias>& memory) {
    const At<ROW> at(memory);
    const int size = int(cluster_size());
    for (int place = 0; place < At<ROW>::kPlaces; ++place) {
      barrier_init(at.full(place), 1);
      barrier_init(at.written(place), size);
      barrier_init(at.read(place), 2 * size);
    }
  }
  // Words behind the barriers: what this cluster works on, which of its passes, and what comes next (kNothing: nothing).
  static constexpr uint kNothing = ~0u;
  template <int ROW>
  struct Now {
    uint at;
    TANDEM_DEVICE explicit Now(const Memory<ROW, Bias>& memory)
        : at(memory.set_barriers() + 3 * At<ROW>::kPlaces * 8) {}
    TANDEM_DEVICE uint item() const { return shared_uint(at); }
    TANDEM_DEVICE uint pass() const { return shared_uint(at + 4); }
    TANDEM_DEVICE uint next() const { return shared_uint(at + 8); }
    TANDEM_DEVICE void set(uint item, uint pass) const {
      put_shared(at, item);
      put_shared(at + 4, pass);
    }
  };

  template <int ROW>
  struct Loader {
    const Params& params;
    const At<ROW> at;
    const int col0, batch;
    Turn<At<ROW>::kPlaces> turn;
    TANDEM_DEVICE Loader(const Params& params, const Walk& walk, const Memory<ROW, Bias>& memory)
        : params(params), at(memory), col0(walk.col0), batch(walk.batch) {}
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int row0, int head) {
      constexpr BwdShape S = kBwdShapes[ROW];
      if (params.bias.d_bias) barrier_wait(at.read(turn.stage), turn.parity ^ 1);
      if (int(threadIdx.x) % 32 == 0) {
        barrier_expect(at.full(turn.stage), S.br * S.bc * 2);
        const int entry = params.bias.shared != 1 ? 0 : batch;
#pragma unroll
        for (int c = 0; c < S.bc / 64; ++c)
          copy_box(at.tile(turn.stage) + c * S.br * 128, &params.bias.map, at.full(turn.stage),
                   col0 + 64 * c, row0, head / params.bias.group, entry);
      }
      __syncwarp();
      turn.next();
    }
  };

  template <typename T, int ROW>
  struct Consumer : Plain::Consumer<T, ROW> {
    static constexpr int BR = kBwdShapes[ROW].br;
    const Params& params;
    const At<ROW> at;
    uint tile = 0;  // how many were begun: of this, places and parities follow
    // Of 128 rows there are no registers to keep a thread's number, or where in a tile its parts are.
    static constexpr bool kKeeps = BR <= 64;
    int kept = int(threadIdx.x);
    uint offset = bias_offset(int(threadIdx.x));
    static TANDEM_DEVICE uint bias_offset(int thread) {
      const int lane = thread % 32;
      return uint((thread / 128 - 1) * BR * 128) +
             panel_at(lane % 8 + lane / 16 * 8, thread / 32 % 4 * 2 + (lane / 8 & 1));
    }
    TANDEM_DEVICE int thread() const { return kKeeps ? kept : fresh_thread(); }
    TANDEM_DEVICE Consumer(const Params& params, const Walk& walk, const Memory<ROW, Bias>& memory)
        : Plain::Consumer<T, ROW>(params, walk, {memory.base}), params(params), at(memory) {}
    TANDEM_DEVICE int place() const { return int((tile - 1) % At<ROW>::kPlaces); }
    TANDEM_DEVICE uint ds_tile() const { return at.tile(place()); }
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int, int) {
      ++tile;
      const uint from = ds_tile() + (kKeeps ? offset : bias_offset(fresh_thread()));
      barrier_wait(at.full(place()), int((tile - 1) / At<ROW>::kPlaces % 2));
#pragma unroll
      for (int k = 0; k < BR / 16; ++k) {
        uint r[4];
        load_matrices_transposed(r, from + 2048 * k);
        const float2 l = shared_float2(lse + 64 * k), m = shared_float2(lse + 64 * k + 32);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          float& x = s[8 * k + 2 * n];
          float& y = s[8 * k + 2 * n + 1];
          x = exp2_fast(fmaf(x, scale2, fmaf(T::low(r[n]), kLog2e, -(n < 2 ? l.x : m.x))));
          y = exp2_fast(fmaf(y, scale2, fmaf(T::high(r[n]), kLog2e, -(n < 2 ? l.y : m.y))));
        }
      }
    }
    TANDEM_DEVICE void tell_ds() {
      const uint to = uint(thread()) - 128;
      if (params.bias.d_bias && to < cluster_size())
        cluster_arrive(cluster_address(at.written(place()), to));
    }
    // Adds up what the workgroups with parts of a tile of keys have of d_k and d_v; who comes last does, in the order of the
    // parts. False for the others. scratch: a word of the warpgroup's.
    template <int N>
    TANDEM_DEVICE bool gather(const Walk& walk, uint scratch, float (&d_k)[N], float (&d_v)[N]) {
      constexpr int kFours = 2 * N / 4;
      const int group = fresh_thread() / 128 - 1, own = fresh_thread() % 128;
      const int place = 2 * walk.shared + group;
      float4* all = reinterpret_cast<float4*>(params.bias.parts_at) +
                    int64_t(place) * walk.parts * (kFours * 128) + own;
      float4* mine = all + walk.part * (kFours * 128);
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        mine[i * 128] = make_float4(d_k[4 * i], d_k[4 * i + 1], d_k[4 * i + 2], d_k[4 * i + 3]);
        mine[(N / 4 + i) * 128] =
            make_float4(d_v[4 * i], d_v[4 * i + 1], d_v[4 * i + 2], d_v[4 * i + 3]);
      }
      __threadfence();
      named_sync(kGroup + group, 128);
      if (own == 0)
        put_shared(scratch, __int_as_float(
                                atomicAdd(reinterpret_cast<int*>(params.bias.counts) + place, 1)));
      named_sync(kGroup + group, 128);
      const int before = __float_as_int(shared_float2(scratch).x);
      named_sync(kGroup + group, 128);  // the words are used anew
      if (before != walk.parts - 1) return false;
      __threadfence();
#pragma unroll
      for (int i = 0; i < N; ++i) d_k[i] = d_v[i] = 0.f;
#pragma unroll 1
      for (int part = 0; part < walk.parts; ++part, all += kFours * 128) {
#pragma unroll
        for (int i = 0; i < N / 4; ++i) {
          const float4 x = __ldcg(all + i * 128), y = __ldcg(all + (N / 4 + i) * 128);
          d_k[4 * i] += x.x, d_k[4 * i + 1] += x.y, d_k[4 * i + 2] += x.z, d_k[4 * i + 3] += x.w;
          d_v[4 * i] += y.x, d_v[4 * i + 1] += y.y, d_v[4 * i + 2] += y.z, d_v[4 * i + 3] += y.w;
        }
      }
      return true;
    }
  };

  // This workgroup's share of a tile of d_bias: every cluster_size()-th of 4 rows, over the whole cluster. A thread has 8
  // keys of a row. A cluster that takes the batch in passes leaves sums in the workspace, for the same thread.
  template <typename T, int ROW, bool PASSES>
  static TANDEM_DEVICE void help(const Params& params, const Walk& walk,
                                 const Memory<ROW, Bias>& memory) {
    constexpr BwdShape S = kBwdShapes[ROW];
    static_assert(S.bc == 128, "16 threads a row");
    if (!params.bias.d_bias) return;
    const BwdDkvDqBlock& u = params.block;
    const At<ROW> at(memory);
    const Strides& strides = params.bias.d_bias_strides;
    // Anew for each tile: sums need the registers.
    const auto first_row = [] { return 4 * int(cluster_rank()) + (fresh_thread() - 64) / 16; };
    const auto first_key = [&] { return walk.col0 + fresh_thread() % 16 * 8; };
    const int left = PASSES ? params.bias.passes - 1 - int(Now<ROW>(memory).pass()) : 0;
    uint tile = 0;  // how many were summed: of this, places and parities follow
    const int begin = walk.part == 0 && left == 0 ? 0 : walk.span.begin;
    const int end =
        walk.part == walk.parts - 1 && left == 0 ? (u.seq_q + S.br - 1) / S.br : walk.span.end;
    float4* parts = nullptr;
    if (PASSES)
      parts = reinterpret_cast<float4*>(params.bias.sums_at) +
              int64_t(blockIdx.x) * u.group * ((u.seq_q + S.br - 1) / S.br) * (S.br / 8 * 2 * 64) +
              (fresh_thread() - 64);
    for (int n = 0; n < u.group; ++n) {
      int64_t to = (params.bias.shared != 1 ? 0 : walk.batch) * strides.b +
                   (walk.head_kv * u.group + n) * strides.h +
                   (begin * S.br + first_row()) * strides.s + first_key() * strides.d;
#pragma unroll 1
      for (int t = begin; t < end; ++t, to += S.br * strides.s) {
        const bool seen = t >= walk.span.begin && t < walk.span.end;
        const int place = int(tile % At<ROW>::kPlaces), size = int(cluster_size());
        const int piece = fresh_thread() % 16;
        const Share share{strides,
                          first_row(),
                          4 * size,
                          min(S.br, u.seq_q - t * S.br),
                          u.seq_kv - first_key(),
                          params.bias.wide != 0};
        const uint64_t address = params.bias.d_bias + uint64_t(to) * (share.wide ? 4 : 2);
        const uint from = at.tile(place) + piece / 8 * S.br * 128;
        const uint written = at.written(place);
        const int parity = int(tile / At<ROW>::kPlaces % 2);
        if constexpr (PASSES) {
          if (seen) {
            sum_pairs<T, S.br>(share, address, from, piece % 8, parts,
                               left < params.bias.passes - 1, left == 0, written, parity);
            parts += S.br / 8 * 2 * 64;
          } else {
            sum_rows<T>(share, address, from, piece % 8, 0);
          }
        } else {
          if (seen) barrier_wait(written, parity);
          sum_tile<T, S.br>(share, address, from, piece % 8, seen ? size : 0);
        }
        if (seen) {
          __syncwarp();
          const int lane = fresh_thread() % 32;
          if (lane < int(cluster_size()))
            cluster_arrive(cluster_address(at.read(place), uint(lane)));
          ++tile;
        }
      }
    }
  }

  struct Share {
    const Strides& strides;
    int first, step, rows, keys;
    bool wide;
  };

  // to: the first row in d_bias. size: workgroups that have a part of the sum, 0: zeros.
  template <typename T, int BR>
  static TANDEM_DEVICE void sum_tile(const Share& share, uint64_t to, uint from, int piece,
                                     int size) {
    if (size == 1)
      copy_rows<T>(share, to, from, piece);
    else if (size == 4)
      sum_many<T, BR, 4>(share, to, from, piece);
    else if (size == 8)
      sum_many<T, BR, 8>(share, to, from, piece);
    else
      sum_rows<T>(share, to, from, piece, size);
  }
  static TANDEM_DEVICE uint64_t row_bytes(const Share& share) {
    return uint64_t(share.step * share.strides.s) * (share.wide ? 4 : 2);
  }

  template <typename T>
  static TANDEM_DEVICE void sum_rows(const Share& share, uint64_t to, uint from, int piece,
                                     int size) {
#pragma unroll 1
    for (int row = share.first; row < share.rows; row += share.step, to += row_bytes(share)) {
      const uint at = from + panel_at(row, piece);
      float sum[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[e] = 0.f;
#pragma unroll 1
      for (int c = 0; c < size; c += 2) {
        // The odd one out is taken twice and added once.
        uint4 x[2];
        x[0] = cluster_words(cluster_address(at, uint(c)));
        x[1] = cluster_words(cluster_address(at, uint(min(c + 1, size - 1))));
        add_words<T>(sum, x[0]);
        if (c + 1 < size) add_words<T>(sum, x[1]);
      }
      put<T>(share, to, sum);
    }
  }
  // FLY words are on their way while others are summed.
  template <typename T, int BR, int SIZE>
  static TANDEM_DEVICE void sum_many(const Share& share, uint64_t to, uint from, int piece) {
    constexpr int FLY = 4, ALL = BR / 4;
    const uint at = from + panel_at(share.first, piece);
    const auto words = [&](int n) {
      return cluster_words(cluster_address(at + n / SIZE * (4 * SIZE * 128), uint(n % SIZE)));
    };
    uint4 x[FLY];
#pragma unroll
    for (int n = 0; n < FLY; ++n) x[n] = words(n);
    float sum[8];
#pragma unroll
    for (int n = 0; n < ALL; ++n) {
      if (n % SIZE == 0) {
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] = 0.f;
      }
      add_words<T>(sum, x[n % FLY]);
      if (n + FLY < ALL) x[n % FLY] = words(n + FLY);
      if (n % SIZE == SIZE - 1) {
        if (share.first + n / SIZE * 4 * SIZE < share.rows) put<T>(share, to, sum);
        to += row_bytes(share);
      }
    }
  }
  // Of a cluster of two, in passes. parts: where sums of the passes before are, and where this one's go but for the last.
  template <typename T, int BR>
  static TANDEM_DEVICE void sum_pairs(const Share& share, uint64_t to, uint from, int piece,
                                      float4* parts, bool begun, bool last, uint written,
                                      int parity) {
    constexpr int ALL = BR / 8, FAR = 2, NEAR = 2;  // rows of a thread; on their way
    const uint own = from + panel_at(share.first, piece),
               other = cluster_address(own, cluster_rank() ^ 1);
    float4 y[NEAR][2];
    if (begun) {
#pragma unroll
      for (int n = 0; n < NEAR; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) y[n][h] = __ldcg(parts + (2 * n + h) * 64);
    }
    barrier_wait(written, parity);
    uint4 x[FAR];
#pragma unroll
    for (int n = 0; n < FAR; ++n) x[n] = cluster_words(other + n * (8 * 128));
#pragma unroll 1
    for (int m = 0; m < ALL; m += FAR, parts += 2 * FAR * 64)
#pragma unroll
      for (int n = 0; n < FAR; ++n) {
        const uint4 here = shared_words(own + (m + n) * (8 * 128));
        float sum[8] = {};
        if (begun) {
          const float4 low = y[n % NEAR][0], high = y[n % NEAR][1];
          sum[0] = low.x, sum[1] = low.y, sum[2] = low.z, sum[3] = low.w;
          sum[4] = high.x, sum[5] = high.y, sum[6] = high.z, sum[7] = high.w;
        }
        if (cluster_rank() == 0) {
          add_words<T>(sum, here);
          add_words<T>(sum, x[n]);
        } else {
          add_words<T>(sum, x[n]);
          add_words<T>(sum, here);
        }
        if (m + FAR < ALL) x[n] = cluster_words(other + (m + n + FAR) * (8 * 128));
        if (begun && m + n + NEAR < ALL) {
#pragma unroll
          for (int h = 0; h < 2; ++h) y[n % NEAR][h] = __ldcg(parts + (2 * (n + NEAR) + h) * 64);
        }
        if (last) {
          if (share.first + (m + n) * 8 < share.rows) put<T>(share, to, sum);
          to += row_bytes(share);
        } else {
          __stcg(parts + 2 * n * 64, make_float4(sum[0], sum[1], sum[2], sum[3]));
          __stcg(parts + (2 * n + 1) * 64, make_float4(sum[4], sum[5], sum[6], sum[7]));
        }
      }
  }
  // There is nothing to sum: two rows at a time.
  template <typename T>
  static TANDEM_DEVICE void copy_rows(const Share& share, uint64_t to, uint from, int piece) {
    const int64_t bytes = int64_t(row_bytes(share));
    if (share.wide) {
#pragma unroll 1
      for (int row = share.first; row < share.rows; row += share.step, to += bytes) {
        const uint4 x = shared_words(from + panel_at(row, piece));
        const float sum[8] = {T::low(x.x), T::high(x.x), T::low(x.y), T::high(x.y),
                              T::low(x.z), T::high(x.z), T::low(x.w), T::high(x.w)};
        put_wide(share, to, sum);
      }
      return;
    }
#pragma unroll 1
    for (int row = share.first; row < share.rows; row += 2 * share.step) {
      uint4 x[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) x[n] = shared_words(from + panel_at(row + n * share.step, piece));
#pragma unroll
      for (int n = 0; n < 2; ++n, to += bytes)
        if (row + n * share.step < share.rows) put_words(share, to, x[n]);
    }
  }
  template <typename T>
  static TANDEM_DEVICE void add_words(float (&sum)[8], uint4 x) {
    sum[0] += T::low(x.x), sum[1] += T::high(x.x);
    sum[2] += T::low(x.y), sum[3] += T::high(x.y);
    sum[4] += T::low(x.z), sum[5] += T::high(x.z);
    sum[6] += T::low(x.w), sum[7] += T::high(x.w);
  }

  static TANDEM_DEVICE bool is_whole(const Share& share, uint64_t to) {
    return share.keys >= 8 && share.strides.d == 1 && (to & 15) == 0;
  }
  template <typename T>
  static TANDEM_DEVICE void put(const Share& share, uint64_t to, const float (&x)[8]) {
    if (share.wide)
      put_wide(share, to, x);
    else
      put_words(share, to,
                make_uint4(T::pack(x[0], x[1]), T::pack(x[2], x[3]), T::pack(x[4], x[5]),
                           T::pack(x[6], x[7])));
  }
  static TANDEM_DEVICE void put_wide(const Share& share, uint64_t to, const float (&x)[8]) {
    if (is_whole(share, to)) {
      __stcs(reinterpret_cast<float4*>(to), make_float4(x[0], x[1], x[2], x[3]));
      __stcs(reinterpret_cast<float4*>(to) + 1, make_float4(x[4], x[5], x[6], x[7]));
      return;
    }
    float* one = reinterpret_cast<float*>(to);
#pragma unroll 1
    for (int e = 0; e < min(8, share.keys); ++e, one += share.strides.d) {
      const float low = e & 1 ? x[1] : x[0], second = e & 1 ? x[3] : x[2];
      const float third = e & 1 ? x[5] : x[4], high = e & 1 ? x[7] : x[6];
      *one = e & 4 ? (e & 2 ? high : third) : (e & 2 ? second : low);
    }
  }
  static TANDEM_DEVICE void put_words(const Share& share, uint64_t to, uint4 x) {
    if (is_whole(share, to)) {
      __stcs(reinterpret_cast<uint4*>(to), x);
      return;
    }
    ushort* one = reinterpret_cast<ushort*>(to);
#pragma unroll 1
    for (int e = 0; e < min(8, share.keys); ++e, one += share.strides.d) {
      *one = ushort(x.x);
      x.x = __funnelshift_r(x.x, x.y, 16), x.y = __funnelshift_r(x.y, x.z, 16);
      x.z = __funnelshift_r(x.z, x.w, 16), x.w >>= 16;
    }
  }
};

// The set of the warp that loads where delta may be made beside it: it waits for that when keys and values are on their way.
struct BiasLater : Bias {
  template <int ROW>
  struct Loader : Bias::Loader<ROW> {
    TANDEM_DEVICE Loader(const Params& params, const Walk& walk,
                         const Memory<ROW, BiasLater>& memory)
        : Bias::Loader<ROW>(params, walk, Memory<ROW, Bias>{memory.base}) {
      await_later(params, walk);
    }
  };
};
template <>
constexpr bool kMakesDelta<BiasLater> = true;

// One after the other, what the cluster works on, as often as its passes say: run(walk) for each, by all warps in their roles.
// In between the barriers begin anew.
template <int ROW, bool PASSES, typename Run>
TANDEM_DEVICE void in_rounds(const BwdDkvDqBiasParams& params, Run&& run) {
  constexpr BwdShape S = kBwdShapes[ROW];
#pragma unroll 1
  for (;;) {
    // Anew, lest addresses be kept from round to round, for which there are no registers.
    const Memory<ROW, Bias> memory{moved_word(shared_address(panel_memory()))};
    const Bias::Now<ROW> now(memory);
    const uint item = now.item();
    if (item == Bias::kNothing) return;
    const uint size = cluster_size();
    const uint entry = PASSES     ? now.pass() * size + cluster_rank()
                       : size > 1 ? cluster_rank()
                                  : blockIdx.x % uint(params.bias.shared);
    Walk walk;
    if (Bias::find(params, S, item, entry, &walk)) run(memory, walk);
    const uint pass = now.pass() + 1, same = now.item();  // before it is set
    fence_async();  // before the copy engine writes where others have read and written
    cluster_sync();
    const bool more = PASSES && pass < uint(params.bias.passes);
    const uint next = more ? same : params.bias.counter ? now.next() : Bias::kNothing;
    if (next == Bias::kNothing) return;
    if (fresh_thread() == 0) {
      now.set(next, more ? pass : 0);
      for (uint at = memory.barriers(); at < now.at; at += 8) barrier_invalidate(at);
      Bias::template init<ROW>(memory);
      Barriers<ROW>(memory.barriers()).init();
    }
    cluster_sync();
  }
}

// What a cluster does next.
template <bool PASSES>
TANDEM_DEVICE uint fetch(const BwdDkvDqBiasParams& params) {
  uint* counter = reinterpret_cast<uint*>(params.bias.counter);
  if (PASSES && turns_taken(counter) >= uint(params.bias.limit)) return Bias::kNothing;
  const uint next = uint(params.bias.first) + atomicAdd(counter, 1u);
  return next < uint(params.bias.items) ? next : Bias::kNothing;
}

// Whether the kernel does bwd_dot's work for later heads.
template <int ROW, bool ROUNDS>
constexpr bool kLater = !ROUNDS && has_later(kBwdShapes[ROW]);

// ROUNDS: the last workgroup of a head makes d_q of its sums. Apart, as registers are short, and for small problems alone.
template <typename T, int ROW, bool PASSES, bool ROUNDS>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq_bias(const __grid_constant__ BwdDkvDqBiasParams params) {
  const Memory<ROW, Bias> memory{shared_address(panel_memory())};
  const Bias::Now<ROW> now(memory);
  // The kernel beside this one, or the one after both, may begin.
  launch_dependents();
  if (threadIdx.x == 0) {
    Bias::template init<ROW>(memory);
    Barriers<ROW>(memory.barriers()).init();
    now.set(blockIdx.x / (cluster_size() > 1 ? cluster_size() : uint(params.bias.shared)), 0);
  }
  cluster_sync();
  if (PASSES) {
    if constexpr (kLater<ROW, ROUNDS>) make_later(params);
    if (threadIdx.x == 0 && cluster_rank() == 0) {
      const uint item = fetch<PASSES>(params);
      for (uint rank = 0; rank < cluster_size(); ++rank)
        cluster_put(cluster_address(now.at, rank), item);
    }
    cluster_sync();
  }
  if (threadIdx.x < 128) {
    give_registers<Bias::Registers::kHelping>();
    in_rounds<ROW, PASSES>(params, [&](const Memory<ROW, Bias>& here, const Walk& walk) {
      const int warp = __shfl_sync(~0u, fresh_thread() / 32, 0);
      if (warp == 0) {
        if constexpr (!kLater<ROW, ROUNDS>)
          load_tiles(params, walk, here);
        else
          load_tiles(params, walk, Memory<ROW, BiasLater>{here.base});
        const bool last = !PASSES || Bias::Now<ROW>(here).pass() + 1 == uint(params.bias.passes);
        if (fresh_thread() == 0 && last && params.bias.counter && cluster_rank() == 0) {
          const uint item = fetch<PASSES>(params);
          for (uint rank = 0; rank < cluster_size(); ++rank)
            cluster_put(cluster_address(Bias::Now<ROW>(here).at + 8, rank), item);
        }
        __syncwarp();
      } else if (warp >= 2) {
        Bias::template help<T, ROW, PASSES>(params, walk, here);
      } else {
        add_sums(params, walk, here, 0, 0);
        if constexpr (ROUNDS)
          tell_last(params, walk, here);
        else if (fresh_thread() % 32 == 0)
          tell_cast(params, walk);
      }
    });
  } else {
    take_registers<Bias::Registers::kMultiplying>();
    in_rounds<ROW, PASSES>(params, [&](const Memory<ROW, Bias>& here, const Walk& walk) {
      multiply<T, ROW, Bias, true, true>(params, walk, here);
      // When the last tile's sums are taken, the place is empty once more than it is asked for: the barrier is as it was.
      named_sync(kDqEmpty + fresh_thread() / 128 - 1, 160);
      if constexpr (ROUNDS)
        if (hear_last(here)) round_sums<T, ROW, Bias>(params, walk, 0);
    });
  }
  // Pairs end no sooner than the kernel beside them, lest the one after both be sure of these alone. One workgroup sees to it: the
  // multiprocessors of others are free for bwd_dq_cast.
  if (PASSES && blockIdx.x == 0) wait_kernel_before();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
