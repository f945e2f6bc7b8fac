// SPDX-License-Identifier: MIT OR Apache-2.0
// Exact inputs for the optional inputs: the queries are zero and a bias says which keys a row hits,
// so that weights are powers of two, or otherwise without rounding. Everything that must not be
// seen (hidden by keep, position or length) has the largest bias of all. The reference gives what
// is expected; that its o fits the dtype to the last bit shows that the inputs are exact.
#include <cmath>
#include <functional>
#include <limits>

#include "parity.h"
#include "problem/philox.h"

using namespace parity;

namespace {

constexpr double kFar = -64, kBait = 64;

// Whether row i of query head h sees key j.
bool sees(Case& test, int64_t b, int64_t h, int64_t i, int64_t j) {
  const tandem_problem& p = test.problem();
  const int64_t q_len = test.sequences(false).length[size_t(b)],
                kv_len = test.sequences(true).length[size_t(b)];
  if (i >= q_len || j >= kv_len) return false;
  tandem_problem entry = p;
  entry.seq_q = q_len;
  entry.seq_kv = kv_len;
  const Span span = visible(entry, i);
  if (j < span.first || j > span.last) return false;
  if (p.keep.dtype == 0) return true;
  const HostTensor& keep = test.input(Role::keep);
  return keep.get(keep.dims.b == 1 ? 0 : b, h / (p.heads_q / keep.dims.h), keep.dims.s == 1 ? 0 : i,
                  j) != 0;
}

// q = 0, keys of signs, values that are multiples of 1/4 and not 0, d_o with a few ones.
void write_plain(Case& test, Random* r) {
  const auto each = [&](Role role, auto value) {
    if (!is_input(test.problem(), role)) return;
    HostTensor& t = test.input(role);
    std::vector<double> values(size_t(t.dims.count()));
    for (double& x : values) x = value();
    t.set_dense(values);
  };
  each(Role::q, [] { return 0.0; });
  each(Role::k, [&] { return r->chance(50) ? 1.0 : -1.0; });
  each(Role::v, [&] { return double(1 + r->below(8)) / 4; });
  each(Role::d_o, [&] { return r->chance(85) ? 0.0 : r->chance(50) ? 1.0 : -1.0; });
}

// Writes the bias: in each of its rows as many visible keys as levels says have these scores, all
// other visible ones kFar, the rest kBait. Rows that see fewer get the first ones only.
void aim(Case& test, Random* r, const std::vector<double>& levels) {
  HostTensor& bias = test.input(Role::bias);
  const tandem_problem& p = test.problem();
  for (int64_t b = 0; b < bias.dims.b; ++b)
    for (int64_t h = 0; h < bias.dims.h; ++h)
      for (int64_t i = 0; i < bias.dims.s; ++i) {
        std::vector<int64_t> keys;
        for (int64_t j = 0; j < p.seq_kv; ++j) {
          const bool seen = sees(test, b, h * (p.heads_q / bias.dims.h), i, j);
          bias.set(b, h, i, j, seen ? kFar : kBait);
          if (seen) keys.push_back(j);
        }
        // The last visible key more often than others: it lies at every mask's edge.
        if (!keys.empty() && r->chance(50)) std::swap(keys.front(), keys.back());
        for (size_t n = 0; n < levels.size() && n < keys.size(); ++n) {
          if (n > 0 || r->chance(50))
            std::swap(keys[n], keys[n + size_t(r->below(int64_t(keys.size() - n)))]);
          bias.set(b, h, i, keys[n], levels[n]);
        }
      }
}

// "" or what of an output is not as the reference has it. exact: to the last bit, else to half a
// rounding of the dtype and what exp and log lose.
std::string compare(Case& test, Role role, const std::vector<double>& got, bool exact) {
  const std::vector<double>& want = test.reference(role);
  const std::vector<double>& terms = test.reference_terms(role);
  const uint32_t dtype = layout_of(test.problem(), role).dtype;
  const Dims dims = logical_dims(test.problem(), role);
  for (size_t n = 0; n < want.size(); ++n) {
    const double allowed =
        exact || terms[n] == 0 ? 0 : ulp(want[n], dtype) / 2 + 0x1p-18 * terms[n] + 1e-7;
    if (std::fabs(got[n] - (exact ? round_to(want[n], dtype) : want[n])) <= allowed) continue;
    const auto at = int64_t(n);
    return std::string(role_name(role)) + ": b" + std::to_string(at / dims.d / dims.s / dims.h) +
           " h" + std::to_string(at / dims.d / dims.s % dims.h) + " row " +
           std::to_string(at / dims.d % dims.s) + " column " + std::to_string(at % dims.d) +
           ": got " + std::to_string(got[n]) + ", want " + std::to_string(want[n]);
  }
  return "";
}

// exact: o to the last bit on every target.
void check_exact(Case& test, const std::string& name, bool exact) {
  const tandem_problem& p = test.problem();
  if (!mine(p)) return;
  if (exact) {
    // The construction itself: nothing in o needs rounding but what lies 2^-60 below.
    size_t rounded = 0, zeros = 0;
    for (double x : test.reference(Role::o)) {
      rounded += std::fabs(x - round_to(x, p.q.dtype)) > 0x1p-60;
      zeros += x == 0;
    }
    REQUIRE_MESSAGE(rounded == 0, name << ": " << rounded << " values of o are not exact");
    REQUIRE(zeros * 10 < test.reference(Role::o).size() * 9);
  }
  for (Target& target : targets()) {
    if (lacks(target, p)) continue;
    Outputs outputs;
    const CaseResult result = test.run(*target.session, &outputs);
    const std::string where =
        target.name + ": exact " + name + ", " + print(p) + ", seed " + std::to_string(test.seed());
    CHECK_MESSAGE(result.ok, where << "\n  " << result.message);
    if (!result.ok) continue;
    CHECK_MESSAGE(result.path == target.path, where << ": ran path " << result.path);
    count(result.kernels);
    for (Role role : kOutputs) {
      if (role != Role::o && !is_output(p, role)) continue;
      for (const auto& written : outputs.written(role)) {
        const std::string wrong =
            compare(test, role, test.logical(role, *written.tensor), exact && role == Role::o);
        CHECK_MESSAGE(wrong.empty(), where << "\n  " << written.run << wrong);
        if (!wrong.empty()) blame(target, "exact", role_name(role));
      }
    }
    for (size_t n = 0; n < outputs.lse.size(); ++n) {
      const double want = test.reference_lse()[n], got = double(outputs.lse[n]);
      const bool good =
          got == want || std::fabs(got - want) <= 1e-6 * std::max(1.0, std::fabs(want));
      CHECK_MESSAGE(good, where << "\n  lse " << n << ": got " << got << ", want " << want);
      if (!good) {
        blame(target, "exact", "lse");
        break;
      }
    }
  }
}

using Levels = std::vector<double>;
const Levels kOne = {0}, kTwo = {0, 0};

// A case whose bias decides. change: the problem, before the case is made; fill: inputs, before the
// aim.
void check_aimed(const std::string& name, tandem_dtype dtype, const Shape& shape, const Mask& mask,
                 const Levels& levels, const std::function<void(tandem_problem&)>& change,
                 const std::function<void(Case&, Random&)>& fill = {}, bool exact = true,
                 tandem_direction direction = TANDEM_BACKWARD) {
  tandem_problem p = problem(direction, dtype, shape, mask);
  set_bias(p, TANDEM_F32, p.batch, p.heads_q, p.seq_q);
  p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_BIAS;
  p.scale = 0.5f;
  if (change) change(p);
  const uint64_t seed = seed_of(name.c_str());
  CaseOptions options;
  options.repeats = 2;
  Case test(p, seed, options);
  Random r(seed);
  write_plain(test, &r);
  if (fill) fill(test, r);
  aim(test, &r, levels);
  check_exact(test, name, exact);
}

constexpr Shape kShape = {2, 4, 2, 70, 101, 32, 32};

// Pipelines take longer to compile than these to run on a CPU's driver: the smoke tier has a few.
bool full() { return at_least(Tier::ci); }

}  // namespace

