// SPDX-License-Identifier: MIT OR Apache-2.0
#include "problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/number.h"
#include "base/structs.h"
#include "mask_map.h"

namespace tandem {
namespace {

using ll = long long;

struct Field {
  const char* name;
  const tandem_tensor* tensor;
  Strides* strides;
  int64_t size[4];
  bool output;
};

bool is_float(uint32_t dtype) {
  return (dtype >= TANDEM_F32 && dtype <= TANDEM_BF16) || dtype == TANDEM_F64;
}

// Checks strides, and the word that must be 0.
Status check_layout(const Field& f) {
  const tandem_tensor& t = *f.tensor;
  if (t.reserved != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s.reserved is %u, must be 0", f.name, t.reserved);

  const bool empty = std::any_of(f.size, f.size + 4, [](int64_t n) { return n == 0; });
  // Byte offsets are computed in 64 bits by every backend; 2^60 elements leaves room for the rest.
  const int64_t limit = int64_t(1) << 60;
  int64_t extent = 0;
  for (int dim = 0; dim < 4; ++dim) {
    if (t.stride[dim] < 0)
      return fail(TANDEM_ERROR_INVALID_LAYOUT, "%s.stride[%d] is %lld, must not be negative",
                  f.name, dim, ll(t.stride[dim]));
    const int64_t steps = std::max<int64_t>(f.size[dim] - 1, 0);
    if (steps > 0 && t.stride[dim] > (limit - extent) / steps)
      return fail(TANDEM_ERROR_INVALID_LAYOUT,
                  "%s.stride[%d] is %lld for %lld elements: offsets overflow", f.name, dim,
                  ll(t.stride[dim]), ll(f.size[dim]));
    extent += steps * t.stride[dim];
  }
  if (f.output && !empty) {
    // Dimensions ordered by stride must nest: each step is longer than all that lies below it.
    int order[4] = {0, 1, 2, 3};
    std::sort(order, order + 4, [&](int a, int b) { return t.stride[a] < t.stride[b]; });
    int64_t below = 0;
    for (int dim : order) {
      if (f.size[dim] == 1) continue;
      if (t.stride[dim] <= below)
        return fail(TANDEM_ERROR_INVALID_LAYOUT,
                    "%s.stride[%d] is %lld: elements of this output overlap", f.name, dim,
                    ll(t.stride[dim]));
      below += (f.size[dim] - 1) * t.stride[dim];
    }
  }
  *f.strides = {t.stride[0], t.stride[1], t.stride[2], t.stride[3]};
  return Status();
}

// Checks a tensor of queries or keys.
Status check_tensor(const Field& f, uint32_t dtype, bool packed) {
  const tandem_tensor& t = *f.tensor;
  if (!is_float(t.dtype))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s.dtype is %u, must be f32, f16, bf16 or f64",
                f.name, t.dtype);
  if (t.dtype != dtype)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "%s.dtype is %s and q.dtype is %s; this version wants one dtype for both", f.name,
                dtype_name(t.dtype), dtype_name(dtype));
  if (packed && t.stride[0] != 0)
    return fail(TANDEM_ERROR_INVALID_LAYOUT,
                "%s.stride[0] is %lld, must be 0: a packed tensor has no batch dimension", f.name,
                ll(t.stride[0]));
  return check_layout(f);
}

Status check_size(const char* name, int64_t value, int64_t limit) {
  if (value < 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is %lld, must not be negative", name, ll(value));
  if (value >= limit)
    return fail(TANDEM_ERROR_UNSUPPORTED, "%s is %lld, must be below %lld", name, ll(value),
                ll(limit));
  return Status();
}

// Bounds the rows of a tensor, so that no later product of the three sizes leaves 64 bits. Strides
// do not bound inputs that repeat a row (stride 0).
Status check_rows(const char* heads_name, int64_t heads, const char* seq_name, int64_t seq,
                  int64_t batch) {
  const int64_t limit = int64_t(1) << 58;
  if (heads > 0 && seq > 0 && batch > limit / heads / seq)
    return fail(TANDEM_ERROR_UNSUPPORTED, "batch %lld x %s %lld x %s %lld is beyond 2^58 rows",
                ll(batch), heads_name, ll(heads), seq_name, ll(seq));
  return Status();
}

Status check_head_dim(const char* name, int64_t value) {
  if (value < 1)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is %lld, must be at least 1", name, ll(value));
  if (value > 256)
    return fail(TANDEM_ERROR_UNSUPPORTED, "%s is %lld; no kernel goes beyond 256", name, ll(value));
  return Status();
}

Status check_window(const char* name, int64_t value, int* bound) {
  if (value < TANDEM_UNBOUNDED)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is %lld, must be TANDEM_UNBOUNDED or >= 0", name,
                ll(value));
  *bound = value == TANDEM_UNBOUNDED || value >= TANDEM_BAND_OPEN ? TANDEM_BAND_OPEN : int(value);
  return Status();
}

// Whether an input may have so many batch entries: each serves a group of the batch's entries.
bool divides_batch(const Problem& p, int64_t batch) {
  return p.batch == 0 ? batch == 0 || batch == 1 : batch >= 1 && p.batch % batch == 0;
}

// Checks bias or keep: it is absent, or its sizes divide the problem's.
Status check_overlay(const char* name, const tandem_tensor& t, int64_t batch, int64_t heads,
                     int64_t rows, const Problem& p, Overlay* overlay) {
  if (t.dtype == 0) {
    if (batch || heads || rows)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                  "%s.dtype is 0, which switches %s off, but %s has the sizes %lld, %lld, %lld",
                  name, name, name, ll(batch), ll(heads), ll(rows));
    return Status();
  }
  const auto wrong = [&](const char* size, ll value, const char* allowed) {
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s_%s is %lld, must be %s", name, size, value,
                allowed);
  };
  if (!divides_batch(p, batch))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s_batch is %lld, must divide batch, %lld", name,
                ll(batch), ll(p.batch));
  if (heads != 1 && heads != p.heads_q && heads != p.heads_kv)
    return wrong(
        "heads", heads,
        text("1, heads_kv or heads_q, %lld or %lld", ll(p.heads_kv), ll(p.heads_q)).c_str());
  if (rows != 1 && rows != p.seq_q)
    return wrong("rows", rows, text("1 or seq_q, %lld", ll(p.seq_q)).c_str());
  TANDEM_TRY(check_layout({name, &t, &overlay->strides, {batch, heads, rows, p.seq_kv}, false}));
  overlay->dtype = tandem_dtype(t.dtype);
  overlay->batch = batch;
  overlay->heads = heads;
  overlay->rows = rows;
  if (batch == 1) overlay->strides.b = 0;
  if (heads == 1) overlay->strides.h = 0;
  if (rows == 1) overlay->strides.s = 0;
  return Status();
}

