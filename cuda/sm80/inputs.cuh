// SPDX-License-Identifier: MIT OR Apache-2.0
// What fwd, bwd_dkv, bwd_dq and bwd_dkv_dq have to know of a problem's optional inputs: where the
// rows of a batch entry lie, and what changes its scores. NoInputs is for problems without any.
// SimpleInputs is for softmax with a dense bias, a keep mask, lengths or a sink.
#ifndef TANDEM_CUDA_SM80_INPUTS_CUH
#define TANDEM_CUDA_SM80_INPUTS_CUH
#include "../parts/pair.cuh"
#include "scores.cuh"
#include "shape.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, typename Params>
struct NoInputs {
  static constexpr bool SOME = false;
  const Params& params;
  int batch;
  TANDEM_DEVICE NoInputs(const Params& params, int batch) : params(params), batch(batch) {}
  // Rows of the batch entry, and its band.
  TANDEM_DEVICE int seq_q() const { return params.block.seq_q; }
  TANDEM_DEVICE int seq_kv() const { return params.block.seq_kv; }
  TANDEM_DEVICE TandemBand band() const { return mask_band(params.block); }
  // Views of the rows of a head, of queries or keys, for reading; then those of results.
  TANDEM_DEVICE View<T> queries(uint64_t address, const Strides& s, int head, int width,
                                bool wide) const {
    return make_view<T>(address, s, batch, head, seq_q(), width, wide);
  }
  TANDEM_DEVICE View<T> keys(uint64_t address, const Strides& s, int head, int width,
                             bool wide) const {
    return make_view<T>(address, s, batch, head, seq_kv(), width, wide);
  }
  TANDEM_DEVICE View<T> written_queries(uint64_t address, const Strides& s, int head, int width,
                                        bool wide) const {
    return queries(address, s, head, width, wide);
  }
  TANDEM_DEVICE View<T> written_keys(uint64_t address, const Strides& s, int head, int width,
                                     bool wide) const {
    return keys(address, s, head, width, wide);
  }
};

// Lengths of keys alone, which any kernel of NoInputs takes. Entries have all query rows.
template <typename T, typename Params>
struct KeyLengths : NoInputs<T, Params> {
  using All = NoInputs<T, Params>;
  int64_t first;  // where the entry starts in packed tensors
  int count;
  TANDEM_DEVICE KeyLengths(const Params& params, int batch) : All(params, batch) {
    const Features& f = params.features;
    count = entry_length(Lengths(f.LENGTHS_KV), params.push.extra[f.AT_LENGTHS_KV], batch,
                         params.block.seq_kv, params.extra.total_kv, &first, ReadLengthPastL1());
  }
  TANDEM_DEVICE int seq_kv() const { return count; }
  TANDEM_DEVICE TandemBand band() const {
    const auto& u = All::params.block;
    return TandemBand{u.band_left, u.band_right,
                      All::params.extra.bottom_right ? count - u.seq_q : u.band_off};
  }
  TANDEM_DEVICE View<T> keys(uint64_t address, const Strides& s, int head, int width,
                             bool wide) const {
    return make_rows_view<T>(0, address, s, All::batch, head, first, count, width, wide);
  }
};

// Elements of the bias of a block of 16 MT rows and 8 N columns, as accumulators hold them: element
// [r][n][x] has row + 16 r + 8 (x / 2) and col + 8 n + x % 2.
template <int MT, int N>
struct BiasBlock {
  float x[MT][N][4];
};

template <typename T, typename Params>
struct SimpleInputs {
  static constexpr bool SOME = true;
  Extra e;
  TANDEM_DEVICE SimpleInputs(const Params& params, int batch) : e(make_extra(params, batch)) {}
  TANDEM_DEVICE int seq_q() const { return e.seq_q; }
  TANDEM_DEVICE int seq_kv() const { return e.seq_kv; }
  TANDEM_DEVICE TandemBand band() const { return e.band; }
  TANDEM_DEVICE View<T> queries(uint64_t address, const Strides& s, int head, int width,
                                bool wide) const {
    return query_view<T>(e, 0, address, s, head, width, wide);
  }
  TANDEM_DEVICE View<T> keys(uint64_t address, const Strides& s, int head, int width,
                             bool wide) const {
    return key_view<T>(e, 0, address, s, head, width, wide);
  }
  TANDEM_DEVICE View<T> written_queries(uint64_t address, const Strides& s, int head, int width,
                                        bool wide) const {
    return make_rows_view<T>(0, address, s, e.batch, head, e.first_q, e.written_q, width, wide);
  }
  TANDEM_DEVICE View<T> written_keys(uint64_t address, const Strides& s, int head, int width,
                                     bool wide) const {
    return make_rows_view<T>(0, address, s, e.batch, head, e.first_kv, e.written_kv, width, wide);
  }

  // Whether keep leaves nothing of a tile, which then need not be visited. It may have a barrier.
  template <int THREADS>
  TANDEM_DEVICE bool leaves_out(int head, int i0, int rows, int j0, int cols) const {
    if (!e.f.KEEP || !e.f.SKIP) return false;
    const HeadExtra of = head_extra<false>(e, head);
    const int distinct = e.x.keep.s == 0 ? 1 : rows;
    int kept = 0;
#pragma unroll 8
    for (int at = int(threadIdx.x); at < distinct * cols; at += THREADS) {
      const int i = i0 + at / cols, j = j0 + at % cols;
      if ((i < e.seq_q) & (j < e.seq_kv)) kept |= __ldg(of.keep + i * e.x.keep.s + j * e.x.keep.d);
    }
    return __syncthreads_or(kept) == 0;
  }

