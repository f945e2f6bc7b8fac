// SPDX-License-Identifier: MIT OR Apache-2.0
// Set of bwd_dkv_dq with masks, dropout and a distance bias beside what bwd_full.cuh knows. The two helping warps that the others
// leave idle make bits of the tiles of queries (bits.cuh); everybody else takes the tiles that they name.
#ifndef TANDEM_CUDA_SM90_BWD_ALL_CUH
#define TANDEM_CUDA_SM90_BWD_ALL_CUH
#include "bits.cuh"
#include "bwd_full.cuh"
#include "bwd_round.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Where the set's parts lie: bits, and what softcap leaves of each thread's elements, as pairs of f16.
template <int ROW>
TANDEM_DEVICE TilePlaces<kBwdShapes[ROW].br> bits_at(uint set) {
  using Bits = TilePlaces<kBwdShapes[ROW].br>;
  return {set, set + kBitsPlaces * Bits::kPlace};
}

template <int ROW>
struct WalkAt {
  static constexpr int value = bwd_all_bytes(kBwdShapes[ROW]) - kBwdWalkBytes;
};
// What is asked for now and then, as registers are short: left, right, off and the number of keys; the first key of the tile,
// the tiles of queries, their number of rows; those without a mask, the batch entry, the head of keys.
template <int ROW>
TANDEM_DEVICE uint walk_at() {
  using M = Memory<ROW, WithLengths>;
  return shared_address(panel_memory()) + M::kAtSet + WalkAt<ROW>::value;
}

// Tiles in the order of the places; each warp counts them for itself. One that is asked for the next is done with the last.
template <int ROW, typename Set>
struct PlacedTiles {
  static constexpr int kBr = kBwdShapes[ROW].br;
  const TilePlaces<kBr> bits;
  const Walk& walk;
  uint n = 0;
  TANDEM_DEVICE PlacedTiles(const typename Set::Params&, const Walk& walk)
      : bits(bits_at<ROW>(Memory<ROW, Set>{shared_address(panel_memory())}.set())), walk(walk) {}
  TANDEM_DEVICE int next(int head, int from) {
    if (from > walk.span.begin) {
      __syncwarp();
      if (int(threadIdx.x) % 32 == 0) barrier_arrive(bits.empty(n));
      ++n;
    }
    const int4 tile = bits.wait_tile(n);
    return !(tile.y & kEnd) && tile.z == head ? tile.x : walk.span.end;
  }
  template <typename Block>
  TANDEM_DEVICE uint before(const Block& u, const Walk& walk, int, int t) const {
    return turns_before<ROW>(u, walk, t);
  }
};

// SCORES: whatever changes a score may be among it.
template <bool SCORES>
struct All : WithLengths {
  using Registers = sm90::Registers<SCORES ? 72 : 56>;
  static constexpr int bytes(const BwdShape& s) { return bwd_all_bytes(s); }
  static constexpr int kAdders = 1;
  template <int ROW>
  using Tiles = PlacedTiles<ROW, All>;
  static constexpr int kMakers = 64, kMakersBarrier = 9, kReaders = 10;  // warps that read
  template <int ROW>
  static TANDEM_DEVICE void init(const Memory<ROW, All>& memory) {
    init_boxes(memory);
    bits_at<ROW>(memory.set()).init(kMakers / 32, kReaders);
  }

