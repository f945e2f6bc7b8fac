// SPDX-License-Identifier: MIT OR Apache-2.0
#include "problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/number.h"
#include "base/structs.h"
#include "checks.h"

namespace tandem {

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

Status check_size(const char* name, int64_t value, int64_t limit) {
  if (value < 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is %lld, must not be negative", name, ll(value));
  if (value >= limit)
    return fail(TANDEM_ERROR_UNSUPPORTED, "%s is %lld, must be below %lld", name, ll(value),
                ll(limit));
  return Status();
}

namespace {

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
  if (value > kMaxHeadDim)
    return fail(TANDEM_ERROR_UNSUPPORTED, "%s is %lld; no kernel goes beyond %d", name, ll(value),
                kMaxHeadDim);
  return Status();
}

Status check_window(const char* name, int64_t value, int* bound) {
  if (value < TANDEM_UNBOUNDED)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is %lld, must be TANDEM_UNBOUNDED or >= 0", name,
                ll(value));
  *bound = value == TANDEM_UNBOUNDED || value >= TANDEM_BAND_OPEN ? TANDEM_BAND_OPEN : int(value);
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
  if (given->flags & ~kProblemFlags)
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

}  // namespace tandem