TEST_CASE("exact features: a bias of every shape decides which key is hit") {
  const tandem_dtype dtypes[] = {TANDEM_F32, TANDEM_F16, TANDEM_BF16};
  int n = 0;
  for (int64_t batch : {2, 1})
    for (int64_t heads : {4, 2, 1})
      for (int64_t rows : {int64_t(70), int64_t(1)}) {
        const tandem_dtype dtype = dtypes[n % 3], bias = dtypes[(n + n / 3 + 1) % 3];
        // A row of its own sees what all queries see; gradients of two dtypes.
        if (++n > 1 && !full()) continue;
        check_aimed("bias " + std::to_string(n), dtype, kShape, kNone, kTwo,
                    [&](tandem_problem& p) {
                      set_bias(p, bias, batch, heads, rows, n % 2 ? TANDEM_F32 : bias);
                    });
      }
  if (!full()) return;
  for (const Mask& mask : kMasks) {
    check_aimed(std::string("one key, ") + mask.name, TANDEM_F16, kShape, mask, kOne, {});
    check_aimed(std::string("two keys, ") + mask.name, TANDEM_BF16, kShape, mask, kTwo, {});
  }
  // Gradients of the bias alone, and a bias in strides of its own.
  check_aimed("bias alone", TANDEM_F32, kShape, kBottomRight, kTwo,
              [](tandem_problem& p) { p.gradients = TANDEM_GRAD_BIAS; });
  check_aimed("bias strides", TANDEM_F32, kShape, kBottomRight, kTwo, [](tandem_problem& p) {
    set_layout(p, Role::bias, Layout::bshd);
    set_layout(p, Role::d_bias, Layout::gapped);
  });
}

