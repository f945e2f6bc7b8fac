// SPDX-License-Identifier: MIT OR Apache-2.0
// What the forward kernels on Hopper are made of: shared memory, the order of work, the copying thread, weights, stores.
#ifndef TANDEM_CUDA_SM90_FWD_CUH
#define TANDEM_CUDA_SM90_FWD_CUH
#include <climits>

#include "../../src/hopper_tiles.h"
#include "../../src/tile_range.h"
#include "kernels.h"
#include "wgmma.cuh"
#include "words.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

template <int N>
TANDEM_DEVICE void clear(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = 0.f;
}

// What the copying warpgroup keeps of its registers, and what the others have then: together no more than the launch
// allocated, 168 for each of 3 warpgroups, 128 for each of 4, 96 for each of 5; whoever asks for more waits for ever.
constexpr int producer_registers(const FwdTile& t) {
  return t.groups == 4 ? 24 : t.groups == 3 ? 32 : t.dv > 192 ? 24 : 40;
}
constexpr int consumer_registers(const FwdTile& t) {
  return t.groups == 4 ? 112 : t.groups == 3 ? 160 : t.dv > 192 ? 240 : 232;
}

// What a kernel knows beyond plain softmax: a dense bias, with q times the scale or without; lengths and sinks; these and whatever changes a score.
// all of softmax but a bias, masks and dropout among it.
enum class FwdSet { plain, bias, scaled_bias, lengths, full, all };

// Q_STAGES_: places for q, 0: as many as fit.
template <int ROW, FwdSet SET = FwdSet::plain, int Q_STAGES_ = 0>
struct FwdShape {
  static constexpr bool SCALED = SET == FwdSet::scaled_bias, BIAS = SCALED || SET == FwdSet::bias,
                        ALL = SET == FwdSet::all, FULL = SET == FwdSet::full || ALL,
                        LENGTHS = SET == FwdSet::lengths || FULL;
  static constexpr FwdTile tile = ALL ? fwd_all_tile(kFwdTiles[ROW]) : kFwdTiles[ROW];
  static constexpr int D = tile.d, DV = tile.dv, GROUPS = tile.groups, M = tile.rows(), N = tile.bc;
  // Who knows lengths needs more of them than who copies alone, and who makes bits still more.
  static constexpr bool MORE = LENGTHS && tile.dv > 192;
  static constexpr int PRODUCER = ALL    ? 72
                                  : MORE ? 40
                                         : producer_registers(tile),
                       CONSUMER = ALL    ? 216
                                  : MORE ? 232
                                         : consumer_registers(tile);
  static constexpr int STAGES = tile.stages, Q_STAGES = Q_STAGES_ ? Q_STAGES_
                                                        : BIAS    ? fwd_bias_q_stages(tile)
                                                                  : fwd_q_stages(tile);
  static_assert(GROUPS >= 2 && GROUPS <= 4, "registers are shared out for these");
  static constexpr bool TURNS = tile.turns && GROUPS > 1, APART = tile.apart;
  // Each warpgroup has a part of the only place for q to itself (fwd_wide.cuh, fwd_bias_three.cuh).
  static constexpr bool WIDE = SET == FwdSet::plain && fwd_is_wide(tile), THREE = BIAS && tile.bias;
  static constexpr int Q_PLACES = WIDE || THREE ? GROUPS : Q_STAGES,
                       Q_BARRIERS = fwd_q_barriers(tile);
  static_assert(2 * Q_PLACES <= Q_BARRIERS && (Q_STAGES == 1 || !(WIDE || THREE)), "barriers");
  static constexpr int NOTICE_BYTES = fwd_apart_notice_bytes(tile);
  static constexpr int D_PANELS = fwd_panels(D), DV_PANELS = fwd_panels(DV);
  static constexpr int Q_PANEL = M * kPanelBytes, K_PANEL = N * kPanelBytes;
  static constexpr int Q_BYTES = D_PANELS * Q_PANEL, K_BYTES = D_PANELS * K_PANEL,
                       V_BYTES = DV_PANELS * K_PANEL;
  static constexpr int K_AT = Q_STAGES * Q_BYTES, V_AT = K_AT + STAGES * K_BYTES,
                       BIAS_AT = V_AT + STAGES * V_BYTES;
  static constexpr int BIAS_STAGES = BIAS ? fwd_bias_stages(tile) : 0;
  static constexpr int BIAS_BYTES = BIAS ? 64 * N * 2 : 0;  // a stage of a warpgroup
  static constexpr int BARRIERS_AT = BIAS_AT + BIAS_STAGES * GROUPS * BIAS_BYTES;
  static constexpr int NOTICES_AT = BARRIERS_AT + fwd_bias_barriers(tile, BIAS_STAGES);
};

