// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias and its gradient: the set (bwd_sets.cuh), and the kernel, whose clusters go on to further tiles of keys.
#ifndef TANDEM_CUDA_SM90_BWD_BIAS_CUH
#define TANDEM_CUDA_SM90_BWD_BIAS_CUH
#include "bwd_bias_sums.cuh"
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
template <>
constexpr bool kGoesOn<Bias> = true;

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
    if (!find_walk(params.block, shape, int(inner), params.block.in_turn, index * inner + entry,
                   walk))
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
  static TANDEM_DEVICE uint now_at(const Memory<ROW, Bias>& memory) {
    return memory.set_barriers() + 3 * At<ROW>::kPlaces * 8;
  }
  // What comes next, behind that: two barriers, and a word. The first workgroup of a cluster fetches it for all.
  struct Next {
    uint at;
    template <int ROW>
    TANDEM_DEVICE explicit Next(const Memory<ROW, Bias>& memory)
        : at(now_at(memory) + kBwdNowBytes) {}
    TANDEM_DEVICE uint told() const { return at; }       // it is there
    TANDEM_DEVICE uint asked() const { return at + 8; }  // of the first workgroup: all have read it
    TANDEM_DEVICE uint word() const { return at + 16; }
  };
  template <int ROW>
  static TANDEM_DEVICE void init(const Memory<ROW, Bias>& memory) {
    const At<ROW> at(memory);
    const Next next(memory);
    const int size = int(cluster_size());
    for (int place = 0; place < At<ROW>::kPlaces; ++place) {
      barrier_init(at.full(place), 1);
      barrier_init(at.written(place), size);
      barrier_init(at.read(place), 2 * size);
    }
    now_of(memory).init();
    barrier_init(next.told(), 1);
    barrier_init(next.asked(), size);
  }

  template <int ROW>
  struct Loader {
    const Params& params;
    const At<ROW> at;
    const int col0, batch;
    Turn<At<ROW>::kPlaces> turn;
    TANDEM_DEVICE Loader(const Params& params, const Walk& walk, const Memory<ROW, Bias>& memory)
        : params(params), at(memory), col0(walk.col0), batch(walk.batch), turn(walk.begun) {}
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
    uint tile;  // how many were begun: of this, places and parities follow
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
        : Plain::Consumer<T, ROW>(params, walk, {memory.base}),
          params(params),
          at(memory),
          tile(walk.begun) {}
    TANDEM_DEVICE int place() const { return int((tile - 1) % At<ROW>::kPlaces); }
    TANDEM_DEVICE uint ds_tile() const { return at.tile(place()); }
    // A thread's first words of the bias, had before S of the tile is there.
    uint first[4];
    TANDEM_DEVICE uint bias_words() const {
      return ds_tile() + (kKeeps ? offset : bias_offset(fresh_thread()));
    }
    TANDEM_DEVICE void begin_tile() {
      ++tile;
      barrier_wait(at.full(place()), int((tile - 1) / At<ROW>::kPlaces % 2));
      load_matrices_transposed(first, bias_words());
    }
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int, int) {
      const uint from = bias_words();
#pragma unroll
      for (int k = 0; k < BR / 16; ++k) {
        uint r[4] = {first[0], first[1], first[2], first[3]};
        if (k > 0) load_matrices_transposed(r, from + 2048 * k);
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
    template <typename Push>
    TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint lse, int, int,
                                 const FarTile<Push>& far) {
      const uint from = bias_words();
      uint r[4] = {first[0], first[1], first[2], first[3]};
      sm90::weigh_far<BR>(s, lse, far, [&](int j, uint zero) {
        if (j > 0 && j % 2 == 0) load_matrices_transposed(r, from + 1024 * j + zero);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
          float& x = s[4 * j + n];
          float& y = s[4 * j + n + 1];
          const uint two = r[j % 2 * 2 + n / 2];
          x = __fadd_rn(__fmul_rn(scale, x), T::low(two));
          y = __fadd_rn(__fmul_rn(scale, y), T::high(two));
        }
      });
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

  // Two warps sum this workgroup's share of a tile of d_bias. A cluster that takes the batch in passes leaves sums in the
  // workspace, for the same thread.
  template <typename T, int ROW, bool PASSES>
  static TANDEM_DEVICE void help(const Params& params, const Walk& walk,
                                 const Memory<ROW, Bias>& memory) {
    constexpr BwdShape S = kBwdShapes[ROW];
    static_assert(S.bc == 128, "16 threads a row");
    if (!params.bias.d_bias) return;
    const BwdDkvDqBlock& u = params.block;
    const int left = PASSES ? params.bias.passes - 1 - int(walk.pass) : 0;
    uint tile = walk.begun;  // how many were summed: of this, places and parities follow
    const int begin = walk.part == 0 && left == 0 ? 0 : walk.span.begin;
    const int end =
        walk.part == walk.parts - 1 && left == 0 ? (u.seq_q + S.br - 1) / S.br : walk.span.end;
    float4* parts = nullptr;
    if (PASSES)
      parts = reinterpret_cast<float4*>(params.bias.sums_at) +
              int64_t(blockIdx.x) * u.group * ((u.seq_q + S.br - 1) / S.br) * (S.br / 8 * 2 * 64) +
              (fresh_thread() - 64);
    for (int n = 0; n < u.group; ++n) {
#pragma unroll 1
      for (int t = begin; t < end; ++t) {
        // Made anew for each tile, and no sooner than it is wanted: sums need the registers.
        const At<ROW> at(Memory<ROW, Bias>{moved_word(shared_address(panel_memory()))});
        const int place = int(tile % At<ROW>::kPlaces);
        const auto share = [&] {
          return bias_share<S.br>(params.bias, at.tile(place),
                                  {params.bias.shared != 1 ? 0 : walk.batch,
                                   walk.head_kv * u.group + n, t * S.br, walk.col0},
                                  u.seq_q, u.seq_kv);
        };
        if (t < walk.span.begin || t >= walk.span.end) {
          sum_rows<T>(share(), 0);
          continue;
        }
        const auto await = [&] {
          barrier_wait(at.written(place), int(tile / At<ROW>::kPlaces % 2));
        };
        if constexpr (PASSES) {
          // Two passes or more (sums_in_passes() of the planner): the first one is not the last.
          if (left == params.bias.passes - 1)
            sum_pairs<T, S.br, false, false>(share, parts, await);
          else if (left > 0)
            sum_pairs<T, S.br, true, false>(share, parts, await);
          else
            sum_pairs<T, S.br, true, true>(share, parts, await);
          parts += S.br / 8 * 2 * 64;
        } else {
          await();
          sum_tile<T, S.br>(share());
        }
        __syncwarp();
        const uint lane = uint(fresh_thread()) % 32;
        if (lane < cluster_size()) cluster_arrive(cluster_address(at.read(place), lane));
        ++tile;
      }
    }
  }
};