Status check_spans(const tandem_problem& given, const Problem& p, Spans* spans) {
  const int64_t batch = given.spans_batch, heads = given.spans_heads;
  if (given.spans < 0 || given.spans > 2)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "spans is %lld, must be 0, 1 or 2", ll(given.spans));
  if (given.spans == 0) {
    if (batch || heads)
      return fail(
          TANDEM_ERROR_INVALID_ARGUMENT,
          "spans is 0, which switches spans off, but spans_batch is %lld and spans_heads %lld",
          ll(batch), ll(heads));
    return Status();
  }
  if (!divides_batch(p, batch))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "spans_batch is %lld, must divide batch, %lld",
                ll(batch), ll(p.batch));
  if (heads != 1 && heads != p.heads_q && heads != p.heads_kv)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "spans_heads is %lld, must be 1, heads_kv or heads_q, %lld or %lld", ll(heads),
                ll(p.heads_kv), ll(p.heads_q));
  *spans = {int(given.spans), batch, heads};
  return Status();
}

// Checks block lists, and makes keep of them.
Status check_blocks(const tandem_problem& given, Problem* p) {
  const int64_t q = given.block_q, kv = given.block_kv, width = given.block_width,
                bits = given.block_bits, batch = given.block_batch, heads = given.block_heads;
  if (q == 0) {
    if (kv || width || bits || batch || heads)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                  "block_q is 0, which switches block lists off, but block_kv is %lld, block_width "
                  "%lld, block_bits %lld, block_batch %lld and block_heads %lld",
                  ll(kv), ll(width), ll(bits), ll(batch), ll(heads));
    return Status();
  }
  for (const auto& [name, size] : {std::pair{"block_q", q}, std::pair{"block_kv", kv}})
    if (size < TANDEM_MAP_BLOCK || size % TANDEM_MAP_BLOCK != 0 || size > TANDEM_SEQ_LIMIT)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is %lld, must be a multiple of %d up to %d",
                  name, ll(size), TANDEM_MAP_BLOCK, TANDEM_SEQ_LIMIT);
  if (width < 0 || width > TANDEM_SEQ_LIMIT)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "block_width is %lld, must be 0 to %d", ll(width),
                TANDEM_SEQ_LIMIT);
  if (bits < 0 || bits > width)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "block_bits is %lld, must be 0 to block_width, %lld",
                ll(bits), ll(width));
  if (!divides_batch(*p, batch))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "block_batch is %lld, must divide batch, %lld",
                ll(batch), ll(p->batch));
  if (heads != 1 && heads != p->heads_q && heads != p->heads_kv)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "block_heads is %lld, must be 1, heads_kv or heads_q, %lld or %lld", ll(heads),
                ll(p->heads_kv), ll(p->heads_q));
  if (p->keep)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "keep and block lists cannot be given together: give the bits of the blocks that "
                "keep hides a part of");
  const int64_t pitch = keep_pitch(p->seq_kv), of = p->seq_q * pitch;
  if (of > 0 && batch * heads > (int64_t(1) << 58) / of)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "block lists of %lld x %lld heads, %lld rows and %lld keys are beyond 2^58 pairs",
                ll(batch), ll(heads), ll(p->seq_q), ll(p->seq_kv));
  p->blocks = {q, kv, width, bits, batch, heads};
  p->keep.dtype = TANDEM_BOOL8;
  p->keep.batch = batch, p->keep.heads = heads, p->keep.rows = p->seq_q;
  p->keep.strides = {batch == 1 ? 0 : heads * of, heads == 1 ? 0 : of, p->seq_q == 1 ? 0 : pitch,
                     1};
  return Status();
}

