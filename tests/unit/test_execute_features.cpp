// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem_execute() with optional inputs on the CPU device: each buffer that is missing or misplaced
// is named, what the plan does not use may be anything, and a failing call writes nothing.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "api_fixture.h"
#include "harness/compare.h"

namespace {

using namespace tandem::harness;

// All optional inputs and gradients; entmax and elastic softmax exclude each other, so no entmax.
// A bias excludes a table, so one of them.
tandem_problem everything(bool table = false) {
  tandem_problem p = good_problem();
  p.normalizer = TANDEM_ELASTIC;
  p.softcap = 5;
  p.dropout = 0.25f;
  p.alibi = p.sink = 1;
  p.dist_window = 3;
  p.gradients = 2 * TANDEM_GRAD_SINK - 1;
  if (table) {
    set_table(p, 5, TANDEM_U16, 1);
    p.gradients ^= TANDEM_GRAD_BIAS | TANDEM_GRAD_BIAS_TABLE;
  } else {
    set_bias(p, TANDEM_F16, 1, p.heads_q, p.seq_q, TANDEM_F32);
  }
  set_keep(p, 1, 1, p.seq_q);
  set_spans(p, 2, 1, 1);
  set_lengths(p, TANDEM_LENGTHS_PADDED, TANDEM_LENGTHS_PACKED, 0, 9);
  return p;
}

struct Call {
  std::unique_ptr<Session> session = Session::open("cpu");
  std::vector<uint8_t> memory = std::vector<uint8_t>(1 << 16, 0xff);  // every buffer is this one
  Plan plan;
  tandem_args args = TANDEM_ARGS_INIT;