// Shared memory by address, and its barriers.
template <typename S>
struct Shared {
  uint at;
  TANDEM_DEVICE uint q(int stage) const { return at + stage * S::Q_BYTES; }
  TANDEM_DEVICE uint k(int stage) const { return at + S::K_AT + stage * S::K_BYTES; }
  TANDEM_DEVICE uint v(int stage) const { return at + S::V_AT + stage * S::V_BYTES; }
  TANDEM_DEVICE uint barrier(int n) const { return at + S::BARRIERS_AT + 8 * n; }
  TANDEM_DEVICE uint q_full(int stage) const { return barrier(stage); }
  TANDEM_DEVICE uint q_empty(int stage) const { return barrier(S::Q_BARRIERS / 2 + stage); }
  TANDEM_DEVICE uint k_full(int stage) const { return barrier(S::Q_BARRIERS + stage); }
  TANDEM_DEVICE uint k_empty(int stage) const { return barrier(S::Q_BARRIERS + S::STAGES + stage); }
  TANDEM_DEVICE uint v_full(int stage) const {
    return barrier(S::Q_BARRIERS + 2 * S::STAGES + stage);
  }
  TANDEM_DEVICE uint v_empty(int stage) const {
    return barrier(S::Q_BARRIERS + 3 * S::STAGES + stage);
  }
  // Behind those, what each kernel has besides.
  TANDEM_DEVICE uint behind(int n) const { return barrier(S::Q_BARRIERS + 4 * S::STAGES + n); }
  TANDEM_DEVICE uint bias(int group, int stage) const {
    return at + S::BIAS_AT + (group * S::BIAS_STAGES + stage) * S::BIAS_BYTES;
  }
  TANDEM_DEVICE uint bias_full(int group, int stage) const {
    return behind(2 * (group * S::BIAS_STAGES + stage));
  }
  TANDEM_DEVICE uint bias_empty(int group, int stage) const { return bias_full(group, stage) + 8; }
  TANDEM_DEVICE uint bias_notice(uint tile) const {
    return at + S::NOTICES_AT + tile % kBiasNotices * kBiasNoticeBytes;
  }
  TANDEM_DEVICE void init() const {
    for (int n = 0; S::BIAS && n < S::GROUPS * S::BIAS_STAGES; ++n) {
      barrier_init(bias_full(0, n), 1);
      barrier_init(bias_empty(0, n), 4);  // the warps that read it
    }
    for (int n = 0; n < S::Q_PLACES; ++n) {
      barrier_init(q_full(n), 1);
      barrier_init(q_empty(n), S::WIDE || S::THREE ? 1 : S::GROUPS);
    }
    for (int n = 0; n < S::STAGES; ++n) {
      barrier_init(k_full(n), 1);
      barrier_init(v_full(n), 1);
      barrier_init(k_empty(n), S::GROUPS);
      barrier_init(v_empty(n), S::GROUPS);
    }
    if (S::LENGTHS) barrier_init(behind(0), 1);
  }
};

// Stage and parity of the n-th step over all tiles of the workgroup.
template <int STAGES>
struct Step {
  static_assert((STAGES & (STAGES - 1)) == 0, "bits of a counter");
  uint n = 0;
  TANDEM_DEVICE int stage() const { return int(n % STAGES); }
  TANDEM_DEVICE int parity() const { return int(n / STAGES % 2); }
  TANDEM_DEVICE void next() { ++n; }
};

struct FwdPlace {
  int row0;
  uint index;  // of the head, over the batch
  TandemTiles span;
};

TANDEM_DEVICE int batch_of(const FwdBlock& u, const FwdPlace& at) {
  return int(at.index / uint(u.heads_q));
}
TANDEM_DEVICE int head_of(const FwdBlock& u, const FwdPlace& at) {
  return int(at.index % uint(u.heads_q));
}

// The tiles of this workgroup. Those of a head follow each other, so that workgroups at work at a time share its keys.
// Where later tiles are longer, a workgroup takes the last and the first, the last but one and the second, and so on: two
// are as long as any other two. What such pairs leave, less than two rounds of them, is shared out as single tiles, the longest
// of all heads first, and every other round goes backwards through the workgroups.
template <typename S>
struct Rounds {
  const FwdBlock& u;
  const FwdTailParams* tail = nullptr;  // with a dense bias
  // Twice the round, and whether it is the second of a pair; with a bias and equal tiles, how many there were.
  uint place = 0;

