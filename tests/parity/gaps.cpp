// SPDX-License-Identifier: MIT OR Apache-2.0
// Gapped rows: offsets and lengths apart. What lies in a gap of an input is NaN (Case), and a gap
// of an output has to keep its bytes, which every case checks.
#include <limits>

#include "parity.h"

using namespace parity;

namespace {

constexpr int64_t kLowest = std::numeric_limits<int32_t>::min(),
                  kHighest = std::numeric_limits<int32_t>::max();

void set_places(Case& test, bool kv, const std::vector<int64_t>& offsets,
                const std::vector<int64_t>& lengths) {
  HostTensor& first = test.input(kv ? Role::offsets_kv : Role::offsets_q);
  REQUIRE(first.dims.d == int64_t(offsets.size()));
  for (size_t b = 0; b < offsets.size(); ++b) first.set(0, 0, 0, int64_t(b), double(offsets[b]));
  set_lengths_of(test, kv, lengths);
}

// The rows of a gapped tensor's entries, one entry behind the other.
void pack(const HostTensor& from, const Sequences& s, HostTensor* to) {
  int64_t row = 0;
  for (size_t b = 0; b < s.length.size(); ++b)
    for (int64_t i = 0; i < s.length[b]; ++i, ++row)
      for (int64_t h = 0; h < from.dims.h; ++h)
        for (int64_t d = 0; d < from.dims.d; ++d)
          to->set(0, h, row, d, from.get(0, h, s.start[b] + i, d));
}

// Rows of q in `total_q` and of keys in `total_kv`, which have room for them and for gaps.
struct Places {
  std::vector<int64_t> offsets_q, lengths_q, offsets_kv, lengths_kv;
};

// The gapped problem of a line gives the bits of the packed one.
void check_bits(const char* line, const Places& places) {
  const tandem_problem gapped = parse(line);
  if (!mine(gapped)) return;
  tandem_problem packed = gapped;
  int64_t totals[2] = {};
  for (int64_t n : places.lengths_q) totals[0] += n;
  for (int64_t n : places.lengths_kv) totals[1] += n;
  set_lengths(packed, TANDEM_LENGTHS_PACKED, TANDEM_LENGTHS_PACKED, totals[0], totals[1]);
  const uint64_t seed = seed_of(line);
  Case apart(gapped, seed), dense(packed, seed);
  for (Role role : {Role::q, Role::k, Role::v, Role::d_o})  // what was a gap is a row now
    if (is_input(gapped, role)) apart.input(role).fill_normal(seed + uint64_t(role), 1);
  set_places(apart, false, places.offsets_q, places.lengths_q);
  set_places(apart, true, places.offsets_kv, places.lengths_kv);
  set_lengths_of(dense, false, places.lengths_q);
  set_lengths_of(dense, true, places.lengths_kv);
  for (Role role : {Role::q, Role::k, Role::v, Role::d_o})
    if (is_input(gapped, role))
      pack(apart.input(role), apart.sequences(role == Role::k || role == Role::v),
           &dense.input(role));
  apart.spoil_gaps();
  for (Target& target : targets()) {
    if (lacks(target, gapped)) continue;
    CAPTURE(target.name);
    Outputs out, want;
    const CaseResult of_apart = apart.run(*target.session, &out),
                     of_dense = dense.run(*target.session, &want);
    if (of_apart.refused && of_dense.refused) continue;
    REQUIRE_MESSAGE(of_apart.message == "", line << "\n  " << of_apart.message);
    REQUIRE_MESSAGE(of_dense.message == "", line << "\n  " << of_dense.message);
    count(of_apart.kernels);
    if (target.recorded) continue;
    for (Role role : kOutputs) {
      if (role != Role::o && !is_output(gapped, role)) continue;
      const bool rows = is_packed(gapped, role), kv = role == Role::d_k || role == Role::d_v;
      HostTensor joined(packed, role, 0);
      if (rows) pack(out.tensor(role), apart.sequences(kv), &joined);
      const std::vector<double> got = rows ? joined.dense() : out.tensor(role).dense(),
                                expected = want.tensor(role).dense();
      REQUIRE(got.size() == expected.size());
      int64_t differ = 0;
      for (size_t n = 0; n < got.size(); ++n) differ += !(got[n] == expected[n]);
      CHECK_MESSAGE(differ == 0, line << ": " << role_name(role));
    }
    CHECK_MESSAGE(out.lse == want.lse, line);
  }
}

}  // namespace

