// SPDX-License-Identifier: MIT OR Apache-2.0
// Batch-invariant problems have one path, and one tile and number of splits for each operation,
// whatever their sizes are.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

String kernel_family(const Launch& l) {
  return text("%s.%s %d %u", backend_name(l.row().backend), l.row().path, int(l.row().tiles),
              l.row().traits & ~uint32_t(trait::narrow));
}

// What the bits of a row may depend on, of each operation with tiles.
std::map<std::string, std::string> orders_of(const Plan& plan) {
  std::map<std::string, std::string> orders;
  for (const Launch& l : plan.launches)
    if (is_tiled(l.stem) && !l.has(trait::redo))
      orders[stem_name(l.stem)] +=
          text("%s %s %dx%d splits %u parts %d chunks %u;", kernel_family(l).c_str(), l.tile.name,
               l.tile.br, l.tile.bc, l.splits, l.of<Sm90Launch>().parts.most,
               l.of<MatrixLaunch>().chunks);
  return orders;
}

bool takes_any(const Profile& profile) {
  Plan plan;
  return make_plan(problem_of("fwd f32 b1 hq1 sq1 sk1 d1"), profile.caps, &plan).ok();
}

}  // namespace

TEST_CASE("batch-invariant problems have one order of keys, whatever their sizes") {
  const char* const sizes[] = {
      "b8 hq16 hk4 sq4096 sk4096",
      "b1 hq4 hk1 sq1 sk32768",
      "b1 hq4 hk1 sq1 sk77 causal_bottom_right",
      "b300 hq8 hk2 sq1 sk100 kv_padded",
      "b1 hq4 hk1 sq16 sk9000 causal_bottom_right",
      "b2 hq64 hk16 sq60 sk60 causal_top_left",
      "b900 hq32 hk8 sq48 sk32",
      "b4 hq4 hk1 sq1000 sk1000 q_packed=1300 kv_packed=1400",
      "b1 hq32 hk8 sq16384 sk16384 causal_bottom_right left=500",
      "b3 hq8 hk2 sq129 sk700 layout=bshd cores=3",
      "b2 hq4 hk1 sq2000 sk2000 causal_bottom_right q_padded kv_padded",
  };
  int plans = 0;
  for (const Profile& profile : profiles()) {
    if (profile.caps.backend == Backend::cpu) continue;
    for (const char* kind : {"fwd", "bwd"})
      for (const char* rest : {"f16 d128", "bf16 d64", "f16 d72 softcap=20", "f16 d192 dv128",
                               "bf16 d256", "f32 d64 sink"}) {
        std::map<std::string, std::string> first;
        for (const char* of : sizes) {
          const String line = text("%s %s %s batch_invariant", kind, rest, of);
          CAPTURE(std::string(profile.id));
          CAPTURE(std::string(line.c_str()));
          Plan plan;
          const Status status = make_plan(problem_of(line.c_str()), profile.caps, &plan);
          if (!takes_any(profile)) continue;
          REQUIRE_MESSAGE(status.ok(), status.message().c_str());
          const std::map<std::string, std::string> orders = orders_of(plan);
          REQUIRE(!orders.empty());
          if (first.empty()) first = orders;
          for (const auto& of_stem : first) {
            CAPTURE(of_stem.first);
            const auto own = orders.find(of_stem.first);
            REQUIRE(own != orders.end());
            CHECK(own->second == of_stem.second);
          }
          ++plans;
        }
      }
  }
  CHECK(plans > 1000);
}

TEST_CASE("batch-invariant problems of nothing have plans") {
  int plans = 0;
  for (const Profile& profile : profiles()) {
    if (!takes_any(profile)) continue;
    for (const char* sizes : {"b0 hq4 hk1 sq3 sk5", "b1 hq0 hk0 sq3 sk5", "b1 hq0 hk2 sq3 sk5",
                              "b1 hq4 hk1 sq0 sk5", "b1 hq4 hk1 sq3 sk0"})
      for (const char* kind : {"fwd", "bwd"}) {
        const String line = text("%s f32 %s d64 batch_invariant", kind, sizes);
        CAPTURE(std::string(profile.id));
        CAPTURE(std::string(line.c_str()));
        Plan plan;
        const Status status = make_plan(problem_of(line.c_str()), profile.caps, &plan);
        CHECK_MESSAGE(status.ok(), status.message().c_str());
        ++plans;
      }
  }
  CHECK(plans > 100);
}
