// SPDX-License-Identifier: MIT OR Apache-2.0
// A tandem_problem that has been checked, with its defaults filled in. Everything behind the C
// border uses this.
#ifndef TANDEM_SRC_PROBLEM_PROBLEM_H
#define TANDEM_SRC_PROBLEM_PROBLEM_H
#include <cmath>
#include <cstdint>

#include "base/status.h"
#include "kernels/inputs.h"
#include "problem_types.h"
#include "tile_range.h"

namespace tandem {

// A tensor [batch, heads, rows, Sk] that is added to scores or hides them. batch divides B, heads
// Hq and rows Sq. Strides of sizes of 1 are 0, so that b, h / group and i may be used as they are.
struct Overlay {
  tandem_dtype dtype{};  // 0: there is none
  int64_t batch = 0, heads = 0, rows = 0;
  Strides strides{};
  explicit operator bool() const { return dtype != tandem_dtype{}; }
};

// Intervals of query rows that see a key: int32 [batch, heads, Sk, 2 count]. batch divides B, heads
// Hq.
struct Spans {
  int count = 0;  // intervals a key; 0: there are none
  int64_t batch = 0, heads = 0;
  explicit operator bool() const { return count > 0; }
  int64_t numbers(int64_t seq_kv) const { return seq_kv * 2 * count; }  // of a head
  // Whether a key whose numbers begin at `of` shows itself to row i.
  bool show(const int32_t* of, int64_t i) const {
    for (int n = 0; n < count; ++n)
      if (of[2 * n] <= i && i < of[2 * n + 1]) return true;
    return false;
  }
};

// Lists of visible blocks of q rows and kv keys: int32 [batch, heads, rows(), 2 + width], and the
// bits of their pairs, uint32 [batch, heads, rows(), bits, q, kv / 32]. batch divides B, heads Hq.
// Kernels of GPUs read a keep mask that is made of the lists.
struct BlockLists {
  int64_t q = 0, kv = 0, width = 0, bits = 0, batch = 0, heads = 0;
  explicit operator bool() const { return q > 0; }
  int64_t rows(int64_t seq_q) const { return (seq_q + q - 1) / q; }
  int64_t numbers(int64_t seq_q) const { return rows(seq_q) * (2 + width); }         // of a head
  int64_t words(int64_t seq_q) const { return rows(seq_q) * bits * q * (kv / 32); }  // of a head
};

// Bytes of a row of the keep mask of block lists: whole loads of 16.
inline int64_t keep_pitch(int64_t seq_kv) { return (seq_kv + 15) / 16 * 16; }

// A table of `size` entries for each query head, and for each pair the entry that is its bias:
// index [batch, Sq, Sk]. batch divides B.
struct BiasTable {
  int64_t size = 0, batch = 0;
  tandem_dtype index{};  // TANDEM_U8, TANDEM_U16 or TANDEM_I32
  explicit operator bool() const { return size > 0; }
  int64_t index_bytes() const { return index == TANDEM_U8 ? 1 : index == TANDEM_U16 ? 2 : 4; }
};

// What a merge joins: o [parts][B,Hq,Sq,Dv], and its gradient in the same type.
struct Parts {
  int count = 0;      // 0: the problem is attention
  bool into = false;  // o and lse hold one more, in front of them
  tandem_dtype dtype{};
  int64_t stride = 0, d_stride = 0;  // from one part to the next
  explicit operator bool() const { return count > 0; }
  int64_t element_size() const { return dtype == TANDEM_F64 ? 8 : dtype == TANDEM_F32 ? 4 : 2; }
};

constexpr int kMaxHeadDim = 576;  // D and Dv; that of MLA's latent

constexpr uint32_t kProblemFlags = TANDEM_FLAG_DETERMINISTIC | TANDEM_FLAG_VISIT_ALL |
                                   TANDEM_FLAG_TF32 | TANDEM_FLAG_PART_OF_KEYS |
                                   TANDEM_FLAG_BATCH_INVARIANT | TANDEM_FLAG_SLICES;

struct Problem {
  // Of attention, or of a merge. A merge has as many kv heads as query heads, one key, and D = Dv,
  // on which nothing depends; dtype is that of o, in its backward of d_o.
  bool backward = false;
  Parts parts;
  Strides part_o{}, d_part_o{};
  int64_t batch = 0, heads_q = 0, heads_kv = 0, seq_q = 0, seq_kv = 0, head_dim = 0, head_dim_v = 0;
  tandem_dtype dtype = TANDEM_F32;
  Strides q{}, k{}, v{}, o{}, d_o{}, d_q{}, d_k{}, d_v{};
  float scale = 0;
  TandemBand band{TANDEM_BAND_OPEN, TANDEM_BAND_OPEN, 0};
  uint32_t gradients = 0;  // TANDEM_GRAD_*; 0 forward
  bool deterministic = false, visit_all = false;
  bool part_of_keys = false;         // lse and o are of more keys than these
  bool batch_invariant = false;      // then deterministic, too
  bool slices = false;               // executes are recorded in slices
  bool tf32 = false;                 // products of f32 operands may round them to TF32
  int tile_rows = 0, tile_cols = 0;  // 0: the planner chooses
  int splits = 0;                    // splits of the keys in forward; 0: the planner chooses
  int cores = 0;                     // the most SMs that planning counts with; 0: all
  // The most bytes of the workspace; 0: any number. savings and most_splits are the planner's: what
  // a plan within the limit does without (plan/thrift.h); most_splits 0: no limit.
  uint64_t workspace_limit = 0;
  uint32_t savings = 0;
  int most_splits = 0;

