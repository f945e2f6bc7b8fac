// SPDX-License-Identifier: MIT OR Apache-2.0
// Heads of up to 144 queries and 144 keys, whole: each warp has the weights of 16 query rows in
// accumulators, over all keys, so that softmax needs one pass and no other workgroup. A workgroup
// visits (head, batch entry) pairs; the next one's rows are on their way meanwhile. Where all
// entries share a bias, the pairs are of one head, and the bias is read once. The backward forms
// softmax again, and delta with it, so it needs neither lse nor o, nor a launch before it.
#ifndef TANDEM_CUDA_SM80_WHOLE_HEAD_CUH
#define TANDEM_CUDA_SM80_WHOLE_HEAD_CUH
#include "shape.cuh"
#include "weigh.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <int ROW>
struct WholeShape : MmaShape<ROW> {
  using S = MmaShape<ROW>;
  static constexpr int BLOCKS = S::BC / 8;  // of 8 keys, in the accumulators of a warp
  static constexpr int P_COLS = whole_p_cols(S::BC);
  // Whether d_bias may be summed over entries, which takes as many registers as S.
  static constexpr bool SUMS = whole_sums_bias(S::tile);
  // Threads that load rows, whole periods of the swizzle each time.
  static constexpr int LOADERS = S::THREADS % 64 == 0 ? S::THREADS : 128;
  static_assert(S::BR == 16 * S::WARPS && S::STAGES <= 2, "as it is written");
};

// Starts copies of ROWS rows of a head.
template <typename S, int ROWS, typename T>
TANDEM_DEVICE void load_whole(uint to, const View<T>& m) {
  if (S::LOADERS == S::THREADS || threadIdx.x < S::LOADERS)
    load_rows<S::WIDTH, ROWS, S::LOADERS>(to, m, 0);
}

// A head of a batch entry.
struct WholePair {
  int head, entry;
  TANDEM_DEVICE WholePair next(int batch) const {
    return entry + 1 < batch ? WholePair{head, entry + 1} : WholePair{head + 1, 0};
  }
};

// The pairs of a workgroup, which follow one another. sliced: of one head.
struct WholeWork {
  WholePair first;
  int slice, count;
};
template <typename Params>
TANDEM_DEVICE bool find_whole(const Params& params, bool sliced, WholeWork* work) {
  const auto& u = params.block;
  const int batch = params.batch;
  const uint index = params.first_group + block_number();
  if (index >= u.total) return false;
  const int64_t pairs = sliced ? batch : int64_t(batch) * u.heads_q;
  work->slice = int(index % u.tiles);
  const int begin = int(work->slice * pairs / u.tiles),
            end = int((work->slice + 1) * pairs / u.tiles);
  work->count = end - begin;
  work->first =
      sliced ? WholePair{int(index / u.tiles), begin} : WholePair{begin / batch, begin % batch};
  return true;
}

// Where a lane's elements of a whole head lie.
template <int BLOCKS>
TANDEM_DEVICE Spot<true, BLOCKS> whole_spot() {
  const Lane me;
  return {16 * me.warp + me.g, 2 * me.t};
}

// A set of a lane's elements.
template <int BLOCKS>
struct WholeSet {
  static constexpr int WORDS = (BLOCKS + 7) / 8;
  uint word[WORDS];
  TANDEM_DEVICE bool has_all() const {
    bool all = true;
#pragma unroll
    for (int n = 0; n < WORDS; ++n)
      all &= word[n] == (n < BLOCKS / 8 ? ~0u : (1u << 4 * (BLOCKS % 8)) - 1);
    return all;
  }
  TANDEM_DEVICE bool has(int n, int x) const { return word[n / 8] >> (4 * (n % 8) + x) & 1u; }
  TANDEM_DEVICE void add(int n, int x) { word[n / 8] |= 1u << (4 * (n % 8) + x); }
  TANDEM_DEVICE void remove(int n, int x) { word[n / 8] &= ~(1u << (4 * (n % 8) + x)); }
};

// The bias of a head in shared memory. That of the whole batch is f32 numbers, each thread's own
// side by side. That of a pair has rows in its own type: it arrives by cp.async in 16-byte chunks,
// or else each thread fetches its own elements.
template <typename S>
struct WholeBias {
  using Set = WholeSet<S::BLOCKS>;
  using Spot = sm80::Spot<true, S::BLOCKS>;
  uint tile;    // of the first stage
  uint dtype;   // 0: there is none
  bool shared;  // by the whole batch
  bool chunks;  // whole chunks of all rows begin at multiples of 16 bytes

