// SPDX-License-Identifier: MIT OR Apache-2.0
// Path cpu.simd: splits a launch into units (a tile of one head), divides the scratch of the unit's
// thread, and calls the kernel. A unit owns its outputs and sums in a fixed order, so the bits do
// not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "element.h"
#include "problem/far_row.h"
#include "program.h"
#include "sequences.h"
#include "simd.h"

namespace tandem {
namespace {

constexpr int kDefaultTile = 64;  // tile of a launch that names none
static_assert(kSimdMaxFeatures == kMaxHeadDim, "rows of every head fit");
constexpr int kDotBlock = 256;          // rows of a bwd_dot unit
constexpr double kFlopsOfThread = 1e6;  // with fewer a thread takes longer to wake than to work

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Allocates parts of a thread's scratch. With a null base it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  float* take(int64_t rows, int64_t columns) {
    char* piece = base_ ? base_ + used_ : nullptr;
    used_ += size_t(round_up(rows * columns * int64_t(sizeof(float)), 64));
    return reinterpret_cast<float*>(piece);
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

class SimdProgram final : public Program {
 public:
  SimdProgram(const Plan& plan, Pool& pool, const SimdKernels& kernels)
      : plan_(plan), pool_(pool), kernels_(kernels) {
    size_t bytes = 0;
    for (const Launch& launch : plan.launches) {
      Carver carver(nullptr);
      switch (launch.stem) {
        case Stem::fwd:
          terms_scratch(1, cols_of(launch), scratch(launch, carver, SimdFwd()).pitch, carver);
          break;
        case Stem::bwd_dq:
        case Stem::bwd_dbias:
          terms_scratch(1, cols_of(launch), scratch(launch, carver, SimdBwdDq()).pitch, carver);
          bias_sums(rows_of(launch), carver);
          break;
        case Stem::bwd_dkv:
          terms_scratch(plan.problem.group(), rows_of(launch),
                        scratch(launch, carver, SimdBwdDkv()).pitch, carver);
          break;
        default:
          break;
      }
      bytes = std::max(bytes, carver.used());
    }
    if (plan.problem.backward) {
      Carver carver(nullptr);
      const Launch launch;
      terms_scratch(1, cols_of(launch), scratch(launch, carver, SimdBwdOrigin()).pitch, carver);
      bytes = std::max(bytes, carver.used());
    }
    pool_.reserve(bytes);
  }

  Status record(tandem_stream, const tandem_args& args) const override {
    const Problem& p = plan_.problem;
    const Call call(p, args);
    FarRows far;
    if (plan_.problem.backward) {
      // In this order, as delta of a far row is not bwd_dot's.
      if (plan_.find(Stem::bwd_dot)) bwd_dot(call);
      bwd_origin(call, &far);
    }
    for (const Launch& launch : plan_.launches) {
      switch (launch.stem) {
        case Stem::fwd:
          fwd(launch, call);
          break;
        case Stem::bwd_dkv:
          bwd_dkv(launch, call, far);
          break;
        case Stem::bwd_dq:
        case Stem::bwd_dbias:
          bwd_dq(launch, call, far);
          break;
        case Stem::bwd_head_sums:
          sink_sums(call, far);
          break;
        default:  // bwd_dot; no other has a row in the registry
          break;
      }
    }
    return Status();
  }

 private:
  // If some row is far, [B,Hq,Sq]: the origins of scores, and lse relative to them; else empty.
  struct FarRows {
    Vec<float> origin, lse;
    const float* origin_of(int64_t row) const {
      return origin.empty() ? nullptr : &origin[size_t(row)];
    }
    const float* lse_of(const tandem_args& args, int64_t row) const {
      return origin.empty() ? address<const float>(args.lse) + row : &lse[size_t(row)];
    }
  };

