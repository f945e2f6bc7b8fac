// SPDX-License-Identifier: MIT OR Apache-2.0
// The inputs of magnitudes.h: names, what a seed draws, and how tensors are filled.
#include "magnitudes.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "problem/problem.h"

namespace tandem::harness {
namespace {

using Scores = Magnitudes::Scores;
using Bias = Magnitudes::Bias;
using Values = Magnitudes::Values;

constexpr const char* kScoreNames[] = {"usual", "low",   "high", "spread",
                                       "one",   "equal", "zero", "tiny"};
constexpr const char* kBiasNames[] = {"usual", "some", "all", "pad", "rows", "one"};
constexpr const char* kValueNames[] = {"usual", "ones", "largest", "tiny", "zero", "some"};

std::string number(double x) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, x).ptr);
}

double largest_of(uint32_t dtype) {
  return dtype == TANDEM_F16 ? 65504 : dtype == TANDEM_BF16 ? 0x1.fep127 : 0x1.fffffep127;
}
double smallest_of(uint32_t dtype) {
  return dtype == TANDEM_F16 ? 0x1p-24 : dtype == TANDEM_BF16 ? 0x1p-133 : 0x1p-149;
}
// The finite number of the type that is nearest.
double in_type(double x, uint32_t dtype) {
  const double most = largest_of(dtype);
  return std::isinf(x) ? x : round_to(std::clamp(x, -most, most), dtype);
}

template <typename Value>
void each(HostTensor& t, Value value) {
  for (int64_t b = 0; b < t.dims.b; ++b)
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t s = 0; s < t.dims.s; ++s)
        for (int64_t d = 0; d < t.dims.d; ++d)
          t.set(b, h, s, d, in_type(value(b, h, s, d), t.layout.dtype));
}

uint64_t draw(uint64_t seed, int64_t b, int64_t h = 0, int64_t i = 0, int64_t j = 0) {
  uint64_t x = Random::mix(seed);
  for (int64_t n : {b, h, i, j}) x = Random::mix(x + uint64_t(n) + 0x9e3779b97f4a7c15u);
  return x;
}
double normal(uint64_t seed, int64_t b, int64_t h, int64_t i, int64_t j) {
  return Random::hash_normal(draw(seed, b, h, i, j));
}

// q and k so that scale <q, k> has the size wanted: rows along a vector of signs, keys along it or
// against it.
void fill_scores(const Magnitudes& m, Case& test) {
  const tandem_problem& p = test.problem();
  HostTensor &q = test.input(Role::q), &k = test.input(Role::k);
  const uint64_t seed = Random::mix(test.seed() ^ 0x73636f7265);
  Problem checked;
  double scale = 1;
  if (make_problem(&p, &checked).ok()) scale = std::fabs(double(checked.scale));
  if (scale == 0) scale = 1;
  const double sign = checked.scale < 0 ? -1 : 1;
  const double D = double(std::max<int64_t>(p.head_dim, 1));
  const int64_t group = std::max<int64_t>(1, p.heads_q / std::max<int64_t>(1, p.heads_kv));
  const double most = p.q.dtype == TANDEM_F16 ? 30000 : 1e12;
  // In all features, or in one of them beside small random numbers.
  const bool along = draw(seed, 1) % 2 == 0 || m.scores == Scores::one || m.scores == Scores::equal;
  const double a = std::min(most, std::sqrt(m.score / (scale * (along ? D : 1))));
  const auto signs = [&](int64_t h, int64_t d) { return draw(seed + 2, h, d) % 2 ? 1.0 : -1.0; };
  const auto row = [&](int64_t s, int64_t rows) {
    return 1 + 0.37 * double(s) / double(std::max<int64_t>(rows, 1));
  };
  switch (m.scores) {
    case Scores::usual:
      return;
    case Scores::zero:
      return each(q, [](int64_t, int64_t, int64_t, int64_t) { return 0.0; });
    case Scores::tiny:
      for (HostTensor* t : {&q, &k})
        each(*t, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
          return smallest_of(t->layout.dtype) * double(int64_t(draw(seed + 3, b, h, s, d) % 7) - 3);
        });
      return;
    case Scores::spread:
      for (HostTensor* t : {&q, &k})
        each(*t, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
          return normal(seed + (t == &q ? 4 : 5), b, h, s, d) *
                 std::min(most / 4, std::sqrt(m.score / (scale * std::sqrt(D))));
        });
      return;
    default:
      break;
  }
  each(q, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
    if (along) return a * signs(h / group, d) * row(s, q.dims.s);
    return d == 0 ? a * row(s, q.dims.s) : 0.1 * normal(seed + 6, b, h, s, d);
  });
  each(k, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
    const double other = 0.1 * normal(seed + 7, b, h, s, d);
    if (m.scores == Scores::one) {
      const auto at = int64_t(draw(seed + 8, b, h) % uint64_t(std::max<int64_t>(1, k.dims.s)));
      return s == at ? sign * a * signs(h, d) : other;
    }
    const bool below = m.scores == Scores::low || (m.scores == Scores::equal && h % 2 == 1);
    const double to = below ? -sign * a : sign * a;
    return along ? to * signs(h, d) : d == 0 ? to : other;
  });
}

