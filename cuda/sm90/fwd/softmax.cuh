// SPDX-License-Identifier: MIT OR Apache-2.0
// Online softmax of a consumer warpgroup, on the accumulators of S = Q K^T.
#ifndef TANDEM_CUDA_SM90_FWD_SOFTMAX_CUH
#define TANDEM_CUDA_SM90_FWD_SOFTMAX_CUH
#include "../../parts/max_logit.cuh"
#include "problem/rounded_weights.h"
#include "problem/tile_range.h"
#include "shared_storage.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Whether scores are multiplied by the scale after they are compared. A scale that is not positive,
// or hardly, comes before the comparison.
TANDEM_DEVICE bool plain_scale(const FwdBlock& u) { return u.scale > kPlainScale; }
// The factor that turns products into scores in natural units. Where the scale came first, products
// are already in powers of two.
TANDEM_DEVICE float product_unit(const FwdBlock& u) { return plain_scale(u) ? u.scale : kLn2; }
// The factor of products in Softmax::step().
TANDEM_DEVICE float step_scale(const FwdBlock& u) {
  return plain_scale(u) ? u.scale * kLog2e : 1.f;
}
// Multiplies products by a scale that comes before the comparison.
template <int COUNT>
TANDEM_DEVICE void scale_products(float (&s)[COUNT], const FwdBlock& u) {
  if (plain_scale(u)) return;
  const float first = opaque(u.scale) * kLog2e;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) s[i] *= first;
}
// Row and column of the thread's first accumulator of a tile. They are computed again at each use:
// in the main loops, accumulators need the registers.
TANDEM_DEVICE int accumulator_row() {
  const int thread = read_tid_x() - 128;
  return thread / 32 * 16 + thread % 32 / 4;
}
TANDEM_DEVICE int accumulator_col() { return read_tid_x() % 4 * 2; }

// Sets the elements that the band hides to `hidden`. row, col: of the thread's first element.
template <int N>
TANDEM_DEVICE void mask_tile(float (&s)[N / 2], TandemBand band, int row, int col, int seq_kv,
                             float hidden) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r + band.off;
    const int most = min(seq_kv - 1, at + band.right) - col, least = at - band.left - col;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int x = 8 * j + c;
        s[4 * j + 2 * r + c] = (x > most) | (x < least) ? hidden : s[4 * j + 2 * r + c];
      }
  }
}

// The bits of the largest of a thread's elements of row r. The elements are compared as integers,
// three at a time: their order is that of numbers where one is not negative, and the opposite order
// if all are negative.
template <int N>
TANDEM_DEVICE int top_word(const float (&s)[N / 2], int r) {
  const auto word = [&](int j, int c) { return float_bits(s[4 * j + 2 * r + c]); };
  int a = max(word(0, 0), word(0, 1)), b = max(word(1, 0), word(1, 1));
#pragma unroll
  for (int j = 2; j < N / 8; j += 2) {
    a = __vimax3_s32(a, word(j, 0), word(j, 1));
    b = __vimax3_s32(b, word(j + 1, 0), word(j + 1, 1));
  }
  return max(a, b);
}
// The bits of the smallest one as integers: of negative numbers the largest.
template <int N>
TANDEM_DEVICE int bottom_word(const float (&s)[N / 2], int r) {
  const auto word = [&](int j, int c) { return float_bits(s[4 * j + 2 * r + c]); };
  int a = min(word(0, 0), word(0, 1)), b = min(word(1, 0), word(1, 1));
#pragma unroll
  for (int j = 2; j < N / 8; j += 2) {
    a = __vimin3_s32(a, word(j, 0), word(j, 1));
    b = __vimin3_s32(b, word(j + 1, 0), word(j + 1, 1));
  }
  return min(a, b);
}