  template <typename T, int ROW>
  struct Consumer {
    static constexpr int BR = kBwdShapes[ROW].br;
    using Bits = TilePlaces<BR>;
    const Params& params;
    const Bits bits;
    const uint left;  // the thread's 16 bytes of every 4 KiB
    const int shift;
    uint n = 0;  // of the tile's place
    int head;
    float sum;
    TANDEM_DEVICE Consumer(const Params& params, const Walk& walk, const Memory<ROW, All>& memory)
        : params(params),
          bits(bits_at<ROW>(memory.set())),
          left(memory.set() + kBitsPlaces * (Bits::kPlace + 16) + 16 * (threadIdx.x - 128)),
          shift(walk.band.off - walk.col0) {}
    static TANDEM_DEVICE int thread() {
      return fresh_thread() - 128;  // asked for anew: registers are short
    }
    // i + off - j of the thread's first element in the tile.
    TANDEM_DEVICE int distance() const {
      const int x = thread();
      return bits.read_tile(n).x * BR + 2 * (x % 4) + shift - (x / 32 * 16 + x % 32 / 4);
    }
    TANDEM_DEVICE void begin_head(int of) { head = of, sum = 0.f; }
    // Of an optional input with a number, or several, a head.
    TANDEM_DEVICE const float* numbers(uint slot, int each) const {
      return reinterpret_cast<const float*>(params.extra_at[slot]) + int64_t(head) * each;
    }
    // What the band hides becomes 0.
    TANDEM_DEVICE void hide_edge(float (&p)[BR / 2]) {
      const int4 at = bits.read_tile(n);
      if (!(at.y & kEdge)) return;
      const uint4 band = shared_words(walk_at<ROW>()), more = shared_words(walk_at<ROW>() + 16);
      const int x = thread();
      sm90::hide<BR>(p, TandemBand{int(band.x), int(band.y), int(band.z)},
                     int(more.x) + x / 32 * 16 + x % 32 / 4, int(band.w), at.x * BR + 2 * (x % 4),
                     0.f);
    }
    // Elements whose bit is not set become 0. In halves, each behind a branch, so that not all words are loaded before the first
    // is used: registers would not suffice.
    template <int FIRST>
    TANDEM_DEVICE void hide(float (&s)[BR / 2]) {
      if (!(bits.read_tile(n).y & kHides)) return;
      const uint words = bits.keep(n);
      const auto each = [&](int i, bool kept) { s[i] = kept ? s[i] : 0.f; };
      const int x = thread();
      const uint from = words + uint(x / 64 * Bits::kPitch + 2 * (x % 4)) * 4;
      const int bit = x / 32 % 2 * 16 + x % 32 / 4;
#pragma unroll
      for (int j = FIRST; j < FIRST + BR / 16; ++j) {
        const uint2 two = shared_pair(from + 32 * j);
        const uint a = two.x >> bit, b = two.y >> bit;
        each(4 * j, a & 1u), each(4 * j + 1, b & 1u);
        each(4 * j + 2, a & 256u), each(4 * j + 3, b & 256u);
      }
    }
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int, int) {
      const Features& f = params.features;
      if (SCORES && f.SOFTCAP) {
        const float inverse = __fdividef(1.f, params.extra.softcap * kLog2e);
        soft_cap(s, params.block.scale, params.extra.softcap, [&](int first, int count) {
#pragma unroll
          for (int i = first; i < first + count; i += 8) {
            uint x[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const float a = s[i + 2 * e] * inverse, b = s[i + 2 * e + 1] * inverse;
              x[e] = Half::pack(fmaf(-a, a, 1.f), fmaf(-b, b, 1.f));
            }
            put_shared(left + 4096 * (i / 8), __uint_as_float(x[0]), __uint_as_float(x[1]),
                       __uint_as_float(x[2]), __uint_as_float(x[3]));
          }
        });
        scale2 = 1.f;
      }
      if (SCORES && f.DIST) {
        const int first = distance(), window = params.extra.dist_window;
        if (__any_sync(kAllLanes, first + BR >= 0 && first - 8 < window)) {
          const float* dist = numbers(f.AT_DIST, window);
#pragma unroll
          for (int i = 0; i < BR / 2; ++i) {
            const int at = first + 8 * (i / 4) + i % 2 - 8 * (i / 2 % 2);
            s[i] = fmaf(s[i], scale2, at >= 0 && at < window ? __ldg(dist + at) * kLog2e : 0.f);
          }
          scale2 = 1.f;
        }
      }
      if (SCORES && f.ALIBI) {
        const float first = float(distance()), slope = kLog2e * __ldg(numbers(f.AT_SLOPE, 1));
#pragma unroll
        for (int j = 0; j < BR / 8; ++j) {
          const float2 l = shared_float2(lse + 32 * j);
#pragma unroll
          for (int i = 4 * j; i < 4 * j + 4; ++i)
            s[i] = exp2_fast(
                fmaf(s[i], scale2,
                     fmaf(-slope, Full::Consumer<T, ROW>::away(first, i), i % 2 ? -l.y : -l.x)));
        }
      } else {
        sm90::weigh<BR>(s, scale2, lse);
      }
      hide<0>(s);
      hide<BR / 16>(s);
    }
    template <typename Push>
    TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint lse, int, int,
                                 const FarTile<Push>& tile) {
      const Features& f = params.features;
      const int first = distance(), window = params.extra.dist_window;
      sm90::weigh_far<BR>(s, lse, tile, [&](int j, uint zero) {
        const float each = __uint_as_float(uint(__float_as_int(scale)) + zero);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] = __fmul_rn(each, s[i]);
        if (SCORES && f.SOFTCAP) {
          float x[4];
#pragma unroll
          for (int e = 0; e < 4; ++e)
            s[4 * j + e] = far_cap(s[4 * j + e], params.extra.softcap,
                                   __fdividef(1.f, params.extra.softcap), &x[e]);
          const uint to = left + 4096 * (j / 2) + 8 * (j % 2);
          put_shared(to, Half::pack(x[0], x[1]));
          put_shared(to + 4, Half::pack(x[2], x[3]));
        }
        if (SCORES && f.DIST) {
          const float* dist = numbers(f.AT_DIST, window);
#pragma unroll
          for (int i = 4 * j; i < 4 * j + 4; ++i) {
            const int at = first + 8 * j + i % 2 - 8 * (i / 2 % 2) + int(zero);
            if (at >= 0 && at < window) s[i] = __fadd_rn(s[i], __ldg(dist + at));
          }
        }
        if (SCORES && f.ALIBI) {
          const float slope = __ldg(numbers(f.AT_SLOPE, 1));
#pragma unroll
          for (int i = 4 * j; i < 4 * j + 4; ++i)
            s[i] = __fsub_rn(s[i], __fmul_rn(slope, Full::Consumer<T, ROW>::away(float(first), i)));
        }
      });
      hide<0>(s);
      hide<BR / 16>(s);
    }
    TANDEM_DEVICE void pack(uint (&)[BR / 4], const float (&)[BR / 2]) {}
    TANDEM_DEVICE void differentiate(uint (&y)[BR / 4], uint (&ds)[BR / 4],
                                     const float (&p)[BR / 2], const float (&dp)[BR / 2],
                                     uint delta, int) {
      const bool cap = SCORES && params.features.SOFTCAP, grad = SCORES && params.slope_parts != 0;
      const bool drops = params.features.DROPOUT != 0;
      const float first = float(distance()), more = drops ? params.extra.drop_scale : 1.f;
      const int x = thread(), bit = x / 32 % 2 * 16 + x % 32 / 4;
      const uint from = bits.drop(n) + uint(x / 64 * Bits::kPitch + 2 * (x % 4)) * 4;
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        const float2 l = shared_float2(delta + 32 * j);
        uint a = ~0u, b = ~0u;  // which of the two columns stay
        if (drops) {
          const uint2 two = shared_pair(from + 32 * j);
          a = two.x >> bit, b = two.y >> bit;
        }
        uint z[2] = {};
        if (cap) {
          const uint2 two = shared_pair(left + 4096 * (j / 2) + 8 * (j % 2));
          z[0] = two.x, z[1] = two.y;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int n = 4 * j + 2 * r;
          const float stay0 = a & 1u << 8 * r ? more : 0.f, stay1 = b & 1u << 8 * r ? more : 0.f;
          y[n / 2] = T::pack(p[n] * stay0, p[n + 1] * stay1);
          float d = p[n] * fmaf(dp[n], stay0, -l.x), e = p[n + 1] * fmaf(dp[n + 1], stay1, -l.y);
          if (grad) {
            sum = fmaf(d, Full::Consumer<T, ROW>::away(first, n), sum);
            sum = fmaf(e, Full::Consumer<T, ROW>::away(first, n + 1), sum);
          }
          if (cap) d *= Half::low(z[r]), e *= Half::high(z[r]);
          ds[n / 2] = T::pack(d, e);
        }
      }
    }
    TANDEM_DEVICE void wait_ds() {}
    TANDEM_DEVICE void tell_ds() {}
    TANDEM_DEVICE void keep_ds(const uint (&)[BR / 4], int) {}
    TANDEM_DEVICE void end_head(const Walk& walk, int head) {
      if (!SCORES || !params.slope_parts) return;
      const BwdDkvDqBlock& u = params.block;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (threadIdx.x % 32 == 0)
        reinterpret_cast<float*>(
            params.slope_parts)[((int64_t(walk.batch) * u.heads_q + head) * u.tiles + walk.tile) *
                                    kBwdParts +
                                (threadIdx.x - 128) / 32] = sum;
    }
  };

  // The turn of a tile that is left out. What is known of the walk is found anew: registers are short.
  template <int ROW>
  static TANDEM_DEVICE void pass(const Params& params, int head, int t) {
    constexpr BwdShape S = kBwdShapes[ROW];
    const BwdDkvDqBlock& u = params.block;
    Walk walk;
    find_walk(u, S, 1, params.beside, own_index(), &walk);
    refine<ROW>(params, &walk);
    const int64_t tiles = first_tile<ROW, All>(u, walk, head, params.packed_tiles);
    uint* turn = reinterpret_cast<uint*>(params.push.turns) + (tiles + t) * (S.br / 64);
    wait_turn(turn, turns_before<ROW>(u, walk, t));
    take_turn(turn);
  }
  // A place's tile: queries' tile, flags, head of the group. In a fixed order a tile that is left out takes its turn here.
  template <typename T, int ROW>
  static TANDEM_DEVICE void help(const Params& params, const Walk& walk,
                                 const Memory<ROW, All>& memory) {
    constexpr BwdShape S = kBwdShapes[ROW];
    const BwdDkvDqBlock& u = params.block;
    const int thread = int(threadIdx.x) - 64;
    const auto bits = bits_at<ROW>(memory.set());
    const uint at = walk_at<ROW>();
    const auto put = [&](uint n, int x, int y, int z, int w) {
      put_shared(at + 16 * n, __int_as_float(x), __int_as_float(y), __int_as_float(z),
                 __int_as_float(w));
    };
    put(0, walk.band.left, walk.band.right, walk.band.off, walk.seq_kv);
    put(1, walk.col0, walk.span.begin, walk.span.end, walk.seq_q);
    put(2, walk.span.full_begin, walk.span.full_end, walk.batch, walk.head_kv);
    __syncwarp();
    uint place = 0;
    const auto tell = [&](int t, int flags, int head) {
      if (thread == 0)
        put_shared(bits.tile(place), __int_as_float(t), __int_as_float(flags), __int_as_float(head),
                   0.f);
      __syncwarp();
      if (thread % 32 == 0) barrier_arrive(bits.full(place));
      ++place;
    };
    for (int n = 0; n < u.group; ++n) {
#pragma unroll 1
      for (int t = int(shared_words(at + 16).y); t < int(shared_words(at + 16).z); ++t) {
        BitMaker<S.br, kMakers, kMakersBarrier, SCORES ? 4 : 2> maker(
            params.features, params.extra, params.extra_at, params.drop_offset, u.heads_q);
        const auto begin = [&] {
          const uint4 x = shared_words(at + 16), y = shared_words(at + 32);
          maker.batch = int(y.z), maker.head = int(y.w) * u.group + n;
          maker.seq_q = int(x.w), maker.seq_kv = int(shared_words(at).w);
          return int(x.x);
        };
        barrier_wait(bits.empty(place), bits.parity(place) ^ 1);
        bool hides = false;
        if (params.features.KEEP && !maker.keep(bits.keep(place), t * S.br, begin(), &hides)) {
          if (u.in_turn && thread == 0)
            pass<ROW>(params, int(shared_words(at + 32).w) * u.group + n, t);
          continue;
        }
        if (params.features.DROPOUT) maker.drop(bits.drop(place), t * S.br, begin());
        const uint4 full = shared_words(at + 32);
        const bool edge = t < int(full.x) || t >= int(full.y) ||
                          int(shared_words(at + 16).x) + S.bc > int(shared_words(at).w);
        tell(t, (hides ? kHides : 0) | (edge ? kEdge : 0), n);
      }
    }
    barrier_wait(bits.empty(place), bits.parity(place) ^ 1);
    tell(0, kEnd, 0);
  }
};
template <bool SCORES>
constexpr bool kHasLengths<All<SCORES>> = true;
template <bool SCORES>
constexpr bool kHasPlaces<All<SCORES>> = true;

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