// Checks the number of batch entries of slopes or sinks; 0 is 1.
Status check_entries(const char* name, const char* flag, bool on, int64_t given, const Problem& p,
                     int64_t* entries) {
  if (!on && given != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is 0, but %s is %lld", flag, name, ll(given));
  if (given != 0 && !divides_batch(p, given))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is %lld, must divide batch, %lld", name,
                ll(given), ll(p.batch));
  *entries = given == 0 ? 1 : given;
  return Status();
}

Status check_table(const tandem_problem& given, const Problem& p, BiasTable* table) {
  const int64_t size = given.bias_table_size, batch = given.bias_index_batch;
  const uint32_t index = given.bias_index_dtype;
  TANDEM_TRY(check_size("bias_table_size", size, TANDEM_SEQ_LIMIT));
  if (size == 0) {
    if (batch || index)
      return fail(
          TANDEM_ERROR_INVALID_ARGUMENT,
          "bias_table_size is 0, which switches the table off, but bias_index_batch is %lld "
          "and bias_index_dtype %u",
          ll(batch), index);
    return Status();
  }
  if (index != TANDEM_U8 && index != TANDEM_U16 && index != TANDEM_I32)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "bias_index_dtype is %u, must be TANDEM_U8, TANDEM_U16 or TANDEM_I32", index);
  if (!divides_batch(p, batch))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "bias_index_batch is %lld, must divide batch, %lld",
                ll(batch), ll(p.batch));
  if (p.bias)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "bias and bias_table are both given; a problem has one of them: give the table's "
                "terms as part of bias");
  const int64_t limit = int64_t(1) << 56, rows = p.heads_q * p.seq_q;  // below 2^58
  if (rows > 0 && p.seq_kv > 0 && batch > limit / rows / p.seq_kv)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "bias_index_batch %lld x heads_q %lld x seq_q %lld x seq_kv %lld is beyond 2^56 "
                "biases",
                ll(batch), ll(p.heads_q), ll(p.seq_q), ll(p.seq_kv));
  *table = {size, batch, tandem_dtype(index)};
  return Status();
}

// The gradient of the loss with respect to lse.
Status check_d_lse(const tandem_problem& given, Problem* p) {
  if (given.d_lse > 1)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.d_lse is %u, must be 0 or 1", given.d_lse);
  if (given.d_lse == 0) return Status();
  if (!p->backward)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.d_lse is 1, but the direction is forward: d_lse is an input of backward");
  if (p->normalizer == Normalizer::entmax)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "d_lse with TANDEM_ENTMAX has no meaning: entmax has a threshold in place of lse");
  if (p->normalizer == Normalizer::elastic)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "d_lse with TANDEM_ELASTIC is not in this version: lse has a gradient with "
                "TANDEM_SOFTMAX alone");
  p->d_lse = p->needs_delta();
  return Status();
}

// The largest logit of each head, an output of forward.
Status check_max_logit(const tandem_problem& given, Problem* p) {
  const int64_t entries = given.max_logit_batch;
  if (entries == 0) return Status();
  if (p->backward)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "max_logit_batch is %lld, but the direction is backward: max_logit is an output of "
                "forward",
                ll(entries));
  if (!divides_batch(*p, entries))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "max_logit_batch is %lld, must divide batch, %lld",
                ll(entries), ll(p->batch));
  if (p->normalizer != Normalizer::softmax)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "max_logit_batch is %lld, but the largest logit is in this version of "
                "TANDEM_SOFTMAX alone",
                ll(entries));
  if (p->dtype == TANDEM_F64)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "max_logit_batch is %lld, but tensors of f64 have no largest logit in this version",
                ll(entries));
  p->max_logit_batch = entries;
  return Status();
}

// What a backward over a part of a row's keys cannot form: what needs the others.
Status check_part(const Problem& p) {
  if (!p.part_of_keys) return Status();
  if (!p.backward)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.flags has TANDEM_FLAG_PART_OF_KEYS, which is for backward; a forward of a "
                "part is that of its keys");
  if (p.normalizer != Normalizer::softmax)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "problem.flags has TANDEM_FLAG_PART_OF_KEYS, which is for TANDEM_SOFTMAX: the "
                "gradients of elastic softmax and entmax need sums over all keys of a row");
  if (p.wants(TANDEM_GRAD_SLOPE))
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "TANDEM_GRAD_SLOPE with TANDEM_FLAG_PART_OF_KEYS is not in this version: its "
                "kernels form delta from the keys that they see");
  return Status();
}