// What a cluster does next: those of the whole batch take reserved tiles (BwdShares) when there are no others.
template <bool PASSES>
TANDEM_DEVICE uint fetch(const BwdDkvDqBiasParams& params) {
  uint* const counter = reinterpret_cast<uint*>(params.bias.counter);
  const BwdShares& shares = params.bias.shares;
  if (!PASSES) {
    const int next = shares.slots + int(atomicAdd(counter, 1u));
    if (next < shares.items) return uint(bwd_other_item(shares, next));
  }
  const int next = int(atomicAdd(counter + 1, 1u));
  return next < shares.reserved ? uint(bwd_reserved_item(shares, next)) : kNothing;
}
template <int ROW, bool PASSES, bool ROUNDS>
struct BiasWay {
  static constexpr bool kOnce = ROUNDS, kPasses = PASSES;
  static TANDEM_DEVICE uint passes(const BwdDkvDqBiasParams& params) {
    return uint(params.bias.passes);
  }
  static TANDEM_DEVICE bool find(const BwdDkvDqBiasParams& params, uint item, uint pass,
                                 Walk* walk) {
    constexpr BwdShape S = kBwdShapes[ROW];
    const uint size = cluster_size();
    const uint entry = PASSES     ? pass * size + cluster_rank()
                       : size > 1 ? cluster_rank()
                                  : own_index() % uint(params.bias.shared);
    return Bias::find(params, S, item, entry, walk);
  }
  static TANDEM_DEVICE uint first(const BwdDkvDqBiasParams& params,
                                  const Memory<ROW, Bias>& memory) {
    if (PASSES) return ask(params, memory, 0);
    return own_index() / (cluster_size() > 1 ? cluster_size() : uint(params.bias.shared));
  }
  // round: how many tiles there were before, passes and all.
  static TANDEM_DEVICE uint next(const BwdDkvDqBiasParams& params, const Memory<ROW, Bias>& memory,
                                 uint round) {
    if (!params.bias.counter) return kNothing;
    return ask(params, memory, PASSES ? (round + 1) / passes(params) : round);
  }
  // turn: how often that was done before.
  static TANDEM_DEVICE uint ask(const BwdDkvDqBiasParams& params, const Memory<ROW, Bias>& memory,
                                uint turn) {
    const Bias::Next next(memory);
    if (fresh_thread() == 0) {
      barrier_expect(next.told(), 4);
      if (cluster_rank() == 0) {
        barrier_wait(next.asked(), int(turn & 1) ^ 1);
        const uint item = fetch<PASSES>(params);
        for (uint rank = 0; rank < cluster_size(); ++rank)
          cluster_tell(cluster_address(next.word(), rank), item,
                       cluster_address(next.told(), rank));
      }
    }
    __syncwarp();
    barrier_wait(next.told(), int(turn & 1));
    const uint item = shared_uint(next.word());
    if (fresh_thread() == 0) cluster_arrive(cluster_address(next.asked(), 0));
    return item;
  }
};

