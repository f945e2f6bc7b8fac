// SPDX-License-Identifier: MIT OR Apache-2.0
// Tensors of f64: what the border takes and refuses, and which paths plan them. Values are the
// parity suite's business (tests/parity/f64.cpp).
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "../plan/plan_fixture.h"
#include "api_fixture.h"
#include "kernels/args.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

std::string refusal_of(const char* line) {
  tandem_problem given;
  REQUIRE(parse_problem(line, &given).ok());
  Problem problem;
  const Status status = make_problem(&given, &problem);
  CHECK_FALSE(status.ok());
  CHECK(status.code() == TANDEM_ERROR_INVALID_ARGUMENT);
  return std::string(status.message().c_str());
}

}  // namespace

TEST_CASE("f64 in the problem line is restored, and a bias of f64 wants tensors of f64") {
  const std::string line = "bwd f64 b1 hq2 hk1 sq3 sk5 d8 dv8 bias:f64:1x2x3 grads=qkvb d_bias:f64";
  tandem_problem p;
  REQUIRE(tandem_problem_parse(line.c_str(), &p) == TANDEM_OK);
  CHECK(p.q.dtype == TANDEM_F64);
  CHECK(p.d_v.dtype == TANDEM_F64);
  CHECK(p.bias.dtype == TANDEM_F64);
  CHECK(text_of([&](char* to, size_t n) { return tandem_problem_print(&p, to, n); }) == line);

  CHECK(refusal_of("fwd f32 sq3 d8 bias:f64:1x1x3") ==
        "bias.dtype is f64, which is for tensors of f64, but q.dtype is f32");
  CHECK(refusal_of("bwd f64 sq3 d8 bias:f64:1x1x3 d_bias:f32 grads=b") ==
        "d_bias.dtype is 1, must be f64 or bias.dtype, f64");
  CHECK(refusal_of("bwd f32 sq3 d8 bias:f16:1x1x3 d_bias:f64 grads=b") ==
        "d_bias.dtype is 8, must be f32 or bias.dtype, f16");
  CHECK(refusal_of("fwd f64 sq3 d8 tf32") ==
        "problem.flags has TANDEM_FLAG_TF32, which is for f32, but q.dtype is f64");
  tandem_problem mixed;
  REQUIRE(tandem_problem_parse("fwd f64 sq3 d8 k:f32", &mixed) == TANDEM_OK);
  Problem problem;
  CHECK(make_problem(&mixed, &problem).code() == TANDEM_ERROR_UNSUPPORTED);
  problem_of("bwd f64 sq3 d8 bias:f16:1x1x3 d_bias:f16 grads=b");
  problem_of("bwd f64 sq3 d8 bias:f16:1x1x3 d_bias:f64 grads=b");
}

TEST_CASE("f64 has the scale 1 / sqrt(D) in double, and others as they are given") {
  CHECK(problem_of("fwd f64 sq3 d3").exact_scale() == 1 / std::sqrt(3.0));
  CHECK(problem_of("fwd f64 sq3 d3 scale=0x1.279a74p-1").exact_scale() == 1 / std::sqrt(3.0));
  CHECK(problem_of("fwd f64 sq3 d3 scale=0x1.99999ap-4").exact_scale() == double(0.1f));
  CHECK(problem_of("fwd f32 sq3 d3").exact_scale() == double(float(1 / std::sqrt(3.0))));
}

TEST_CASE("f64 is cpu.ref's alone: every other path of every device says so") {
  for (const Profile& profile : profiles())
    for (const char* line : {"fwd f64 b1 hq2 sq64 d64", "fwd f64 b1 hq8 hk1 sq1 sk64 d64 sink",
                             "bwd f64 b1 hq2 sq64 d64 table=9:u8:1 grads=qi"}) {
      CAPTURE(std::string(profile.id));
      CAPTURE(std::string(line));
      Plan plan;
      const Status status = make_plan(problem_of(line), profile.caps, &plan);
      CHECK(status.ok() == (profile.caps.backend == Backend::cpu));
      if (status.ok()) CHECK(std::string(plan.path) == "ref");
      CHECK_FALSE(plan.refusals.empty());
      for (const Refusal& r : plan.refusals) {
        CAPTURE(std::string(r.candidate.c_str()));
        CHECK(std::string(r.reason.c_str()) ==
              "it has no kernel for tensors of f64, which cpu.ref alone computes");
      }
    }
}

TEST_CASE("f64: lse and what has no type of its own take 8 bytes an element") {
  CpuDevice cpu;
  tandem_problem p = good_problem();
  p.sink = p.alibi = p.d_lse = 1;
  p.gradients |= TANDEM_GRAD_SINK | TANDEM_GRAD_SLOPE;
  tandem_problem_contiguous(&p, TANDEM_F64);
  tandem_plan* plan = nullptr;
  REQUIRE(tandem_plan_create(cpu.device, &p, &plan) == TANDEM_OK);
  tandem_plan_info info{};
  info.struct_size = sizeof info;
  REQUIRE(tandem_plan_get_info(plan, &info) == TANDEM_OK);
  const size_t rows = size_t(p.batch * p.heads_q * p.seq_q);
  CHECK(info.workspace_size >= 2 * rows * sizeof(double));  // delta, and the parts of d_slope
  // Alignments and overlaps count with 8 bytes, too.
  std::vector<double> memory(8192, 0.25);
  size_t used = 0;
  const auto take = [&](size_t count) {
    used += count;
    REQUIRE(used <= memory.size());
    return tandem_buffer{uint64_t(uintptr_t(memory.data())), (used - count) * sizeof(double)};
  };
  const size_t q = rows * size_t(p.head_dim), o = rows * size_t(p.head_dim_v),
               keys = size_t(p.batch * p.heads_kv * p.seq_kv);
  tandem_args args = TANDEM_ARGS_INIT;
  args.q = take(q), args.d_q = take(q), args.o = take(o), args.d_o = take(o);
  args.k = take(keys * 16), args.d_k = take(keys * 16);
  args.v = take(keys * 8), args.d_v = take(keys * 8);
  args.lse = take(rows), args.d_lse = take(rows);
  args.slope = take(4), args.sink = take(4), args.d_slope = take(4), args.d_sink = take(4);
  std::vector<double> workspace(size_t(info.workspace_size) / 8 + 64);
  const uintptr_t at = uintptr_t(workspace.data());
  args.workspace = {(uint64_t(at) + 255) / 256 * 256, 0};
  args.workspace_size = info.workspace_size;
  const auto message = [&](const tandem_args& with) {
    CHECK(tandem_execute(plan, tandem_stream{}, &with) == TANDEM_ERROR_INVALID_ARGUMENT);
    return std::string(tandem_last_message());
  };
  tandem_args bad = args;
  bad.lse.offset += 4;
  CHECK(message(bad).find("args.lse") != std::string::npos);
  bad = args;
  bad.d_sink.offset -= 8;  // its first element is d_slope's last one
  CHECK(message(bad).find("shares memory") != std::string::npos);
  bad = args;
  bad.d_slope.offset -= 8;  // sink's last one
  CHECK(message(bad).find("shares memory") != std::string::npos);
  CHECK(tandem_execute(plan, tandem_stream{}, &args) == TANDEM_OK);
  tandem_plan_destroy(plan);
}