void fill_bias(const Magnitudes& m, Case& test) {
  if (m.bias == Bias::usual) return;
  const tandem_problem& p = test.problem();
  const uint64_t seed = Random::mix(test.seed() ^ 0x6d61736b);
  constexpr double hide = -std::numeric_limits<double>::infinity();
  if (!is_input(p, Role::bias)) {
    if (is_input(p, Role::bias_table))  // some entries have it
      each(test.input(Role::bias_table), [&](int64_t, int64_t h, int64_t, int64_t n) {
        return draw(seed, h, n, 1) % 3 == 0 ? m.bias_value : normal(seed, 1, h, 0, n);
      });
    if (is_input(p, Role::dist_bias))  // some distances have it
      each(test.input(Role::dist_bias), [&](int64_t, int64_t h, int64_t, int64_t t) {
        return draw(seed, h, t) % 3 == 0 ? m.bias_value : normal(seed, 0, h, 0, t);
      });
    return;
  }
  HostTensor& t = test.input(Role::bias);
  const double value = m.bias_value;
  each(t, [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    const uint64_t at = draw(seed + 1, b, h, i, j);
    const double other = Random::hash_normal(at);
    switch (m.bias) {
      case Bias::some:
        return at % 3 == 0 ? value : other;
      case Bias::all:
        return draw(seed + 2, b, h, i) % 3 == 0 ? value : other;
      case Bias::pad: {
        const auto pad = int64_t(draw(seed + 3, b) % uint64_t(std::max<int64_t>(1, t.dims.d)));
        return j < pad || (t.dims.s > 1 && j > i + std::max<int64_t>(0, t.dims.d - t.dims.s))
                   ? value
                   : 0.0;
      }
      case Bias::rows: {
        const uint64_t row = draw(seed + 4, b, h, i) % 4;
        return row == 0 ? hide : row == 1 ? value : at % 5 == 0 ? hide : other;
      }
      default:  // one
        return int64_t(draw(seed + 5, b, h, i) % uint64_t(std::max<int64_t>(1, t.dims.d))) == j
                   ? value
                   : other;
    }
  });
}

// With the largest numbers in one, the other is small, so that dp and ds are representable in the
// problem's type.
void fill_values(Values kind, Values other, Role role, Case& test) {
  if (!is_input(test.problem(), role)) return;
  HostTensor& t = test.input(role);
  const uint64_t seed = Random::mix(test.seed() ^ (role == Role::v ? 0x76 : 0x646f));
  const uint32_t dtype = t.layout.dtype;
  // f16 sums in f32. Sums of the other types may not pass the end of f32 before they are divided.
  const double keys = double(std::max<int64_t>({test.problem().seq_kv, test.problem().seq_q, 1})) *
                      double(std::max<int64_t>(1, test.problem().head_dim_v));
  // o is what dropout keeps over 1 - p: beyond the type it would be no finite input of the
  // backward.
  const double kept = 1 - double(test.problem().dropout);
  double most = kept * (dtype == TANDEM_F16 ? largest_of(dtype) : largest_of(dtype) / (8 * keys));
  if (kept < 1 && dtype == TANDEM_F16) most *= 1 - 0x1p-10;  // in_type() may round it up
  each(t, [&](int64_t b, int64_t h, int64_t s, int64_t d) {
    const double usual = normal(seed, b, h, s, d);
    switch (kind) {
      case Values::ones:
        return 1.0;
      case Values::largest:
        return draw(seed + 1, b, h, s, d) % 2 ? most : -most;
      case Values::tiny:
        return smallest_of(dtype) * double(int64_t(draw(seed + 2, b, h, s, d) % 7) - 3);
      case Values::zero:
        return 0.0;
      case Values::some:
        return draw(seed + 3, b, h, s) % 3 == 0 ? 0.0 : usual;
      default:
        return other == Values::largest ? usual * (dtype == TANDEM_F16 ? 0x1p-12 : 0x1p-100)
                                        : t.get(b, h, s, d);
    }
  });
}

template <typename Kind, size_t N>
Kind kind_of(const std::string& word, const char* const (&names)[N]) {
  for (size_t n = 0; n < N; ++n)
    if (word == names[n]) return Kind(n);
  throw Error(TANDEM_ERROR_INVALID_ARGUMENT, "magnitudes: '" + word + "' is no such word");
}

double value_of(const std::string& text) {
  double x = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, x);
  if (result.ec != std::errc() || result.ptr != end)
    throw Error(TANDEM_ERROR_INVALID_ARGUMENT, "magnitudes: '" + text + "' is no number");
  return x;
}

}  // namespace

bool Magnitudes::usual() const {
  return scores == Scores::usual && bias == Bias::usual && sink == 0 && v == Values::usual &&
         d_o == Values::usual;
}