  template <typename Params>
  TANDEM_DEVICE WholeBias(const Params& params, uint tile) : tile(tile) {
    dtype = params.features.BIAS;
    shared = params.sliced != 0;
    const int size = dtype == TANDEM_F32 ? 4 : 2;
    const Strides& s = params.extra.bias;
    const uint64_t at = dtype ? params.push.extra[params.features.AT_BIAS] : 0;
    chunks = !shared && s.d == 1 && ((s.s | s.h | s.b) * size | int64_t(at)) % 16 == 0;
  }
  static constexpr int PITCH_2 = whole_bias_pitch(S::BC, 2), PITCH_4 = whole_bias_pitch(S::BC, 4);
  static TANDEM_DEVICE int pitch(int size) { return size == 4 ? PITCH_4 : PITCH_2; }
  TANDEM_DEVICE uint stage_at(int stage) const {
    return tile + uint(stage * S::BR * pitch(dtype == TANDEM_F32 ? 4 : 2));
  }
  TANDEM_DEVICE uint own_numbers(int n) const {
    return tile + uint(16 * (S::THREADS * n + int(threadIdx.x)));
  }
  // Starts copies of whole chunks.
  TANDEM_DEVICE void fetch(const Extra& e, const HeadExtra& of, int stage) const {
    const uint to = stage_at(stage);
    with_type(dtype, [&](auto type) {
      constexpr int SIZE = int(sizeof(typename decltype(type)::Element)), EACH = S::BC * SIZE / 16;
      const int64_t pitch_of = e.x.bias.s * SIZE;
#pragma unroll 1
      for (int at = int(threadIdx.x); at < S::BR * EACH; at += S::THREADS) {
        const int row = at / EACH, chunk = at % EACH;
        const int bytes = row < e.seq_q ? e.seq_kv * SIZE - 16 * chunk : 0;
        copy_chunk(to + uint(row * pitch(SIZE) + 16 * chunk),
                   bytes > 0 ? of.bias + row * pitch_of + 16 * chunk : of.bias,
                   bytes < 0    ? 0
                   : bytes < 16 ? bytes
                                : 16);
      }
    });
  }
  // Fetches the thread's elements of `seen`, and has 0 for the others.
  TANDEM_DEVICE void load(const Extra& e, const HeadExtra& of, const Spot& spot, const Set& seen,
                          int stage) const {
    const uint to = stage_at(stage);
    with_type(dtype, [&](auto type) {
      using E = decltype(type);
      using Element = typename E::Element;
      const auto* base = reinterpret_cast<const Element*>(of.bias);
      const auto element = [&](int n, int x) {
        return seen.has(n, x) ? __ldg(base + spot.i(n, x) * e.x.bias.s + spot.j(n, x) * e.x.bias.d)
                              : Element(0);
      };
      const auto number = [&](int n, int x) { return __float_as_uint(E::to_float(element(n, x))); };
#pragma unroll
      for (int n = 0; n < S::BLOCKS; ++n) {
        if (shared) {
          put_chunk(own_numbers(n),
                    make_uint4(number(n, 0), number(n, 1), number(n, 2), number(n, 3)));
          continue;
        }
#pragma unroll
        for (int x = 0; x < 4; x += 2) {
          const uint at = to + uint(spot.i(n, x) * pitch(int(sizeof(Element)))) +
                          uint(spot.j(n, x) * int(sizeof(Element)));
          if constexpr (sizeof(Element) == 4)
            put_pair(at, number(n, x), number(n, x + 1));
          else
            put_word(at, uint(element(n, x)) | uint(element(n, x + 1)) << 16);
        }
      }
    });
  }
  TANDEM_DEVICE void add(float (&s)[1][S::BLOCKS][4], const Spot& spot, int stage) const {
    if (shared) {
#pragma unroll
      for (int n = 0; n < S::BLOCKS; ++n) {
        const uint4 x = get_chunk(own_numbers(n));
        s[0][n][0] = __fadd_rn(s[0][n][0], __uint_as_float(x.x));
        s[0][n][1] = __fadd_rn(s[0][n][1], __uint_as_float(x.y));
        s[0][n][2] = __fadd_rn(s[0][n][2], __uint_as_float(x.z));
        s[0][n][3] = __fadd_rn(s[0][n][3], __uint_as_float(x.w));
      }
      return;
    }
    const uint from = stage_at(stage);
    with_type(dtype, [&](auto type) {
      using E = decltype(type);
      using Element = typename E::Element;
      constexpr int SIZE = int(sizeof(Element));
#pragma unroll
      for (int n = 0; n < S::BLOCKS; ++n)
#pragma unroll
        for (int x = 0; x < 4; x += 2) {
          const uint at = from + uint(spot.i(n, x) * pitch(SIZE) + spot.j(n, x) * SIZE);
          float y[2];
          if constexpr (SIZE == 4) {
            get_numbers(y, at);
          } else {
            const uint word = get_word(at);
            y[0] = E::to_float(Element(word)), y[1] = E::to_float(Element(word >> 16));
          }
          s[0][n][x] = __fadd_rn(s[0][n][x], y[0]);
          s[0][n][x + 1] = __fadd_rn(s[0][n][x + 1], y[1]);
        }
    });
  }
};