// cuda.sm90 copies these first (pack_bias).
TEST_CASE("exact features: biases that TMA cannot read") {
  for (tandem_dtype dtype : {TANDEM_F16, TANDEM_BF16})
    check_aimed("odd rows of bias", dtype, {2, 2, 2, 50, 49, 32, 32}, kNone, kTwo,
                [&](tandem_problem& p) { set_bias(p, dtype, p.batch, 2, p.seq_q, TANDEM_F32); });
}

TEST_CASE("exact features: dist_bias, its window's last entry and the one behind it" *
          doctest::skip(!full())) {
  // Only distance W - 1 has a bias that counts; a key one farther must not get it, nor what lies
  // behind the array. Rows with fewer keys see uniform ones.
  for (const Mask& mask : {kTopLeft, kBottomRight, kNone}) {
    tandem_problem p = problem(TANDEM_BACKWARD, TANDEM_F32, {2, 2, 1, 70, 101, 32, 32}, mask);
    p.dist_window = 33;
    p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_DIST_BIAS;
    Case test(p, seed_of("dist"));
    Random r(seed_of("dist"));
    write_plain(test, &r);
    HostTensor& dist = test.input(Role::dist_bias);
    for (int64_t h = 0; h < dist.dims.h; ++h)
      for (int64_t t = 0; t < 33; ++t)
        dist.set(0, h, 0, t, t == 32 || (h == 1 && t == 7) ? 64 : kFar);
    check_exact(test, std::string("dist_bias, ") + mask.name, false);
  }
}

TEST_CASE("exact features: elastic softmax" * doctest::skip(!full())) {
  // 64 keys, so that tau / n is a power of two. A single key has p = 1 and may not be off by a bit;
  // two have 1/2 as exp and log give it.
  const Shape shape = {2, 4, 2, 70, 64, 32, 32};
  const auto elastic = [](tandem_problem& p) {
    p.normalizer = TANDEM_ELASTIC;
    p.gradients |= TANDEM_GRAD_TAU;
  };
  const auto tau = [](double value) {
    return [value](Case& test, Random&) { set_heads(test, Role::tau, value); };
  };
  check_aimed("elastic, half left", TANDEM_F32, shape, kNone, kOne, elastic, tau(-32));
  check_aimed("elastic, half left, bf16", TANDEM_BF16, shape, kNone, kOne, elastic, tau(-32));
  check_aimed("elastic, all keys pass", TANDEM_F16, shape, kNone, kOne, elastic, tau(64));
  check_aimed("elastic, two keys", TANDEM_F32, shape, kNone, kTwo, elastic, tau(-16), false);
  check_aimed("elastic, two keys of 16 bits", TANDEM_F16, shape, kNone, kTwo, elastic, tau(-16));
  check_aimed("elastic, without tau", TANDEM_F16, shape, kTopLeft, kTwo, elastic, tau(0));
  // On the kink: a row with a single key has p = 1 and tau / n = -1, and neither weight nor
  // gradient.
  check_aimed("elastic, the kink", TANDEM_F32, shape, kTopLeft, kOne, elastic, tau(-1), false);
  // A distance bias decides, and nothing else is there: one key of each row, two in the second
  // head. Where q is 0, d_k is, and where k is, d_q.
  for (tandem_dtype dtype : {TANDEM_F16, TANDEM_BF16})
    for (Role zero : {Role::q, Role::k}) {
      tandem_problem p = problem(TANDEM_BACKWARD, dtype, shape, kNone);
      p.normalizer = TANDEM_ELASTIC;
      p.dist_window = 33;
      p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_DIST_BIAS | TANDEM_GRAD_TAU;
      Case test(p, seed_of("elastic dist"));
      Random r(seed_of("elastic dist"));
      write_plain(test, &r);
      HostTensor &q = test.input(Role::q), &k = test.input(Role::k);
      if (zero == Role::k) {
        q.set_dense(std::vector<double>(size_t(q.dims.count()), 1));
        k.set_dense(std::vector<double>(size_t(k.dims.count()), 0));
      }
      set_heads(test, Role::tau, -16);
      HostTensor& dist = test.input(Role::dist_bias);
      for (int64_t h = 0; h < dist.dims.h; ++h)
        for (int64_t t = 0; t < 33; ++t)
          dist.set(0, h, 0, t, t == 32 || (h == 1 && t == 7) ? 64 : kFar);
      check_exact(test, "elastic, a distance bias decides", false);
    }
}

