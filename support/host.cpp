// SPDX-License-Identifier: MIT OR Apache-2.0
#include "host.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "support.h"

namespace tandem::support {
namespace {

constexpr struct Format { int mantissa, bias; } kF16{10, 15}, kBf16{7, 127};

uint16_t narrow(double value, Format f) {
  uint64_t wide;
  std::memcpy(&wide, &value, 8);
  const int e52 = int(wide >> 52 & 0x7ff) - 1023;
  if (e52 >= 1 - f.bias && e52 <= f.bias) {
    // Nearly every number: round the 52-bit mantissa in place. A carry walks into the exponent, and
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

size_t element_size(uint32_t dtype) { return dtype == TANDEM_F32 ? 4 : 2; }

const char* dtype_word(uint32_t dtype) {
  return dtype == TANDEM_F32 ? "f32" : dtype == TANDEM_F16 ? "f16" : "bf16";
}

double load_element(const void* element, uint32_t dtype) {
  if (dtype == TANDEM_F32) {
    float v;
    std::memcpy(&v, element, 4);
    return v;
  }
  uint16_t bits;
  std::memcpy(&bits, element, 2);
  return dtype == TANDEM_F16 ? from_f16(bits) : from_bf16(bits);
}

void store_element(void* element, uint32_t dtype, double value) {
  if (dtype == TANDEM_F32) {
    const auto v = float(value);
    std::memcpy(element, &v, 4);
    return;
  }
  const uint16_t bits = dtype == TANDEM_F16 ? to_f16(value) : to_bf16(value);
  std::memcpy(element, &bits, 2);
}

double round_to(double value, uint32_t dtype) {
  if (dtype == TANDEM_F32) return float(value);
  return dtype == TANDEM_F16 ? from_f16(to_f16(value)) : from_bf16(to_bf16(value));
}

double ulp(double value, uint32_t dtype) {
  const double v = std::fabs(value);
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

const char* role_name(Role role) {
  constexpr const char* names[] = {"q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v"};
  return names[int(role)];
}

tandem_tensor& tensor_of(tandem_problem& p, Role role) {
  tandem_tensor* const tensors[] = {&p.q, &p.k, &p.v, &p.o, &p.d_o, &p.d_q, &p.d_k, &p.d_v};
  return *tensors[int(role)];
}

const tandem_tensor& tensor_of(const tandem_problem& p, Role role) {
  return tensor_of(const_cast<tandem_problem&>(p), role);
}

tandem_buffer& buffer_of(tandem_args& a, Role role) {
  tandem_buffer* const buffers[] = {&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.d_q, &a.d_k, &a.d_v};
  return *buffers[int(role)];
}

Dims dims_of(const tandem_problem& p, Role role) {
  const bool kv = role == Role::k || role == Role::v || role == Role::d_k || role == Role::d_v;
  const bool value = role == Role::v || role == Role::o || role == Role::d_o || role == Role::d_v;
  return {p.batch, kv ? p.heads_kv : p.heads_q, kv ? p.seq_kv : p.seq_q,
          value ? p.head_dim_v : p.head_dim};
}

bool is_output(const tandem_problem& p, Role role) {
  if (p.direction == TANDEM_FORWARD) return role == Role::o;
  return (role == Role::d_q && (p.gradients & TANDEM_GRAD_Q)) ||
         (role == Role::d_k && (p.gradients & TANDEM_GRAD_K)) ||
         (role == Role::d_v && (p.gradients & TANDEM_GRAD_V));
}

bool is_used(const tandem_problem& p, Role role) {
  if (role <= Role::o) return true;
  return p.direction == TANDEM_BACKWARD && (role == Role::d_o || is_output(p, role));
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
    : dims(dims_of(problem, role)), layout(tensor_of(problem, role)), lead(lead_elements) {
  bytes.assign(size_t(lead + extent(dims, layout)) * element_size(layout.dtype), 0xff);
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
  const auto fill = [&](int64_t b) {
    Dims one = dims;
    one.b = 1;
    each(one, [&](int64_t, int64_t h, int64_t s, int64_t d) {
      const auto place_in_memory = uint64_t(index(b, h, s, d) - lead);
      set(b, h, s, d, scale * Random::hash_normal(Random::mix(start + place_in_memory)));
    });
  };
  // Batches on threads where it matters, unless they share memory.
  std::vector<std::thread> threads;
  const bool many = dims.count() > 1000000 && dims.b > 1 && layout.stride[0] > 0;
  for (int64_t b = 0; b < dims.b; ++b) {
    if (many)
      threads.emplace_back(fill, b);
    else
      fill(b);
  }
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

std::string HostTensor::broken_gap() const {
  const size_t size = element_size(layout.dtype);
  std::vector<bool> owned(bytes.size() / size);
  each(dims, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
    owned[size_t(index(b, h, s, d))] = true;
  });
  for (size_t i = 0; i < bytes.size(); ++i)
    if (!owned[i / size] && bytes[i] != 0xff)
      return "element " + std::to_string(int64_t(i / size) - lead) +
             ", which belongs to no row, was written";
  return {};
}

}  // namespace tandem::support
