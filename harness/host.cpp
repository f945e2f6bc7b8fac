// SPDX-License-Identifier: MIT OR Apache-2.0
#include "host.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "base/usable_threads.h"
#include "session.h"

namespace tandem::harness {
namespace {

constexpr struct Format { int mantissa, bias; } kF16{10, 15}, kBf16{7, 127};

uint16_t narrow(double value, Format f) {
  uint64_t wide;
  std::memcpy(&wide, &value, 8);
  const int e52 = int(wide >> 52 & 0x7ff) - 1023;
  if (e52 >= 1 - f.bias && e52 <= f.bias) {
    // Nearly every number: round the 52-bit mantissa in place. A carry goes into the exponent, and
    // from the largest exponent into infinity.
    const int shift = 52 - f.mantissa;
    const uint64_t magnitude = wide & ~(uint64_t(1) << 63);
    const uint64_t half = (uint64_t(1) << (shift - 1)) - 1 + (magnitude >> shift & 1);
    const uint64_t rebias = uint64_t(1023 - f.bias) << f.mantissa;
    return uint16_t((wide >> 48 & 0x8000) | (((magnitude + half) >> shift) - rebias));
  }
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const uint16_t infinity = uint16_t((2 * f.bias + 1) << f.mantissa);
  if (std::isnan(value)) return uint16_t(sign | infinity | 1u << (f.mantissa - 1));
  const double v = std::fabs(value);
  if (v >= std::ldexp(1.0, f.bias + 1)) return uint16_t(sign | infinity);
  // Below the normal numbers: multiples of the smallest one.
  return uint16_t(sign | unsigned(std::nearbyint(std::ldexp(v, f.mantissa - (1 - f.bias)))));
}

float widen(uint16_t bits, Format f) {
  const unsigned magnitude = bits & 0x7fffu;
  const int exponent = int(magnitude >> f.mantissa);
  const unsigned fraction = magnitude & ((1u << f.mantissa) - 1);
  float v;
  if (exponent == 2 * f.bias + 1)
    v = fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else if (exponent == 0)
    v = std::ldexp(float(fraction), 1 - f.bias - f.mantissa);
  else
    v = std::ldexp(float(fraction | 1u << f.mantissa), exponent - f.bias - f.mantissa);
  return bits & 0x8000 ? -v : v;
}

}  // namespace

uint16_t to_f16(double value) { return narrow(value, kF16); }
uint16_t to_bf16(double value) { return narrow(value, kBf16); }
uint16_t to_f16(float value) { return narrow(value, kF16); }
uint16_t to_bf16(float value) { return narrow(value, kBf16); }
float from_f16(uint16_t bits) { return widen(bits, kF16); }
float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float v;
  std::memcpy(&v, &wide, 4);
  return v;
}

size_t element_size(uint32_t dtype) {
  return dtype == TANDEM_F64                           ? 8
         : dtype == TANDEM_F32 || dtype == kInt32      ? 4
         : dtype == TANDEM_BOOL8 || dtype == TANDEM_U8 ? 1
                                                       : 2;
}

const char* dtype_word(uint32_t dtype) {
  return dtype == TANDEM_F64     ? "f64"
         : dtype == TANDEM_F32   ? "f32"
         : dtype == TANDEM_F16   ? "f16"
         : dtype == TANDEM_BF16  ? "bf16"
         : dtype == TANDEM_BOOL8 ? "bool8"
         : dtype == TANDEM_U8    ? "uint8"
         : dtype == TANDEM_U16   ? "uint16"
                                 : "int32";
}

double load_element(const void* element, uint32_t dtype) {
  if (dtype == TANDEM_F64) {
    double v;
    std::memcpy(&v, element, 8);
    return v;
  }
  if (dtype == TANDEM_F32) {
    float v;
    std::memcpy(&v, element, 4);
    return v;
  }
  if (dtype == kInt32) {
    int32_t v;
    std::memcpy(&v, element, 4);
    return v;
  }
  if (dtype == TANDEM_BOOL8 || dtype == TANDEM_U8) return *static_cast<const uint8_t*>(element);
  uint16_t bits;
  std::memcpy(&bits, element, 2);
  if (dtype == TANDEM_U16) return bits;
  return dtype == TANDEM_F16 ? from_f16(bits) : from_bf16(bits);
}