  Normalizer normalizer = Normalizer::softmax;
  float alpha = 0;  // of entmax
  float softcap = 0, dropout = 0;
  bool alibi = false, sink = false;
  int64_t max_logit_batch = 0;  // entries of max_logit, which divide B; 0: it is not wanted
  bool d_lse = false;  // the gradient with respect to lse is given, and a gradient needs it
  int64_t slopes_batch = 1, sinks_batch = 1;  // entries of slope and sink; each divides B
  bool sink_of_rows = false;  // with heads as rows: each row has the sink of its head
  int packed_queries = 0;     // with heads as rows: queries of each; else 0
  int64_t dist_window = 0;
  Overlay bias, keep;  // keep: also of block lists, whose bytes lie in the workspace
  Spans spans;
  BlockLists blocks;
  BiasTable table;
  Strides d_bias{};
  tandem_dtype d_bias_dtype{};
  // off = kv_len - q_len, of each batch entry if lengths are given. band.off is that of full
  // lengths.
  bool bottom_right = false;
  Lengths lengths_q = Lengths::full, lengths_kv = Lengths::full;
  int64_t total_q = 0, total_kv = 0;  // rows of packed tensors

  int64_t group() const { return heads_q / heads_kv; }
  // The batch entry of bias or keep that entry b reads. Entries of a group read the same one.
  int64_t entry_of(const Overlay& o, int64_t b) const { return b / (batch / o.batch); }
  // The slope or sink of a query head, of an input with so many batch entries.
  int64_t head_number(int64_t entries, int64_t b, int64_t h) const {
    return b / (batch / entries) * heads_q + h;
  }
  bool has_head_groups() const { return slopes_batch > 1 || sinks_batch > 1; }
  // Whether an overlay has more than one batch entry and fewer than the batch.
  bool is_grouped(const Overlay& o) const { return o.batch > 1 && o.batch < batch; }
  // The head of the spans that query head h of entry b reads, counted over their batch entries.
  int64_t spans_head(int64_t b, int64_t h) const {
    return b / (batch / spans.batch) * spans.heads + h / (heads_q / spans.heads);
  }
  // The head of the block lists, likewise.
  int64_t blocks_head(int64_t b, int64_t h) const {
    return b / (batch / blocks.batch) * blocks.heads + h / (heads_q / blocks.heads);
  }
  // The entry of the index that entry b of the batch reads.
  int64_t index_entry(int64_t b) const { return b / (batch / table.batch); }
  // Whether the bias is the table's, each pair's in the workspace (with_dense_bias()).
  bool expands_table() const { return table && bias; }
  // The sizes are not multiplied, as the product may be beyond 2^63.
  bool is_empty() const {
    return batch == 0 || heads_q == 0 || seq_q == 0 || heads_kv == 0 || seq_kv == 0;
  }
  bool banded() const { return band.left != TANDEM_BAND_OPEN || band.right != TANDEM_BAND_OPEN; }
  bool wants(uint32_t gradient) const { return (gradients & gradient) != 0; }
  // delta enters dS; d_v and d_tau do not need dS.
  bool needs_delta() const { return (gradients & ~(TANDEM_GRAD_V | TANDEM_GRAD_TAU)) != 0; }
  // Whether delta is <d_o, o>; otherwise it takes a separate pass over the scores.
  bool delta_is_dot() const {
    return normalizer == Normalizer::softmax && !wants(TANDEM_GRAD_SLOPE);
  }
  bool has_gaps() const { return lengths_q == Lengths::gapped || lengths_kv == Lengths::gapped; }
  bool has_lengths() const { return lengths_q != Lengths::full || lengths_kv != Lengths::full; }
  // Bits of Extra: the optional inputs that there are. Lengths are among those of a batch-invariant
  // problem, so that it takes the same kernels with and without them.
  uint32_t inputs() const;
  // Names of the optional inputs but those in `but`, as "bias, elastic softmax"; "" if there are
  // none.
  String extras(uint32_t but = 0) const;
  int64_t element_size() const { return dtype == TANDEM_F64 ? 8 : dtype == TANDEM_F32 ? 4 : 2; }
  // The type of lse and of all inputs and gradients that have no type of their own.
  tandem_dtype side_dtype() const { return dtype == TANDEM_F64 ? TANDEM_F64 : TANDEM_F32; }
  int64_t side_size() const { return dtype == TANDEM_F64 ? 8 : 4; }
  // scale in double. With f64, the f32 next to 1 / sqrt(D), which is the default, stands for it.
  double exact_scale() const {
    const double usual = 1 / std::sqrt(double(head_dim));
    return dtype == TANDEM_F64 && scale == float(usual) ? usual : double(scale);
  }
  // Forward with one query a head, as in decoding, or a few: the same problem with the heads that
  // share keys and values as rows of one head, so that one tile has them all and reads their keys
  // once. Returns the problem itself if that differs: if optional inputs distinguish heads, if a
  // query does not see every key, or if the queries of a head are not as far apart as those of two
  // heads. sinks: a row may have a sink of its own, where there is one query.
  Problem with_heads_as_rows(bool sinks = false) const;
  // Batch-invariant: the problem of fixed sizes whose path and tiles this one takes. It differs in
  // all that the bits of a row may not depend on: sizes but those of heads, masks, layouts, limits.
  Problem invariant_form() const;
  // With a table: the same problem for the kernels of GPUs, which read the bias of each pair, f32
  // [index batch, Hq, Sq, Sk], and leave its gradient likewise. Launches around them make the one
  // of the table, and the table's gradient of the other. Without a table: the problem itself.
  Problem with_dense_bias() const;
};

// Checks everything that can be wrong with a problem on any device. *problem is written on success.
Status make_problem(const tandem_problem* given, Problem* problem);

// Whether kernels of GPUs read the mask map (mask_map.h): there is a mask that it is made of, and
// tiles may be skipped.
bool has_mask_map(const Problem& problem);

// Visible pairs (i, j) over all heads and batch entries, by which the flops of a problem are
// counted.
double visible_pairs(const Problem& problem);
double problem_flops(const Problem& problem);

// Words of Philox below this are dropped: round(p 2^32).
uint32_t dropout_threshold(float dropout);

// elements of d_bias, d_dist_bias, d_bias_table, d_k or d_v, the latter without lengths
int64_t gradient_elements(const Problem& problem, uint32_t gradient);

const char* dtype_name(uint32_t dtype);  // name of a tandem_dtype; "?": it is none

// The problem line (docs/guide/problem-line.md).
String print_problem(const tandem_problem& problem);
Status parse_problem(const char* line, tandem_problem* problem);

}  // namespace tandem
#endif
