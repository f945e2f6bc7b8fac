// SPDX-License-Identifier: MIT OR Apache-2.0
// Sets of optional inputs of bwd_dkv_dq: what a kernel of the set does beyond softmax attention without any. A set has
// Params, bytes of shared memory (before the numbers of the rows) and barriers (at the end), a Loader for the warp that
// loads, a Consumer for those that multiply, and help() for the two helping warps that have nothing else to do.
#ifndef TANDEM_CUDA_SM90_BWD_SETS_CUH
#define TANDEM_CUDA_SM90_BWD_SETS_CUH
#include "bwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

struct Plain {
  using Params = BwdDkvDqParams;
  static constexpr bool kAnyOrder = true;  // of the tiles of queries
  static constexpr int kAdders = 2;        // warps that add dQ, and places for its tiles: 1 or 2
  using Registers = sm90::Registers<40>;
  static constexpr int bytes(const BwdShape& s) { return bwd_second_dq_bytes(s); }
  static constexpr float kHidden = 0.f;
  static constexpr float kLse = kLog2e;  // what lse is multiplied by
  template <int ROW>
  using Tiles = EveryTile<ROW>;
  static TANDEM_DEVICE int order(const Params&) { return 1; }
  static TANDEM_DEVICE int in_turn(const Params& params) { return params.beside; }
  template <int ROW>
  static TANDEM_DEVICE void init(const Memory<ROW, Plain>&) {}
  static TANDEM_DEVICE void sync() { __syncthreads(); }
  static TANDEM_DEVICE void leave() {}
  template <int ROW>
  struct Loader {
    TANDEM_DEVICE Loader(const Params&, const Walk&, const Memory<ROW, Plain>&) {}
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int, int) {}
  };
  template <typename T, int ROW>
  struct Consumer {
    static constexpr int BR = kBwdShapes[ROW].br;
    TANDEM_DEVICE Consumer(const Params&, const Walk&, const Memory<ROW, Plain>&) {}
    // The scores become p; t: tile of queries, stage: where its rows' numbers are.
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int, int) {
      sm90::weigh<BR>(s, scale2, lse);
    }
    // What d_v takes as left operand, here or, with fewer registers, with dS.
    TANDEM_DEVICE void pack(uint (&y)[BR / 4], const float (&p)[BR / 2]) {
#pragma unroll
      for (int i = 0; i < BR / 4; ++i) y[i] = T::pack(p[2 * i], p[2 * i + 1]);
    }
    TANDEM_DEVICE void differentiate(uint (&)[BR / 4], uint (&ds)[BR / 4], const float (&p)[BR / 2],
                                     const float (&dp)[BR / 2], uint delta, int) {
      sm90::differentiate<T, BR>(ds, p, dp, delta);
    }
    TANDEM_DEVICE void wait_ds() {}
    TANDEM_DEVICE void tell_ds() {}
    TANDEM_DEVICE void keep_ds(const uint (&)[BR / 4], int) {}
  };

  template <typename T, int ROW>
  static TANDEM_DEVICE void help(const Params&, const Walk&, const Memory<ROW, Plain>&) {}
};

// A dense bias of the tensors' type, with a row for every query, and its gradient. Workgroups of all batch entries that
// share a bias are a cluster: they go through the same tiles side by side, and each sums its share of a tile of dS over
// all of them, in f32 and in the order of the batch. Nothing S x S is kept.
struct Bias;
template <>
constexpr bool kDense<Bias> = true;
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
  // Clusters from params.bias.whole on have parts of tiles of keys.
  static TANDEM_DEVICE bool find(const Params& params, const BwdShape& shape, Walk* walk) {
    const uint inner = uint(params.bias.shared), whole = uint(params.bias.whole);
    uint index = blockIdx.x / inner;
    const bool cut = inner > 1 && index >= whole;
    if (cut) {
      const uint parts = uint(params.bias.parts), n = index - whole;
      walk->part = int(n % parts), walk->parts = int(parts);
      index = whole + n / parts;
    }
    const uint entry = blockIdx.x % inner;
    if (!find_walk(params.block, shape, int(inner), params.beside, walk, index * inner + entry))
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
  static TANDEM_DEVICE void sync() { cluster_sync(); }
  // Others of the cluster may still read this one's shared memory.
  static TANDEM_DEVICE void leave() { cluster_sync(); }

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
  // keys of a row.
  template <typename T, int ROW>
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
    uint tile = 0;  // how many were summed: of this, places and parities follow
    const int begin = walk.part == 0 ? 0 : walk.span.begin;
    const int end = walk.part == walk.parts - 1 ? (u.seq_q + S.br - 1) / S.br : walk.span.end;
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
        if (seen) barrier_wait(at.written(place), int(tile / At<ROW>::kPlaces % 2));
        sum_tile<T, S.br>(share, address, from, piece % 8, seen ? size : 0);
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

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