void store_element(void* element, uint32_t dtype, double value) {
  if (dtype == TANDEM_F64) {
    std::memcpy(element, &value, 8);
    return;
  }
  if (dtype == TANDEM_F32) {
    const auto v = float(value);
    std::memcpy(element, &v, 4);
    return;
  }
  if (dtype == kInt32) {
    const auto v = int32_t(value);
    std::memcpy(element, &v, 4);
    return;
  }
  if (dtype == TANDEM_BOOL8 || dtype == TANDEM_U8) {
    *static_cast<uint8_t*>(element) = uint8_t(value);
    return;
  }
  const uint16_t bits = dtype == TANDEM_U16   ? uint16_t(value)
                        : dtype == TANDEM_F16 ? to_f16(value)
                                              : to_bf16(value);
  std::memcpy(element, &bits, 2);
}

double round_to(double value, uint32_t dtype) {
  if (dtype == TANDEM_F64) return value;
  if (dtype == TANDEM_F32) return float(value);
  return dtype == TANDEM_F16 ? from_f16(to_f16(value)) : from_bf16(to_bf16(value));
}

double ulp(double value, uint32_t dtype) {
  const double v = std::fabs(value);
  if (dtype == TANDEM_F64) return std::max(v * 0x1p-52, 0x1p-1074);
  if (dtype == TANDEM_F32) return std::max(v * 0x1p-23, 0x1p-149);
  if (dtype == TANDEM_F16) return std::max(v * 0x1p-10, 0x1p-24);
  return std::max(v * 0x1p-7, 0x1p-133);
}

uint64_t Random::mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t Random::next() { return mix(state_ += 0x9e3779b97f4a7c15u); }

