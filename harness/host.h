// SPDX-License-Identifier: MIT OR Apache-2.0
// Host-side helpers: number formats, random numbers that are the same everywhere, strided tensors.
#ifndef TANDEM_HARNESS_HOST_H
#define TANDEM_HARNESS_HOST_H
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace tandem::harness {

// ---- number formats
// -------------------------------------------------------------------------------

// Round to nearest, ties to even; overflow to infinity; a NaN stays a NaN.
uint16_t to_f16(float value);
uint16_t to_bf16(float value);
uint16_t to_f16(double value);  // rounded once
uint16_t to_bf16(double value);
float from_f16(uint16_t bits);
float from_bf16(uint16_t bits);

size_t element_size(uint32_t dtype);
const char* dtype_word(uint32_t dtype);  // "f32", "f16", "bf16", "f64"
constexpr uint32_t kInt32 = TANDEM_I32;  // of lengths and spans in a HostTensor
double load_element(const void* element, uint32_t dtype);
void store_element(void* element, uint32_t dtype, double value);
double round_to(double value, uint32_t dtype);
// 2^-23, 2^-10 or 2^-7 times |value|: a unit in the last place, or up to two of them. Never below
// the smallest subnormal.
double ulp(double value, uint32_t dtype);

// ---- random numbers
// -------------------------------------------------------------------------------

// splitmix64: the bits depend on the seed alone, not on platform or library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int64_t below(int64_t n) { return int64_t(next() % uint64_t(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  double uniform() { return double(next() >> 11) * 0x1p-53; }  // [0, 1)
  double normal() { return hash_normal(next()); }
  template <typename T>
  const T& pick(const std::vector<T>& from) {
    return from[size_t(below(int64_t(from.size())))];
  }
  // Close to a standard normal (the sum of four uniforms, within +-3.47), exact in every float
  // format of the host.
  static double hash_normal(uint64_t bits);
  static uint64_t mix(uint64_t x);  // a good hash of 64 bits

 private:
  uint64_t state_;
};

// ---- tensors
// --------------------------------------------------------------------------------------

// The buffers of tandem_args but for lse and the workspace.
enum class Role {
  q,
  k,
  v,
  o,
  d_o,
  d_q,
  d_k,
  d_v,
  bias,
  keep,
  dist_bias,
  slope,
  tau,
  sink,
  lengths_q,
  lengths_kv,
  d_bias,
  d_dist_bias,
  d_slope,
  d_tau,
  d_sink,
  // From here on behind the others, as the numbers of the others are in their inputs' seeds.
  spans,
  blocks,
  block_bits,
  bias_table,
  bias_index,
  d_bias_table,
  d_lse,
  offsets_q,
  offsets_kv,
  part_o,
  part_lse,
  d_part_o,
  d_part_lse,
  // What o and lse hold before a merge in place: inputs without a buffer of their own.
  into_o,
  into_lse
};
constexpr int kRoleCount = 36;
// Those of queries and keys, which every problem has.
constexpr Role kRoles[] = {Role::q,   Role::k,   Role::v,   Role::o,
                           Role::d_o, Role::d_q, Role::d_k, Role::d_v};
// All that are inputs of a forward or a backward (o apart), and all that are outputs.
constexpr Role kInputs[] = {Role::q,          Role::k,         Role::v,          Role::d_o,
                            Role::bias,       Role::keep,      Role::spans,      Role::bias_table,
                            Role::bias_index, Role::dist_bias, Role::slope,      Role::tau,
                            Role::sink,       Role::lengths_q, Role::lengths_kv, Role::blocks,
                            Role::block_bits, Role::d_lse,     Role::offsets_q,  Role::offsets_kv,
                            Role::part_o,     Role::part_lse,  Role::into_o,     Role::into_lse};
constexpr Role kOutputs[] = {Role::o,      Role::d_q,          Role::d_k,         Role::d_v,
                             Role::d_bias, Role::d_bias_table, Role::d_dist_bias, Role::d_slope,
                             Role::d_tau,  Role::d_sink,       Role::d_part_o,    Role::d_part_lse};
const char* role_name(Role role);  // "q", "d_o", ...
// Whether it is a merge, or its backward.
inline bool is_merge(const tandem_problem& p) {
  return p.direction == TANDEM_MERGE || p.direction == TANDEM_MERGE_BACKWARD;
}
// Of its tensors: q, of a merge o, of its backward d_o.
inline uint32_t main_dtype(const tandem_problem& p) {
  return p.direction == TANDEM_MERGE            ? p.o.dtype
         : p.direction == TANDEM_MERGE_BACKWARD ? p.d_o.dtype
                                                : p.q.dtype;
}
inline bool is_into(Role role) { return role == Role::into_o || role == Role::into_lse; }
// Of kRoles, bias, keep, d_bias and those of parts, whose layouts stand in the problem.
const tandem_tensor& tensor_of(const tandem_problem& problem, Role role);
tandem_tensor& tensor_of(tandem_problem& problem, Role role);
tandem_tensor layout_of(const tandem_problem& problem,
                        Role role);  // of any: the others are contiguous