// The maximum of each of the thread's two rows, over all columns.
template <int N>
TANDEM_DEVICE void find_tops(float (&top)[2], const float (&s)[N / 2]) {
  const int word[2] = {quad_max(top_word<N>(s, 0)), quad_max(top_word<N>(s, 1))};
#pragma unroll
  for (int r = 0; r < 2; ++r) top[r] = __int_as_float(word[r]);
  if (__any_sync(kAllLanes, (word[0] | word[1]) < 0)) {  // seldom
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int least = ~quad_max(~bottom_word<N>(s, r));
      if (word[r] < 0) top[r] = __int_as_float(least);
    }
  }
}

// A score beyond +-2^20, in powers of two, is far: an exact product minus the rounded origin is
// then off by 2^-4 and more, up to 2^100.
constexpr float kFarScore = 1048576.f;

// Origin of a row, which its weights are relative to. Near: 2^m. Far: m is in units of products,
// before the scale, and is subtracted from those, which f32 does exactly or nearly so. A row that
// has seen no key is far, and m is minus infinity.
struct Origin {
  float m;
  bool far;
  // The factor that turns m into ln of the origin. natural: the factor that turns products into
  // scores.
  TANDEM_DEVICE float ln_unit(float natural) const { return far ? natural : kLn2; }
  // How many powers of two this origin is above b. NaN if neither row has seen a key.
  TANDEM_DEVICE float above(const Origin& b, float scale) const {
    if (far) return b.far ? (m - b.m) * scale : fmaf(m, scale, -b.m);
    return b.far ? -fmaf(b.m, scale, -m) : m - b.m;
  }
};

// A number's bits as an integer, in the order of numbers; and back. It is its own inverse.
TANDEM_DEVICE int ordered_word(int bits) { return bits < 0 ? bits ^ 0x7fffffff : bits; }
// Words that no finite product has, NaN as numbers: below all products, and above all of them. A
// product that is NaN ends the search of its tile.
constexpr int kNoneSeen = int(0x80000000u), kAllSeen = 0x7fffffff;

// Whether largest logits are wanted. A vote shows the compiler that the threads of a warp agree.
TANDEM_DEVICE bool wants_largest(const FwdPush& push) {
  return __any_sync(kAllLanes, push.max_logit != 0);
}

// Online softmax: the running maximum and sum of a thread's two rows.
template <int N>
struct Softmax {
  // l: sum of the weights of this thread's columns. Its sign is negative where the row is far: a
  // flag of its own would take a register.
  float m[2], l[2];
  // The ordered_word() of the largest product that the warp's rows have had, the same in all lanes;
  // kAllSeen: it is not wanted. A warp meets a larger one in few steps, each of its rows in many
  // more.
  int seen;
  // wanted: whether the largest product is.
  TANDEM_DEVICE explicit Softmax(bool wanted = false)
      : m{-INFINITY, -INFINITY}, l{-0.f, -0.f}, seen(wanted ? kNoneSeen : kAllSeen) {}
  TANDEM_DEVICE Origin origin(int r) const { return {m[r], float_bits(l[r]) < 0}; }
  TANDEM_DEVICE float sum(int r) const { return fabsf(l[r]); }
  TANDEM_DEVICE void move(int r, const Origin& to) {
    m[r] = to.m;
    l[r] = to.far ? -sum(r) : sum(r);
  }

  // The largest product; NaN: no row has had any, or it is not wanted.
  TANDEM_DEVICE float largest() const { return __int_as_float(ordered_word(seen)); }
  // Raises it by each row's largest word, of which those below 0 are not in order. rows: how many
  // rows there are from the thread's first one on. Returns whether no row has a word from 0 on.
  TANDEM_DEVICE bool see(const int (&row)[2], int rows) {
    int word = kNoneSeen;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (8 * r < rows) word = max(word, row[r]);
    word = __reduce_max_sync(kAllLanes, word);
    if (word >= 0) seen = max(seen, word);
    return word < 0;
  }
  // The same by the largest products of rows, of which all are negative. A warp that has no rows
  // need not ask again.
  TANDEM_DEVICE void see_negative(const float (&top)[2], int rows) {
    int word = kNoneSeen;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (8 * r < rows) word = max(word, ordered_word(float_bits(top[r])));
    word = __reduce_max_sync(kAllLanes, word);
    seen = word == kNoneSeen ? kAllSeen : max(seen, word);
  }