double Random::hash_normal(uint64_t bits) {
  // Four uniforms of 16 bits: mean 2 * 65535, variance 4 * (2^32 - 1) / 12.
  const auto sum =
      int64_t((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  return double(sum - 131070) * (1.0 / 37837.0);
}

namespace {

enum class Kind {
  query,
  key,
  bias,
  keep,
  spans,
  blocks,
  block_bits,
  table,
  index,
  dist,
  head,
  lengths_q,
  lengths_kv,
  offsets,
  row,
  part,
  part_row
};

// In the order of Role.
constexpr struct RoleRow {
  const char* name;
  Kind kind;
  bool value;         // head_dim_v features
  uint32_t gradient;  // that it is
  tandem_tensor tandem_problem::*tensor;
  tandem_buffer tandem_args::*buffer;
} kRows[] = {
    {"q", Kind::query, false, 0, &tandem_problem::q, &tandem_args::q},
    {"k", Kind::key, false, 0, &tandem_problem::k, &tandem_args::k},
    {"v", Kind::key, true, 0, &tandem_problem::v, &tandem_args::v},
    {"o", Kind::query, true, 0, &tandem_problem::o, &tandem_args::o},
    {"d_o", Kind::query, true, 0, &tandem_problem::d_o, &tandem_args::d_o},
    {"d_q", Kind::query, false, TANDEM_GRAD_Q, &tandem_problem::d_q, &tandem_args::d_q},
    {"d_k", Kind::key, false, TANDEM_GRAD_K, &tandem_problem::d_k, &tandem_args::d_k},
    {"d_v", Kind::key, true, TANDEM_GRAD_V, &tandem_problem::d_v, &tandem_args::d_v},
    {"bias", Kind::bias, false, 0, &tandem_problem::bias, &tandem_args::bias},
    {"keep", Kind::keep, false, 0, &tandem_problem::keep, &tandem_args::keep},
    {"dist_bias", Kind::dist, false, 0, nullptr, &tandem_args::dist_bias},
    {"slope", Kind::head, false, 0, nullptr, &tandem_args::slope},
    {"tau", Kind::head, false, 0, nullptr, &tandem_args::tau},
    {"sink", Kind::head, false, 0, nullptr, &tandem_args::sink},
    {"lengths_q", Kind::lengths_q, false, 0, nullptr, &tandem_args::lengths_q},
    {"lengths_kv", Kind::lengths_kv, false, 0, nullptr, &tandem_args::lengths_kv},
    {"d_bias", Kind::bias, false, TANDEM_GRAD_BIAS, &tandem_problem::d_bias, &tandem_args::d_bias},
    {"d_dist_bias", Kind::dist, false, TANDEM_GRAD_DIST_BIAS, nullptr, &tandem_args::d_dist_bias},
    {"d_slope", Kind::head, false, TANDEM_GRAD_SLOPE, nullptr, &tandem_args::d_slope},
    {"d_tau", Kind::head, false, TANDEM_GRAD_TAU, nullptr, &tandem_args::d_tau},
    {"d_sink", Kind::head, false, TANDEM_GRAD_SINK, nullptr, &tandem_args::d_sink},
    {"spans", Kind::spans, false, 0, nullptr, &tandem_args::spans},
    {"blocks", Kind::blocks, false, 0, nullptr, &tandem_args::blocks},
    {"block_bits", Kind::block_bits, false, 0, nullptr, &tandem_args::block_bits},
    {"bias_table", Kind::table, false, 0, nullptr, &tandem_args::bias_table},
    {"bias_index", Kind::index, false, 0, nullptr, &tandem_args::bias_index},
    {"d_bias_table", Kind::table, false, TANDEM_GRAD_BIAS_TABLE, nullptr,
     &tandem_args::d_bias_table},
    {"d_lse", Kind::row, false, 0, nullptr, &tandem_args::d_lse},
    {"offsets_q", Kind::offsets, false, 0, nullptr, &tandem_args::offsets_q},
    {"offsets_kv", Kind::offsets, false, 0, nullptr, &tandem_args::offsets_kv},
    {"part_o", Kind::part, true, 0, &tandem_problem::part_o, &tandem_args::part_o},
    {"part_lse", Kind::part_row, false, 0, nullptr, &tandem_args::part_lse},
    {"d_part_o", Kind::part, true, 0, &tandem_problem::d_part_o, &tandem_args::d_part_o},
    {"d_part_lse", Kind::part_row, false, 0, nullptr, &tandem_args::d_part_lse},
    {"into_o", Kind::query, true, 0, &tandem_problem::o, &tandem_args::o},
    {"into_lse", Kind::row, false, 0, nullptr, &tandem_args::lse}};
static_assert(sizeof(kRows) / sizeof(kRows[0]) == size_t(kRoleCount), "a row for each role");

const RoleRow& row_of(Role role) { return kRows[int(role)]; }

}  // namespace

const char* role_name(Role role) { return row_of(role).name; }

tandem_tensor& tensor_of(tandem_problem& p, Role role) {
  if (!row_of(role).tensor)
    throw Error(TANDEM_ERROR_INVALID_ARGUMENT, std::string(role_name(role)) + " has no layout");
  return p.*row_of(role).tensor;
}

const tandem_tensor& tensor_of(const tandem_problem& p, Role role) {
  return tensor_of(const_cast<tandem_problem&>(p), role);
}

tandem_tensor layout_of(const tandem_problem& p, Role role) {
  if (row_of(role).tensor) return tensor_of(p, role);
  const Dims n = dims_of(p, role);
  const bool whole = role == Role::spans || role == Role::blocks || role == Role::block_bits ||
                     role == Role::lengths_q || role == Role::lengths_kv ||
                     role == Role::offsets_q || role == Role::offsets_kv;
  const uint32_t dtype = role == Role::bias_index      ? p.bias_index_dtype
                         : whole                       ? kInt32
                         : main_dtype(p) == TANDEM_F64 ? uint32_t(TANDEM_F64)
                                                       : uint32_t(TANDEM_F32);
  return {{n.h * n.s * n.d, n.s * n.d, n.d, 1}, dtype, 0};
}

tandem_buffer& buffer_of(tandem_args& a, Role role) { return a.*row_of(role).buffer; }

bool is_packed(uint32_t lengths) {
  return lengths == TANDEM_LENGTHS_PACKED || lengths == TANDEM_LENGTHS_GAPPED;
}

bool is_packed(const tandem_problem& p, Role role) {
  const Kind kind = row_of(role).kind;
  return (kind == Kind::query && is_packed(p.lengths_q)) ||
         (kind == Kind::key && is_packed(p.lengths_kv));
}

Dims logical_dims(const tandem_problem& p, Role role) {
  const RoleRow& row = row_of(role);
  const int64_t features = row.value ? p.head_dim_v : p.head_dim;
  switch (row.kind) {
    case Kind::query:
      return {p.batch, p.heads_q, p.seq_q, features};
    case Kind::key:
      return {p.batch, p.heads_kv, p.seq_kv, features};
    case Kind::bias:
      return {p.bias_batch, p.bias_heads, p.bias_rows, p.seq_kv};
    case Kind::keep:
      return {p.keep_batch, p.keep_heads, p.keep_rows, p.seq_kv};
    case Kind::spans:
      return {p.spans_batch, p.spans_heads, p.seq_kv, 2 * p.spans};
    case Kind::blocks:
      return {p.block_batch, p.block_heads, (p.seq_q + p.block_q - 1) / p.block_q,
              2 + p.block_width};
    case Kind::block_bits:
      return {p.block_batch, p.block_heads,
              (p.seq_q + p.block_q - 1) / p.block_q * p.block_bits * p.block_q, p.block_kv / 32};
    case Kind::table:
      return {1, p.heads_q, 1, p.bias_table_size};
    case Kind::index:
      return {p.bias_index_batch, 1, p.seq_q, p.seq_kv};
    case Kind::dist:
      return {1, p.heads_q, 1, p.dist_window};
    case Kind::head: {
      const int64_t given = role == Role::slope || role == Role::d_slope ? p.slopes_batch
                            : role == Role::sink || role == Role::d_sink ? p.sinks_batch
                                                                         : 1;
      return {std::max<int64_t>(given, 1), p.heads_q, 1, 1};
    }
    case Kind::lengths_q:
      return {1, 1, 1, p.batch + (p.lengths_q == TANDEM_LENGTHS_PACKED)};
    case Kind::offsets:
      return {1, 1, 1, p.batch};
    case Kind::row:
      return {p.batch, p.heads_q, p.seq_q, 1};
    case Kind::part:
      return {p.parts * p.batch, p.heads_q, p.seq_q, p.head_dim_v};
    case Kind::part_row:
      return {p.parts * p.batch, p.heads_q, p.seq_q, 1};
    case Kind::lengths_kv:
      return {1, 1, 1, p.batch + (p.lengths_kv == TANDEM_LENGTHS_PACKED)};
  }
  return {};
}

Dims dims_of(const tandem_problem& p, Role role) {
  Dims n = logical_dims(p, role);
  if (is_packed(p, role)) {
    n.b = 1;
    n.s = row_of(role).kind == Kind::key ? p.total_kv : p.total_q;
  }
  return n;
}

bool is_input(const tandem_problem& p, Role role) {
  const bool backward_merge = p.direction == TANDEM_MERGE_BACKWARD;
  if (is_merge(p))
    return role == Role::part_o || role == Role::part_lse ||
           (backward_merge && role == Role::d_o) ||
           (backward_merge && p.d_lse != 0 && role == Role::d_lse) ||
           (is_into(role) && p.merge_into != 0);
  switch (role) {
    case Role::q:
    case Role::k:
    case Role::v:
      return true;
    case Role::d_o:
      return p.direction == TANDEM_BACKWARD;
    case Role::bias:
      return p.bias.dtype != 0;
    case Role::keep:
      return p.keep.dtype != 0;
    case Role::spans:
      return p.spans > 0;
    case Role::blocks:
      return p.block_q > 0;
    case Role::block_bits:
      return p.block_q > 0 && p.block_bits > 0;
    case Role::bias_table:
    case Role::bias_index:
      return p.bias_table_size > 0;
    case Role::dist_bias:
      return p.dist_window > 0;
    case Role::slope:
      return p.alibi != 0;
    case Role::tau:
      return p.normalizer == TANDEM_ELASTIC;
    case Role::sink:
      return p.sink != 0;
    case Role::d_lse:
      return p.direction == TANDEM_BACKWARD && p.d_lse != 0;
    case Role::lengths_q:
      return p.lengths_q != TANDEM_LENGTHS_FULL;
    case Role::lengths_kv:
      return p.lengths_kv != TANDEM_LENGTHS_FULL;
    case Role::offsets_q:
      return p.lengths_q == TANDEM_LENGTHS_GAPPED;
    case Role::offsets_kv:
      return p.lengths_kv == TANDEM_LENGTHS_GAPPED;
    default:
      return false;
  }
}

bool is_output(const tandem_problem& p, Role role) {
  if (p.direction == TANDEM_FORWARD || p.direction == TANDEM_MERGE) return role == Role::o;
  if (p.direction == TANDEM_MERGE_BACKWARD)
    return role == Role::d_part_o || role == Role::d_part_lse;
  return (row_of(role).gradient & p.gradients) != 0;
}

bool is_used(const tandem_problem& p, Role role) {
  return role == Role::o || is_input(p, role) || is_output(p, role);
}

void set_layout(tandem_problem& p, Role role, Layout layout) {
  const Dims n = dims_of(p, role);
  int64_t* s = tensor_of(p, role).stride;
  const auto nested = [&](int64_t row, int64_t head_gap, int64_t batch_gap) {
    s[3] = 1;
    s[2] = row;
    s[1] = n.s * row + head_gap;
    s[0] = n.h * s[1] + batch_gap;
  };
  switch (layout) {
    case Layout::bhsd:
      nested(n.d, 0, 0);
      break;
    case Layout::gapped:
      nested(n.d + 3, 5, 7);
      break;
    case Layout::gapped4:
      nested((n.d + 3) / 4 * 4 + 4, 8, 4);
      break;
    case Layout::bshd:
      s[3] = 1;
      s[1] = n.d;
      s[2] = n.h * n.d;
      s[0] = n.s * s[2];
      break;
    case Layout::transposed:
      s[2] = 1;
      s[3] = n.s;
      s[1] = n.d * n.s;
      s[0] = n.h * s[1];
      break;
  }
  if (is_packed(p, role)) s[0] = 0;
  if (row_of(role).kind == Kind::part)
    (role == Role::part_o ? p.part_stride : p.d_part_stride) =
        p.batch * s[0] + (layout == Layout::gapped    ? 11
                          : layout == Layout::gapped4 ? 12
                                                      : 0);
}

void set_layout(tandem_problem& p, Layout layout) {
  for (Role role : kRoles) set_layout(p, role, layout);
}

void set_dtype(tandem_problem& p, tandem_dtype dtype) {
  for (Role role : kRoles) tensor_of(p, role).dtype = dtype;
}

tandem_problem make_problem(tandem_direction direction, tandem_dtype dtype, int64_t b, int64_t hq,
                            int64_t hk, int64_t sq, int64_t sk, int64_t d) {
  tandem_problem p;
  tandem_problem_init(&p);
  p.direction = uint32_t(direction);
  p.batch = b;
  p.heads_q = hq;
  p.heads_kv = hk;
  p.seq_q = sq;
  p.seq_kv = sk;
  p.head_dim = p.head_dim_v = d;
  tandem_problem_contiguous(&p, dtype);
  return p;
}

tandem_problem make_merge(tandem_direction direction, tandem_dtype dtype, tandem_dtype parts_dtype,
                          int64_t parts, int64_t b, int64_t hq, int64_t sq, int64_t dv, bool into) {
  tandem_problem p;
  tandem_problem_init(&p);
  p.direction = uint32_t(direction);
  p.batch = b;
  p.heads_q = p.heads_kv = hq;
  p.seq_q = p.seq_kv = sq;
  p.head_dim = p.head_dim_v = dv;
  p.parts = parts;
  p.merge_into = into;
  tandem_problem_contiguous(&p, dtype);
  p.part_o.dtype = p.d_part_o.dtype = uint32_t(parts_dtype);
  return p;
}

void set_bias(tandem_problem& p, tandem_dtype dtype, int64_t batch, int64_t heads, int64_t rows,
              uint32_t d_bias_dtype) {
  p.bias_batch = batch;
  p.bias_heads = heads;
  p.bias_rows = rows;
  p.bias.dtype = dtype;
  p.d_bias.dtype = d_bias_dtype ? d_bias_dtype : uint32_t(dtype);
  set_layout(p, Role::bias, Layout::bhsd);
  set_layout(p, Role::d_bias, Layout::bhsd);
}

void set_spans(tandem_problem& p, int64_t count, int64_t batch, int64_t heads) {
  p.spans = count;
  p.spans_batch = batch;
  p.spans_heads = heads;
}

void set_blocks(tandem_problem& p, int64_t rows, int64_t keys, int64_t width, int64_t bits,
                int64_t batch, int64_t heads) {
  p.block_q = rows, p.block_kv = keys;
  p.block_width = width, p.block_bits = bits;
  p.block_batch = batch, p.block_heads = heads;
}

void set_table(tandem_problem& p, int64_t size, tandem_dtype index, int64_t batch) {
  p.bias_table_size = size;
  p.bias_index_batch = batch;
  p.bias_index_dtype = uint32_t(index);
}

void set_keep(tandem_problem& p, int64_t batch, int64_t heads, int64_t rows) {
  p.keep_batch = batch;
  p.keep_heads = heads;
  p.keep_rows = rows;
  p.keep.dtype = TANDEM_BOOL8;
  set_layout(p, Role::keep, Layout::bhsd);
}

void set_lengths(tandem_problem& p, tandem_lengths q, tandem_lengths kv, int64_t total_q,
                 int64_t total_kv) {
  p.lengths_q = uint32_t(q);
  p.lengths_kv = uint32_t(kv);
  p.total_q = is_packed(p.lengths_q) ? total_q : 0;
  p.total_kv = is_packed(p.lengths_kv) ? total_kv : 0;
  set_layout(p, Layout::bhsd);
}

int64_t extent(const Dims& n, const tandem_tensor& t) {
  if (n.count() == 0) return 0;
  return 1 + (n.b - 1) * t.stride[0] + (n.h - 1) * t.stride[1] + (n.s - 1) * t.stride[2] +
         (n.d - 1) * t.stride[3];
}

namespace {

template <typename Visit>
void each(const Dims& n, Visit visit) {
  for (int64_t b = 0; b < n.b; ++b)
    for (int64_t h = 0; h < n.h; ++h)
      for (int64_t s = 0; s < n.s; ++s)
        for (int64_t d = 0; d < n.d; ++d) visit(b, h, s, d);
}

}  // namespace

HostTensor::HostTensor(const tandem_problem& problem, Role role, int64_t lead_elements)
    : dims(dims_of(problem, role)), layout(layout_of(problem, role)), lead(lead_elements) {
  int64_t parts = 0;  // beyond the first one
  if (row_of(role).kind == Kind::part && dims.count() > 0) {
    entries = problem.batch;
    step = role == Role::part_o ? problem.part_stride : problem.d_part_stride;
    parts = (problem.parts - 1) * step;
    dims.b = entries;
  }
  const int64_t size = parts + extent(dims, layout);
  dims = dims_of(problem, role);
  bytes.assign(size_t(lead + size) * element_size(layout.dtype), 0xff);
}

double HostTensor::get(int64_t b, int64_t h, int64_t s, int64_t d) const {
  return load_element(&bytes[size_t(index(b, h, s, d)) * element_size(layout.dtype)], layout.dtype);
}

void HostTensor::set(int64_t b, int64_t h, int64_t s, int64_t d, double value) {
  store_element(&bytes[size_t(index(b, h, s, d)) * element_size(layout.dtype)], layout.dtype,
                value);
}

void HostTensor::fill_normal(uint64_t seed, double scale) {
  // A value belongs to a place in memory, so that a broadcast dimension needs no care.
  const uint64_t start = Random::mix(seed);
  // Heads on threads where it matters, unless they share memory.
  const int64_t heads = dims.b * dims.h;
  const bool apart = entries == 0 && (dims.b == 1 || layout.stride[0] > 0) &&
                     (dims.h == 1 || layout.stride[1] > 0);
  const bool many = dims.count() > 1000000 && apart;
  const int64_t count = many ? std::min<int64_t>(heads, usable_threads()) : 1;
  const auto fill = [&](int64_t first) {
    for (int64_t n = first; n < heads; n += count)
      for (int64_t s = 0; s < dims.s; ++s)
        for (int64_t d = 0; d < dims.d; ++d) {
          const int64_t b = n / dims.h, h = n % dims.h;
          const auto place_in_memory = uint64_t(index(b, h, s, d) - lead);
          set(b, h, s, d, scale * Random::hash_normal(Random::mix(start + place_in_memory)));
        }
  };
  std::vector<std::thread> threads;
  for (int64_t n = 1; n < count; ++n) threads.emplace_back(fill, n);
  fill(0);
  for (std::thread& t : threads) t.join();
}

std::vector<double> HostTensor::dense() const {
  std::vector<double> values;
  values.reserve(size_t(dims.count()));
  each(dims,
       [&](int64_t b, int64_t h, int64_t s, int64_t d) { values.push_back(get(b, h, s, d)); });
  return values;
}

std::vector<float> HostTensor::dense_float() const {
  const std::vector<double> values = dense();
  return std::vector<float>(values.begin(), values.end());
}

void HostTensor::set_dense(const std::vector<double>& values) {
  size_t n = 0;
  each(dims, [&](int64_t b, int64_t h, int64_t s, int64_t d) { set(b, h, s, d, values[n++]); });
}

std::string HostTensor::broken_gap(const std::vector<bool>& dead) const {
  const size_t size = element_size(layout.dtype);
  std::vector<bool> owned(bytes.size() / size);
  each(dims, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
    if (dead.empty() || !dead[size_t(s)]) owned[size_t(index(b, h, s, d))] = true;
  });
  for (size_t i = 0; i < bytes.size(); ++i)
    if (!owned[i / size] && bytes[i] != 0xff)
      return "element " + std::to_string(int64_t(i / size) - lead) +
             ", which belongs to no row, was written";
  return {};
}

}  // namespace tandem::harness
