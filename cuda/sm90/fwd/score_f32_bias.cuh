// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with a dense bias of f32: how a bias tile lies in shared memory, and its score policy.
#ifndef TANDEM_CUDA_SM90_FWD_SCORE_F32_BIAS_CUH
#define TANDEM_CUDA_SM90_FWD_SCORE_F32_BIAS_CUH
#include "score_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Turns products into scores: times the scale, plus the bias. A warpgroup's tile of the bias has
// panels of 32 keys, with 128 bytes of each of 64 rows in SWIZZLE_128B. A thread loads pairs of
// keys as its accumulators have them. In blocks of 8 keys, the first rows of two neighbours lie in
// the same banks: a thread in an odd row loads the block two further, or two before, and then
// exchanges both.
template <int N>
TANDEM_DEVICE void add_f32_bias(float (&s)[N / 2], uint tile, float scale) {
  const int thread = read_tid_x(), row = thread / 4 % 8;
  const bool odd = row & 1;
  // Swizzle of the row thread / 32 % 4 * 16 + row, pair of 16-byte chunks 0 or 2.
  const uint from = tile + uint(thread / 32 % 4 * 16 + row) * kPanelBytes +
                    (uint((odd ? 4 : 0) + thread / 2 % 2) ^ uint(row)) * 16 + uint(thread % 2 * 8);
  // n: panel, half of its 16 rows, and which of its pairs of blocks.
  float2 x[2][2];
  const auto load = [&](int n) {
    const uint at = from + uint(n / 4 * 64 * kPanelBytes + n / 2 % 2 * 8 * kPanelBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) x[n % 2][i] = ld_shared_v2_f32(at ^ uint((n % 2 + 2 * i) * 32));
  };
  load(0);
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    if (n + 1 < N / 8) load(n + 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 y = x[n % 2][i], z = x[n % 2][1 - i];
      float* const to = s + 4 * (n / 4 * 4 + n % 2 + 2 * i) + n / 2 % 2 * 2;
      to[0] = fmaf(to[0], scale, odd ? z.x : y.x);
      to[1] = fmaf(to[1], scale, odd ? z.y : y.y);
    }
  }
}

// Score policy. The bias is added behind the products, so that it is exact for any scale and size:
// numbers at the limits of f32, over a scale, would not fit. Otherwise as BiasScore.
template <typename T, typename S, typename Params>
struct F32BiasScore : BiasScore<T, S, Params> {
  using Base = BiasScore<T, S, Params>;
  using Base::bias_pipe;
  using Base::c;
  using Base::params;
  using Base::q;
  using Tile = typename Base::Tile;
  static_assert(Base::HOLDS_Q, "q is in registers");
  TANDEM_DEVICE F32BiasScore(const Params& p, FwdConsumer<T, S>& consumer,
                             typename Base::Held& held)
      : Base(p, consumer, held) {}
  TANDEM_DEVICE void begin_tile(const Tile&) {
    this->find_keep_rows();
    this->take_q();
    c.kv.wait_k();
    this->fetch_hidden_rows();
  }
  TANDEM_DEVICE bool begin_step(const Tile& at, int t) {
    if (t < at.begin) return false;
    c.kv.wait_k();
    this->fetch_hidden_rows();
    return true;
  }
  TANDEM_DEVICE void product_s() {
    const uint64_t k = advance(c.k_at, c.kv.k.stage() * S::K_BYTES);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < S::D / 16; ++n)
      Wgmma<T, S::N>::template rs<0>(c.s, q[n][0], q[n][1], q[n][2], q[n][3],
                                     advance(k, n / 4 * S::K_PANEL + n % 4 * 32), n > 0);
    wgmma_commit_group();
  }
  TANDEM_DEVICE void issued() {}
  TANDEM_DEVICE void score(const Tile& at, int t) {
    mbarrier_wait(c.shared.bias_full(c.warpgroup, bias_pipe.stage()), bias_pipe.phase());
    this->read_hidden_columns();
    add_f32_bias<S::N>(c.s, c.shared.bias(c.warpgroup, bias_pipe.stage()), params.block.scale);
    Base::score(at, t);
  }
  // Releases the stage of the bias. Weights are computed from all that was loaded, for the reason
  // that BiasScore gives.
  TANDEM_DEVICE void weighted() { Base::issued(); }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