TEST_CASE("ratio: gapped") {
  check_lines({"bwd bf16 b4 hq2 hk1 sq70 sk90 d64 dv64 q_gapped=230 kv_gapped=300",
               "bwd f32 b3 hq2 hk1 sq40 sk50 d32 dv24 causal_bottom_right sink q_gapped=100 "
               "kv_gapped=130 grads=qkvs",
               "fwd f16 b3 hq2 hk1 sq50 sk60 d64 dv64 kv_gapped=170 q_padded splits=2"});
}

TEST_CASE("ratio: gapped, other kernels" * doctest::skip(!at_least(Tier::ci))) {
  check_lines(
      {"bwd bf16 b5 hq4 hk2 sq200 sk190 d128 dv128 causal_top_left q_gapped=600 kv_gapped=700",
       "bwd f16 b5 hq2 hk1 sq140 sk150 d64 dv64 deterministic q_gapped=400 kv_gapped=500",
       // cuda.sm90's bwd_dq_cast.
       "bwd bf16 b3 hq16 hk1 sq140 sk70 d128 dv128 q_gapped=350 kv_gapped=190",
       "bwd f16 b4 hq2 hk2 sq70 sk80 d192 dv192 q_gapped=200 kv_gapped=250",
       "bwd f16 b4 hq2 hk1 sq33 sk47 d33 dv17 q_gapped=90 kv_gapped=130",
       "bwd bf16 b4 hq2 hk2 sq70 sk80 d64 dv64 q_gapped=200 d_lse",
       "bwd bf16 b4 hq2 hk2 sq70 sk80 d64 dv64 kv_gapped=200 q_packed=180",
       "bwd f16 b4 hq2 hk2 sq70 sk80 d64 dv64 bias:f16:1x2x70 d_bias:f32 q_gapped=200 "
       "kv_gapped=240 grads=qkvb",
       "bwd f16 b4 hq2 hk2 sq70 sk80 d64 dv64 keep:4x1x70 dropout=0.25 q_gapped=200 kv_gapped=240",
       "bwd bf16 b4 hq2 hk2 sq70 sk80 d64 dv64 softcap=20 alibi q_gapped=200 kv_gapped=240 "
       "grads=qkva",
       "bwd bf16 b4 hq2 hk2 sq70 sk80 d64 dv64 spans=1:4x1 q_gapped=200 kv_gapped=240",
       "bwd bf16 b4 hq2 hk2 sq70 sk80 d64 dv64 blocks=64x64:2+1:1x1 q_gapped=200 kv_gapped=240",
       "bwd f16 b4 hq2 hk2 sq70 sk80 d64 dv64 table=60:u8:1 q_gapped=200 kv_gapped=240 grads=qkvi",
       "bwd f16 b4 hq2 hk2 sq70 sk80 d64 dv64 elastic dist=30 q_gapped=200 kv_gapped=240 "
       "grads=qkvdt",
       "bwd f16 b4 hq2 hk2 sq70 sk80 d64 dv64 entmax=1.5 q_gapped=200 kv_gapped=240",
       // As many addresses as the kernels' parameters have room for.
       "bwd f16 b4 hq2 hk2 sq70 sk80 d64 dv64 dist=30 alibi keep:4x1x70 dropout=0.25 sink "
       "q_gapped=200 kv_gapped=240",
       "bwd f32 b4 hq2 hk1 sq70 sk80 d64 dv64 q_gapped=200 kv_gapped=240",
       "fwd bf16 b130 hq1 hk1 sq3 sk40 d64 dv64 q_gapped=300 kv_gapped=3000",
       "fwd bf16 b4 hq4 hk1 sq1 sk300 d64 dv64 kv_gapped=900"});
}