  // What all units of an execute share.
  struct Call {
    const tandem_args& args;
    Sequences q, kv;
    unsigned most_threads = ~0u;  // entries that share rows: each writes them, so in turn
    Call(const Problem& p, const tandem_args& given)
        : args(given),
          q(p.lengths_q, args.lengths_q, args.offsets_q, p.batch, p.seq_q, p.total_q),
          kv(p.lengths_kv, args.lengths_kv, args.offsets_kv, p.batch, p.seq_kv, p.total_kv) {
      if (q.shared || kv.shared) most_threads = 1;
    }
  };
  // Rows and keys of a batch entry, and its band.
  struct Entry {
    int seq_q, seq_kv;
    TandemBand band;
  };
  Entry entry_of(const Call& call, int64_t b) const {
    const Problem& p = plan_.problem;
    Entry e{int(call.q.rows(b)), int(call.kv.rows(b)), p.band};
    if (p.has_lengths() && p.bottom_right) e.band.off = e.seq_kv - e.seq_q;
    return e;
  }
  // The optional inputs of so many query heads, in scratch, which they have for a tile of so many
  // steps and lanes; null: there are none that are added to scores or hide them.
  SimdTerms* terms_scratch(int64_t count, int64_t steps, int64_t pitch, Carver& carver) const {
    const Problem& p = plan_.problem;
    if ((p.inputs() & kTerms) == 0) return nullptr;
    auto* terms = reinterpret_cast<SimdTerms*>(carver.take(count, sizeof(SimdTerms) / 4));
    SimdTerms x{};
    if (p.bias) x.term = carver.take(steps, pitch);
    if (p.keep && p.keep.rows != 1) x.hides = carver.take(steps, pitch);
    if (p.softcap > 0 && p.backward) x.bend = carver.take(steps, pitch);
    for (int64_t n = 0; n < count && terms; ++n) terms[n] = x;
    return terms;
  }
  // Those of query heads [first, first + count) of entry b.
  SimdTerms* terms_of(const Call& call, int64_t b, int64_t first, int64_t count, int64_t steps,
                      int64_t pitch, Carver& carver) const {
    const Problem& p = plan_.problem;
    SimdTerms* const terms = terms_scratch(count, steps, pitch, carver);
    if (!terms || p.seq_q * p.seq_kv == 0) return nullptr;
    for (int64_t h = first; h < first + count; ++h) {
      SimdTerms& x = terms[h - first];
      if (p.bias) {
        const Overlay& o = p.bias;
        x.bias = {address<char>(call.args.bias) +
                      (p.entry_of(o, b) * o.strides.b + h / (p.heads_q / o.heads) * o.strides.h) *
                          (o.dtype == TANDEM_F32 ? 4 : 2),
                  o.rows == 1 ? 0 : o.strides.s, o.strides.d, o.dtype};
      }
      if (p.keep) {
        const Overlay& o = p.keep;
        x.keep = address<const uint8_t>(call.args.keep) + p.entry_of(o, b) * o.strides.b +
                 h / (p.heads_q / o.heads) * o.strides.h;
        x.keep_row = o.rows == 1 ? 0 : o.strides.s, x.keep_key = o.strides.d;
      }
      if (p.spans) {
        x.spans = address<const int32_t>(call.args.spans) +
                  p.spans_head(b, h) * p.spans.numbers(p.seq_kv);
        x.span_count = p.spans.count;
      }
      x.softcap = p.softcap;
      if (p.alibi) {
        x.has_slope = true;
        x.slope = address<const float>(call.args.slope)[p.head_number(p.slopes_batch, b, h)];
      }
    }
    return terms;
  }
  float sink_of(const Call& call, int64_t b, int64_t h) const {
    const Problem& p = plan_.problem;
    return p.sink ? address<const float>(call.args.sink)[p.head_number(p.sinks_batch, b, h)] : 0;
  }
  // Sums of d_bias of a tile of rows, or of all rows of a bias that has one; empty: not wanted.
  struct BiasSums {
    float* of_rows = nullptr;
    double* of_one = nullptr;
  };
  BiasSums bias_sums(int64_t rows, Carver& carver) const {
    const Problem& p = plan_.problem;
    BiasSums sums;
    if (!p.wants(TANDEM_GRAD_BIAS)) return sums;
    if (p.bias.rows == 1)
      sums.of_one = reinterpret_cast<double*>(carver.take(p.seq_kv, 2));
    else
      sums.of_rows = carver.take(p.seq_kv, round_up(rows, kSimdMaxLanes));
    return sums;
  }