TEST_CASE("exact features: entmax") {
  const auto entmax = [](float alpha) {
    return [alpha](tandem_problem& p) {
      p.normalizer = TANDEM_ENTMAX;
      p.entmax_alpha = alpha;
    };
  };
  const Levels four = {0, 0, 0, 0};
  check_aimed("entmax 1.5, four keys", TANDEM_F32, kShape, kNone, four, entmax(1.5f), {}, true,
              full() ? TANDEM_BACKWARD : TANDEM_FORWARD);
  if (!full()) return;
  check_aimed("entmax 1.5, four keys, bf16", TANDEM_BF16, kShape, kNone, four, entmax(1.5f));
  check_aimed("entmax 1.5, one key", TANDEM_F16, kShape, kBottomRight, kOne, entmax(1.5f));
  check_aimed("entmax 2, one key", TANDEM_F32, kShape, kBottomRight, kOne, entmax(2));
  check_aimed("entmax 2, two keys", TANDEM_F16, kShape, kTopLeft, kTwo, entmax(2));
  check_aimed("entmax 2, four keys", TANDEM_BF16, kShape, kNone, four, entmax(2));
  check_aimed("entmax 2, two keys apart", TANDEM_F32, kShape, kNone, {0, -0.25}, entmax(2));
  // The second key lies just on the threshold: z = t, and no weight.
  check_aimed("entmax 2, at the threshold", TANDEM_F32, kShape, kNone, {0, -1}, entmax(2));
  check_aimed("entmax 1.25, one key", TANDEM_F32, kShape, kBottomRight, kOne, entmax(1.25f), {},
              false);
  check_aimed("entmax 1.25, sixteen keys", TANDEM_F32, kShape, kNone, Levels(16, 0.0),
              entmax(1.25f), {}, false);
}

TEST_CASE("exact features: keep hides what would win" * doctest::skip(!full())) {
  const auto keep = [](int64_t batch, int64_t heads, int64_t rows) {
    return [=](tandem_problem& p) { set_keep(p, batch, heads, rows); };
  };
  check_aimed("keep", TANDEM_F32, kShape, kBottomRight, kTwo, keep(2, 4, 70));
  check_aimed("keep of kv heads", TANDEM_F16, kShape, kNone, kOne, keep(1, 2, 70));
  check_aimed("keep of one row", TANDEM_BF16, kShape, kTopLeft, kTwo, keep(2, 1, 1));
  check_aimed("keep, entmax", TANDEM_F32, kShape, kNone, kTwo, [](tandem_problem& p) {
    set_keep(p, 2, 2, 70);
    p.normalizer = TANDEM_ENTMAX;
    p.entmax_alpha = 2;
  });
}

TEST_CASE("exact features: lengths and keep hide what would win") {
  const auto lengths = [](tandem_lengths q, tandem_lengths kv) {
    return [=](tandem_problem& p) { set_lengths(p, q, kv, 121, 170); };
  };
  const auto some = [](Case& test, Random&) {  // neither empty nor whole
    if (is_input(test.problem(), Role::lengths_q)) set_lengths_of(test, false, {66, 55});
    set_lengths_of(test, true, {73, 97});
  };
  check_aimed(
      "packed and kept", TANDEM_F32, kShape, kBottomRight, kTwo,
      [&](tandem_problem& p) {
        lengths(TANDEM_LENGTHS_PACKED, TANDEM_LENGTHS_PACKED)(p);
        set_keep(p, 2, 1, 70);
      },
      some);
  if (!full()) return;
  for (const Mask& mask : {kNone, kTopLeft, kBottomRight, kCausalWindow}) {
    check_aimed(std::string("padded, ") + mask.name, TANDEM_F16, kShape, mask, kTwo,
                lengths(TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PADDED), some);
    check_aimed(std::string("packed, ") + mask.name, TANDEM_BF16, kShape, mask, kTwo,
                lengths(TANDEM_LENGTHS_PACKED, TANDEM_LENGTHS_PACKED), some);
  }
  check_aimed("padded keys", TANDEM_F32, kShape, kBottomRight, kTwo,
              lengths(TANDEM_LENGTHS_FULL, TANDEM_LENGTHS_PADDED), some);
}