// What the bits of a batch-invariant problem's rows would depend on, or has no kernels for it.
Status check_batch_invariant(const Problem& p) {
  if (!p.batch_invariant) return Status();
  const String more = p.extras(kHasSoftcap | kHasAlibi | kHasSink | kHasLengths);
  if (!more.empty())
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "problem.flags has TANDEM_FLAG_BATCH_INVARIANT, which is in this version for "
                "TANDEM_SOFTMAX with softcap, ALiBi, sinks and lengths; this problem has %s",
                more.c_str());
  if (p.splits > 1)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.splits is %d, but with TANDEM_FLAG_BATCH_INVARIANT bits may not depend on "
                "splits; leave it 0",
                p.splits);
  if (p.tile_rows || p.tile_cols)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.tile_rows and tile_cols are %d and %d, but with "
                "TANDEM_FLAG_BATCH_INVARIANT the tile is the library's; leave them 0",
                p.tile_rows, p.tile_cols);
  return Status();
}

Status check_flag(const char* name, uint32_t value) {
  if (value > 1)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.%s is %u, must be 0 or 1", name, value);
  return Status();
}

Status check_lengths(const char* name, uint32_t value, const char* total_name, int64_t total,
                     Lengths* lengths) {
  if (value > TANDEM_LENGTHS_GAPPED)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.%s is %u, which is no tandem_lengths", name,
                value);
  *lengths = Lengths(value);
  if (!is_packed(*lengths) && total != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "%s is %lld, must be 0 unless %s is packed or gapped", total_name, ll(total), name);
  return check_size(total_name, total, std::numeric_limits<int32_t>::max());
}

// A merge reads a few members. Of the others those that say what attention computes must be as
// tandem_problem_init() leaves them.
Status check_merge_alone(const tandem_problem& g) {
  const struct {
    const char* name;
    bool set;
  } others[] = {{"mask", g.mask != TANDEM_MASK_NONE},
                {"align", g.align != TANDEM_TOP_LEFT},
                {"window_left", g.window_left != TANDEM_UNBOUNDED},
                {"window_right", g.window_right != TANDEM_UNBOUNDED},
                {"tile_rows", g.tile_rows != 0},
                {"tile_cols", g.tile_cols != 0},
                {"splits", g.splits != 0},
                {"normalizer", g.normalizer != TANDEM_SOFTMAX},
                {"entmax_alpha", !(g.entmax_alpha == 0)},
                {"softcap", !(g.softcap == 0)},
                {"dropout", !(g.dropout == 0)},
                {"alibi", g.alibi != 0},
                {"sink", g.sink != 0},
                {"dist_window", g.dist_window != 0},
                {"bias", g.bias.dtype != 0 || g.bias_batch || g.bias_heads || g.bias_rows},
                {"keep", g.keep.dtype != 0 || g.keep_batch || g.keep_heads || g.keep_rows},
                {"lengths_q", g.lengths_q != TANDEM_LENGTHS_FULL || g.total_q != 0},
                {"lengths_kv", g.lengths_kv != TANDEM_LENGTHS_FULL || g.total_kv != 0},
                {"spans", g.spans || g.spans_batch || g.spans_heads},
                {"block lists", g.block_q || g.block_kv || g.block_width || g.block_bits ||
                                    g.block_batch || g.block_heads},
                {"slopes_batch", g.slopes_batch != 0},
                {"sinks_batch", g.sinks_batch != 0},
                {"bias_table", g.bias_table_size || g.bias_index_batch || g.bias_index_dtype},
                {"max_logit_batch", g.max_logit_batch != 0}};
  for (const auto& other : others)
    if (other.set)
      return fail(
          TANDEM_ERROR_INVALID_ARGUMENT,
          "problem.direction is TANDEM_MERGE%s, but %s is given: a merge has no scores, and "
          "what made the parts is theirs alone",
          g.direction == TANDEM_MERGE_BACKWARD ? "_BACKWARD" : "", other.name);
  if (g.flags & ~TANDEM_FLAG_DETERMINISTIC)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.flags is 0x%x, but a merge takes TANDEM_FLAG_DETERMINISTIC alone",
                g.flags);
  return Status();
}