  static int br(const Launch& launch) { return launch.tile.br > 0 ? launch.tile.br : kDefaultTile; }
  static int bc(const Launch& launch) { return launch.tile.bc > 0 ? launch.tile.bc : kDefaultTile; }

  // Tiles are not larger than the axis.
  int rows_of(const Launch& launch) const {
    return int(std::min<int64_t>(br(launch), plan_.problem.seq_q));
  }
  int cols_of(const Launch& launch) const {
    return int(std::min<int64_t>(bc(launch), plan_.problem.seq_kv));
  }

  // The shapes of the scratch arrays, first to count bytes, then for each unit.
  SimdFwd scratch(const Launch& launch, Carver& carver, SimdFwd t) const {
    const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, bc = cols_of(launch);
    t.pitch = round_up(rows_of(launch), kSimdMaxLanes);
    t.qt = carver.take(D, t.pitch), t.ot = carver.take(Dv, t.pitch);
    t.s = carver.take(bc, t.pitch);
    t.k_staged = carver.take(bc, D), t.v_staged = carver.take(bc, Dv);
    t.m = carver.take(1, t.pitch), t.l = carver.take(1, t.pitch),
    t.factor = carver.take(1, t.pitch);
    return t;
  }
  SimdBwdDq scratch(const Launch& launch, Carver& carver, SimdBwdDq t) const {
    const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, bc = cols_of(launch);
    t.pitch = round_up(rows_of(launch), kSimdMaxLanes);
    t.qt = carver.take(D, t.pitch), t.d_ot = carver.take(Dv, t.pitch);
    t.d_qt = carver.take(D, t.pitch);
    t.s = carver.take(bc, t.pitch), t.dp = carver.take(bc, t.pitch);
    t.k_staged = carver.take(bc, D), t.v_staged = carver.take(bc, Dv);
    t.lse_lanes = carver.take(1, t.pitch), t.delta_lanes = carver.take(1, t.pitch);
    t.origin_lanes = carver.take(1, t.pitch);
    return t;
  }
  SimdBwdOrigin scratch(const Launch& launch, Carver& carver, SimdBwdOrigin t) const {
    const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, bc = cols_of(launch);
    t.pitch = round_up(rows_of(launch), kSimdMaxLanes);
    t.qt = carver.take(D, t.pitch), t.d_ot = carver.take(Dv, t.pitch);
    t.s = carver.take(bc, t.pitch), t.dp = carver.take(bc, t.pitch);
    t.k_staged = carver.take(bc, D), t.v_staged = carver.take(bc, Dv);
    t.m = carver.take(1, t.pitch), t.l = carver.take(1, t.pitch);
    t.factor = carver.take(1, t.pitch), t.delta = carver.take(1, t.pitch);
    return t;
  }
  SimdBwdDkv scratch(const Launch& launch, Carver& carver, SimdBwdDkv t) const {
    const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, br = rows_of(launch);
    t.pitch = round_up(cols_of(launch), kSimdMaxLanes);
    t.kt = carver.take(D, t.pitch), t.vt = carver.take(Dv, t.pitch);
    t.d_kt = carver.take(D, t.pitch), t.d_vt = carver.take(Dv, t.pitch);
    t.s = carver.take(br, t.pitch), t.dp = carver.take(br, t.pitch);
    t.q_staged = carver.take(br, D), t.d_o_staged = carver.take(br, Dv);
    return t;
  }

  // The rows of a head of an entry. of: those of queries, or of keys.
  SimdRows rows(const tandem_buffer& buffer, const Strides& t, const Sequences& of, int64_t b,
                int64_t h) const {
    const int64_t at = (b * t.b + of.first(b) * t.s + h * t.h) * plan_.problem.element_size();
    char* base = address<char>(buffer);
    return {base ? base + at : nullptr, t.s, t.d, plan_.problem.dtype};
  }

