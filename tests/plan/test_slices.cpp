// SPDX-License-Identifier: MIT OR Apache-2.0
// How executes are cut into slices: every workgroup once, in order, and no slice has more work than
// asked for where it could have less.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/slices.h"
#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

constexpr const char* kLines[] = {
    "fwd f16 b2 hq16 sq4096 d128 causal_top_left",
    "fwd f32 b1 hq32 hk8 sq1 sk8192 d128",
    "fwd f16 b1 hq8 sq77 sk4096 d64 bias:f16:1x8x77",
    "bwd f16 b2 hq16 sq2048 d128",
    "bwd f16 b1 hq2 sq4096 sk256 d128",
    "bwd f32 b3 hq4 hk2 sq300 sk200 d64 sink alibi grads=qkvas",
    "bwd f16 b2 hq2 sq300 d64 bias:f16:1x1x1 grads=qkvb d_bias:f16",
    "bwd f16 b32 hq16 sq512 d64 bias:f16:1x16x512 grads=qkvb d_bias:f32",
    "bwd f32 b2 hq2 sq300 d64 elastic dist=256 grads=qkvdt",
    "bwd f16 b2 hq2 sq300 d64 table=31:u8:1 grads=qkvi",
    "fwd f16 b4096 hq16 sq128 d32",  // two rows of workgroups and more
};

// The workgroups of the dispatches of a range, as kernels number them.
std::vector<uint32_t> numbers_of(const Launch& l, uint32_t from, uint32_t to) {
  std::vector<uint32_t> numbers;
  for_each_dispatch(l, from, to, [&](const BaseDispatch& d) {
    CHECK(uint64_t(d.base_x) + d.width <= l.groups_x);
    CHECK(d.base_y < 65535);
    for (uint32_t x = 0; x < d.width; ++x) numbers.push_back(d.base_y * d.width + d.base_x + x);
  });
  return numbers;
}

void check_slices(const char* line, const Caps& caps, double part) {
  CAPTURE(part);
  const Plan plan = plan_of(std::string(line) + " slices", caps);
  const Slicing slicing(plan);
  const Vec<Piece> pieces = pieces_of(plan);
  const Slicing::Sizes whole = slicing.sizes(1e300);
  CHECK(whole.count == 1);
  REQUIRE(whole.whole > 0);
  CHECK(whole.largest == doctest::Approx(whole.whole));
  const double most = whole.whole / part;
  const Slicing::Sizes sizes = slicing.sizes(most);
  CHECK(sizes.whole == doctest::Approx(whole.whole));
  CHECK(double(sizes.count) >= whole.whole / sizes.largest * 0.999);
  CHECK(sizes.largest <= std::max(most, slicing.sizes(1).largest) * 1.0001);
  std::vector<uint32_t> next(pieces.size(), 0);  // the workgroup that comes next
  size_t at = 0;
  for (uint64_t n = 0; n < sizes.count; ++n) {
    bool any = false;
    for (size_t piece = 0; piece < pieces.size(); ++piece) {
      Slicing::Range r;
      if (!slicing.range(most, n, piece, &r)) continue;
      any = true;
      REQUIRE(piece >= at);  // in order
      at = piece;
      REQUIRE(r.from == next[piece]);
      REQUIRE(r.to > r.from);
      next[piece] = r.to;
      const Launch& l = pieces[piece].launch;
      if (r.whole || l.joins()) continue;
      if (plan.backend == Backend::cuda) {  // fewer workgroups, or fewer heads of persistent ones
        if (l.as<Sm90Launch>() && l.stem == Stem::fwd)
          CHECK((r.from % l.tiles == 0 && r.to % l.tiles == 0));
        continue;
      }
      const std::vector<uint32_t> numbers = numbers_of(l, r.from, r.to);
      uint32_t expected = r.from;
      for (uint32_t number : numbers) REQUIRE(number == expected++);
      CHECK((expected == r.to || (r.to == l.total && expected >= r.to)));
    }
    REQUIRE(any);
  }
  for (size_t piece = 0; piece < pieces.size(); ++piece) {
    const Launch& l = pieces[piece].launch;
    if (l.joins()) continue;
    const bool persistent = l.as<Sm90Launch>() && l.stem == Stem::fwd;
    CHECK(
        (next[piece] == 1 || next[piece] == (l.groups_y > 1 || persistent ? l.total : l.groups_x)));
  }
}

}  // namespace