  // Loads the bias of a block, before the products that it is added to. KEYS: columns are keys, and
  // rows are queries. Otherwise rows are keys. Elements outside of the bias are some element of it;
  // nothing comes of them.
  template <bool KEYS, int MT, int N>
  TANDEM_DEVICE void load_bias(BiasBlock<MT, N>& to, int head, int row, int col) const {
    if (!e.f.BIAS) return;
    const HeadExtra of = head_extra<false>(e, head);
    with_type(e.f.BIAS, [&](auto type) {
      using E = decltype(type);
      using Element = typename E::Element;
      const Strides& by = e.x.bias;
      const auto* base = reinterpret_cast<const Element*>(of.bias);
      const int last_i = e.seq_q - 1, last_j = e.seq_kv - 1;
      if constexpr (KEYS) {
        if constexpr (std::is_same<E, F32>::value) {
          // Of an even number of keys, two that lie side by side both exist or not.
          const bool pairs = by.d == 1 && by.s % 2 == 0 && e.seq_kv % 2 == 0 &&
                             reinterpret_cast<uint64_t>(base) % 8 == 0;
          if (pairs) {
#pragma unroll
            for (int r = 0; r < 2 * MT; ++r) {
              const float* line = base + tandem_min(row + 8 * r, last_i) * by.s;
#pragma unroll
              for (int n = 0; n < N; ++n) {
                const float2 two = __ldg(
                    reinterpret_cast<const float2*>(line + tandem_min(col + 8 * n, last_j - 1)));
                to.x[r / 2][n][2 * (r % 2)] = two.x, to.x[r / 2][n][2 * (r % 2) + 1] = two.y;
              }
            }
            return;
          }
        }
#pragma unroll
        for (int r = 0; r < 2 * MT; ++r) {
          const Element* line = base + tandem_min(row + 8 * r, last_i) * by.s;
#pragma unroll
          for (int n = 0; n < 2 * N; ++n)
            to.x[r / 2][n / 2][2 * (r % 2) + n % 2] =
                E::to_float(__ldg(line + tandem_min(col + 8 * (n / 2) + n % 2, last_j) * by.d));
        }
      } else {
#pragma unroll
        for (int n = 0; n < 2 * N; ++n) {
          const Element* line = base + tandem_min(col + 8 * (n / 2) + n % 2, last_i) * by.s;
#pragma unroll
          for (int r = 0; r < 2 * MT; ++r)
            to.x[r / 2][n / 2][2 * (r % 2) + n % 2] =
                E::to_float(__ldg(line + tandem_min(row + 8 * r, last_j) * by.d));
        }
      }
    });
  }

  // Turns scores times the scale into scores: adds the bias, and sets what keep hides to -inf.
  template <bool KEYS, int MT, int N>
  TANDEM_DEVICE void apply(float (&s)[MT][N][4], const BiasBlock<MT, N>& bias, int head, int row,
                           int col) const {
    if (e.f.BIAS)
#pragma unroll
      for (int r = 0; r < MT; ++r)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int x = 0; x < 4; ++x) s[r][n][x] = __fadd_rn(s[r][n][x], bias.x[r][n][x]);
    if (!e.f.KEEP) return;
    const HeadExtra of = head_extra<false>(e, head);
    const Strides& by = e.x.keep;
    const bool one_row = by.s == 0;
    if constexpr (KEYS) {
#pragma unroll
      for (int n = 0; n < 2 * N; ++n) {
        const int j = tandem_min(col + 8 * (n / 2) + n % 2, e.seq_kv - 1);
        const char* line = of.keep + j * by.d;
        bool keeps = one_row && __ldg(line) != 0;
#pragma unroll
        for (int r = 0; r < 2 * MT; ++r) {
          if (!one_row) keeps = __ldg(line + tandem_min(row + 8 * r, e.seq_q - 1) * by.s) != 0;
          float& x = s[r / 2][n / 2][2 * (r % 2) + n % 2];
          x = keeps ? x : minus_infinity();
        }
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2 * MT; ++r) {
        const int j = tandem_min(row + 8 * r, e.seq_kv - 1);
        const char* line = of.keep + j * by.d;
        bool keeps = one_row && __ldg(line) != 0;
#pragma unroll
        for (int n = 0; n < 2 * N; ++n) {
          const int i = tandem_min(col + 8 * (n / 2) + n % 2, e.seq_q - 1);
          if (!one_row) keeps = __ldg(line + i * by.s) != 0;
          float& x = s[r / 2][n / 2][2 * (r % 2) + n % 2];
          x = keeps ? x : minus_infinity();
        }
      }
    }
  }
};

// The inputs that the kernels of a row of src/plan/sm80/tiles.inc take.
template <typename T, int ROW, typename Params>
using InputsOf = typename std::conditional<
    MmaShape<ROW>::tile.table == TileTable::ampere_inputs, SimpleInputs<T, Params>,
    typename std::conditional<MmaShape<ROW>::tile.table == TileTable::ampere_lengths,
                              KeyLengths<T, Params>, NoInputs<T, Params>>::type>::type;

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