  TANDEM_DEVICE explicit Rounds(const FwdBlock& block) : u(block) {}
  TANDEM_DEVICE explicit Rounds(const FwdParams& params) : u(params.block) {}
  TANDEM_DEVICE explicit Rounds(const FwdFullParams& params) : u(params.block) {}
  TANDEM_DEVICE explicit Rounds(const FwdBiasParams& params)
      : u(params.block), tail(&params.tail) {}
  TANDEM_DEVICE TandemBand band() const {
    return TandemBand{u.band_left, u.band_right, u.band_off};
  }
  // With a dense bias: which of the tiles the workgroup shares out with others (src/fwd_tail.h), which come first, so that parts are
  // joined while multiprocessors have other work, and not all at the end. Formed anew each time: what products between two calls
  // kept of it would be registers.
  TANDEM_DEVICE FwdPieces pieces() const {
    return fwd_pieces(tail->shares, int(blockIdx.x) / fresh(tail->unit));
  }
  // The next tile with keys to see; nothing(place) is called for those without.
  template <typename Nothing>
  TANDEM_DEVICE bool next(FwdPlace* at, const Nothing& nothing) {
    while (any(at)) {
      if (at->span.begin < at->span.end) return true;
      nothing(*at);
    }
    return false;
  }
  // The next tile, with keys to see or without.
  TANDEM_DEVICE bool any(FwdPlace* at) {
    const bool equal = (u.band_right == TANDEM_BAND_OPEN) == (u.band_left == TANDEM_BAND_OPEN);
    for (;;) {
      const uint tiles = u.tiles, heads = u.total / tiles, pairs = (tiles + 1) / 2;
      const uint rounds = equal ? 0 : heads * pairs / gridDim.x;  // of pairs
      const uint paired = rounds < 3 ? 0 : rounds - 1;
      uint tile, head;
      FwdSteps part{0, INT_MAX};
      if (S::BIAS && equal) {
        if constexpr (S::BIAS) {
          const int n = int(place++);
          uint index = uint(n) * gridDim.x + blockIdx.x;
          if (tail->units > 0) {
            const FwdPieces pieces = this->pieces();
            index += uint(tail->units * tail->unit) - uint(pieces.many) * gridDim.x;
            if (n < pieces.many) {
              part = fwd_piece(pieces, n, tail->shares.steps);
              index = uint((pieces.first + n) * tail->unit) + blockIdx.x % uint(tail->unit);
            }
          }
          if (index >= u.total) return false;
          // The last tiles of all heads may come last (src/fwd_tail.h).
          const uint whole = u.total - uint(tail->shorts);
          const bool is_short = index >= whole;
          const uint each = is_short ? 1 : tail->shorts > 0 ? tiles - 1 : tiles;
          if (is_short) index -= whole;
          // Often all batches have the same bias: those that read a tile of it come together.
          const uint row = index / uint(tail->batches), of_batch = row / each;
          tile = is_short ? tiles - 1 : row - of_batch * each;
          head = (index - row * uint(tail->batches)) * uint(u.heads_q) + of_batch;
        }
      } else if (place / 2 < paired) {
        const uint index = place / 2 * gridDim.x + blockIdx.x;
        head = index / pairs;
        const uint pair = index - head * pairs;
        tile = place % 2 ? pair : tiles - 1 - pair;
        place += pair == tile && place % 2 == 0 ? 2 : 1;
      } else {
        const uint round = place / 2 - paired, first = round * gridDim.x;
        // The head that pairs have reached, and how many they took of it.
        const uint begin = paired * gridDim.x / pairs, taken = paired * gridDim.x - begin * pairs;
        if (first >= u.total - begin * tiles) return false;
        const bool back = !equal && round % 2 == 1;
        const uint index = first + (back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        place += 2;
        if (index >= u.total - begin * tiles) continue;
        const uint each = equal ? tiles : heads - begin, many = index / each,
                   rest = index - many * each;
        tile = equal ? rest : tiles - 1 - many;
        head = equal ? many : begin + rest;
        if (head == begin && (tile < taken || tile + taken >= tiles)) continue;
      }
      at->index = head;
      at->row0 = int(tile) * S::M;
      at->span = tandem_key_tiles(band(), at->row0, S::M, S::N, u.seq_q, u.seq_kv);
      if (S::BIAS) {
        at->span.begin = max(at->span.begin, part.begin);
        at->span.end = min(at->span.end, part.end);
        at->span.full_begin = max(at->span.full_begin, part.begin);
      }
      return true;
    }
  }
};

// ---- the copying thread -----------------------------------------------------------------------------

// A box of `rows` rows of each panel, which lie among `of` rows.
template <int PANELS>
TANDEM_DEVICE void copy_rows(uint to, const CUtensorMap* map, uint barrier, int rows, int of,
                             int row, int head, int batch) {
  barrier_expect(barrier, PANELS * rows * kPanelBytes);
#pragma unroll
  for (int p = 0; p < PANELS; ++p)
    copy_box(to + uint(p * of * kPanelBytes), map, barrier, p * kPanel, row, head, batch);
}
template <int PANELS>
TANDEM_DEVICE void copy_tile(uint to, const CUtensorMap* map, uint barrier, int rows, int row,
                             int head, int batch) {
  copy_rows<PANELS>(to, map, barrier, rows, rows, row, head, batch);
}

// Fills the places of q, k, v and bias in the order in which they are read.
template <typename S, typename Params>
struct Copier {
  const Params& params;
  const Shared<S>& shared;
  Step<S::Q_STAGES> q_step;
  Step<S::STAGES> k_step, v_step;
  Step<S::BIAS ? S::BIAS_STAGES : 1> bias_step;
  TANDEM_DEVICE Copier(const Params& p, const Shared<S>& s) : params(p), shared(s) {}
  TANDEM_DEVICE void q(int row0, int head, int batch) {
    barrier_wait(shared.q_empty(q_step.stage()), q_step.parity() ^ 1);
    copy_tile<S::D_PANELS>(shared.q(q_step.stage()), &params.q, shared.q_full(q_step.stage()), S::M,
                           row0, head, batch);
    q_step.next();
  }
  TANDEM_DEVICE void wait_k() const {
    barrier_wait(shared.k_empty(k_step.stage()), k_step.parity() ^ 1);
  }
  TANDEM_DEVICE void k(int t, int head, int batch) {
    wait_k();
    copy_tile<S::D_PANELS>(shared.k(k_step.stage()), &params.k, shared.k_full(k_step.stage()), S::N,
                           t * S::N, head, batch);
    k_step.next();
  }
  TANDEM_DEVICE void v(int t, int head, int batch) {
    barrier_wait(shared.v_empty(v_step.stage()), v_step.parity() ^ 1);
    copy_tile<S::DV_PANELS>(shared.v(v_step.stage()), &params.v, shared.v_full(v_step.stage()),
                            S::N, t * S::N, head, batch);
    v_step.next();
  }
  // Of the first `groups` warpgroups.
  TANDEM_DEVICE void bias(int t, int row0, int head, int batch, int groups) {
    const int stage = bias_step.stage(), parity = bias_step.parity();
    for (int group = 0; group < groups; ++group) {
      barrier_wait(shared.bias_empty(group, stage), parity ^ 1);
      bias_rows(group, stage, t, row0 + 64 * group, head, batch);
    }
    bias_step.next();
  }
  TANDEM_DEVICE void bias_rows(int group, int stage, int t, int row0, int head, int batch) {
    const uint full = shared.bias_full(group, stage);
    barrier_expect(full, S::BIAS_BYTES);
#pragma unroll
    for (int p = 0; p < S::N / 64; ++p)
      copy_box(shared.bias(group, stage) + uint(p * 64 * kPanelBytes), &params.bias, full,
               t * S::N + p * 64, row0, head, batch);
  }
};

// ---- the computing warpgroups -----------------------------------------------------------------------

// Turns of the warpgroups at the tensor cores: barrier 1 + n is group n's, whoever was before it arrives there.
template <typename S>
TANDEM_DEVICE void wait_turn(int group) {
  if constexpr (S::TURNS) named_sync(1 + group, 256);
}
template <typename S>
TANDEM_DEVICE void pass_turn(int group) {
  if constexpr (S::TURNS) named_arrive(1 + (group + 1 == S::GROUPS ? 0 : group + 1), 256);
}

// Scores are multiplied by a positive number after they are compared; by a scale that is not, or hardly, before.
TANDEM_DEVICE bool plain_scale(const FwdBlock& u) { return u.scale > kPlainScale; }
// What products, or where the scale came first what they are then, are multiplied by to be scores.
TANDEM_DEVICE float product_unit(const FwdBlock& u) { return plain_scale(u) ? u.scale : kLn2; }
// Row and column of the thread's first element of a tile. Asked for anew where they are needed: in the loops, accumulators
// need the registers.
TANDEM_DEVICE int fresh_row() {
  const int thread = fresh_thread() - 128;
  return thread / 32 * 16 + thread % 32 / 4;
}
TANDEM_DEVICE int fresh_col() { return fresh_thread() % 4 * 2; }

TANDEM_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
TANDEM_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Elements that the band hides become `hidden`. row, col: of the thread's first element.
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

// The largest of a thread's elements of row r, by comparing words, three at a time: in the order of numbers where one is
// not negative, in the opposite order if all are.
template <int N>
TANDEM_DEVICE int top_word(const float (&s)[N / 2], int r) {
  const auto word = [&](int j, int c) { return word_of(s[4 * j + 2 * r + c]); };
  int a = max(word(0, 0), word(0, 1)), b = max(word(1, 0), word(1, 1));
#pragma unroll
  for (int j = 2; j < N / 8; j += 2) {
    a = __vimax3_s32(a, word(j, 0), word(j, 1));
    b = __vimax3_s32(b, word(j + 1, 0), word(j + 1, 1));
  }
  return max(a, b);
}
// The smallest one: of numbers that are all negative the largest.
template <int N>
TANDEM_DEVICE int bottom_word(const float (&s)[N / 2], int r) {
  const auto word = [&](int j, int c) { return word_of(s[4 * j + 2 * r + c]); };
  int a = min(word(0, 0), word(0, 1)), b = min(word(1, 0), word(1, 1));
#pragma unroll
  for (int j = 2; j < N / 8; j += 2) {
    a = __vimin3_s32(a, word(j, 0), word(j, 1));
    b = __vimin3_s32(b, word(j + 1, 0), word(j + 1, 1));
  }
  return min(a, b);
}
TANDEM_DEVICE int quad_max(int x) {
  x = max(x, __shfl_xor_sync(kAllLanes, x, 1));
  return max(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// The largest numbers of the thread's two rows, over all columns.
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

// Scores beyond +-2^20 in powers of two are far: an exact product minus the rounded origin is then
// off by 2^-4 and more, up to 2^100.
constexpr float kFarScore = 1048576.f;

// What weights of a row are relative to. Near: 2^m. Far: m is in units of products, before the
// scale, and is subtracted from those, as f32 does exactly or nearly so. A row that has seen
// nothing is far, and m is minus infinity.
struct Origin {
  float m;
  bool far;
  // ln of it. natural: what products are multiplied by to be scores.
  TANDEM_DEVICE float ln_unit(float natural) const { return far ? natural : kLn2; }
  // By how many powers of two it is above b's; NaN if both rows have seen nothing.
  TANDEM_DEVICE float above(const Origin& b, float scale) const {
    if (far) return b.far ? (m - b.m) * scale : fmaf(m, scale, -b.m);
    return b.far ? -fmaf(b.m, scale, -m) : m - b.m;
  }
};

// The state of a thread's two rows.
template <int N>
struct Softmax {
  // l: the sum of this thread's columns, with a minus where the row is far: a flag of its own would
  // be a register.
  float m[2], l[2];
  TANDEM_DEVICE Softmax() : m{-INFINITY, -INFINITY}, l{-0.f, -0.f} {}
  TANDEM_DEVICE Origin origin(int r) const { return {m[r], word_of(l[r]) < 0}; }
  TANDEM_DEVICE float sum(int r) const { return fabsf(l[r]); }
  TANDEM_DEVICE void move(int r, const Origin& to) {
    m[r] = to.m;
    l[r] = to.far ? -sum(r) : sum(r);
  }

  // lse of a row whose weights add up to l, and what o is multiplied by.
  TANDEM_DEVICE float lse(int r, float l, float natural) const {
    return l == 0.f ? -INFINITY : fmaf(m[r], origin(r).ln_unit(natural), logf(l));
  }

  // Products become weights; factor is what earlier results are to be multiplied by. m follows the row's maximum only
  // when that has grown by more than a factor of 2^8: until then weights are at most 2^8, exact as ever.
  // Returns whether a factor is not 1, the same in the whole warp.
  TANDEM_DEVICE bool step(float (&s)[N / 2], float scale, float (&factor)[2]) {
    return step(s, scale, factor, [] {});
  }
  // checked() follows a vote on all products.
  template <typename Checked>
  TANDEM_DEVICE bool step(float (&s)[N / 2], float scale, float (&factor)[2],
                          const Checked& checked) {
    // Seldom does a row need another m; who asks each thread for its own numbers does not wait for its row's maximum. Those
    // that are all negative count as 0.
    bool grown = (word_of(l[0]) | word_of(l[1])) < 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      grown |= !(__int_as_float(max(top_word<N>(s, r), 0)) * scale <= m[r] + 8.f);
      factor[r] = 1.f;
    }
    grown = __any_sync(kAllLanes, grown);
    if (grown) {
      float top[2];
      find_tops<N>(top, s);
      bool grows[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float powers = top[r] * scale;
        grows[r] = origin(r).far ? top[r] > m[r] : powers > m[r] + 8.f;
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
      grown = __any_sync(kAllLanes, grows[0] | grows[1]);
    }
    checked();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Nothing visible yet: any finite number gives weights of 0.
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
    return grown;
  }
};

// A warpgroup's way through the places of keys and values, which one of its threads lets go of.
template <typename S>
struct KvPlaces {
  const Shared<S>& shared;
  const bool speaks = threadIdx.x % 128 == 0;  // for its warpgroup
  Step<S::STAGES> v, k;
  TANDEM_DEVICE explicit KvPlaces(const Shared<S>& s) : shared(s) {}
  TANDEM_DEVICE void wait_k() const { barrier_wait(shared.k_full(k.stage()), k.parity()); }
  TANDEM_DEVICE void wait_v() const { barrier_wait(shared.v_full(v.stage()), v.parity()); }
  TANDEM_DEVICE void release_k() {
    if (speaks) barrier_arrive(shared.k_empty(k.stage()));
    k.next();
  }
  TANDEM_DEVICE void release_v() {
    if (speaks) barrier_arrive(shared.v_empty(v.stage()));
    v.next();
  }
};

// Products on their way into o, behind a branch, or ptxas moves the wait up, before arithmetic that was to run meanwhile; and behind one
// that the whole warpgroup takes, as its warps have to wait at the same instruction. There are always keys.
template <int N>
TANDEM_DEVICE void wait_products(const FwdBlock& u, float (&o)[N]) {
  if (u.seq_kv > 0) {
    wait<0>();
  } else {
    wait<0>();
    clear(o);
  }
}
template <int N>
TANDEM_DEVICE void rescale_rows(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < N; ++i) o[i] *= factor[i / 2 % 2];
}

// S = Q K^T and O += P V: q and k as along(), v as across() describe them.
template <typename T, typename S>
TANDEM_DEVICE void product_along(float (&s)[S::N / 2], uint64_t q, uint64_t k) {
  fence();
#pragma unroll
  for (int n = 0; n < S::D / 16; ++n)
    Product<T, S::N>::template from_shared<0, 0>(s, further(q, n / 4 * S::Q_PANEL + n % 4 * 32),
                                                 further(k, n / 4 * S::K_PANEL + n % 4 * 32),
                                                 n > 0);
  commit();
}
template <typename T, typename S>
TANDEM_DEVICE void product_across(float (&o)[S::DV / 2], const uint (&p)[S::N / 4], uint64_t v) {
  fence();
#pragma unroll
  for (int n = 0; n < S::N / 16; ++n)
    Product<T, S::DV>::template from_registers<1>(
        o, p[4 * n], p[4 * n + 1], p[4 * n + 2], p[4 * n + 3], further(v, n * 16 * kPanelBytes), 1);
  commit();
}

// Weights as the A operand of P V; POSITIVE: negative ones are 0.
template <typename T, int N, bool POSITIVE = false>
TANDEM_DEVICE void pack_tile(uint (&p)[N / 4], const float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i)
    p[i] = POSITIVE ? T::pack_positive(s[2 * i], s[2 * i + 1]) : T::pack(s[2 * i], s[2 * i + 1]);
}

// Barriers, and where shared memory begins.
template <typename S, typename Params>
TANDEM_DEVICE Shared<S> begin_fwd(const Params& params) {
  const Shared<S> shared{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    prefetch_map(&params.q);
    prefetch_map(&params.k);
    prefetch_map(&params.v);
    shared.init();
    barrier_init_done();
  }
  __syncthreads();
  return shared;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
