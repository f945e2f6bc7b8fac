// SPDX-License-Identifier: MIT OR Apache-2.0
// Heads of up to 64 queries and 64 keys, whole: each warp of four has the weights of 16 query rows
// in accumulators, over all keys, so that softmax needs one pass and no other workgroup. A
// workgroup visits batch entries of one head; the next entry's rows are on their way meanwhile.
// What all entries share, the visible positions and a bias of the whole batch, is read once. The
// backward forms softmax again, and delta with it, so it needs neither lse nor o, nor a launch
// before it.
#ifndef TANDEM_CUDA_SM80_WHOLE_HEAD_CUH
#define TANDEM_CUDA_SM80_WHOLE_HEAD_CUH
#include "shape.cuh"
#include "weigh.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

constexpr int kWholeRows = 64, kWholeWarps = 4, kWholeThreads = 32 * kWholeWarps;
constexpr int kWholeBlocks = kWholeRows / 8;  // of 8 keys, in the accumulators of a warp
using WholeSpot = Spot<true, kWholeBlocks>;
using WholeBlock = float[1][kWholeBlocks][4];

// The batch entries of a workgroup: a slice of all entries, of one head.
struct WholeWork {
  int head, slice, begin, end;
};
template <typename Block>
TANDEM_DEVICE bool find_whole(const Block& u, int batch, WholeWork* work) {
  const uint index = block_number();
  if (index >= u.total) return false;
  const int slices = int(u.tiles);
  work->head = int(index / u.tiles), work->slice = int(index % u.tiles);
  work->begin = int(int64_t(work->slice) * batch / slices);
  work->end = int(int64_t(work->slice + 1) * batch / slices);
  return true;
}

// The bias of a thread's elements, f32, in shared memory that no other thread accesses.
struct WholeBias {
  uint at;
  explicit TANDEM_DEVICE WholeBias(uint tile) : at(tile + 16 * threadIdx.x) {}
  TANDEM_DEVICE void load(const Extra& e, const HeadExtra& of, const WholeSpot& spot,
                          uint seen) const {
    with_type(e.f.BIAS, [&](auto type) {
      using E = decltype(type);
      const auto* base = reinterpret_cast<const typename E::Element*>(of.bias);
#pragma unroll
      for (int n = 0; n < kWholeBlocks; ++n) {
        float x[4];
#pragma unroll
        for (int c = 0; c < 4; ++c)
          x[c] =
              seen >> (4 * n + c) & 1u
                  ? E::to_float(__ldg(base + spot.i(n, c) * e.x.bias.s + spot.j(n, c) * e.x.bias.d))
                  : 0.f;
        put_chunk(at + 16 * kWholeThreads * n,
                  make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                             __float_as_uint(x[3])));
      }
    });
  }
  TANDEM_DEVICE void add(WholeBlock& s) const {
#pragma unroll
    for (int n = 0; n < kWholeBlocks; ++n) {
      const uint4 x = get_chunk(at + 16 * kWholeThreads * n);
      s[0][n][0] = __fadd_rn(s[0][n][0], __uint_as_float(x.x));
      s[0][n][1] = __fadd_rn(s[0][n][1], __uint_as_float(x.y));
      s[0][n][2] = __fadd_rn(s[0][n][2], __uint_as_float(x.z));
      s[0][n][3] = __fadd_rn(s[0][n][3], __uint_as_float(x.w));
    }
  }
};

// From products to weights, for the rows of a lane.
struct WholeScores {
  WholeSpot spot;
  WholeBias bias;
  uint visible;  // by position, the same for all entries
  uint keeps;    // also by the mask
  bool each_bias, each_keep;

  template <typename Params>
  TANDEM_DEVICE WholeScores(const Params& params, int head, int entry, uint bias_tile)
      : bias(bias_tile) {
    const Lane me;
    spot = {16 * me.warp + me.g, 2 * me.t};
    const Extra e = make_extra(params, entry);
    each_bias = e.f.BIAS && e.x.bias.b != 0, each_keep = e.f.KEEP && e.x.keep.b != 0;
    visible = 0;
    each<kWholeBlocks>([&](int n, int x) {
      if (position_visible(e, spot.i(n, x), spot.j(n, x))) visible |= 1u << (4 * n + x);
    });
    keeps = visible;
    const HeadExtra of = head_extra(e, head);
    if (e.f.KEEP && !each_keep) keeps = kept(e, of);
    if (e.f.BIAS && !each_bias) bias.load(e, of, spot, keeps);
  }
  TANDEM_DEVICE uint kept(const Extra& e, const HeadExtra& of) const {
    uint seen = visible;
    each<kWholeBlocks>([&](int n, int x) {
      if ((seen >> (4 * n + x) & 1u) &&
          __ldg(of.keep + spot.i(n, x) * e.x.keep.s + spot.j(n, x) * e.x.keep.d) == 0)
        seen &= ~(1u << (4 * n + x));
    });
    return seen;
  }
  // Reads what the entry does not share with others. Called while products are on their way.
  template <typename Params>
  TANDEM_DEVICE void begin(const Params& params, int head, int entry) {
    if (!each_bias && !each_keep) return;
    const Extra e = make_extra(params, entry);
    const HeadExtra of = head_extra(e, head);
    if (each_keep) keeps = kept(e, of);
    if (each_bias) bias.load(e, of, spot, keeps);
  }
  // Turns products into weights relative to the row's maximum, in place. m, l: of the lane's two
  // rows; a row that sees nothing has minus infinity and 0.
  TANDEM_DEVICE void weigh(WholeBlock& s, float scale, bool has_bias, float (&m)[2],
                           float (&l)[2]) const {
    each<kWholeBlocks>([&](int n, int x) { s[0][n][x] = __fmul_rn(scale, s[0][n][x]); });
    if (has_bias) bias.add(s);
    each<kWholeBlocks>([&](int n, int x) {
      if (!(keeps >> (4 * n + x) & 1u)) s[0][n][x] = minus_infinity();
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = minus_infinity();
#pragma unroll
      for (int n = 0; n < kWholeBlocks; ++n)
        top = fmaxf(top, fmaxf(s[0][n][2 * h], s[0][n][2 * h + 1]));
      m[h] = top = quad_max(top);
      const float base = top == minus_infinity() ? 0.f : top;
      float sum = 0.f;
#pragma unroll
      for (int n = 0; n < kWholeBlocks; ++n)
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