  // Sets what all kernels that own query rows have: the rows of a tile, and the keys that they see.
  template <typename Task>
  void set_query_tile(const Call& call, const Entry& e, const SimdTerms* terms, int64_t b,
                      int64_t h, int tile, int br, int bc, Task* t) const {
    const Problem& p = plan_.problem;
    const tandem_args& args = call.args;
    const int64_t kv = h / p.group();
    t->q = rows(args.q, p.q, call.q, b, h), t->k = rows(args.k, p.k, call.kv, b, kv);
    t->v = rows(args.v, p.v, call.kv, b, kv);
    t->row0 = tile * br, t->rows = std::min(br, e.seq_q - t->row0);
    t->head_dim = p.head_dim, t->head_dim_v = p.head_dim_v;
    t->scale = p.scale, t->band = e.band, t->seq_kv = e.seq_kv, t->bc = bc;
    t->terms = terms;
    t->tiles = tandem_key_tiles(e.band, t->row0, br, bc, e.seq_q, e.seq_kv);
  }
  // Zeroes rows of a head that are padding, from row `from` up to `to`. of: a tensor's rows.
  void zero_rows(const SimdRows& of, int64_t from, int64_t to, int64_t features) const {
    for (int64_t i = from; i < to; ++i)
      for (int64_t c = 0; c < features; ++c)
        store_element(static_cast<char*>(of.base), i * of.row + c * of.feature, of.dtype, 0);
  }

  // Calls body(b, h, tile, scratch) for every tile of every head. The longest tiles of a causal
  // problem go first, so that no thread starts one when the others have ended.
  template <typename Body>
  void for_each_tile(const Call& call, int64_t batch, int64_t heads, int64_t tiles, bool last_first,
                     const Body& body) const {
    pool_.run(
        batch * heads * tiles,
        [&](int64_t unit, void* scratch) {
          const int64_t n = unit % tiles, head = unit / tiles;
          body(head / heads, head % heads, int(last_first ? tiles - 1 - n : n), scratch);
        },
        std::min(threads_, call.most_threads));
  }

  void fwd(const Launch& launch, const Call& call) const {
    const Problem& p = plan_.problem;
    const int Sq = int(p.seq_q), Br = rows_of(launch), Bc = std::max(cols_of(launch), 1),
              tiles = (Sq + Br - 1) / Br;
    MaxLogits largest(p, tiles);
    for_each_tile(call, p.batch, p.heads_q, tiles, true,
                  [&](int64_t b, int64_t h, int tile, void* memory) {
                    Carver carver(memory);
                    SimdFwd t = scratch(launch, carver, SimdFwd());
                    const Entry e = entry_of(call, b);
                    const SimdTerms* const terms = terms_of(call, b, h, 1, Bc, t.pitch, carver);
                    set_query_tile(call, e, terms, b, h, tile, Br, Bc, &t);
                    t.o = rows(call.args.o, p.o, call.q, b, h);
                    t.has_sink = p.sink, t.sink = sink_of(call, b, h);
                    float* lse = address<float>(call.args.lse);
                    t.lse = lse ? lse + (b * p.heads_q + h) * Sq + t.row0 : nullptr;
                    t.top = largest.of(b, h, tile);
                    if (t.rows > 0) kernels_.fwd(t);
                    const int end = std::min(t.row0 + Br, Sq), valid = std::max(t.rows, 0);
                    for (int i = t.row0 + valid; i < end && t.lse; ++i)
                      t.lse[i - t.row0] = -std::numeric_limits<float>::infinity();
                    if (!call.q.packed) zero_rows(t.o, t.row0 + valid, end, p.head_dim_v);
                  });
    largest.raise(p, address<float>(call.args.max_logit));
  }