TEST_CASE("slices: the last row of a dispatch is one that every device has") {
  for (uint32_t total : {65536u, 131070u, 131071u, 196606u, 262143u, 327679u}) {
    Launch l;
    l.total = total, l.groups_x = 65535, l.groups_y = (total + 65534) / 65535;
    CAPTURE(total);
    const std::vector<uint32_t> last = numbers_of(l, total - 1, total);
    REQUIRE(!last.empty());
    CHECK(last[0] == total - 1);
  }
}

TEST_CASE("slices: every workgroup once, in order, within the work that is asked for") {
  for (const Profile& device : profiles())
    for (const char* line : kLines) {
      CAPTURE(std::string(device.id));
      CAPTURE(std::string(line));
      Plan plan;
      if (!make_plan(problem_of(line), device.caps, &plan).ok()) continue;
      for (double part : {1.0, 2.0, 7.5, 40.0}) check_slices(line, device.caps, part);
    }
}

TEST_CASE("slices: a workgroup is the least, and sizes() returns its work") {
  const Caps caps = caps_of("h100_vulkan");
  const Plan plan = plan_of("fwd f16 b1 hq2 sq1024 d64 slices", caps);
  const Slicing slicing(plan);
  const Slicing::Sizes least = slicing.sizes(1);
  uint64_t groups = 0;
  for (const Launch& l : plan.launches) groups += l.total;
  CHECK(least.count == groups);
  // Products of q and k, and of weights and v, with 1,024 keys.
  const Launch& fwd = plan.launches[0];
  CHECK(least.largest == doctest::Approx(4.0 * 64 * fwd.tile.br * 1024 / fwd.splits));
}

TEST_CASE("slices: CUDA cuts kernels") {
  for (const char* path : {"cuda.simt", "cuda.sm80", "cuda.sm90"})
    for (const char* kind : {"fwd f16", "bwd f16", "fwd f32", "bwd f32"}) {
      CAPTURE(path);
      CAPTURE(kind);
      Caps caps = caps_of("h100_cuda");
      if (path != std::string("cuda.sm90")) caps.disabled.push_back("cuda.sm90");
      if (path == std::string("cuda.simt")) caps.disabled.push_back("cuda.sm80");
      const Plan plan = plan_of(std::string(kind) + " b2 hq16 sq4096 d128 slices", caps);
      const Slicing::Sizes sizes = Slicing(plan).sizes(Slicing(plan).sizes(1).whole / 8);
      // bwd_dot, which also zeroes, and the cast of d_q are whole, but small.
      CHECK(sizes.largest <= sizes.whole / 8 * 1.0001);
      CHECK(sizes.count >= 8);
    }
}

TEST_CASE("slices: cuda.sm90 cuts forward between heads, with optional inputs between entries") {
  for (const char* line :
       {"fwd f16 b3 hq4 sq1000 d128", "fwd f16 b3 hq4 sq1000 d64 causal_top_left",
        "fwd bf16 b3 hq4 sq1000 d512", "fwd f16 b3 hq4 sq1000 d64 bias:f16:1x4x1000",
        "fwd f16 b3 hq4 sq1000 d64 kv_padded"}) {
    CAPTURE(line);
    const Plan plan = plan_of(std::string(line) + " slices", "h100_cuda");
    REQUIRE(plan.launches.back().stem == Stem::fwd);
    const Launch& fwd = plan.launches.back();
    REQUIRE(fwd.as<Sm90Launch>());
    const uint64_t heads = fwd.row().inputs ? 3 : 12;
    CHECK(Slicing(plan).sizes(1).count == heads + plan.launches.size() - 1);
  }
}

TEST_CASE("slices: the CPU does not cut") {
  const char* line = "bwd f16 b2 hq16 sq2048 d128 slices";
  Caps cpu;
  cpu.threads = 4;
  CHECK(Slicing(plan_of(line, cpu)).sizes(1).count == 1);
}
