// SPDX-License-Identifier: MIT OR Apache-2.0
// Padded lengths beside a dense bias, with and without a keep mask. cuda.sm90 clips or masks the
// tiles of an entry, and zeroes what TMA loads from behind its end: there is NaN here in every
// input.
#include <algorithm>
#include <limits>

#include "parity.h"

using namespace parity;

namespace {

// Lengths of the entries of a batch, in turn: none, one, the ends of tiles and what is next to
// them, and all.
std::vector<int64_t> lengths_of(int64_t batch, int64_t longest, int64_t from) {
  const int64_t some[] = {longest, 0, 1, 64, 65, 127, 128, 129, longest - 1, 63};
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < batch; ++b) lengths.push_back(std::min(some[(b + from) % 10], longest));
  return lengths;
}

// NaN behind the end of each entry, in the rows of a tensor of queries or of keys.
void end_rows(Case& test, Role role, const std::vector<int64_t>& lengths) {
  HostTensor& t = test.input(role);
  for (int64_t b = 0; b < t.dims.b; ++b)
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t i = lengths[size_t(b)]; i < t.dims.s; ++i)
        for (int64_t d = 0; d < t.dims.d; ++d)
          t.set(b, h, i, d, std::numeric_limits<double>::quiet_NaN());
}

struct Lengths {
  bool q, kv;
};
void check_lengths(const std::string& line, Lengths has, int64_t from) {
  const tandem_problem p = parse(line + (has.q ? " q_padded" : "") + (has.kv ? " kv_padded" : ""));
  if (!mine(p)) return;
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm90";
  expect.options.repeats = 2;
  Case test(p, seed_of(line.c_str(), uint64_t(from)), expect.options);
  std::vector<int64_t> q(size_t(p.batch), p.seq_q), kv(size_t(p.batch), p.seq_kv);
  if (has.q) set_lengths_of(test, false, q = lengths_of(p.batch, p.seq_q, from));
  if (has.kv) set_lengths_of(test, true, kv = lengths_of(p.batch, p.seq_kv, from + 3));
  end_rows(test, Role::q, q);
  end_rows(test, Role::k, kv);
  end_rows(test, Role::v, kv);
  if (p.direction == TANDEM_BACKWARD) end_rows(test, Role::d_o, q);
  // In a bias that entries share, what lies behind the ends of all of them.
  const int64_t most_q = *std::max_element(q.begin(), q.end()),
                most_kv = *std::max_element(kv.begin(), kv.end());
  HostTensor& bias = test.input(Role::bias);
  for (int64_t b = 0; b < bias.dims.b; ++b)
    for (int64_t h = 0; h < bias.dims.h; ++h)
      for (int64_t i = 0; i < bias.dims.s; ++i)
        for (int64_t j = 0; j < bias.dims.d; ++j)
          if ((bias.dims.s > 1 && i >= (bias.dims.b > 1 ? q[size_t(b)] : most_q)) ||
              j >= (bias.dims.b > 1 ? kv[size_t(b)] : most_kv))
            bias.set(b, h, i, j, std::numeric_limits<double>::quiet_NaN());
  check_case(test, expect);
}

constexpr Lengths kBoth{true, true}, kQ{true, false}, kKv{false, true};

}  // namespace

TEST_CASE("bias and lengths: forward") {
  check_lengths("fwd bf16 b10 hq2 hk1 sq200 sk264 d64 dv64 bias:bf16:10x2x200", kBoth, 0);
  check_lengths("fwd f16 b6 hq2 hk2 sq130 sk200 d128 dv128 bias:f16:1x2x130 keep:6x1x1", kBoth, 1);
  check_lengths("fwd bf16 b4 hq2 hk1 sq130 sk333 d32 dv32 bias:f32:4x2x130 keep:4x2x130", kBoth, 5);
  check_lengths("fwd f16 b5 hq2 hk2 sq200 sk136 d96 dv128 bias:f32:1x1x200 causal_top_left", kKv,
                3);
}

TEST_CASE("bias and lengths: backward") {
  check_lengths("bwd bf16 b5 hq2 hk1 sq200 sk264 d64 dv64 bias:bf16:1x2x200 grads=qkvb d_bias:bf16",
                kBoth, 0);
  check_lengths(
      "bwd f16 b10 hq2 hk2 sq130 sk136 d32 dv32 bias:f16:1x2x130 grads=qkvb d_bias:f32 "
      "keep:10x1x1",
      kBoth, 2);
  check_lengths("bwd bf16 b3 hq2 hk1 sq130 sk200 d128 dv128 bias:f32:3x2x130 grads=qkvb d_bias:f32",
                kBoth, 6);
}

TEST_CASE("bias and lengths: of every kind" * doctest::skip(!at_least(Tier::ci))) {
  int n = 0;
  for (const char* direction : {"fwd", "bwd"})
    for (const char* batch : {"1", "3", "8", "10", "20"})
      for (const char* sizes :
           {"sq200 sk264 d64 dv64", "sq70 sk136 d32 dv32", "sq130 sk200 d128 dv96"})
        for (const char* keep : {"none", "x1x1", "x2x"}) {
          const bool backward = direction == std::string("bwd");
          const std::string rows = std::string(sizes).substr(2, std::string(sizes).find(' ') - 2),
                            dtype = n % 2 ? "f16" : "bf16", bias = n % 5 < 2 ? "f32" : dtype;
          std::string line = direction + (" " + dtype) + " b" + batch + " hq2 hk" +
                             (n % 3 ? "1 " : "2 ") + sizes + " bias:" + bias + ":" +
                             (n % 4 == 3 ? batch : "1") + "x2x" + rows;
          if (keep[0] == 'x') line += std::string(" keep:") + batch + keep;
          if (keep[0] == 'x' && keep[3] == '\0') line += rows;
          if (n % 4 == 1) line += " causal_top_left";
          if (n % 8 == 2) line += " left=70 right=20 bottom_right";
          if (backward && n % 7 != 6) line += " grads=qkvb d_bias:" + (n % 3 ? "f32" : bias);
          if (backward && n % 6 == 5) line += " deterministic";
          check_lengths(line, n % 6 == 4 ? kQ : n % 6 == 2 ? kKv : kBoth, n);
          ++n;
        }
}