// Entries in no order of memory whose sums of d_q would share a tile if they were counted in the
// order of the batch: in tiles of 64 rows and of 128.
TEST_CASE("gapped rows have the bits of packed rows") {
  const Places places = {
      {300, 128, 0, 128}, {90, 128, 128, 0}, {210, 0, 160, 20}, {70, 9, 50, 130}};
  for (const char* line :
       {"bwd bf16 b4 hq2 hk1 sq128 sk130 d64 dv64 q_gapped=400 kv_gapped=290 deterministic",
        "bwd f32 b4 hq2 hk1 sq128 sk130 d32 dv32 causal_bottom_right q_gapped=400 kv_gapped=290 "
        "deterministic"})
    check_bits(line, places);
  if (!at_least(Tier::ci)) return;
  for (const char* line :
       {"bwd f16 b4 hq4 hk2 sq128 sk130 d128 dv128 causal_top_left q_gapped=391 kv_gapped=281 "
        "deterministic",
        "bwd bf16 b4 hq2 hk1 sq128 sk130 d64 dv64 softcap=20 alibi sink q_gapped=391 kv_gapped=281 "
        "deterministic grads=qkvas",
        "fwd f16 b4 hq2 hk1 sq128 sk130 d64 dv64 splits=3 q_gapped=391 kv_gapped=281",
        "fwd bf16 b4 hq2 hk1 sq128 sk130 d256 dv256 q_gapped=391 kv_gapped=281"})
    check_bits(line, places);
}

// Keys that entries share, as a common beginning, are right in a forward and where neither d_k nor
// d_v is wanted.
TEST_CASE("ratio: gapped keys that entries share") {
  for (const char* line : {"fwd bf16 b3 hq2 hk1 sq60 sk100 d64 dv64 q_gapped=150 kv_gapped=120",
                           "fwd f32 b3 hq2 hk1 sq60 sk100 d32 dv32 q_gapped=150 kv_gapped=120",
                           "bwd bf16 b3 hq2 hk1 sq60 sk100 d64 dv64 q_gapped=150 kv_gapped=120 "
                           "grads=q"}) {
    const tandem_problem p = parse(line);
    if (!mine(p)) continue;
    Case test(p, seed_of(line));
    for (Role role : {Role::k, Role::v}) test.input(role).fill_normal(uint64_t(role), 1);
    set_places(test, true, {0, 0, 20}, {100, 60, 100});
    test.spoil_gaps();
    check_case(test, sparse());
  }
}

// What entries that share rows of an output leave there is not said, but nothing beside it is
// touched, and every path ends.
TEST_CASE("gapped rows that entries share, and any numbers") {
  Random r(seed_of("shared places"));
  for (int n = 0; n < (at_least(Tier::device) ? 40 : at_least(Tier::ci) ? 8 : 2); ++n) {
    const int64_t batch = r.between(2, 6), total = r.between(1, 300);
    Places places;
    for (auto* of : {&places.offsets_q, &places.lengths_q, &places.offsets_kv, &places.lengths_kv})
      for (int64_t b = 0; b < batch; ++b)
        of->push_back(r.chance(20) ? r.pick(std::vector<int64_t>{kLowest, -1, kHighest, total + 1})
                                   : r.between(0, total));
    for (const char* kind : {"fwd bf16", "bwd bf16", "bwd f32"}) {
      const std::string line = std::string(kind) + " b" + std::to_string(batch) +
                               " hq2 hk1 sq90 sk90 d64 dv64 q_gapped=" + std::to_string(total) +
                               " kv_gapped=" + std::to_string(total) +
                               (n % 2 ? " deterministic" : "");
      const tandem_problem p = parse(line);
      if (!mine(p)) continue;
      Case test(p, seed_of("shared places", uint64_t(n)));
      set_places(test, false, places.offsets_q, places.lengths_q);
      set_places(test, true, places.offsets_kv, places.lengths_kv);
      for (Target& target : targets()) {
        if (lacks(target, p)) continue;
        Outputs outputs;
        const CaseResult result = test.run(*target.session, &outputs);
        CHECK_MESSAGE(!result.refused, target.name << ": " << line);
        CHECK_MESSAGE(result.message == "",
                      target.name << ": " << line << "\n  " << result.message);
      }
    }
  }
}