  void bwd_dot(const Call& call) const {
    const Problem& p = plan_.problem;
    const int Sq = int(p.seq_q);
    for_each_tile(call, p.batch, p.heads_q, (Sq + kDotBlock - 1) / kDotBlock, false,
                  [&](int64_t b, int64_t h, int block, void*) {
                    SimdBwdDot t;
                    t.o = rows(call.args.o, p.o, call.q, b, h);
                    t.d_o = rows(call.args.d_o, p.d_o, call.q, b, h);
                    t.head_dim_v = p.head_dim_v;
                    t.row0 = block * kDotBlock;
                    t.rows = std::min(kDotBlock, entry_of(call, b).seq_q - t.row0);
                    const int64_t row = (b * p.heads_q + h) * Sq + t.row0;
                    t.delta = delta_of(plan_, call.args) + row;
                    t.lse = address<const float>(call.args.lse) + row;
                    t.d_lse = p.d_lse ? address<const float>(call.args.d_lse) + row : nullptr;
                    if (t.rows > 0) kernels_.bwd_dot(t);
                  });
  }

  // A part of a row's keys, whose own lse is m + l, or whose l is infinite, as it sees none: takes
  // the whole row's lse where that tells (far_row.h).
  void take_whole(float lse, float* m, float* l) const {
    const Problem& p = plan_.problem;
    if (std::isinf(*l)) {
      *m = lse, *l = 0;
      return;
    }
    const float slack = tandem_part_slack(int(p.head_dim), p.dtype == TANDEM_F32), whole = lse - *m;
    if (whole > *l + slack * std::fabs(lse))
      *l = std::min(whole, std::numeric_limits<float>::max());
  }

  // Leaves far empty unless a row is far; the delta of far rows is then overwritten as well.
  void bwd_origin(const Call& call, FarRows* far) const {
    const Problem& p = plan_.problem;
    const int64_t count = p.batch * p.heads_q * p.seq_q;
    const float* lse = address<const float>(call.args.lse);
    if (p.heads_kv * p.seq_kv == 0 || std::none_of(lse, lse + count, tandem_is_far)) return;
    far->lse.assign(lse, lse + count);
    far->origin.resize(size_t(count));
    const bool want_delta = plan_.find(Stem::bwd_dot) != nullptr && !p.part_of_keys;
    const Launch launch;
    const int Sq = int(p.seq_q), Br = rows_of(launch), Bc = cols_of(launch);
    for_each_tile(call, p.batch, p.heads_q, (Sq + Br - 1) / Br, true,
                  [&](int64_t b, int64_t h, int tile, void* memory) {
                    Carver carver(memory);
                    SimdBwdOrigin t = scratch(launch, carver, SimdBwdOrigin());
                    const SimdTerms* const terms = terms_of(call, b, h, 1, Bc, t.pitch, carver);
                    set_query_tile(call, entry_of(call, b), terms, b, h, tile, Br, Bc, &t);
                    const int64_t row = (b * p.heads_q + h) * Sq + t.row0;
                    if (t.rows <= 0 || std::none_of(lse + row, lse + row + t.rows, tandem_is_far))
                      return;
                    t.d_o = rows(call.args.d_o, p.d_o, call.q, b, h), t.want_delta = want_delta;
                    t.has_sink = p.sink, t.sink = sink_of(call, b, h);
                    kernels_.bwd_origin(t);
                    for (int r = 0; r < t.rows; ++r) {
                      if (!tandem_is_far(lse[row + r])) continue;
                      if (p.part_of_keys) take_whole(lse[row + r], &t.m[r], &t.l[r]);
                      far->origin[size_t(row + r)] = t.m[r];
                      far->lse[size_t(row + r)] = t.l[r];
                      if (!want_delta) continue;
                      // Where no key is visible, although lse says that one is, l is infinite.
                      const bool takes = p.d_lse && std::isfinite(t.l[r]);
                      const float* d_lse = address<const float>(call.args.d_lse);
                      delta_of(plan_, call.args)[row + r] =
                          t.delta[r] - (takes ? d_lse[row + r] : 0.f);
                    }
                  });
  }

