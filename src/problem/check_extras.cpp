// SPDX-License-Identifier: MIT OR Apache-2.0
// Checks of the optional inputs of a problem.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "base/number.h"
#include "checks.h"
#include "mask_map.h"

namespace tandem {
namespace {

// Whether an input may have so many batch entries: each serves a group of the batch's entries.
bool divides_batch(const Problem& p, int64_t batch) {
  return p.batch == 0 ? batch == 0 || batch == 1 : batch >= 1 && p.batch % batch == 0;
}

// Whether an array without strides has at most 2^58 numbers, so that its bytes can be counted.
bool can_count(std::initializer_list<int64_t> sizes) {
  int64_t room = int64_t(1) << 58;
  for (const int64_t size : sizes) {
    if (size == 0) return true;
    room /= size;
  }
  return room > 0;
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
  if (!can_count({p.seq_kv, batch, heads, 2 * given.spans}))
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "spans of %lld x %lld heads and %lld keys are beyond 2^58 numbers", ll(batch),
                ll(heads), ll(p.seq_kv));
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
  const int64_t rows = (p->seq_q + q - 1) / q;
  if (!can_count({rows, batch, heads, 2 + width}) ||
      !can_count({rows, batch, heads, bits, q, kv / 32}))
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "block lists of %lld x %lld heads and %lld rows, block_width %lld and block_bits "
                "%lld are beyond 2^58 numbers",
                ll(batch), ll(heads), ll(rows), ll(width), ll(bits));
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

Status check_flag(const char* name, uint32_t value) {
  if (value > 1)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.%s is %u, must be 0 or 1", name, value);
  return Status();
}

}  // namespace

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
  // Kernels divide by it, where a denormal number counts as 0, or has no reciprocal, and a score of
  // 0 would become NaN. Scores this small are 0 to every weight.
  constexpr float kLeastSoftcap = 0x1p-120f;
  if (p->softcap > 0 && p->dtype != TANDEM_F64) p->softcap = std::max(p->softcap, kLeastSoftcap);
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

}  // namespace tandem