  // lse of a row whose weights add up to l.
  TANDEM_DEVICE float lse(int r, float l, float natural) const {
    return l == 0.f ? -INFINITY : fmaf(m[r], origin(r).ln_unit(natural), logf(l));
  }

  // Turns products into weights. factor: what earlier results have to be multiplied by. m follows
  // the maximum of the row by slack (FwdBlock). Returns whether any factor in the warp is not 1.
  // rows(): how many rows there are from the thread's first one on; it is asked seldom.
  template <typename Rows>
  TANDEM_DEVICE bool step(float (&s)[N / 2], float scale, float slack, float (&factor)[2],
                          const Rows& rows) {
    return step(s, scale, slack, factor, rows, [] {});
  }
  // The same; checked() is called after a vote on all products.
  template <typename Rows, typename Checked>
  TANDEM_DEVICE bool step(float (&s)[N / 2], float scale, float slack, float (&factor)[2],
                          const Rows& rows, const Checked& checked) {
    // A row rarely needs another m. Each thread first tests its own numbers, without waiting for
    // the maximum of its row. If all are negative, 0 is tested instead.
    bool grown = (float_bits(l[0]) | float_bits(l[1])) < 0;
    bool larger = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int top = max(top_word<N>(s, r), 0);
      grown |= !(__int_as_float(top) * scale <= m[r] + slack);
      larger |= top > seen;
      factor[r] = 1.f;
    }
    bool rescales = false;
    if (__any_sync(kAllLanes, grown | larger)) {
      bool negative = false;
      if (__any_sync(kAllLanes, seen != kAllSeen)) {
        negative = see({top_word<N>(s, 0), top_word<N>(s, 1)}, rows());
        grown = __any_sync(kAllLanes, grown | negative);
      } else {
        grown = true;
      }
      if (grown) {
        float top[2];
        find_tops<N>(top, s);
        if (__any_sync(kAllLanes, negative)) see_negative(top, rows());
        bool grows[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float powers = top[r] * scale;
          grows[r] = origin(r).far ? top[r] > m[r] : powers > m[r] + slack;
          if (grows[r]) {
            const bool far = !(fabsf(powers) <= kFarScore);
            const Origin to{far ? top[r] : powers, far};
            factor[r] = exp2_fast(origin(r).above(to, scale));
            move(r, to);
          }
          if (origin(r).far & (m[r] > -INFINITY)) {
#pragma unroll
            for (int i = 0; i < N / 4; ++i) s[i / 2 * 4 + 2 * r + i % 2] -= m[r];
          }
        }
        rescales = __any_sync(kAllLanes, grows[0] | grows[1]);
      }
    }
    checked();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // No key is visible yet: any finite number gives weights of 0.
      const float base = origin(r).far ? 0.f : m[r];
      float x = 0.f, y = 0.f;
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        s[4 * j + 2 * r] = exp2_fast(fmaf(s[4 * j + 2 * r], scale, -base));
        s[4 * j + 2 * r + 1] = exp2_fast(fmaf(s[4 * j + 2 * r + 1], scale, -base));
        x += s[4 * j + 2 * r];
        y += s[4 * j + 2 * r + 1];
      }
      l[r] = fmaf(l[r], factor[r], copysignf(x + y, l[r]));
    }
    return rescales;
  }
};

struct BatchHead {
  int batch, head;
};
// Raises the largest logit of a head to the products that the warp's rows have had, if it is
// wanted. unit: the factor that turns these into scores. where(): the batch entry and the head.
// Nothing waits for the atomic.
template <int N, typename Where>
TANDEM_DEVICE void raise_max_logit(const FwdBlock& u, const FwdPush& push,
                                   const Softmax<N>& softmax, float unit, const Where& where) {
  if (!wants_largest(push)) return;
  const float x = softmax.largest() * unit;
  const BatchHead of = where();
  if (read_tid_x() % 32 == 0 && x > -INFINITY)
    raise_to(max_logit_at(u, push, of.batch, of.head), x);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