  // bwd_dq, and d_bias with it; or d_bias alone. A unit is a tile of rows of a query head; with
  // d_bias of all query heads and entries that read a head of the bias, in order, and all tiles
  // where the bias has one row.
  void bwd_dq(const Launch& launch, const Call& call, const FarRows& far) const {
    const Problem& p = plan_.problem;
    // Without queries there is still the gradient of a bias with one row.
    const int Sq = int(p.seq_q), Br = std::max(rows_of(launch), 1),
              Bc = std::max(cols_of(launch), 1), tiles = (Sq + Br - 1) / Br;
    const bool with_bias = p.wants(TANDEM_GRAD_BIAS), one_row = with_bias && p.bias.rows == 1;
    const int64_t batch = with_bias ? p.bias.batch : p.batch,
                  heads = with_bias ? p.bias.heads : p.heads_q;
    const int64_t entries = p.batch / std::max<int64_t>(batch, 1),
                  readers = p.heads_q / std::max<int64_t>(heads, 1);
    for_each_tile(call, batch, heads, one_row ? 1 : tiles, true,
                  [&](int64_t b0, int64_t h0, int tile0, void* memory) {
                    Carver carver(memory);
                    SimdBwdDq base = scratch(launch, carver, SimdBwdDq());
                    const BiasSums sums = bias_sums(Br, carver);
                    if (sums.of_rows) std::fill_n(sums.of_rows, p.seq_kv * base.pitch, 0.f);
                    if (sums.of_one) std::fill_n(sums.of_one, p.seq_kv, 0.);
                    for (int tile = tile0; tile < (one_row ? tiles : tile0 + 1); ++tile)
                      for (int64_t b = b0 * entries; b < (b0 + 1) * entries; ++b)
                        for (int64_t h = h0 * readers; h < (h0 + 1) * readers; ++h) {
                          Carver more = carver;
                          SimdBwdDq t = base;
                          const SimdTerms* const terms = terms_of(call, b, h, 1, Bc, t.pitch, more);
                          t.bias_sums = sums.of_rows, t.bias_row_sums = sums.of_one;
                          query_gradients(launch, call, far, terms, b, h, tile, Br, Bc, t);
                        }
                    store_d_bias(call, sums, base.pitch, b0, h0, tile0 * Br,
                                 std::min(Br, Sq - tile0 * Br));
                  });
  }
  void query_gradients(const Launch& launch, const Call& call, const FarRows& far,
                       const SimdTerms* terms, int64_t b, int64_t h, int tile, int Br, int Bc,
                       SimdBwdDq t) const {
    const Problem& p = plan_.problem;
    const int Sq = int(p.seq_q);
    set_query_tile(call, entry_of(call, b), terms, b, h, tile, Br, Bc, &t);
    t.d_o = rows(call.args.d_o, p.d_o, call.q, b, h);
    t.d_q = launch.stem == Stem::bwd_dq ? rows(call.args.d_q, p.d_q, call.q, b, h) : SimdRows{};
    const int64_t row = (b * p.heads_q + h) * Sq + t.row0;
    t.lse = far.lse_of(call.args, row), t.origin = far.origin_of(row);
    t.delta = delta_of(plan_, call.args) + row;
    if (t.rows > 0) kernels_.bwd_dq(t);
    if (t.d_q.base && !call.q.packed)
      zero_rows(t.d_q, t.row0 + std::max(t.rows, 0), std::min(t.row0 + Br, Sq), p.head_dim);
  }
  void store_d_bias(const Call& call, const BiasSums& sums, int64_t pitch, int64_t b, int64_t h,
                    int row0, int rows) const {
    const Problem& p = plan_.problem;
    char* const to = address<char>(call.args.d_bias);
    const int64_t at = b * p.d_bias.b + h * p.d_bias.h;
    for (int64_t j = 0; j < p.seq_kv && sums.of_one; ++j)
      store_element(to, at + j * p.d_bias.d, p.d_bias_dtype, sums.of_one[j]);
    for (int64_t i = 0; i < rows && sums.of_rows; ++i)
      for (int64_t j = 0; j < p.seq_kv; ++j)
        store_element(to, at + (row0 + i) * p.d_bias.s + j * p.d_bias.d, p.d_bias_dtype,
                      double(sums.of_rows[j * pitch + i]));
  }

