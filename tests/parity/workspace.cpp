// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans within the least workspace that is possible, and within one byte less than the planner
// would choose, on every path: they compute the same.
#include <algorithm>

#include "parity.h"

using namespace parity;

namespace {

void check_limits(const char* line) {
  CAPTURE(std::string(line));
  for (Target& target : targets()) {
    tandem_problem p = parse(line);
    if (!takes(target, p)) continue;
    uint64_t least = 0;
    check(tandem_least_workspace(target.session->device(), &p, &least));
    const Plan whole(*target.session, p);
    const uint64_t size = whole.info().workspace_size;
    CHECK(least <= size);
    for (uint64_t limit : {least, size - 1}) {
      if (limit < least || (limit >= size && limit != least)) continue;
      p.workspace_limit = std::max<uint64_t>(limit, 1);
      CAPTURE(p.workspace_limit);
      Case test(p, seed_of(line), sparse().options);
      check_on(target, test, sparse());
    }
  }
}

}  // namespace

TEST_CASE("workspace: within the least") {
  check_limits("fwd f16 b1 hq2 sq40 sk1100 d64 dv64");
  check_limits("bwd f16 b2 hq2 sq130 sk140 d32 dv32 bias:f16:1x2x130 grads=qkvb d_bias:f32");
}

TEST_CASE("workspace: within the least, other inputs" * doctest::skip(!at_least(Tier::ci))) {
  for (const char* line : {
           "fwd f32 b1 hq2 sq1 sk1100 d64 dv64",
           "fwd bf16 b1 hq2 sq130 sk140 d64 dv64 spans=2:1x1",
           "fwd f16 b1 hq2 sq70 sk140 d64 dv64 entmax=1.5",
           "fwd f16 b1 hq1 sq1030 sk1024 d64 dv64 keep:1x1x1030",
           "bwd f16 b1 hq4 hk2 sq130 sk140 d128 dv128",
           "bwd f32 b2 hq4 hk2 sq200 sk130 d64 dv64",
           "bwd f16 b1 hq1 sq512 sk256 d64 dv64 causal_top_left",
           "bwd f32 b2 hq2 sq100 sk120 d64 dv64 elastic dist=64 grads=qkvdt",
           "bwd bf16 b1 hq2 sq100 sk130 d64 dv64 spans=1:1x1",
           "bwd f16 b9 hq3 sq49 sk49 d32 dv32 bias:f16:1x3x49 grads=qkvb d_bias:f16",
       })
    check_limits(line);
}