tandem_buffer& buffer_of(tandem_args& args, Role role);
struct Dims {
  int64_t b, h, s, d;
  int64_t count() const { return b * h * s * d; }
};
// As it lies in memory: a packed tensor is {1, H, total, D}, what belongs to heads {1, Hq, 1, 1 or
// W}, lengths and offsets {1, 1, 1, B or B + 1}, spans {batch, heads, Sk, 2 a span}, block lists
// {batch, heads, rows of blocks, 2 + width}, their bits {batch, heads, rows of blocks x bits x
// block_q, block_kv / 32}, a table {1, Hq, 1, N}, its index {batch, 1, Sq, Sk}. Parts of a merge
// are one batch after the other, {parts x B, Hq, Sq, Dv}.
Dims dims_of(const tandem_problem& problem, Role role);
// The same, but packed tensors as [B,H,S,D].
Dims logical_dims(const tandem_problem& problem, Role role);
bool is_packed(uint32_t lengths);  // a tandem_lengths whose tensors have no batch dimension
bool is_packed(const tandem_problem& problem, Role role);
bool is_input(const tandem_problem& problem,
              Role role);  // of the problem's direction; o is not one
bool is_output(const tandem_problem& problem, Role role);  // of the problem's direction
bool is_used(const tandem_problem& problem, Role role);    // read or written

enum class Layout {
  bhsd,       // contiguous
  bshd,       // contiguous in the order batch, sequence, head, feature
  gapped,     // bhsd with odd gaps after rows, heads and batches
  gapped4,    // bhsd with gaps that are multiples of 4 elements: wide loads stay possible
  transposed  // feature and sequence change places: feature stride is not 1
};
void set_layout(tandem_problem& problem, Role role, Layout layout);
void set_layout(tandem_problem& problem, Layout layout);  // all of kRoles
void set_dtype(tandem_problem& problem, tandem_dtype dtype);

// A problem with the given sizes, contiguous; D = Dv.
tandem_problem make_problem(tandem_direction direction, tandem_dtype dtype, int64_t b, int64_t hq,
                            int64_t hk, int64_t sq, int64_t sk, int64_t d);
// A merge, or its backward, contiguous. dtype: of o, or of d_o; parts_dtype: of the parts.
tandem_problem make_merge(tandem_direction direction, tandem_dtype dtype, tandem_dtype parts_dtype,
                          int64_t parts, int64_t b, int64_t hq, int64_t sq, int64_t dv,
                          bool into = false);
// Switch an optional tensor on, contiguous. d_bias gets the dtype given, or bias's.
void set_bias(tandem_problem& problem, tandem_dtype dtype, int64_t batch, int64_t heads,
              int64_t rows, uint32_t d_bias_dtype = 0);
void set_keep(tandem_problem& problem, int64_t batch, int64_t heads, int64_t rows);
void set_blocks(tandem_problem& problem, int64_t rows, int64_t keys, int64_t width, int64_t bits,
                int64_t batch, int64_t heads);
void set_table(tandem_problem& problem, int64_t size, tandem_dtype index, int64_t batch);
void set_spans(tandem_problem& problem, int64_t count, int64_t batch, int64_t heads);
// Packed: rows of all sequences together; the tensors get the layout that they have without.
void set_lengths(tandem_problem& problem, tandem_lengths q, tandem_lengths kv, int64_t total_q = 0,
                 int64_t total_kv = 0);

// Elements from the first to the last that the tensor reaches; 0 for an empty one.
int64_t extent(const Dims& dims, const tandem_tensor& tensor);

// A tensor in host memory, laid out as its problem says, with `lead` elements before its first.
struct HostTensor {
  Dims dims{};
  tandem_tensor layout{};
  int64_t lead = 0;
  int64_t entries = 0, step = 0;  // of parts: batch entries of one, and elements to the next one
  std::vector<uint8_t> bytes;     // 0xff wherever no element lies

  HostTensor() = default;
  HostTensor(const tandem_problem& problem, Role role, int64_t lead = 0);
  int64_t index(int64_t b, int64_t h, int64_t s, int64_t d) const {
    if (entries > 0) return b / entries * step + index_of_entry(b % entries, h, s, d);
    return index_of_entry(b, h, s, d);
  }
  int64_t index_of_entry(int64_t b, int64_t h, int64_t s, int64_t d) const {
    return lead + b * layout.stride[0] + h * layout.stride[1] + s * layout.stride[2] +
           d * layout.stride[3];
  }
  double get(int64_t b, int64_t h, int64_t s, int64_t d) const;
  void set(int64_t b, int64_t h, int64_t s, int64_t d, double value);
  size_t byte_offset() const { return size_t(lead) * element_size(layout.dtype); }

  // Normal numbers of the seed, rounded to the dtype. Elements that share memory get the same
  // value.
  void fill_normal(uint64_t seed, double scale = 1.0);
  // All elements in logical order, as double; and back, rounded to the dtype.
  std::vector<double> dense() const;
  std::vector<float> dense_float() const;
  void set_dense(const std::vector<double>& values);
  // "" when every byte that belongs to no element is still 0xff, else where the first is not. dead:
  // rows (of the sequence dimension) that count as gaps; empty: none.
  std::string broken_gap(const std::vector<bool>& dead = {}) const;
};

}  // namespace tandem::harness
#endif
