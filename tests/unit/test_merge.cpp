// SPDX-License-Identifier: MIT OR Apache-2.0
// Merges: what a caller can do wrong, their line, and the gradients of the reference.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "api_fixture.h"
#include "cpu/reference.h"
#include "harness/compare.h"
#include "problem/problem.h"

namespace {

using namespace tandem::harness;

tandem_problem good_merge(tandem_direction direction = TANDEM_MERGE) {
  return make_merge(direction, TANDEM_F32, TANDEM_BF16, 3, 2, 3, 5, 8);
}

std::vector<double> normals(size_t count, uint64_t seed, double scale = 1) {
  Random r(seed);
  std::vector<double> x(count);
  for (double& v : x) v = scale * r.normal();
  return x;
}

}  // namespace

TEST_CASE("a merge that has no meaning is refused by a sentence that names why") {
  const struct {
    const char* what;
    bool backward;
    std::function<void(tandem_problem&)> spoil;
    tandem_status status;
  } rows[] = {
      {"problem.parts is 0, must be 1 to 65535", false, [](auto& p) { p.parts = 0; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"problem.parts is 65536, must be", false, [](auto& p) { p.parts = 65536; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"is beyond 2^31 - 1 heads", false,
       [](auto& p) { p.parts = 60000, p.batch = 100000, p.seq_q = 0; }, TANDEM_ERROR_UNSUPPORTED},
      {"problem.merge_into is 2, must be 0 or 1", false, [](auto& p) { p.merge_into = 2; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"the part that o and lse held is overwritten", true, [](auto& p) { p.merge_into = 1; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"but mask is given: a merge has no scores", false,
       [](auto& p) { p.mask = TANDEM_MASK_CAUSAL; }, TANDEM_ERROR_INVALID_ARGUMENT},
      {"TANDEM_MERGE_BACKWARD, but softcap is given", true, [](auto& p) { p.softcap = 3; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"but lengths_q is given", false, [](auto& p) { p.lengths_q = TANDEM_LENGTHS_PADDED; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"but bias is given", false, [](auto& p) { p.bias.dtype = TANDEM_F32; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"but normalizer is given", false, [](auto& p) { p.normalizer = TANDEM_ENTMAX; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"but splits is given", false, [](auto& p) { p.splits = 2; }, TANDEM_ERROR_INVALID_ARGUMENT},
      {"but spans is given", false, [](auto& p) { p.spans = 1; }, TANDEM_ERROR_INVALID_ARGUMENT},
      {"a merge takes TANDEM_FLAG_DETERMINISTIC alone", false,
       [](auto& p) { p.flags = TANDEM_FLAG_TF32; }, TANDEM_ERROR_INVALID_ARGUMENT},
      {"d_lse is an input of TANDEM_MERGE_BACKWARD", false, [](auto& p) { p.d_lse = 1; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"part_o.dtype is 4, must be f32, f16, bf16 or f64", false,
       [](auto& p) { p.part_o.dtype = TANDEM_BOOL8; }, TANDEM_ERROR_INVALID_ARGUMENT},
      {"part_stride is -1, must not be negative", false, [](auto& p) { p.part_stride = -1; },
       TANDEM_ERROR_INVALID_LAYOUT},
      {"offsets overflow", false, [](auto& p) { p.part_stride = int64_t(1) << 60; },
       TANDEM_ERROR_INVALID_LAYOUT},
      {"d_part_stride is 239, but a part of d_part_o spans 240 elements", true,
       [](auto& p) { p.d_part_stride = 239; }, TANDEM_ERROR_INVALID_LAYOUT},
      {"d_part_o.dtype is f32 and part_o.dtype is bf16", true,
       [](auto& p) { p.d_part_o.dtype = TANDEM_F32; }, TANDEM_ERROR_UNSUPPORTED},
      {"o.dtype is f64 and part_o.dtype is bf16; a merge has f64 in all tensors or in none", false,
       [](auto& p) { p.o.dtype = TANDEM_F64; }, TANDEM_ERROR_INVALID_ARGUMENT},
      {"d_o.dtype is f32 and part_o.dtype is f64", true,
       [](auto& p) { p.part_o.dtype = TANDEM_F64; }, TANDEM_ERROR_INVALID_ARGUMENT},
      {"but max_logit_batch is given", false, [](auto& p) { p.max_logit_batch = 1; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"but lengths_q is given", false, [](auto& p) { p.lengths_q = TANDEM_LENGTHS_GAPPED; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"o.stride[2] is 4: elements of this output overlap", false,
       [](auto& p) { p.o.stride[2] = 4; }, TANDEM_ERROR_INVALID_LAYOUT},
      {"head_dim_v is 577; no kernel goes beyond 576", false, [](auto& p) { p.head_dim_v = 577; },
       TANDEM_ERROR_UNSUPPORTED},
      {"problem.reserved4 is 1, must be 0", false, [](auto& p) { p.reserved4 = 1; },
       TANDEM_ERROR_INVALID_ARGUMENT},
      {"problem.parts is 3, but the direction is forward", false,
       [](auto& p) { p.direction = TANDEM_FORWARD; }, TANDEM_ERROR_INVALID_ARGUMENT},
      {"problem.direction is 5, which is no tandem_direction", false,
       [](auto& p) { p.direction = 5; }, TANDEM_ERROR_INVALID_ARGUMENT}};
  for (const auto& row : rows) {
    CAPTURE(std::string(row.what));
    tandem_problem p = good_merge(row.backward ? TANDEM_MERGE_BACKWARD : TANDEM_MERGE);
    tandem::Problem checked;
    REQUIRE(tandem::make_problem(&p, &checked).ok());
    row.spoil(p);
    const tandem::Status status = tandem::make_problem(&p, &checked);
    CHECK(status.code() == row.status);
    CHECK_MESSAGE(status.message().find(row.what) != tandem::String::npos, status.message());
  }
}

TEST_CASE("a merge ignores what attention alone has") {
  tandem_problem p = good_merge();
  p.heads_kv = 7, p.seq_kv = -1, p.head_dim = 0, p.gradients = 0, p.scale = INFINITY;
  p.q.dtype = 77, p.k.stride[0] = -3, p.d_q.dtype = 99;
  tandem::Problem checked;
  CHECK(tandem::make_problem(&p, &checked).ok());
}

TEST_CASE("the line of a merge") {
  for (const char* line :
       {"merge f32 b2 hq3 sq5 dv8 parts=3",
        "merge bf16 b2 hq3 sq5 dv8 parts=2 into part_o:f32 part_stride=300",
        "bwd_merge f16 b1 hq3 sq5 dv8 d_lse parts=2 deterministic d_part_stride=7 layout=bshd",
        "bwd_merge f16 b1 hq3 sq5 dv8 parts=2 merge_into=4 part_o:bf16 d_part_o:bf16 "
        "part_o=1,2,3,4",
        "merge f32 b1 hq1 sq5 dv8 causal_top_left parts=1 flags=64"}) {
    CAPTURE(std::string(line));
    CHECK(print(parse(line)) == line);
  }
  const tandem_problem p = parse("merge f32 b2 hq3 sq5 dv8 parts=3 part_o:bf16");
  CHECK(p.direction == TANDEM_MERGE);
  CHECK(p.part_stride == 2 * 3 * 5 * 8);
  CHECK(p.part_o.dtype == TANDEM_BF16);
  CHECK(p.o.dtype == TANDEM_F32);
  tandem_problem q;
  CHECK(tandem_problem_parse("merge f32 sq5 d8 parts=3", &q) == TANDEM_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(tandem_last_message()) == "problem line: 'dv' is missing");
}

TEST_CASE("the buffers of a merge: those that are missing are named") {
  const std::unique_ptr<Session> session = Session::open("cpu");
  std::vector<float> memory(4096);
  for (bool backward : {false, true}) {
    tandem_problem p = good_merge(backward ? TANDEM_MERGE_BACKWARD : TANDEM_MERGE);
    if (!backward) p.merge_into = 1;
    p.d_lse = backward;
    const Plan plan(*session, p);
    CHECK(plan.info().flops == (backward ? 4. * 3 : 2. * 4) * 2 * 3 * 5 * 8);
    CHECK(plan.info().workspace_size == 0);
    std::vector<Role> needed = {Role::part_o, Role::part_lse};
    if (backward)
      needed.insert(needed.end(), {Role::d_o, Role::d_lse, Role::d_part_o, Role::d_part_lse});
    else
      needed.insert(needed.end(), {Role::o, Role::into_lse});
    tandem_args args = TANDEM_ARGS_INIT;
    for (size_t n = 0; n < needed.size(); ++n)
      buffer_of(args, needed[n]).handle =
          uint64_t(reinterpret_cast<uintptr_t>(&memory[1 + n * 600]));
    REQUIRE(tandem_execute(plan, {0}, &args) == TANDEM_OK);
    for (Role role : needed) {
      tandem_args less = args;
      buffer_of(less, role) = {0, 0};
      CHECK(tandem_execute(plan, {0}, &less) == TANDEM_ERROR_INVALID_ARGUMENT);
      const std::string name = role == Role::into_lse ? "lse" : role_name(role);
      CHECK_MESSAGE(std::string(tandem_last_message()).find("args." + name) != std::string::npos,
                    tandem_last_message());
    }
    tandem_args same = args;
    (backward ? same.d_part_o : same.o) = same.part_o;
    CHECK(tandem_execute(plan, {0}, &same) == TANDEM_ERROR_INVALID_ARGUMENT);
    CHECK(std::string(tandem_last_message()).find("shares memory with args.part_o") !=
          std::string::npos);
  }
}

TEST_CASE("the gradients of a merge are those of finite differences") {
  tandem_problem given = make_merge(TANDEM_MERGE_BACKWARD, TANDEM_F32, TANDEM_F32, 3, 1, 2, 4, 5);
  given.d_lse = 1;
  tandem::Problem backward, forward;
  REQUIRE(tandem::make_problem(&given, &backward).ok());
  given.direction = TANDEM_MERGE, given.d_lse = 0;
  REQUIRE(tandem::make_problem(&given, &forward).ok());
  tandem::RefInputs in;
  in.part_o = normals(3 * 8 * 5, 1), in.part_lse = normals(3 * 8, 2, 1.5);
  in.d_o = normals(8 * 5, 3), in.d_lse = normals(8, 4);
  in.part_lse[3] = in.part_lse[8 + 5] = in.part_lse[5] = -INFINITY;
  const tandem::Reference r = tandem::reference(backward, in);
  const auto loss = [&] {
    const tandem::Reference x = tandem::reference(forward, in);
    double sum = 0;
    for (size_t n = 0; n < x.o.size(); ++n) sum += x.o[n] * in.d_o[n];
    for (size_t n = 0; n < x.lse.size(); ++n) sum += x.lse[n] * in.d_lse[n];
    return sum;
  };
  const auto check = [&](std::vector<double>& x, const std::vector<double>& gradient) {
    REQUIRE(x.size() == gradient.size());
    for (size_t n = 0; n < x.size(); ++n) {
      if (!std::isfinite(x[n])) {
        CHECK(gradient[n] == 0);
        continue;
      }
      const double before = x[n], h = 1e-5;
      x[n] = before + h;
      const double up = loss();
      x[n] = before - h;
      const double down = loss();
      x[n] = before;
      CHECK(gradient[n] == doctest::Approx((up - down) / (2 * h)).epsilon(1e-7));
    }
  };
  check(in.part_o, r.d_part_o);
  check(in.part_lse, r.d_part_lse);
}

// Forward by parts of the keys, merge, and the backward of both are one call over all keys.
TEST_CASE("parts, their merge and its gradients are attention over all keys") {
  using tandem::reference;
  const int64_t cuts[] = {0, 3, 3, 10};
  const auto problem_of = [](const char* line) {
    const tandem_problem p = parse(line);
    tandem::Problem checked;
    REQUIRE(tandem::make_problem(&p, &checked).ok());
    return checked;
  };
  tandem::RefInputs in;
  in.q = normals(2 * 6 * 8, 1), in.k = normals(2 * 10 * 8, 2), in.v = normals(2 * 10 * 4, 3);
  in.d_o = normals(2 * 6 * 4, 4), in.d_lse = normals(2 * 6, 5);
  const tandem::Reference whole = reference(problem_of("bwd f32 hq2 sq6 sk10 d8 dv4 d_lse"), in);
  tandem::RefInputs merge;
  std::vector<tandem::RefInputs> parts;
  for (int n = 0; n < 3; ++n) {
    tandem::RefInputs part = in;
    const auto cut = [&](const std::vector<double>& x, int64_t width) {
      std::vector<double> y;
      for (int64_t h = 0; h < 2; ++h)
        y.insert(y.end(), x.begin() + (h * 10 + cuts[n]) * width,
                 x.begin() + (h * 10 + cuts[n + 1]) * width);
      return y;
    };
    part.k = cut(in.k, 8), part.v = cut(in.v, 4);
    const std::string sk = std::to_string(cuts[n + 1] - cuts[n]);
    const tandem::Reference r =
        reference(problem_of(("fwd f32 hq2 sq6 sk" + sk + " d8 dv4").c_str()), part);
    merge.part_o.insert(merge.part_o.end(), r.o.begin(), r.o.end());
    merge.part_lse.insert(merge.part_lse.end(), r.lse.begin(), r.lse.end());
    parts.push_back(part);
  }
  const tandem::Reference merged = reference(problem_of("merge f32 hq2 sq6 dv4 parts=3"), merge);
  const auto close = [](const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    for (size_t n = 0; n < a.size(); ++n) CHECK(a[n] == doctest::Approx(b[n]).epsilon(1e-12));
  };
  close(merged.o, whole.o);
  close(merged.lse, whole.lse);
  merge.d_o = in.d_o, merge.d_lse = in.d_lse;
  const tandem::Reference back =
      reference(problem_of("bwd_merge f32 hq2 sq6 dv4 parts=3 d_lse"), merge);
  std::vector<double> d_q(in.q.size());
  for (size_t n = 0; n < 3; ++n) {
    parts[n].d_o.assign(back.d_part_o.begin() + int64_t(n) * 48,
                        back.d_part_o.begin() + int64_t(n + 1) * 48);
    parts[n].d_lse.assign(back.d_part_lse.begin() + int64_t(n) * 12,
                          back.d_part_lse.begin() + int64_t(n + 1) * 12);
    const std::string sk = std::to_string(cuts[n + 1] - cuts[n]);
    const tandem::Reference r =
        reference(problem_of(("bwd f32 hq2 sq6 sk" + sk + " d8 dv4 d_lse").c_str()), parts[n]);
    for (size_t i = 0; i < d_q.size(); ++i) d_q[i] += r.d_q[i];
    std::vector<double> d_k;
    for (int64_t h = 0; h < 2; ++h)
      d_k.insert(d_k.end(), whole.d_k.begin() + (h * 10 + cuts[n]) * 8,
                 whole.d_k.begin() + (h * 10 + cuts[n + 1]) * 8);
    close(r.d_k, d_k);
  }
  close(d_q, whole.d_q);
}