// A tensor of a merge, [B,Hq,Sq,Dv] in any float type. parts: 0, or how many of them there are,
// `step` elements apart.
Status check_merged(const char* name, const tandem_tensor& t, const Problem& p, bool output,
                    int64_t parts, const char* step_name, int64_t step, Strides* strides) {
  if (!is_float(t.dtype))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s.dtype is %u, must be f32, f16, bf16 or f64",
                name, t.dtype);
  TANDEM_TRY(
      check_layout({name, &t, strides, {p.batch, p.heads_q, p.seq_q, p.head_dim_v}, output}));
  if (parts < 2) return Status();
  if (step < 0)
    return fail(TANDEM_ERROR_INVALID_LAYOUT, "%s is %lld, must not be negative", step_name,
                ll(step));
  if (step > (int64_t(1) << 60) / parts)
    return fail(TANDEM_ERROR_INVALID_LAYOUT, "%s is %lld for %lld parts: offsets overflow",
                step_name, ll(step), ll(parts));
  const int64_t extent = (p.batch - 1) * t.stride[0] + (p.heads_q - 1) * t.stride[1] +
                         (p.seq_q - 1) * t.stride[2] + (p.head_dim_v - 1) * t.stride[3];
  if (output && !p.is_empty() && step <= extent)
    return fail(TANDEM_ERROR_INVALID_LAYOUT,
                "%s is %lld, but a part of %s spans %lld elements: parts of this output overlap",
                step_name, ll(step), name, ll(extent + 1));
  return Status();
}

// What computes in double computes all in double.
Status check_merged_type(const char* name, uint32_t dtype, const Problem& p) {
  if ((dtype == TANDEM_F64) == (p.parts.dtype == TANDEM_F64)) return Status();
  return fail(TANDEM_ERROR_INVALID_ARGUMENT,
              "%s.dtype is %s and part_o.dtype is %s; a merge has f64 in all tensors or in none",
              name, dtype_name(dtype), dtype_name(p.parts.dtype));
}

// Fills in the rest of a merge, whose sizes are set.
Status check_merge(const tandem_problem& g, Problem* p) {
  TANDEM_TRY(check_merge_alone(g));
  if (g.parts < 1 || g.parts > 65535)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.parts is %lld, must be 1 to 65535",
                ll(g.parts));
  if (p->batch * p->heads_q > std::numeric_limits<int32_t>::max() / g.parts)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "parts %lld x batch %lld x heads_q %lld is beyond 2^31 - 1 heads", ll(g.parts),
                ll(p->batch), ll(p->heads_q));
  if (g.merge_into > 1)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.merge_into is %u, must be 0 or 1",
                g.merge_into);
  if (g.merge_into && p->backward)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.merge_into is 1 with TANDEM_MERGE_BACKWARD: the part that o and lse held "
                "is overwritten; give all parts, and 0");
  if (g.d_lse > 1)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.d_lse is %u, must be 0 or 1", g.d_lse);
  if (g.d_lse && !p->backward)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.d_lse is 1, but the direction is TANDEM_MERGE: d_lse is an input of "
                "TANDEM_MERGE_BACKWARD");
  p->d_lse = g.d_lse != 0;
  p->parts.count = int(g.parts);
  p->parts.into = g.merge_into != 0;
  p->parts.stride = g.parts > 1 ? g.part_stride : 0;
  TANDEM_TRY(check_merged("part_o", g.part_o, *p, false, g.parts, "part_stride", g.part_stride,
                          &p->part_o));
  p->parts.dtype = tandem_dtype(g.part_o.dtype);
  if (!p->backward) {
    TANDEM_TRY(check_merged("o", g.o, *p, true, 0, "", 0, &p->o));
    p->dtype = tandem_dtype(g.o.dtype);
    return check_merged_type("o", g.o.dtype, *p);
  }
  TANDEM_TRY(check_merged("d_o", g.d_o, *p, false, 0, "", 0, &p->d_o));
  p->dtype = tandem_dtype(g.d_o.dtype);
  TANDEM_TRY(check_merged_type("d_o", g.d_o.dtype, *p));
  p->parts.d_stride = g.parts > 1 ? g.d_part_stride : 0;
  TANDEM_TRY(check_merged("d_part_o", g.d_part_o, *p, true, g.parts, "d_part_stride",
                          g.d_part_stride, &p->d_part_o));
  if (g.d_part_o.dtype != g.part_o.dtype)
    return fail(
        TANDEM_ERROR_UNSUPPORTED,
        "d_part_o.dtype is %s and part_o.dtype is %s; this version wants one dtype for both",
        dtype_name(g.d_part_o.dtype), dtype_name(g.part_o.dtype));
  return Status();
}