  explicit Call(const tandem_problem& p) : plan(*session, p) {
    const uintptr_t base = (reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256;
    const tandem_buffer buffer = {uint64_t(base), 0};
    for (int n = 0; n < kRoleCount; ++n)
      if (is_used(p, Role(n))) buffer_of(args, Role(n)) = buffer;
    args.lse = args.workspace = buffer;
    args.workspace_size = plan.info().workspace_size;
  }
  // The status of a call that must fail, and its sentence.
  std::string fails(tandem_status want) {
    const std::vector<uint8_t> before = memory;
    CHECK(tandem_execute(plan, {0}, &args) == want);
    CHECK(memory == before);
    return tandem_last_message();
  }
};

}  // namespace

TEST_CASE("each optional buffer that is missing or misaligned is named") {
  // Those of parts: test_merge.cpp.
  for (int n = int(Role::bias); n < int(Role::part_o); ++n) {
    const Role role = Role(n);
    CAPTURE(std::string(role_name(role)));
    const std::string name = std::string("args.") + role_name(role);
    if (role == Role::d_lse) continue;                                  // of softmax, below
    if (role == Role::offsets_q || role == Role::offsets_kv) continue;  // below
    const bool listed = role == Role::blocks || role == Role::block_bits;
    tandem_problem p = everything(!listed && !is_used(everything(), role));
    if (listed) {  // in place of keep
      p.keep.dtype = 0;
      p.keep_batch = p.keep_heads = p.keep_rows = 0;
      set_blocks(p, 64, 64, 2, 1, 1, 1);
    }
    REQUIRE(is_used(p, role));
    Call missing(p);
    buffer_of(missing.args, role) = {0, 0};
    CHECK(missing.fails(TANDEM_ERROR_INVALID_ARGUMENT).find(name) != std::string::npos);
    if (role == Role::keep) continue;  // bytes lie anywhere
    Call odd(p);
    const bool shorts = role == Role::bias || role == Role::bias_index;
    buffer_of(odd.args, role).offset += shorts ? 1 : 2;
    CHECK(odd.fails(TANDEM_ERROR_INVALID_ARGUMENT).find(name) != std::string::npos);
  }
}

TEST_CASE("max_logit that is missing or misaligned is named") {
  tandem_problem p = good_problem();
  p.direction = TANDEM_FORWARD, p.max_logit_batch = 1;
  const auto fails = [&](auto&& spoil) {
    Call call(p);
    spoil(call.args);
    return call.fails(TANDEM_ERROR_INVALID_ARGUMENT).find("args.max_logit") != std::string::npos;
  };
  CHECK(fails([](tandem_args& a) { a.max_logit = {0, 0}; }));
  CHECK(fails([](tandem_args& a) { a.max_logit.offset += 2; }));
}

TEST_CASE("d_lse that is missing or misaligned is named") {
  tandem_problem p = good_problem();
  p.d_lse = 1;
  const auto fails = [&](auto&& spoil) {
    Call call(p);
    spoil(call.args.d_lse);
    return call.fails(TANDEM_ERROR_INVALID_ARGUMENT).find("args.d_lse") != std::string::npos;
  };
  CHECK(fails([](tandem_buffer& b) { b = {0, 0}; }));
  CHECK(fails([](tandem_buffer& b) { b.offset += 2; }));
}

TEST_CASE("a 16-bit bias lies at any even address, and its f32 gradient does not") {
  tandem_problem p = everything();
  Call call(p);
  call.args.d_bias.offset = 2;
  CHECK(call.fails(TANDEM_ERROR_INVALID_ARGUMENT).find("args.d_bias") != std::string::npos);
}

TEST_CASE("forward wants what it reads, and no gradient") {
  tandem_problem p;
  for (Role role : {Role::bias, Role::keep, Role::dist_bias, Role::slope, Role::tau, Role::sink,
                    Role::lengths_q, Role::lengths_kv, Role::bias_table, Role::bias_index}) {
    CAPTURE(std::string(role_name(role)));
    p = everything(!is_used(everything(), role));
    p.direction = TANDEM_FORWARD;
    Call missing(p);
    buffer_of(missing.args, role) = {0, 0};
    CHECK(
        missing.fails(TANDEM_ERROR_INVALID_ARGUMENT).find(std::string("args.") + role_name(role)) !=
        std::string::npos);
  }
}

TEST_CASE("gapped rows want offsets beside lengths") {
  for (tandem_direction direction : {TANDEM_FORWARD, TANDEM_BACKWARD})
    for (Role role : {Role::offsets_q, Role::offsets_kv, Role::lengths_q, Role::lengths_kv}) {
      CAPTURE(std::string(role_name(role)));
      tandem_problem p = good_problem();
      p.direction = direction;
      set_lengths(p, TANDEM_LENGTHS_GAPPED, TANDEM_LENGTHS_GAPPED, 8, 9);
      const std::string name = std::string("args.") + role_name(role);
      Call missing(p);
      buffer_of(missing.args, role) = {0, 0};
      CHECK(missing.fails(TANDEM_ERROR_INVALID_ARGUMENT).find(name) != std::string::npos);
      Call odd(p);
      buffer_of(odd.args, role).offset += 2;
      CHECK(odd.fails(TANDEM_ERROR_INVALID_ARGUMENT).find(name) != std::string::npos);
    }
}

TEST_CASE("reserved words of the arguments must be 0") {
  Call call(everything());
  call.args.reserved2 = 5;
  CHECK(call.fails(TANDEM_ERROR_INVALID_ARGUMENT).find("reserved2") != std::string::npos);
}

TEST_CASE("what the problem does not switch on may stay away, and is not touched") {
  const tandem_problem p = make_problem(TANDEM_BACKWARD, TANDEM_F32, 1, 2, 1, 20, 30, 8);
  const auto session = Session::open("cpu");
  Case plain(p, 5);
  Outputs outputs;
  const CaseResult result = plain.run_and_judge(*session, &outputs);
  CHECK_MESSAGE(result.ok, result.message);
  CHECK(outputs.d_bias.bytes.empty());
  // A gradient that is not asked for, of an input that is there.
  tandem_problem some = everything();
  some.gradients = TANDEM_GRAD_V | TANDEM_GRAD_SINK;
  Case test(some, 6);
  const CaseResult part = test.run_and_judge(*session, &outputs);
  CHECK_MESSAGE(part.ok, part.message);
  CHECK(outputs.d_bias.bytes.empty());
  CHECK(outputs.d_sink.bytes.size() == 16);
}

TEST_CASE("sizes of 0 with optional inputs: sums over nothing are zero") {
  const auto session = Session::open("cpu");
  for (int n = 0; n < 10; ++n) {
    const int kind = n % 5;
    const bool table = n >= 5;
    CAPTURE(n);
    tandem_problem p = make_problem(TANDEM_BACKWARD, TANDEM_F32, kind == 0 ? 0 : 2, 4, 2,
                                    kind == 1 ? 0 : 5, kind == 2 ? 0 : 7, 8);
    p.normalizer = TANDEM_ELASTIC;
    p.alibi = p.sink = 1;
    p.dist_window = 3;
    set_keep(p, 1, 1, 1);
    p.gradients = 2 * TANDEM_GRAD_SINK - 1;
    if (table) {
      set_table(p, 3, TANDEM_I32, 1);
      p.gradients ^= TANDEM_GRAD_BIAS | TANDEM_GRAD_BIAS_TABLE;
    } else {
      set_bias(p, TANDEM_F32, 1, 2, 1);
    }
    if (kind == 3) set_lengths(p, TANDEM_LENGTHS_PACKED, TANDEM_LENGTHS_PACKED, 0, 0);
    if (kind == 4) set_lengths(p, TANDEM_LENGTHS_GAPPED, TANDEM_LENGTHS_GAPPED, 0, 0);
    Case test(p, 7);
    Outputs out;
    const CaseResult result = test.run_and_judge(*session, &out);
    CHECK_MESSAGE(result.ok, result.message);
    CHECK(out.tensor(table ? Role::d_bias_table : Role::d_bias).dims.h > 0);
    for (Role role : {Role::d_bias, Role::d_bias_table, Role::d_dist_bias, Role::d_slope,
                      Role::d_tau, Role::d_sink})
      for (double x : out.tensor(role).dense()) CHECK(x == 0);
  }
}

TEST_CASE("regression: without rows nothing reads the sinks") {
  tandem_problem p = make_problem(TANDEM_BACKWARD, TANDEM_F32, 1, 2, 2, 0, 3, 8);
  p.sink = 1;
  p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_SINK;
  for (const char* path : {"cpu/simd", "cpu/ref"}) {
    CAPTURE(std::string(path));
    const auto session = Session::open(path);
    const Plan plan(*session, p);
    std::vector<float> d_k(2 * 3 * 8, 7.f), d_v = d_k, d_sink(2, 7.f), k(2 * 3 * 8), scratch(4096);
    const auto at = [](const std::vector<float>& v) {
      return tandem_buffer{(uint64_t(reinterpret_cast<uintptr_t>(v.data())) + 255) / 256 * 256, 0};
    };
    const auto exactly = [](const std::vector<float>& v) {
      return tandem_buffer{uint64_t(reinterpret_cast<uintptr_t>(v.data())), 0};
    };
    tandem_args args = TANDEM_ARGS_INIT;  // q, o, lse and sink have no elements to be read
    args.k = args.v = exactly(k);
    args.d_k = exactly(d_k), args.d_v = exactly(d_v), args.d_sink = exactly(d_sink);
    args.workspace = at(scratch);
    args.workspace_size = plan.info().workspace_size;
    CHECK_MESSAGE(tandem_execute(plan, {0}, &args) == TANDEM_OK, tandem_last_message());
    for (const std::vector<float>* v : {&d_k, &d_v, &d_sink})
      for (float x : *v) CHECK(x == 0);
  }
}

TEST_CASE("regression: without keys nothing reads what scores are made of") {
  for (const char* path : {"cpu/simd", "cpu/ref"})
    for (const uint32_t normalizer : {TANDEM_SOFTMAX, TANDEM_ELASTIC}) {
      tandem_problem p = make_problem(TANDEM_BACKWARD, TANDEM_F32, 1, 2, 2, 3, 0, 8);
      p.sink = p.alibi = 1;
      p.dist_window = 4;
      p.normalizer = normalizer;
      set_table(p, 5, TANDEM_U16, 1);
      p.gradients = TANDEM_GRAD_QKV | TANDEM_GRAD_SINK;
      CAPTURE(std::string(path));
      CAPTURE(normalizer);
      const auto session = Session::open(path);
      const Plan plan(*session, p);
      // Far rows, of which the reference forms the scores again.
      std::vector<float> q(2 * 3 * 8), sink(2, 5000.f), lse(2 * 3, 5000.f);
      std::vector<float> d_q(q.size(), 7.f), d_sink(2, 7.f), scratch(4096);
      const auto exactly = [](const std::vector<float>& v) {
        return tandem_buffer{uint64_t(reinterpret_cast<uintptr_t>(v.data())), 0};
      };
      tandem_args args = TANDEM_ARGS_INIT;
      args.q = args.o = args.d_o = exactly(q);
      args.sink = exactly(sink), args.lse = exactly(lse);
      args.d_q = exactly(d_q), args.d_sink = exactly(d_sink);
      // No plan of this problem reads these: they are not given, or are no addresses.
      args.bias_table = args.bias_index = args.dist_bias = args.slope = {3, 0};
      args.workspace = {(exactly(scratch).handle + 255) / 256 * 256, 0};
      args.workspace_size = plan.info().workspace_size;
      REQUIRE(args.workspace_size <= 4 * scratch.size() - 256);
      CHECK_MESSAGE(tandem_execute(plan, {0}, &args) == TANDEM_OK, tandem_last_message());
      for (const std::vector<float>* v : {&d_q, &d_sink})
        for (float x : *v) CHECK(x == 0);
    }
}

TEST_CASE("regression: a softcap that is next to nothing, and scores of 0") {
  for (const char* device : {"cpu/simd", "cpu/ref"})
    for (const char* line : {"fwd f32 b1 hq1 sq2 sk4 d4 softcap=0x1p-149",
                             "bwd f32 b1 hq1 sq2 sk4 d4 softcap=0x1p-149"}) {
      CAPTURE(std::string(device));
      CAPTURE(std::string(line));
      tandem_problem p;
      REQUIRE(tandem_problem_parse(line, &p) == TANDEM_OK);
      const auto session = Session::open(device);
      const Plan plan(*session, p);
      alignas(256) float zeros[16] = {}, ones[16], out[5][64] = {}, room[1024];
      for (float& x : ones) x = 1;
      const auto at = [](const float* x) { return tandem_buffer{uint64_t(uintptr_t(x)), 0}; };
      tandem_args args = TANDEM_ARGS_INIT;
      args.q = args.k = at(zeros), args.v = args.d_o = at(ones);
      args.o = at(out[0]), args.lse = at(out[1]);
      args.d_q = at(out[2]), args.d_k = at(out[3]), args.d_v = at(out[4]);
      args.workspace = at(room), args.workspace_size = sizeof room;
      const bool backward = p.direction == TANDEM_BACKWARD;
      if (backward) {
        for (float& o : out[0]) o = 1;
        for (float& lse : out[1]) lse = std::log(4.0f);
      }
      REQUIRE(tandem_execute(plan, {0}, &args) == TANDEM_OK);
      CHECK(out[0][0] == doctest::Approx(1));
      CHECK(out[1][0] == doctest::Approx(std::log(4.0)));
      CHECK(out[2][0] == 0);
      CHECK(out[4][0] == doctest::Approx(backward ? 0.5 : 0));
    }
}