std::string print(const Magnitudes& m) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : ",") + word; };
  if (m.scores != Scores::usual)
    add(std::string("scores=") + kScoreNames[int(m.scores)] + ":" + number(m.score));
  if (m.bias != Bias::usual)
    add(std::string("bias=") + kBiasNames[int(m.bias)] + ":" + number(m.bias_value));
  if (m.sink != 0) add("sink=" + number(m.sink));
  if (m.v != Values::usual) add(std::string("v=") + kValueNames[int(m.v)]);
  if (m.d_o != Values::usual) add(std::string("d_o=") + kValueNames[int(m.d_o)]);
  return text;
}

Magnitudes parse_magnitudes(const std::string& text) {
  Magnitudes m;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    const size_t equals = std::min(word.find('='), word.size());
    const std::string name = word.substr(0, equals);
    const std::string rest = equals < word.size() ? word.substr(equals + 1) : "";
    const size_t colon = std::min(rest.find(':'), rest.size());
    const std::string kind = rest.substr(0, colon);
    const double value = colon < rest.size() ? value_of(rest.substr(colon + 1)) : 0;
    if (name == "scores")
      m.scores = kind_of<Scores>(kind, kScoreNames), m.score = value;
    else if (name == "bias")
      m.bias = kind_of<Bias>(kind, kBiasNames), m.bias_value = value;
    else if (name == "sink")
      m.sink = value_of(rest);
    else if (name == "v")
      m.v = kind_of<Values>(kind, kValueNames);
    else if (name == "d_o")
      m.d_o = kind_of<Values>(kind, kValueNames);
    else
      throw Error(TANDEM_ERROR_INVALID_ARGUMENT, "magnitudes: '" + word + "' is no such word");
    at = end + 1;
  }
  return m;
}

Magnitudes random_magnitudes(uint64_t seed, const tandem_problem& p, int percent) {
  static const std::vector<Scores> scores = {
      Scores::usual, Scores::low, Scores::low,   Scores::high, Scores::spread,
      Scores::one,   Scores::one, Scores::equal, Scores::zero, Scores::tiny};
  static const std::vector<double> sizes = {1, 10, 30, 100, 1e3, 4e3, 5e3, 1e4, 1e5, 1e6, 1e7, 1e8};
  static const std::vector<double> masks = {1e4,  65504, 1e5,        1e6,           1e7,
                                            1e8,  1e9,   1e10,       1e12,          1e15,
                                            1e20, 1e30,  0x1.fep127, 0x1.fffffep127};
  static const std::vector<double> sinks = {1, 100, 5e3, 1e6, 1e10, 1e30, 2.4e38, 3e38};
  static const std::vector<Values> values = {Values::usual, Values::usual, Values::usual,
                                             Values::ones,  Values::ones,  Values::largest,
                                             Values::tiny,  Values::zero,  Values::some};
  Random r(Random::mix(seed) ^ 0x6d61676e69);
  Magnitudes m;
  if (p.q.dtype == TANDEM_F64 || !r.chance(percent)) return m;  // the rules are those of f32
  const bool biased =
      (p.bias.dtype != 0 || p.bias_table_size > 0 || p.dist_window > 0) && r.chance(75);
  if (!biased || r.chance(40)) {
    m.scores = r.pick(scores);
    m.score = r.pick(sizes);
  }
  if (biased) {
    m.bias = Bias(r.between(1, 5));
    m.bias_value = r.pick(masks) * (r.chance(88) ? -1 : 1);
    // cuda.sm90 has distance biases over the scale, which has to fit (docs/guide/accuracy.md).
    if (p.bias.dtype == 0) m.bias_value = std::clamp(m.bias_value, -1e34, 1e34);
    // Scores beside the last numbers of f32 would pass its end.
    if (std::fabs(m.bias_value) > 1e37 && m.score > 1e4) m.score = 1e4;
  }
  if (p.sink && r.chance(60)) m.sink = r.pick(sinks);
  m.v = r.pick(values);
  m.d_o = r.pick(values);
  if (m.v == Values::largest && m.d_o != Values::zero && m.d_o != Values::tiny)
    m.d_o = Values::usual;
  if (m.d_o == Values::largest && m.v != Values::zero && m.v != Values::tiny) m.v = Values::usual;
  return m;
}

void fill_magnitudes(const Magnitudes& m, Case& test) {
  if (test.problem().batch == 0) return;
  fill_scores(m, test);
  fill_bias(m, test);
  if (m.sink != 0 && is_input(test.problem(), Role::sink)) {
    HostTensor& t = test.input(Role::sink);
    each(t, [&](int64_t, int64_t h, int64_t, int64_t) { return h % 2 == 0 ? m.sink : -m.sink; });
  }
  const bool v = m.v != Values::usual || m.d_o == Values::largest;
  const bool d_o = m.d_o != Values::usual || m.v == Values::largest;
  if (v) fill_values(m.v, m.d_o, Role::v, test);
  if (d_o) fill_values(m.d_o, m.v, Role::d_o, test);
}

std::string repro(const tandem_problem& problem, uint64_t seed, const Magnitudes& m) {
  const std::string words = print(m);
  return repro(problem, seed) + (words.empty() ? "" : " --magnitudes " + words);
}

}  // namespace tandem::harness
