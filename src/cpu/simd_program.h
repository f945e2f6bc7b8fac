// SPDX-License-Identifier: MIT OR Apache-2.0
// The program of path cpu.simd: splits a launch into units (a tile of one head), divides the
// scratch of the unit's thread, and calls the kernel. A unit owns its outputs and sums in a fixed
// order, so the bits do not depend on the number of threads. simd_program.cpp has the launches,
// simd_terms.cpp the optional inputs of a unit, simd_sums.cpp what is summed over units,
// simd_merge.cpp merges.
#ifndef TANDEM_SRC_CPU_SIMD_PROGRAM_H
#define TANDEM_SRC_CPU_SIMD_PROGRAM_H
#include <algorithm>
#include <cmath>
#include <mutex>

#include "plan/cpu/sum_parts.h"
#include "program.h"
#include "sequences.h"
#include "simd.h"

namespace tandem {

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Allocates parts of a thread's scratch. With a null base it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  float* take(int64_t rows, int64_t columns) {
    char* piece = base_ ? base_ + used_ : nullptr;
    used_ += size_t(round_up(rows * columns * int64_t(sizeof(float)), 64));
    return reinterpret_cast<float*>(piece);
  }
  double* take_doubles(int64_t count) { return reinterpret_cast<double*>(take(count, 2)); }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

class SimdProgram final : public Program {
 public:
  SimdProgram(const Plan& plan, Pool& pool, const SimdKernels& kernels);
  Status record(tandem_stream, const tandem_args& args) const override;

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
    // Of args.max_logit. No member of the program, which a child of fork() goes on with: other
    // threads of its parent may have locked it.
    mutable std::mutex max_logit_turn;
    Call(const Problem& p, const tandem_args& given)
        : args(given),
          q(p.lengths_q, args.lengths_q, args.offsets_q, p.seq_q, p.total_q),
          kv(p.lengths_kv, args.lengths_kv, args.offsets_kv, p.seq_kv, p.total_kv) {}
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

  // ---- simd_terms.cpp ----

  // The optional inputs of so many query heads, in scratch, which they have for a tile of so many
  // steps and lanes; null: there are none that are added to scores, hide or drop them.
  SimdTerms* terms_scratch(int64_t count, int64_t steps, int64_t pitch, Carver& carver) const;
  // Those of query heads [first, first + count) of entry b.
  SimdTerms* terms_of(const Call& call, int64_t b, int64_t first, int64_t count, int64_t steps,
                      int64_t pitch, Carver& carver) const;
  void set_masks(const Call& call, int64_t b, int64_t h, SimdTerms* x) const;
  void set_biases(const Call& call, int64_t b, int64_t h, SimdTerms* x) const;
  float sink_of(const Call& call, int64_t b, int64_t h) const {
    const Problem& p = plan_.problem;
    return p.sink ? address<const float>(call.args.sink)[p.head_number(p.sinks_batch, b, h)] : 0;
  }

  // ---- simd_sums.cpp ----

  // Sums of d_bias of a tile of rows, or of all rows of a bias that has one; empty: not wanted.
  struct BiasSums {
    float* of_rows = nullptr;
    double* of_one = nullptr;
  };
  BiasSums bias_sums(int64_t rows, Carver& carver) const;
  // Sums of the gradients of a head's distance bias and table; empty: not wanted.
  struct HeadSums {
    double *dist = nullptr, *table = nullptr;
  };
  HeadSums head_sums(Carver& carver) const;
  int64_t table_copies() const {
    return plan_.problem.table.size <= kSimdShortTable ? kSimdTableCopies : 1;
  }
  bool wants_head_sums() const {
    return plan_.problem.wants(TANDEM_GRAD_DIST_BIAS | TANDEM_GRAD_BIAS_TABLE);
  }
  void bwd_dq(const Launch& launch, const Call& call, const FarRows& far) const;
  void bwd_head_parts(const Launch& launch, const Call& call, const FarRows& far) const;
  void query_gradients(const Launch& launch, const Call& call, const FarRows& far,
                       const SimdTerms* terms, int64_t b, int64_t h, int tile, int Br, int Bc,
                       SimdBwdDq t) const;
  void store_d_bias(const Call& call, const BiasSums& sums, int64_t pitch, int64_t b, int64_t h,
                    int row0, int rows) const;
  // Where a part of the sums of a head's gradient goes: to the gradient itself if there is one part
  // alone.
  float* part_of(const Call& call, uint32_t gradient, int64_t part, int64_t h) const;
  void add_parts(const Call& call, uint32_t gradient) const;
  float* row_parts(const Call& call, Scratch rows) const {  // [B,Hq,Sq]
    return reinterpret_cast<float*>(address<char>(call.args.workspace) +
                                    plan_.scratch[rows].offset);
  }
  void sink_sums(const Call& call, const FarRows& far) const;
  // A sum over rows of what they left in the workspace, times factor, for each group of entries.
  void row_part_sums(const Call& call, Scratch rows, int64_t groups, float factor,
                     const tandem_buffer& to) const;

  // ---- simd_merge.cpp ----

  float* merge_scratch(Carver& carver) const;  // weights and products of a row's parts
  void merge(const Call& call) const;          // or bwd_merge