Status check_extras(const tandem_problem& given, Problem* p) {
  if (given.normalizer > TANDEM_ENTMAX)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.normalizer is %u, which is no tandem_normalizer", given.normalizer);
  p->normalizer = Normalizer(given.normalizer);
  const float alpha = given.entmax_alpha;
  if (p->normalizer == Normalizer::entmax && !(alpha > 1 && alpha <= 2))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "entmax_alpha is %s, must be above 1 and at most 2%s", short_text(alpha).c_str(),
                alpha == 1 ? "; 1 is softmax" : "");
  if (p->normalizer != Normalizer::entmax && alpha != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "entmax_alpha is %s, must be 0 unless the normalizer is TANDEM_ENTMAX",
                short_text(alpha).c_str());
  p->alpha = alpha;
  if (!(given.softcap >= 0) || std::isinf(given.softcap))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "softcap is %s, must be finite and not negative",
                short_text(given.softcap).c_str());
  p->softcap = given.softcap;
  if (!(given.dropout >= 0 && given.dropout < 1))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "dropout is %s, must be at least 0 and below 1",
                short_text(given.dropout).c_str());
  p->dropout = given.dropout;
  TANDEM_TRY(check_flag("alibi", given.alibi));
  TANDEM_TRY(check_flag("sink", given.sink));
  p->alibi = given.alibi != 0;
  p->sink = given.sink != 0;
  TANDEM_TRY(
      check_entries("slopes_batch", "alibi", p->alibi, given.slopes_batch, *p, &p->slopes_batch));
  TANDEM_TRY(check_entries("sinks_batch", "sink", p->sink, given.sinks_batch, *p, &p->sinks_batch));
  if (p->sink && p->normalizer == Normalizer::entmax)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "sink with TANDEM_ENTMAX has no meaning: a sink joins a sum of exponentials");
  TANDEM_TRY(check_size("dist_window", given.dist_window, TANDEM_SEQ_LIMIT));
  p->dist_window = given.dist_window;

  if (given.bias.dtype != 0 && !is_float(given.bias.dtype))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "bias.dtype is %u, must be f32, f16, bf16, f64 or 0",
                given.bias.dtype);
  if (given.bias.dtype == TANDEM_F64 && p->dtype != TANDEM_F64)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "bias.dtype is f64, which is for tensors of f64, but q.dtype is %s",
                dtype_name(p->dtype));
  TANDEM_TRY(check_overlay("bias", given.bias, given.bias_batch, given.bias_heads, given.bias_rows,
                           *p, &p->bias));
  if (given.keep.dtype != 0 && given.keep.dtype != TANDEM_BOOL8)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "keep.dtype is %u, must be TANDEM_BOOL8 or 0",
                given.keep.dtype);
  TANDEM_TRY(check_overlay("keep", given.keep, given.keep_batch, given.keep_heads, given.keep_rows,
                           *p, &p->keep));
  TANDEM_TRY(check_spans(given, *p, &p->spans));
  TANDEM_TRY(check_blocks(given, p));
  TANDEM_TRY(check_table(given, *p, &p->table));
  TANDEM_TRY(check_d_lse(given, p));
  TANDEM_TRY(check_max_logit(given, p));
  TANDEM_TRY(check_part(*p));

  const struct {
    uint32_t bit;
    const char *name, *of;
    bool present;
  } gradients[] = {
      {TANDEM_GRAD_BIAS, "TANDEM_GRAD_BIAS", "bias", bool(p->bias)},
      {TANDEM_GRAD_DIST_BIAS, "TANDEM_GRAD_DIST_BIAS", "dist_bias", p->dist_window > 0},
      {TANDEM_GRAD_SLOPE, "TANDEM_GRAD_SLOPE", "slope", p->alibi},
      {TANDEM_GRAD_TAU, "TANDEM_GRAD_TAU", "tau", p->normalizer == Normalizer::elastic},
      {TANDEM_GRAD_SINK, "TANDEM_GRAD_SINK", "sink", p->sink},
      {TANDEM_GRAD_BIAS_TABLE, "TANDEM_GRAD_BIAS_TABLE", "bias_table", bool(p->table)}};
  for (const auto& g : gradients)
    if (p->wants(g.bit) && !g.present)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.gradients has %s, but there is no %s",
                  g.name, g.of);
  if (p->wants(TANDEM_GRAD_BIAS)) {
    if (given.d_bias.dtype != p->side_dtype() && given.d_bias.dtype != given.bias.dtype)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "d_bias.dtype is %u, must be %s or bias.dtype, %s",
                  given.d_bias.dtype, dtype_name(p->side_dtype()), dtype_name(p->bias.dtype));
    const Overlay& b = p->bias;
    TANDEM_TRY(check_layout(
        {"d_bias", &given.d_bias, &p->d_bias, {b.batch, b.heads, b.rows, p->seq_kv}, true}));
    p->d_bias_dtype = tandem_dtype(given.d_bias.dtype);
  }
  return Status();
}

}  // namespace

const char* dtype_name(uint32_t dtype) {
  switch (dtype) {
    case TANDEM_F32:
      return "f32";
    case TANDEM_F16:
      return "f16";
    case TANDEM_BF16:
      return "bf16";
    case TANDEM_BOOL8:
      return "bool8";
    case TANDEM_U8:
      return "u8";
    case TANDEM_U16:
      return "u16";
    case TANDEM_I32:
      return "i32";
    case TANDEM_F64:
      return "f64";
  }
  return "?";
}

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
  p.batch = kHeads, p.heads_kv = kHeads, p.heads_q = kHeads * std::max<int64_t>(group(), 1);
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
  const int64_t rows = heads_kv == 0 ? 0 : group();
  const bool sees_first = band.left == TANDEM_BAND_OPEN;
  const bool sees_last = band.right == TANDEM_BAND_OPEN ||
                         (lengths_kv == Lengths::full ? band.off + band.right >= seq_kv - 1
                                                      : bottom_right && band.right >= 0);
  uint32_t others = inputs() & ~uint32_t(kHasSoftcap | kHasLengths);
  if (sinks && sinks_batch == 1) others &= ~uint32_t(kHasSink);
  if (backward || max_logit_batch > 0 || seq_q != 1 || rows < 2 || rows > TANDEM_SEQ_LIMIT ||
      lengths_q != Lengths::full || !sees_first || !sees_last || others != 0)
    return *this;
  Problem p = *this;
  for (Strides* t : {&p.q, &p.o}) {
    t->s = t->h;
    if (heads_kv > 1) t->h *= rows;  // within the tensor, so no overflow
  }
  p.heads_q = heads_kv;
  p.seq_q = rows;
  p.sink_of_rows = sink;
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

