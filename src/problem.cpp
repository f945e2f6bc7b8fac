// SPDX-License-Identifier: MIT OR Apache-2.0
#include "problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

Status check_tensor(const Field& f, uint32_t dtype) {
  const tandem_tensor& t = *f.tensor;
  if (t.dtype < TANDEM_F32 || t.dtype > TANDEM_BF16)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s.dtype is %u, which is no tandem_dtype", f.name,
                t.dtype);
  if (t.dtype != dtype)
    return fail(TANDEM_ERROR_UNSUPPORTED,
                "%s.dtype is %s and q.dtype is %s; this version wants one dtype for all tensors",
                f.name, dtype_name(tandem_dtype(t.dtype)), dtype_name(tandem_dtype(dtype)));
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

// The rows of a tensor, so that no product of the three leaves 64 bits further on: inputs that repeat
// a row (stride 0) are not bounded by their strides.
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

}  // namespace

const char* dtype_name(tandem_dtype dtype) {
  switch (dtype) {
    case TANDEM_F32:
      return "f32";
    case TANDEM_F16:
      return "f16";
    case TANDEM_BF16:
      return "bf16";
  }
  return "?";
}

Status make_problem(const tandem_problem* given, Problem* problem) {
  if (!given) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem is NULL");
  if (given->struct_size < sizeof(tandem_problem))
    return fail(TANDEM_ERROR_INVALID_STRUCT,
                "problem.struct_size is %u, must be %zu: use "
                "tandem_problem_init()",
                given->struct_size, sizeof(tandem_problem));
  if (given->next)
    return fail(TANDEM_ERROR_INVALID_STRUCT,
                "problem.next is not NULL; this version extends nothing");
  if (given->reserved != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.reserved is %u, must be 0",
                given->reserved);
  if (given->direction != TANDEM_FORWARD && given->direction != TANDEM_BACKWARD)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem.direction is %u, which is no tandem_direction", given->direction);
  if (given->mask > TANDEM_MASK_CAUSAL)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.mask is %u, which is no tandem_mask",
                given->mask);
  if (given->align > TANDEM_BOTTOM_RIGHT)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.align is %u, which is no tandem_align",
                given->align);
  if (given->flags & ~TANDEM_FLAG_DETERMINISTIC)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.flags is 0x%x, which has unknown bits",
                given->flags);

  Problem p;
  p.backward = given->direction == TANDEM_BACKWARD;
  p.deterministic = (given->flags & TANDEM_FLAG_DETERMINISTIC) != 0;
  const int64_t count_limit = std::numeric_limits<int32_t>::max();
  TANDEM_TRY(check_size("batch", given->batch, count_limit));
  TANDEM_TRY(check_size("heads_q", given->heads_q, count_limit));
  TANDEM_TRY(check_size("heads_kv", given->heads_kv, count_limit));
  TANDEM_TRY(check_size("seq_q", given->seq_q, TANDEM_SEQ_LIMIT));
  TANDEM_TRY(check_size("seq_kv", given->seq_kv, TANDEM_SEQ_LIMIT));
  TANDEM_TRY(check_head_dim("head_dim", given->head_dim));
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

  if (p.backward) {
    if (given->gradients == 0 || (given->gradients & ~TANDEM_GRAD_ALL))
      return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                  "problem.gradients is 0x%x, must be a non-empty set of TANDEM_GRAD_*",
                  given->gradients);
    p.gradients = given->gradients;
  }

  p.dtype = tandem_dtype(given->q.dtype);
  const int64_t B = p.batch, Hq = p.heads_q, Hk = p.heads_kv, Sq = p.seq_q, Sk = p.seq_kv;
  const int64_t D = p.head_dim, Dv = p.head_dim_v;
  const Field forward[] = {{"q", &given->q, &p.q, {B, Hq, Sq, D}, false},
                           {"k", &given->k, &p.k, {B, Hk, Sk, D}, false},
                           {"v", &given->v, &p.v, {B, Hk, Sk, Dv}, false},
                           {"o", &given->o, &p.o, {B, Hq, Sq, Dv}, !p.backward}};
  for (const Field& f : forward) TANDEM_TRY(check_tensor(f, given->q.dtype));
  if (p.backward) {
    const Field d_o = {"d_o", &given->d_o, &p.d_o, {B, Hq, Sq, Dv}, false};
    TANDEM_TRY(check_tensor(d_o, given->q.dtype));
    const struct {
      uint32_t bit;
      Field field;
    } gradients[] = {{TANDEM_GRAD_Q, {"d_q", &given->d_q, &p.d_q, {B, Hq, Sq, D}, true}},
                     {TANDEM_GRAD_K, {"d_k", &given->d_k, &p.d_k, {B, Hk, Sk, D}, true}},
                     {TANDEM_GRAD_V, {"d_v", &given->d_v, &p.d_v, {B, Hk, Sk, Dv}, true}}};
    for (const auto& g : gradients)
      if (p.wants(g.bit)) TANDEM_TRY(check_tensor(g.field, given->q.dtype));
  }

  if (std::isinf(given->scale))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem.scale is infinite");
  p.scale = std::isnan(given->scale) ? float(1.0 / std::sqrt(double(D))) : given->scale;

  TANDEM_TRY(check_window("window_left", given->window_left, &p.band.left));
  TANDEM_TRY(check_window("window_right", given->window_right, &p.band.right));
  if (given->mask == TANDEM_MASK_CAUSAL) p.band.right = std::min(p.band.right, 0);
  if (p.banded() && given->align == TANDEM_BOTTOM_RIGHT) p.band.off = int(Sk - Sq);

  const int64_t tile_limit = 1 << 16;
  TANDEM_TRY(check_size("tile_rows", given->tile_rows, tile_limit));
  TANDEM_TRY(check_size("tile_cols", given->tile_cols, tile_limit));
  p.tile_rows = int(given->tile_rows);
  p.tile_cols = int(given->tile_cols);
  *problem = p;
  return Status();
}

double visible_pairs(const Problem& p) {
  if (p.seq_q == 0 || p.seq_kv == 0) return 0;
  // Row i sees count(i) keys, which is linear in i between the points where one of its bounds
  // starts or stops to be cut by [0, Sk).
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
    // The segment's interior is linear; its ends are taken one by one, which absorbs "off by one".
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
  const double forward = 2.0 * visible_pairs(p) * double(p.head_dim + p.head_dim_v);
  return p.backward ? 2.5 * forward : forward;
}

}  // namespace tandem