TEST_CASE("exact features: a sink that equals the only score takes half" * doctest::skip(!full())) {
  const auto sink = [](tandem_problem& p) {
    p.sink = 1;
    p.gradients |= TANDEM_GRAD_SINK;
  };
  const auto zero = [](Case& test, Random&) { set_heads(test, Role::sink, 0); };
  check_aimed("sink", TANDEM_F32, kShape, kNone, kOne, sink, zero);
  check_aimed("sink, causal", TANDEM_BF16, kShape, kBottomRight, kOne, sink, zero);
  // Rows of keep without a key: o is 0 and lse -inf, sink or not.
  check_aimed(
      "sink, rows that see nothing", TANDEM_F16, kShape, kNone, kOne,
      [&](tandem_problem& p) {
        sink(p);
        set_keep(p, 1, 1, 70);
      },
      [&](Case& test, Random& r) {
        zero(test, r);
        HostTensor& keep = test.input(Role::keep);
        for (int64_t i = 0; i < 70; ++i)
          for (int64_t j = 0; j < 101; ++j) keep.set(0, 0, i, j, i % 4 != 1 && (i + j) % 3 ? 7 : 0);
      });
}

namespace {

// Scores are equal and v has a one for each key, so that o shows which weights were dropped; d_o
// has one for each query, and d_v shows it of the backward.
void check_dropout(float dropout, uint32_t tile, uint64_t seed) {
  constexpr int64_t kKeys = 64;
  tandem_problem p =
      problem(TANDEM_BACKWARD, TANDEM_F32, {2, 4, 2, kKeys, kKeys, 16, kKeys}, kNone);
  p.dropout = dropout;
  if (!mine(p)) return;
  p.tile_rows = p.tile_cols = tile;
  Case test(p, seed);
  for (Role role : {Role::q, Role::v, Role::d_o}) {
    HostTensor& t = test.input(role);
    for (int64_t b = 0; b < t.dims.b; ++b)
      for (int64_t h = 0; h < t.dims.h; ++h)
        for (int64_t s = 0; s < t.dims.s; ++s)
          for (int64_t d = 0; d < t.dims.d; ++d) t.set(b, h, s, d, role != Role::q && s == d);
  }
  const auto threshold = uint32_t(std::llround(double(dropout) * 4294967296.0));
  const float weight = float(1.0 / kKeys / (1 - double(dropout)));
  for (Target& target : targets()) {
    if (lacks(target, p)) continue;
    Outputs out;
    const CaseResult result = test.run(*target.session, &out);
    INFO(target.name << ": " << repro(p, seed));
    if (result.refused) continue;  // a device may lack a tile
    CHECK_MESSAGE(result.ok, result.message);
    if (!result.ok) continue;
    count(result.kernels);
    int wrong_o = 0, wrong_d_v = 0;
    int64_t kept = 0;
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t j = 0; j < kKeys; ++j)
        for (int64_t i = 0; i < kKeys; ++i) {
          double sums[2] = {0, 0};
          for (int64_t h = 0; h < 4; ++h) {
            const TandemPhilox words = tandem_dropout_words(
                int(b * 4 + h), int(i), int(j / 4), uint32_t(test.dropout_seed),
                uint32_t(test.dropout_seed >> 32), test.dropout_offset);
            const uint32_t four[] = {words.x, words.y, words.z, words.w};
            const bool keep = four[j % 4] >= threshold;
            kept += keep;
            sums[h / 2] += keep ? double(weight) : 0;
            wrong_o += std::fabs(out.o.get(b, h, i, j) - (keep ? double(weight) : 0)) > 1e-8;
          }
          for (int64_t hk = 0; hk < 2; ++hk)
            wrong_d_v += std::fabs(out.d_v.get(b, hk, j, i) - sums[hk]) > 1e-7;
        }
    CHECK(wrong_o == 0);
    CHECK(wrong_d_v == 0);
    const double share = double(kept) / double(8 * kKeys * kKeys);
    CHECK(share == doctest::Approx(1 - double(dropout)).epsilon(0.05));
    if (wrong_o) blame(target, "exact", "o");
    if (wrong_d_v) blame(target, "exact", "d_v");
  }
}

}  // namespace

TEST_CASE("exact features: dropout drops what Philox says, whatever the tile" *
          doctest::skip(!full())) {
  check_dropout(0.5f, 0, seed_of("dropout"));
  for (float dropout : {0.25f, 0.75f, 0.1f})
    for (uint32_t tile : {0u, 32u, 64u}) check_dropout(dropout, tile, seed_of("dropout", tile));
}
