// SPDX-License-Identifier: MIT OR Apache-2.0
// What follows from a problem: its inputs, other problems that stand for it, and its sizes.
#include <algorithm>
#include <cmath>

#include "base/number.h"
#include "problem.h"

namespace tandem {

uint32_t Problem::inputs() const {
  uint32_t bits = 0;
#define TANDEM_INPUT(name, words, present) \
  if (present) bits |= kHas##name;
#include "kernels/inputs.inc"
  return batch_invariant ? bits | kHasLengths : bits;
}

Problem Problem::invariant_form() const {
  constexpr int64_t kSize = 4096, kHeads = 8;
  Problem p = *this;
  p.batch = kHeads, p.heads_kv = kHeads, p.heads_q = kHeads * (is_empty() ? 1 : group());
  p.seq_q = p.seq_kv = kSize;
  p.band = {TANDEM_BAND_OPEN, 0, 0};
  p.bottom_right = false;
  p.lengths_q = p.lengths_kv = Lengths::full;
  p.total_q = p.total_kv = 0;
  const auto whole = [](int64_t heads, int64_t width) {
    return Strides{heads * kSize * width, kSize * width, width, 1};
  };
  for (Strides* t : {&p.q, &p.d_q}) *t = whole(p.heads_q, head_dim);
  for (Strides* t : {&p.k, &p.d_k}) *t = whole(p.heads_kv, head_dim);
  for (Strides* t : {&p.v, &p.d_v}) *t = whole(p.heads_kv, head_dim_v);
  for (Strides* t : {&p.o, &p.d_o}) *t = whole(p.heads_q, head_dim_v);
  p.slopes_batch = p.sinks_batch = 1;
  p.max_logit_batch = 0, p.d_lse = p.part_of_keys = false;
  if (backward) p.gradients |= TANDEM_GRAD_QKV;
  p.workspace_limit = 0, p.cores = 0;
  return p;
}

String Problem::extras(uint32_t but) const {
  const uint32_t bits = inputs() & ~but;
  String s;
#define TANDEM_INPUT(name, words, present) \
  if (bits & kHas##name) s += text("%s%s", s.empty() ? "" : ", ", words);
#include "kernels/inputs.inc"
  return s;
}

Problem Problem::with_heads_as_rows(bool sinks) const {
  const int64_t rows = heads_kv == 0 ? 0 : group() * seq_q;
  const bool sees_first = band.left == TANDEM_BAND_OPEN;
  const bool sees_last = band.right == TANDEM_BAND_OPEN ||
                         (lengths_kv == Lengths::full ? band.off + band.right >= seq_kv - 1
                                                      : bottom_right && band.right >= seq_q - 1);
  uint32_t others = inputs() & ~uint32_t(kHasSoftcap | kHasLengths);
  if (sinks && sinks_batch == 1 && seq_q == 1) others &= ~uint32_t(kHasSink);
  // Queries of a head, and then those of the next one, must be equally far apart.
  const auto follow = [&](const Strides& t) { return seq_q == 1 || t.h == seq_q * t.s; };
  // More queries than heads fill tiles of their own. H200, 32 query heads of 8, D 128, 8192 keys:
  // 4 queries 0.075 ms in place of 0.115 (B 8), 8 queries 0.079 in place of 0.064 (B 4).
  const int64_t most = batch_invariant || heads_kv == 0 ? 1 : group();
  if (backward || max_logit_batch > 0 || seq_q > most || rows <= seq_q || rows > TANDEM_SEQ_LIMIT ||
      lengths_q != Lengths::full || !sees_first || !sees_last || others != 0 || !follow(q) ||
      !follow(o))
    return *this;
  Problem p = *this;
  for (Strides* t : {&p.q, &p.o}) {
    if (seq_q == 1) t->s = t->h;
    if (heads_kv > 1) t->h *= group();  // within the tensor, so no overflow
  }
  p.heads_q = heads_kv;
  p.seq_q = rows;
  p.sink_of_rows = sink;
  p.packed_queries = int(seq_q);
  p.band = {TANDEM_BAND_OPEN, TANDEM_BAND_OPEN, 0};
  p.bottom_right = false;
  return p;
}

Problem Problem::with_dense_bias() const {
  if (!table || bias) return *this;
  Problem p = *this;
  const Strides whole{heads_q * seq_q * seq_kv, seq_q * seq_kv, seq_kv, 1};
  p.bias.dtype = TANDEM_F32;
  p.bias.batch = table.batch, p.bias.heads = heads_q, p.bias.rows = seq_q;
  p.bias.strides = {table.batch == 1 ? 0 : whole.b, heads_q == 1 ? 0 : whole.h,
                    seq_q == 1 ? 0 : whole.s, whole.d};
  if (wants(TANDEM_GRAD_BIAS_TABLE)) {
    p.gradients |= TANDEM_GRAD_BIAS;
    p.d_bias = whole;
    p.d_bias_dtype = TANDEM_F32;
  }
  return p;
}

bool has_mask_map(const Problem& p) { return p.spans && !p.visit_all; }

// Words of Philox below this are dropped.
uint32_t dropout_threshold(float dropout) {
  // The largest p below 1, 1 - 2^-24, still gives a 32-bit number.
  return uint32_t(std::llround(double(dropout) * 4294967296.0));
}

int64_t gradient_elements(const Problem& p, uint32_t gradient) {
  if (gradient == TANDEM_GRAD_BIAS) return p.bias.batch * p.bias.heads * p.bias.rows * p.seq_kv;
  const int64_t keys = p.batch * p.heads_kv * p.seq_kv;
  if (gradient == TANDEM_GRAD_K) return keys * p.head_dim;
  if (gradient == TANDEM_GRAD_V) return keys * p.head_dim_v;
  if (gradient == TANDEM_GRAD_BIAS_TABLE) return p.heads_q * p.table.size;
  return p.heads_q * p.dist_window;
}

double visible_pairs(const Problem& p) {
  if (p.seq_q == 0 || p.seq_kv == 0) return 0;
  // Row i sees count(i) keys. count is piecewise linear, with breaks where one of its bounds starts
  // or stops to be cut by [0, Sk).
  const int64_t off = p.band.off, left = p.band.left, right = p.band.right, Sq = p.seq_q,
                Sk = p.seq_kv;
  auto count = [&](int64_t i) {
    const int64_t lo = std::max<int64_t>(0, i + off - left);
    const int64_t hi = std::min<int64_t>(Sk - 1, i + off + right);
    return double(std::max<int64_t>(0, hi - lo + 1));
  };
  int64_t cuts[] = {0, left - off, Sk - off + left, -off - right, Sk - 1 - off - right, Sq};
  for (int64_t& cut : cuts) cut = std::min(std::max<int64_t>(cut, 0), Sq);
  std::sort(std::begin(cuts), std::end(cuts));
  double sum = 0;
  for (int n = 0; n + 1 < int(std::size(cuts)); ++n) {
    // The interior of a segment is linear. Its ends are counted one by one, so that rounding of the
    // breaks does not matter.
    const int64_t a = cuts[n], b = cuts[n + 1];
    if (b - a <= 4) {
      for (int64_t i = a; i < b; ++i) sum += count(i);
    } else {
      sum += count(a) + count(b - 1) + 0.5 * double(b - a - 2) * (count(a + 1) + count(b - 2));
    }
  }
  return sum * double(p.batch) * double(p.heads_q);
}

double problem_flops(const Problem& p) {
  if (p.parts) {
    const double parts = double(p.parts.count + p.parts.into) * double(p.batch) *
                         double(p.heads_q) * double(p.seq_q);
    return (p.backward ? 4.0 : 2.0) * parts * double(p.head_dim_v);
  }
  const double forward = 2.0 * visible_pairs(p) * double(p.head_dim + p.head_dim_v);
  return p.backward ? 2.5 * forward : forward;
}

}  // namespace tandem