  void bwd_dkv(const Launch& launch, const Call& call, const FarRows& far) const {
    const Problem& p = plan_.problem;
    const int Sq = int(p.seq_q), Sk = int(p.seq_kv), Br = std::max(rows_of(launch), 1),
              Bc = cols_of(launch);
    for_each_tile(call, p.batch, p.heads_kv, (Sk + Bc - 1) / Bc, false,
                  [&](int64_t b, int64_t h, int tile, void* memory) {
                    Carver carver(memory);
                    SimdBwdDkv t = scratch(launch, carver, SimdBwdDkv());
                    const tandem_args& args = call.args;
                    const int64_t first = h * p.group();
                    const Entry e = entry_of(call, b);
                    t.terms = terms_of(call, b, first, p.group(), Br, t.pitch, carver);
                    t.q = rows(args.q, p.q, call.q, b, first),
                    t.d_o = rows(args.d_o, p.d_o, call.q, b, first);
                    t.q_head = p.q.h, t.d_o_head = p.d_o.h, t.group = int(p.group());
                    t.k = rows(args.k, p.k, call.kv, b, h), t.v = rows(args.v, p.v, call.kv, b, h);
                    t.d_k = rows(args.d_k, p.d_k, call.kv, b, h),
                    t.d_v = rows(args.d_v, p.d_v, call.kv, b, h);
                    t.want_k = p.wants(TANDEM_GRAD_K), t.want_v = p.wants(TANDEM_GRAD_V);
                    t.col0 = tile * Bc, t.cols = std::min(Bc, e.seq_kv - t.col0);
                    const int64_t row = (b * p.heads_q + first) * Sq;
                    t.lse = far.lse_of(args, row), t.origin = far.origin_of(row), t.lse_head = Sq;
                    t.delta = t.want_k ? delta_of(plan_, args) + row : nullptr;
                    t.head_dim = p.head_dim, t.head_dim_v = p.head_dim_v;
                    t.scale = p.scale, t.band = e.band, t.seq_q = e.seq_q, t.br = Br;
                    t.tiles = tandem_query_tiles(e.band, t.col0, Bc, Br, e.seq_q, e.seq_kv);
                    if (t.cols > 0) kernels_.bwd_dkv(t);
                    if (call.kv.packed) return;
                    const int from = t.col0 + std::max(t.cols, 0), to = std::min(t.col0 + Bc, Sk);
                    if (t.want_k) zero_rows(t.d_k, from, to, p.head_dim);
                    if (t.want_v) zero_rows(t.d_v, from, to, p.head_dim_v);
                  });
  }

  // d_sink: the weight of a row's sink times the row's delta, negated, over rows and entries.
  void sink_sums(const Call& call, const FarRows& far) const {
    const Problem& p = plan_.problem;
    const int64_t of_each = p.batch / std::max<int64_t>(p.sinks_batch, 1);
    const float* delta = delta_of(plan_, call.args);
    for (int64_t n = 0; n < p.sinks_batch; ++n)
      for (int64_t h = 0; h < p.heads_q; ++h) {
        const double sink = address<const float>(call.args.sink)[n * p.heads_q + h];
        double sum = 0;
        for (int64_t b = n * of_each; b < (n + 1) * of_each; ++b) {
          const int64_t row = (b * p.heads_q + h) * p.seq_q;
          for (int64_t i = row; i < row + entry_of(call, b).seq_q; ++i) {
            const double lse = far.lse_of(call.args, i)[0];
            const float* origin = far.origin_of(i);
            if (!std::isinf(lse)) sum -= std::exp((sink - (origin ? *origin : 0)) - lse) * delta[i];
          }
        }
        address<float>(call.args.d_sink)[n * p.heads_q + h] = float(sum);
      }
  }

  // Optional inputs that change or hide scores.
  static constexpr uint32_t kTerms = kHasBias | kHasKeep | kHasSpans | kHasSoftcap | kHasAlibi;
  const Plan plan_;
  Pool& pool_;
  const SimdKernels& kernels_;
  const unsigned threads_ = worth_threads(plan_.problem, kFlopsOfThread);
};

}  // namespace

std::unique_ptr<Program> make_simd_program(const Plan& plan, Pool& pool,
                                           const SimdKernels& kernels) {
  return std::make_unique<SimdProgram>(plan, pool, kernels);
}

}  // namespace tandem