// ROUNDS: the last workgroup of a head makes d_q of its sums. Apart, as registers are short, and for small problems alone.
template <typename T, int ROW, bool PASSES, bool ROUNDS>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq_bias(const __grid_constant__ BwdDkvDqBiasParams params) {
  {
    const Memory<ROW, Bias> memory{shared_address(panel_memory())};
    // The kernel beside this one, or the one after both, may begin.
    launch_dependents();
    if (!ROUNDS && threadIdx.x < kZeroBytes / 16) {
      put_shared(memory.base + ZeroCopies::kAt<ROW> + 16 * threadIdx.x, 0.f, 0.f, 0.f, 0.f);
      fence_async();
    }
    if (threadIdx.x == 0) {
      Bias::template init<ROW>(memory);
      Barriers<ROW>(memory.barriers()).init();
    }
    cluster_sync();
  }
  using Way = BiasWay<ROW, PASSES, ROUNDS>;
  if (threadIdx.x < 128) {
    give_registers<Bias::Registers::kHelping>();
    const int warp = __shfl_sync(~0u, fresh_thread() / 32, 0);
    if (warp == 0)
      load_rounds<ROW, Bias, Way>(params);
    else if (warp >= 2)
      in_rounds<ROW, Bias, Way, true>(params, [&](const Memory<ROW, Bias>& here, const Walk& walk) {
        Bias::template help<T, ROW, PASSES>(params, walk, here);
      });
    else
      in_rounds<ROW, Bias, Way, true>(params, [&](const Memory<ROW, Bias>& here, const Walk& walk) {
        add_sums<!ROUNDS>(params, walk, here, 0, 0);
        if constexpr (ROUNDS)
          tell_last(params, walk, here);
        else if (fresh_thread() % 32 == 0)
          tell_cast(params, walk);
      });
  } else {
    take_registers<Bias::Registers::kMultiplying>();
    in_rounds<ROW, Bias, Way, false>(params, [&](const Memory<ROW, Bias>& here, const Walk& walk) {
      multiply<T, ROW, Bias, true, true>(params, walk, here);
      if constexpr (ROUNDS) {
        if (hear_last(here)) round_sums<T, ROW, Bias>(params, walk, 0);
      }
    });
  }
  // Nobody leaves while others may still read its tiles.
  cluster_sync();
  // Pairs end no sooner than the kernel beside them, lest the one after both be sure of these alone. One workgroup sees to it: the
  // multiprocessors of others are free for bwd_dq_cast.
  if (PASSES && blockIdx.x == 0) wait_kernel_before();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