  // ---- simd_program.cpp ----

  static constexpr int kDefaultTile = 64;  // tile of a launch that names none
  static int br(const Launch& launch) { return launch.tile.br > 0 ? launch.tile.br : kDefaultTile; }
  static int bc(const Launch& launch) { return launch.tile.bc > 0 ? launch.tile.bc : kDefaultTile; }
  // Tiles are not larger than the axis.
  int rows_of(const Launch& launch) const {
    return int(std::min<int64_t>(br(launch), plan_.problem.seq_q));
  }
  // Rows whose scores are kept for all keys: fewer where these would take a lot of memory.
  int kept_rows_of(const Launch& launch, bool keeps) const {
    constexpr int64_t kMostKept = int64_t(8) << 20;  // bytes of a thread
    int64_t rows = rows_of(launch);
    while (keeps && rows > kSimdMaxLanes &&
           plan_.problem.seq_kv * rows * int64_t(sizeof(float)) > kMostKept)
      rows = round_up(rows / 2, kSimdMaxLanes);
    return int(rows);
  }
  int fwd_rows_of(const Launch& launch) const {
    return kept_rows_of(launch, plan_.problem.normalizer != Normalizer::softmax);
  }
  int origin_rows_of(const Launch& launch) const {
    return kept_rows_of(launch, plan_.problem.normalizer == Normalizer::entmax);
  }
  int cols_of(const Launch& launch) const {
    return int(std::min<int64_t>(bc(launch), plan_.problem.seq_kv));
  }

  // The shapes of the scratch arrays, first to count bytes, then for each unit.
  SimdFwd scratch(const Launch& launch, Carver& carver, SimdFwd t) const;
  SimdBwdDq scratch(const Launch& launch, Carver& carver, SimdBwdDq t) const;
  SimdBwdOrigin scratch(const Launch& launch, Carver& carver, SimdBwdOrigin t) const;
  SimdBwdDkv scratch(const Launch& launch, Carver& carver, SimdBwdDkv t) const;
  size_t bytes_of(const Launch& launch) const;
  size_t bytes_of_places() const {
    const Problem& p = plan_.problem;
    return is_packed(p.lengths_q) || is_packed(p.lengths_kv)
               ? size_t(p.batch) * sizeof(TandemSequence)
               : 0;
  }

  // The rows of a head of an entry. of: those of queries, or of keys.
  SimdRows rows(const tandem_buffer& buffer, const Strides& t, const Sequences& of, int64_t b,
                int64_t h) const {
    const int64_t at = (b * t.b + of.first(b) * t.s + h * t.h) * plan_.problem.element_size();
    char* base = address<char>(buffer);
    return {base ? base + at : nullptr, t.s, t.d, plan_.problem.dtype};
  }

  SimdPairs pairs() const {
    const Problem& p = plan_.problem;
    // Which way a tile takes depends on all of its rows: not where bits may not.
    const bool has = kernels_.has_pairs && p.dtype == TANDEM_BF16 && !p.batch_invariant;
    return {has && p.q.d == 1 && p.k.d == 1, has && p.v.d == 1 && p.d_o.d == 1, has};
  }
  // The normaliser for the query heads from h on.
  SimdNormal normal_of(const Call& call, const Entry& e, int64_t h) const {
    const Problem& p = plan_.problem;
    const bool entmax = p.normalizer == Normalizer::entmax;
    const SimdKind kind = entmax                                ? SimdKind::entmax
                          : p.normalizer == Normalizer::elastic ? SimdKind::elastic
                                                                : SimdKind::softmax;
    const auto* tau = address<const float>(call.args.tau);
    const float exponent = entmax ? float(1 / (double(p.alpha) - 1)) : 1;
    const bool is_whole = exponent <= 16 && exponent == std::floor(exponent);
    return {kind,
            kind == SimdKind::elastic && tau ? tau + h : nullptr,
            entmax ? p.alpha - 1 : 1,
            exponent,
            is_whole ? int(exponent) : 0,
            e.seq_q,
            e.seq_kv};
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
    t->terms = terms, t->normal = normal_of(call, e, h), t->pairs = pairs();
    t->tiles = tandem_key_tiles(e.band, t->row0, br, bc, e.seq_q, e.seq_kv);
  }
  // Zeroes rows of a head that are padding, from row `from` up to `to`. of: a tensor's rows.
  void zero_rows(const SimdRows& of, int64_t from, int64_t to, int64_t features) const;

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

  void raise_max_logit(const Call& call, int64_t b, int64_t h, float top) const;
  void fwd(const Launch& launch, const Call& call) const;
  void bwd_dot(const Call& call) const;
  void bwd_row_sums(const Launch& launch, const Call& call, const FarRows& far) const;
  void take_whole(float lse, float* m, float* l) const;
  void bwd_origin(const Call& call, FarRows* far) const;
  void bwd_dkv(const Launch& launch, const Call& call, const FarRows& far) const;

  // With fewer a thread takes longer to wake than to work.
  static constexpr double kFlopsOfThread = 1e6;
  const Plan plan_;
  Pool& pool_;
  const SimdKernels& kernels_;
  const unsigned threads_ = worth_threads(plan_.problem, kFlopsOfThread);
};

}  // namespace tandem
#endif
