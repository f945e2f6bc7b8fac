// SPDX-License-Identifier: MIT OR Apache-2.0
// Checks of a merge.
#include <limits>

#include "base/number.h"
#include "checks.h"

namespace tandem {
namespace {

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
  if (!output || p.is_empty()) return Status();
  const int64_t extent = (p.batch - 1) * t.stride[0] + (p.heads_q - 1) * t.stride[1] +
                         (p.seq_q - 1) * t.stride[2] + (p.head_dim_v - 1) * t.stride[3];
  if (step <= extent)
    return fail(TANDEM_ERROR_INVALID_LAYOUT,
                "%s is %lld, but a part of %s spans %lld elements: parts of an output may not "
                "interleave",
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

}  // namespace

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

}  // namespace tandem