Status make_problem(const tandem_problem* given, Problem* problem) {
  tandem_problem whole;
  TANDEM_TRY(read_struct("problem", given, &whole));
  given = &whole;
  if (given->next)
    return fail(TANDEM_ERROR_INVALID_STRUCT,
                "problem.next is not NULL; this version extends nothing");
  if (given->direction < TANDEM_FORWARD || given->direction > TANDEM_MERGE_BACKWARD)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.direction is %u, which is no tandem_direction", given->direction);
  if (given->mask > TANDEM_MASK_CAUSAL)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.mask is %u, which is no tandem_mask",
                given->mask);
  if (given->align > TANDEM_BOTTOM_RIGHT)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.align is %u, which is no tandem_align",
                given->align);
  if (given->flags & ~(TANDEM_FLAG_DETERMINISTIC | TANDEM_FLAG_VISIT_ALL | TANDEM_FLAG_TF32 |
                       TANDEM_FLAG_PART_OF_KEYS | TANDEM_FLAG_BATCH_INVARIANT | TANDEM_FLAG_SLICES))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.flags is 0x%x, which has unknown bits",
                given->flags);

  const bool merges = given->direction == TANDEM_MERGE || given->direction == TANDEM_MERGE_BACKWARD;
  if (merges) {  // what it ignores
    whole.heads_kv = whole.heads_q;
    whole.seq_kv = 1;
    whole.head_dim = whole.head_dim_v;
  } else if (given->parts != 0 || given->merge_into != 0) {
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.%s is %lld, but the direction is %s: parts are what TANDEM_MERGE and "
                "TANDEM_MERGE_BACKWARD join",
                given->parts ? "parts" : "merge_into",
                given->parts ? ll(given->parts) : ll(given->merge_into),
                given->direction == TANDEM_FORWARD ? "forward" : "backward");
  }

  Problem p;
  p.backward = given->direction == TANDEM_BACKWARD || given->direction == TANDEM_MERGE_BACKWARD;
  p.batch_invariant = (given->flags & TANDEM_FLAG_BATCH_INVARIANT) != 0;
  p.deterministic = p.batch_invariant || (given->flags & TANDEM_FLAG_DETERMINISTIC) != 0;
  p.visit_all = (given->flags & TANDEM_FLAG_VISIT_ALL) != 0;
  p.tf32 = (given->flags & TANDEM_FLAG_TF32) != 0;
  p.part_of_keys = (given->flags & TANDEM_FLAG_PART_OF_KEYS) != 0;
  p.slices = (given->flags & TANDEM_FLAG_SLICES) != 0;
  const int64_t count_limit = std::numeric_limits<int32_t>::max();
  TANDEM_TRY(check_size("batch", given->batch, count_limit));
  TANDEM_TRY(check_size("heads_q", given->heads_q, count_limit));
  TANDEM_TRY(check_size("heads_kv", given->heads_kv, count_limit));
  TANDEM_TRY(check_size("seq_q", given->seq_q, TANDEM_SEQ_LIMIT));
  TANDEM_TRY(check_size("seq_kv", given->seq_kv, TANDEM_SEQ_LIMIT));
  if (!merges) TANDEM_TRY(check_head_dim("head_dim", given->head_dim));
  TANDEM_TRY(check_head_dim("head_dim_v", given->head_dim_v));
  if (given->heads_kv == 0 ? given->heads_q != 0 : given->heads_q % given->heads_kv != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "heads_q is %lld, not a multiple of heads_kv %lld",
                ll(given->heads_q), ll(given->heads_kv));
  TANDEM_TRY(check_rows("heads_q", given->heads_q, "seq_q", given->seq_q, given->batch));
  TANDEM_TRY(check_rows("heads_kv", given->heads_kv, "seq_kv", given->seq_kv, given->batch));
  p.batch = given->batch;
  p.heads_q = given->heads_q;
  p.heads_kv = given->heads_kv;
  p.seq_q = given->seq_q;
  p.seq_kv = given->seq_kv;
  p.head_dim = given->head_dim;
  p.head_dim_v = given->head_dim_v;

  const auto check_reserved = [&]() -> Status {
    const struct {
      const char* name;
      uint32_t value;
    } words[] = {{"reserved", given->reserved},
                 {"reserved2", given->reserved2},
                 {"reserved3", given->reserved3},
                 {"reserved4", given->reserved4}};
    for (const auto& word : words)
      if (word.value != 0)
        return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.%s is %u, must be 0", word.name,
                    word.value);
    return Status();
  };
  const int64_t tile_limit = 1 << 16;
  if (merges) {
    TANDEM_TRY(check_merge(*given, &p));
    TANDEM_TRY(check_size("cores", given->cores, tile_limit));
    p.cores = int(given->cores);
    p.workspace_limit = given->workspace_limit;
    TANDEM_TRY(check_reserved());
    *problem = p;
    return Status();
  }

  if (p.backward) {
    if (given->gradients == 0 || given->gradients >= 2 * TANDEM_GRAD_BIAS_TABLE)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                  "problem.gradients is 0x%x, must be a non-empty set of TANDEM_GRAD_*",
                  given->gradients);
    p.gradients = given->gradients;
  }

  TANDEM_TRY(check_lengths("lengths_q", given->lengths_q, "total_q", given->total_q, &p.lengths_q));
  TANDEM_TRY(
      check_lengths("lengths_kv", given->lengths_kv, "total_kv", given->total_kv, &p.lengths_kv));
  p.total_q = given->total_q;
  p.total_kv = given->total_kv;

  const int64_t Hq = p.heads_q, Hk = p.heads_kv, Sk = p.seq_kv, D = p.head_dim, Dv = p.head_dim_v;
  const bool packed_q = is_packed(p.lengths_q), packed_kv = is_packed(p.lengths_kv);
  const int64_t Bq = packed_q ? 1 : p.batch, Bk = packed_kv ? 1 : p.batch;
  const int64_t Rq = packed_q ? p.total_q : p.seq_q, Rk = packed_kv ? p.total_kv : p.seq_kv;
  const struct {
    Field field;
    bool kv, read, written;
  } tensors[] = {
      {{"q", &given->q, &p.q, {Bq, Hq, Rq, D}, false}, false, true, false},
      {{"k", &given->k, &p.k, {Bk, Hk, Rk, D}, false}, true, true, false},
      {{"v", &given->v, &p.v, {Bk, Hk, Rk, Dv}, false}, true, true, false},
      {{"o", &given->o, &p.o, {Bq, Hq, Rq, Dv}, !p.backward}, false, true, false},
      {{"d_o", &given->d_o, &p.d_o, {Bq, Hq, Rq, Dv}, false}, false, p.backward, false},
      {{"d_q", &given->d_q, &p.d_q, {Bq, Hq, Rq, D}, true}, false, false, p.wants(TANDEM_GRAD_Q)},
      {{"d_k", &given->d_k, &p.d_k, {Bk, Hk, Rk, D}, true}, true, false, p.wants(TANDEM_GRAD_K)},
      {{"d_v", &given->d_v, &p.d_v, {Bk, Hk, Rk, Dv}, true}, true, false, p.wants(TANDEM_GRAD_V)}};
  for (const auto& t : tensors)
    if (t.read || t.written)
      TANDEM_TRY(check_tensor(t.field, given->q.dtype, t.kv ? packed_kv : packed_q));
  p.dtype = tandem_dtype(given->q.dtype);  // q is always read, so it is one
  if (p.tf32 && p.dtype != TANDEM_F32)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.flags has TANDEM_FLAG_TF32, which is for f32, but q.dtype is %s",
                dtype_name(p.dtype));
  TANDEM_TRY(check_extras(*given, &p));

  if (std::isinf(given->scale))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.scale is infinite");
  p.scale = std::isnan(given->scale) ? float(1.0 / std::sqrt(double(D))) : given->scale;

  TANDEM_TRY(check_window("window_left", given->window_left, &p.band.left));
  TANDEM_TRY(check_window("window_right", given->window_right, &p.band.right));
  if (given->mask == TANDEM_MASK_CAUSAL) p.band.right = std::min(p.band.right, 0);
  // off places the band and the diagonals of the distance bias and ALiBi; without these it has no
  // effect.
  if (p.banded() || p.dist_window > 0 || p.alibi)
    p.bottom_right = given->align == TANDEM_BOTTOM_RIGHT;
  if (p.bottom_right) p.band.off = int(Sk - p.seq_q);

  TANDEM_TRY(check_size("tile_rows", given->tile_rows, tile_limit));
  TANDEM_TRY(check_size("tile_cols", given->tile_cols, tile_limit));
  p.tile_rows = int(given->tile_rows);
  p.tile_cols = int(given->tile_cols);
  TANDEM_TRY(check_size("splits", given->splits, tile_limit));
  p.splits = int(given->splits);
  TANDEM_TRY(check_size("cores", given->cores, tile_limit));
  p.cores = int(given->cores);
  p.workspace_limit = given->workspace_limit;
  TANDEM_TRY(check_batch_invariant(p));
  TANDEM_TRY(check_reserved());
  *problem = p;
  return Status();
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