// From products to weights, for the rows of a lane.
template <typename S>
struct WholeScores {
  using Set = WholeSet<S::BLOCKS>;
  using Block = float[1][S::BLOCKS][4];
  Spot<true, S::BLOCKS> spot;
  WholeBias<S> bias;
  Set visible;                // by position, the same for all pairs
  Set keeps;                  // also by the mask
  int head;                   // whose shared inputs are at hand; -1: no one's
  bool each_bias, each_keep;  // each pair has its own

  template <typename Params>
  TANDEM_DEVICE WholeScores(const Params& params, uint bias_tile)
      : spot(whole_spot<S::BLOCKS>()), bias(params, bias_tile), visible{}, head(-1) {
    const Extra e = make_extra(params, 0);
    each_bias = bias.dtype && !bias.shared, each_keep = e.f.KEEP && e.x.keep.b != 0;
    each<S::BLOCKS>([&](int n, int x) {
      if (position_visible(e, spot.i(n, x), spot.j(n, x))) visible.add(n, x);
    });
    keeps = visible;
  }
  TANDEM_DEVICE void keep(const Extra& e, const HeadExtra& of) {
    keeps = visible;
    each<S::BLOCKS>([&](int n, int x) {
      if (visible.has(n, x) &&
          __ldg(of.keep + spot.i(n, x) * e.x.keep.s + spot.j(n, x) * e.x.keep.d) == 0)
        keeps.remove(n, x);
    });
  }
  // Starts copies of a bias that the pair does not share.
  template <typename Params>
  TANDEM_DEVICE void fetch(const Params& params, WholePair pair, int stage) const {
    if (!each_bias || !bias.chunks) return;
    const Extra e = make_extra(params, pair.entry);
    bias.fetch(e, head_extra<false>(e, pair.head), stage);
  }
  // Reads what is not at hand yet. Called while products are on their way.
  template <typename Params>
  TANDEM_DEVICE void begin(const Params& params, WholePair pair, int stage) {
    const bool other = pair.head != head, keep_now = params.features.KEEP && (each_keep || other),
               bias_now = bias.dtype && (each_bias ? !bias.chunks : other);
    if (!keep_now && !bias_now) return;
    const Extra e = make_extra(params, pair.entry);
    const HeadExtra of = head_extra<false>(e, pair.head);
    head = pair.head;
    if (keep_now) keep(e, of);
    if (!bias_now) return;
    // A bias of the batch serves entries whose masks differ, so no entry's mask decides what is
    // read. Selected by words: a reference to one of the sets would put both in local memory.
    Set seen;
#pragma unroll
    for (int n = 0; n < Set::WORDS; ++n) seen.word[n] = each_bias ? keeps.word[n] : visible.word[n];
    bias.load(e, of, spot, seen, each_bias ? stage : 0);
  }
  // Turns products into weights relative to the row's maximum, in place. m, l: of the lane's two
  // rows; a row that sees nothing has minus infinity and 0.
  // SKIPS: where registers allow a branch, rows that see everything skip the selection.
  template <bool SKIPS>
  TANDEM_DEVICE void weigh(Block& s, float scale, int stage, float (&m)[2], float (&l)[2]) const {
    each<S::BLOCKS>([&](int n, int x) { s[0][n][x] = __fmul_rn(scale, s[0][n][x]); });
    if (bias.dtype) bias.add(s, spot, each_bias ? stage : 0);
    if (!SKIPS || !keeps.has_all())
      each<S::BLOCKS>([&](int n, int x) {
        if (!keeps.has(n, x)) s[0][n][x] = minus_infinity();
      });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = minus_infinity();
#pragma unroll
      for (int n = 0; n < S::BLOCKS; ++n)
        top = fmaxf(top, fmaxf(s[0][n][2 * h], s[0][n][2 * h + 1]));
      m[h] = top = quad_max(top);
      const float base = top == minus_infinity() ? 0.f : top;
      float sum = 0.f;
#pragma unroll
      for (int n = 0; n < S::BLOCKS; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[0][n][2 * h + c];
          x = exp2_fast(__fsub_rn(x, base) * kLog2e);
          sum += x;
        }
      l[h] = quad_sum(sum);
    }
  }
};

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
