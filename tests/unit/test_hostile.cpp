// SPDX-License-Identifier: MIT OR Apache-2.0
// The C border under what callers do not do on purpose: problems with arbitrary bytes in them.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "api_fixture.h"

extern "C" void tandem_c99_contiguous(tandem_problem* problem, int dtype);

namespace {

tandem_problem small_problem() {
  tandem_problem p = good_problem();
  p.batch = 1;
  p.heads_q = p.heads_kv = 1;
  p.seq_q = p.seq_kv = 4;
  p.head_dim = p.head_dim_v = 8;
  p.direction = TANDEM_FORWARD;
  tandem_problem_contiguous(&p, TANDEM_F32);
  return p;
}

}  // namespace

// Where enums are watched (cmake/TandemOptions.cmake; Clang sees arguments, too) a wrong one that
// is read as an enum ends the program.
TEST_CASE("regression: enum members are numbers until they have been checked") {
  CpuDevice cpu(1);
  const struct {
    const char* what;
    uint32_t* (*member)(tandem_problem*);
  } members[] = {
      {"direction", [](tandem_problem* p) { return &p->direction; }},
      {"mask", [](tandem_problem* p) { return &p->mask; }},
      {"align", [](tandem_problem* p) { return &p->align; }},
      {"gradients", [](tandem_problem* p) { return &p->gradients; }},
      {"flags", [](tandem_problem* p) { return &p->flags; }},
      {"normalizer", [](tandem_problem* p) { return &p->normalizer; }},
      {"alibi", [](tandem_problem* p) { return &p->alibi; }},
      {"sink", [](tandem_problem* p) { return &p->sink; }},
      {"lengths_q", [](tandem_problem* p) { return &p->lengths_q; }},
      {"lengths_kv", [](tandem_problem* p) { return &p->lengths_kv; }},
      {"q", [](tandem_problem* p) { return &p->q.dtype; }},
      {"k", [](tandem_problem* p) { return &p->k.dtype; }},
      {"v", [](tandem_problem* p) { return &p->v.dtype; }},
      {"o", [](tandem_problem* p) { return &p->o.dtype; }},
      {"d_o", [](tandem_problem* p) { return &p->d_o.dtype; }},
      {"d_q", [](tandem_problem* p) { return &p->d_q.dtype; }},
      {"d_k", [](tandem_problem* p) { return &p->d_k.dtype; }},
      {"d_v", [](tandem_problem* p) { return &p->d_v.dtype; }},
      {"bias", [](tandem_problem* p) { return &p->bias.dtype; }},
      {"d_bias", [](tandem_problem* p) { return &p->d_bias.dtype; }},
      {"keep", [](tandem_problem* p) { return &p->keep.dtype; }},
  };
  for (const auto& member : members)
    for (uint32_t value : {256u, 777u, 0x80000000u, 0xffffffffu}) {
      CAPTURE(std::string(member.what));
      CAPTURE(value);
      tandem_problem p;
      REQUIRE(tandem_problem_parse("bwd f32 b2 hq4 hk2 sq5 sk7 d16 bias:f32:1x4x5 keep:2x1x5 "
                                   "grads=qkvb d_bias:f32",
                                   &p) == TANDEM_OK);
      *member.member(&p) = value;
      const std::string line = text_of([&](char* out, size_t size) {  //
        return tandem_problem_print(&p, out, size);
      });
      CAPTURE(line);
      tandem_problem again;
      REQUIRE(tandem_problem_parse(line.c_str(), &again) == TANDEM_OK);
      CHECK(*member.member(&again) == value);
      CHECK(tandem_explain(cpu.device, &p, nullptr, 0) > 1);
      tandem_plan* plan = untouched<tandem_plan>();
      CHECK(tandem_plan_create(cpu.device, &p, &plan) != TANDEM_OK);
      CHECK(std::string(tandem_last_message()).find(member.what) != std::string::npos);
    }
  tandem_problem p = good_problem();
  tandem_c99_contiguous(&p, 256);
  CHECK(p.v.dtype == 256);
}

TEST_CASE("arbitrary problems: a plan, or a status with a sentence") {
  CpuDevice cpu(1);
  std::mt19937_64 random(23);
  const int64_t values[] = {0,
                            1,
                            2,
                            3,
                            7,
                            -1,
                            64,
                            256,
                            257,
                            65536,
                            (int64_t(1) << 29) - 1,
                            int64_t(1) << 29,
                            std::numeric_limits<int32_t>::max(),
                            std::numeric_limits<int32_t>::min(),
                            int64_t(1) << 32,
                            int64_t(1) << 62,
                            std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min(),
                            0x7fc000007fc00000,
                            0x7f8000003f800000};
  constexpr size_t kFirst = offsetof(tandem_problem, batch);
  int plans = 0, refused = 0;
  for (int n = 0; n < 20000; ++n) {
    tandem_problem p = random() % 2 ? good_problem() : small_problem();
    unsigned char bytes[sizeof(p)];
    std::memcpy(bytes, &p, sizeof(p));
    for (uint64_t spoil = random() % 4; spoil > 0; --spoil) {
      // Members of 4 bytes and of 8 alike; now and then any bits at all.
      const size_t width = random() % 2 ? 4 : 8;
      const size_t place = kFirst + random() % ((sizeof(p) - kFirst) / width) * width;
      const int64_t value =
          random() % 8 ? values[random() % (sizeof(values) / sizeof(*values))] : int64_t(random());
      std::memcpy(bytes + place, &value, width);
    }
    if (random() % 4 == 0) bytes[4 + random() % 4] = (unsigned char)(random() % 3);  // direction
    std::memcpy(&p, bytes, sizeof(p));
    tandem_plan* plan = untouched<tandem_plan>();
    const tandem_status status = tandem_plan_create(cpu.device, &p, &plan);
    const std::string line = text_of([&](char* out, size_t size) {  //
      return tandem_problem_print(&p, out, size);
    });
    INFO(line);
    CHECK(!line.empty());
    CHECK(tandem_explain(cpu.device, &p, nullptr, 0) > 1);
    if (status == TANDEM_OK) {
      ++plans;
      tandem_plan_info info{};
      info.struct_size = sizeof(info);
      CHECK(tandem_plan_get_info(plan, &info) == TANDEM_OK);
      CHECK(info.flops >= 0);
      tandem_plan_destroy(plan);
    } else {
      ++refused;
      CHECK(plan == untouched<tandem_plan>());
      CHECK(std::strlen(tandem_last_message()) > 10);
      // Nothing here is a failure of the machine's, or an unforeseen one.
      CHECK((status == TANDEM_ERROR_INVALID_ARGUMENT || status == TANDEM_ERROR_INVALID_LAYOUT ||
             status == TANDEM_ERROR_UNSUPPORTED ||
             (status == TANDEM_ERROR_WORKSPACE && p.workspace_limit > 0)));
    }
  }
  CHECK(plans > 1000);
  CHECK(refused > 1000);
}
