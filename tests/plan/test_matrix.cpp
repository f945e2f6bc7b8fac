// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans of the matrix paths, and what quirks of drivers make of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "plan/coopmat/heuristics.h"
#include "plan/coopmat/tiles.h"
#include "plan/planner.h"
#include "plan/quirks.h"
#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

TEST_CASE("matrix paths: each can be switched off, the next one takes over") {
  Caps caps = caps_of("h100_vulkan");
  const Problem problem = problem_of("bwd f16 hq2 sq500 d64");
  for (const char* path : {"coopmat2", "coopmat", "scalar"}) {
    Plan plan;
    REQUIRE(make_plan(problem, caps, &plan).ok());
    CHECK(std::string(plan.path) == path);
    REQUIRE(parse_disabled((std::string("vulkan.") + path).c_str(), &caps.disabled).ok());
  }
  Plan plan;
  CHECK(!make_plan(problem, caps, &plan).ok());
  caps.disabled.clear();
  REQUIRE(parse_disabled("dkv64,dq64", &caps.disabled).ok());
  REQUIRE(make_plan(problem, caps, &plan).ok());
  CHECK(std::string(plan.path) == "coopmat2");
  CHECK(std::string(plan.find(Stem::bwd_dkv)->tile.name) == "dkv64n");
  CHECK(std::string(plan.find(Stem::bwd_dq)->tile.name) == "dq64n");
}

TEST_CASE("matrix paths: what is missing is named") {
  const Caps good = caps_of("h100_vulkan");
  const auto refusal = [](const Caps& caps, const char* line, const char* path) {
    Plan plan;
    REQUIRE(make_plan(problem_of(line), caps, &plan).ok());
    std::string all;
    for (const Refusal& r : plan.refusals)
      if (r.candidate.rfind(path, 0) == 0) all += r.reason + "\n";
    return all;
  };
  const auto has = [](const std::string& text, const char* word) {
    INFO(text);
    CHECK(text.find(word) != std::string::npos);
  };
  const struct {
    bool Caps::*member;
    const char* word;
    bool both;  // of both paths
  } rows[] = {
      {&Caps::coopmat, "did not enable cooperativeMatrix", true},
      {&Caps::coopmat_reductions, "did not enable cooperativeMatrixReductions", false},
      {&Caps::coopmat_conversions, "did not enable cooperativeMatrixConversions", false},
      {&Caps::coopmat_per_element, "did not enable cooperativeMatrixPerElementOperations", false},
      {&Caps::float16, "did not enable shaderFloat16", true},
      {&Caps::storage16, "did not enable storageBuffer16BitAccess", true},
      {&Caps::maintenance4, "did not enable maintenance4", false},
      {&Caps::memory_model, "did not enable vulkanMemoryModel", true},
      {&Caps::subgroup_control, "did not enable subgroupSizeControl", true},
      {&Caps::full_subgroups, "did not enable computeFullSubgroups", true},
      {&Caps::coopmat_compute, "no cooperative matrices in compute shaders", true},
      {&Caps::subgroup_votes, "do not vote in compute shaders", true},
      {&Caps::subgroup_pin, "cannot state a subgroup size", true}};
  for (const auto& row : rows) {
    Caps caps = good;
    caps.*row.member = false;
    if (row.member == &Caps::subgroup_pin) caps.subgroup_min /= 2;
    has(refusal(caps, "fwd f16 sq100 d64", "vulkan.coopmat2"), row.word);
    if (row.both) has(refusal(caps, "fwd f16 sq100 d64", "vulkan.coopmat "), "");
    Plan plan;
    REQUIRE(make_plan(problem_of("fwd f16 sq100 d64"), caps, &plan).ok());
    CHECK(std::string(plan.path) == (row.both ? "scalar" : "coopmat"));
  }
  Caps caps = good;
  caps.subgroup_pin = false;  // one size need not be stated
  CHECK(refusal(caps, "fwd f16 sq100 d64", "vulkan.coopmat2") == "");
  caps = good;
  caps.api_version = 1u << 22 | 2u << 12;
  has(refusal(caps, "fwd f16 sq100 d64", "vulkan.coopmat2"), "desc.api_version");
  caps = good;
  caps.bfloat16_coopmat = false;
  has(refusal(caps, "fwd bf16 sq100 d64", "vulkan.coopmat2"), "shaderBFloat16CooperativeMatrix");
  CHECK(refusal(caps, "fwd f16 sq100 d64", "vulkan.coopmat2") == "");
  has(refusal(good, "fwd f32 sq100 d64", "vulkan.coopmat2"), "its operands are f16 or bf16");
  caps = good;
  caps.matrices = {{32, 8, 16, "f16"}, {16, 16, 16, "bf16"}, {8, 8, 32, "f16"}};
  has(refusal(caps, "fwd f16 sq100 d64", "vulkan.coopmat"), "the device has 32x8x16, 8x8x32");
  has(refusal(caps, "fwd f16 sq100 d64", "vulkan.coopmat"), "16x16x16, 16x8x16, 8x16x16");
  // Another shape serves, where that one has accumulators of f16.
  caps = good;
  for (MatrixShape& m : caps.matrices) m.f16_accumulators = m.n != 16;
  CHECK(plan_of("fwd f16 sq100 d64", caps).launches[0].of<MatrixLaunch>().matrix.name() ==
        "16x8x8");
  has(refusal(caps, "fwd bf16 sq100 d64", "vulkan.coopmat2"),
      "the device has 16x16x16; the device has no accumulators of f16 of 16x16 beside 16x16x16");
  has(refusal(good, "fwd f16 sq100 d64 tile=64x64", "vulkan.coopmat2"), "64x64");
  caps = good;
  caps.max_subgroups = 2;
  has(refusal(caps, "fwd f16 sq100 d64", "vulkan.coopmat2"), "the device has 2");
  caps.disabled = {"vulkan.coopmat2"};
  caps.coopmat = false;
  has(refusal(caps, "fwd f16 sq100 d64", "vulkan.coopmat2"), "disabled");
}

TEST_CASE("matrix paths: what takes no matrices goes along without") {
  const Caps caps = caps_of("h100_vulkan");
  const auto plan_of = [&](const std::string& words) {
    Plan plan;
    CAPTURE(words);
    REQUIRE(make_plan(problem_of("bwd bf16 b2 hq4 hk2 sq500 d64 " + words), caps, &plan).ok());
    CHECK(std::string(plan.path) == "coopmat2");
    std::string s;
    for (const Launch& l : plan.launches)
      if (l.stem != Stem::bwd_origin)
        s += std::string(s.empty() ? "" : " ") + stem_name(l.stem) +
             (l.as<MatrixLaunch>() ? "!" : "") + (l.stores_d_bias ? "+" : "");
    return s;
  };
  // !: with matrices, +: stores d_bias
  CHECK(plan_of("bias:f32:2x4x500 grads=qkvb d_bias:f32") == "bwd_dot bwd_dkv! bwd_dq!+");
  CHECK(plan_of("bias:f32:2x4x500 grads=b d_bias:f32") == "bwd_dot bwd_dbias!");
  CHECK(plan_of("bias:f32:1x4x500 grads=qb d_bias:f32") ==
        "bwd_dot bwd_dq! bwd_dbias! bwd_sum_splits");
  CHECK(plan_of("bias:f32:2x2x500 grads=qb d_bias:f32") ==
        "bwd_dot bwd_dq! bwd_dbias! bwd_sum_splits");
  CHECK(plan_of("bias:f32:2x4x1 grads=qb d_bias:f32") ==
        "bwd_dot bwd_dq! bwd_dbias! bwd_sum_splits");
  CHECK(plan_of("dist=40 alibi sink grads=qdas") ==
        "bwd_row_sums! bwd_dq! bwd_dist_bias bwd_sum_splits bwd_head_sums");
  CHECK(plan_of("entmax=1.5 grads=q") == "bwd_row_sums! bwd_dq!");
  CHECK(plan_of("elastic grads=kt") == "bwd_row_sums! bwd_dkv! bwd_head_sums");
  CHECK(explain(problem_of("bwd bf16 b2 hq4 hk2 sq500 d64 dist=40 grads=qd"), caps)
            .find("without matrices (t64k32)") != std::string::npos);
  // A forced tile is that of the kernels with matrices.
  CHECK(plan_of("dist=40 grads=qd tile=128x32").find("bwd_dq! bwd_dist_bias") != std::string::npos);
  // Eight addresses of optional inputs do not fit.
  Plan plan;
  CHECK(!make_plan(problem_of("bwd bf16 b2 hq4 hk2 sq500 d64 elastic bias:f32:1x1x1 dist=9 alibi "
                              "keep:1x1x1 q_padded kv_padded dropout=0.1"),
                   caps, &plan)
             .ok());
  bool said = false;
  for (const Refusal& r : plan.refusals)
    said |= r.candidate == "vulkan.coopmat2" && r.reason.find("at most 7") != std::string::npos;
  CHECK(said);
}

TEST_CASE("matrix paths: few rows take the tile with the fewest") {
  Plan plan;
  for (const auto& row : {std::pair<const char*, const char*>{"fwd f16 sq1 sk500 d64", "fwd16"},
                          {"fwd f16 sq16 sk500 d128", "fwd16w"},
                          {"fwd f16 sq40 sk500 d64", "fwd64n"},
                          {"fwd f16 sq1 sk500 d200", "fwd256n"},
                          {"fwd f16 sq100 sk500 d64", "fwd64"},
                          {"fwd f16 sq64 sk500 d64", "fwd64n"},
                          {"fwd f16 sq500 d80", "fwd128"},
                          {"fwd f16 sq500 d64 tile=64x32", "fwd64n"}}) {
    REQUIRE(make_plan(problem_of(row.first), caps_of("h100_vulkan"), &plan).ok());
    CHECK(std::string(plan.path) == "coopmat2");
    CHECK(std::string(plan.launches[0].tile.name) == row.second);
  }
}

TEST_CASE("matrix paths: short heads take the tile that pads them least") {
  const struct {
    const char *rest, *fwd, *dkv, *dq;
  } rows[] = {{"sq144 d32", "fwd64n", "dkv64n", "dq64n"},
              {"sq77 d64 causal_top_left", "fwd64n", "dkv64n", "dq64n"},
              {"sq197 d64", "fwd64", "dkv64", "dq64n"},
              {"sq197 d64 bias:f16:1x1x197", "fwd64n", "dkv64", "dq64n"},
              {"sq256 d64", "fwd64", "dkv64", "dq64"},
              {"sq144 d64 sk4096", "fwd64n", "dkv64", "dq64"},
              {"sq4096 sk77 d64", "fwd64", "dkv64", "dq64n"},
              {"sq257 d80", "fwd128", "dkv128", "dq128"},
              {"sq144 d80", "fwd128n", "dkv128n", "dq128"},
              {"sq4000 d64", "fwd64", "dkv64", "dq64"},
              {"b1 sq144 d32", "fwd64", "dkv64", "dq64"}};  // too few workgroups
  const auto tile = [](const Plan& plan, Stem stem) {
    return std::string(plan.find(stem)->tile.name);
  };
  Caps caps = caps_of("h100_vulkan");
  caps.disabled = {kDsWord};
  for (const auto& row : rows) {
    INFO(row.rest);
    Plan fwd, bwd;
    const String rest = text("f16 b99 hq2 %s", row.rest);
    REQUIRE(make_plan(problem_of((text("fwd %s", rest.c_str())).c_str()), caps, &fwd).ok());
    REQUIRE(make_plan(problem_of((text("bwd %s", rest.c_str())).c_str()), caps, &bwd).ok());
    CHECK(tile(fwd, Stem::fwd) == row.fwd);
    CHECK(tile(bwd, Stem::bwd_dkv) == row.dkv);
    CHECK(tile(bwd, Stem::bwd_dq) == row.dq);
  }
}

TEST_CASE("matrix paths: tiles for operands that take twice the registers") {
  const struct {
    const char *rest, *fwd, *dkv, *dq;
    uint32_t subgroup;
  } rows[] = {{"sq1000 d64", "fwd64d", "dkv64d", "dq64d", 32},
              {"sq60 d64", "fwd64dn", "dkv64dn", "dq64dn", 32},
              {"sq1000 d128", "fwd128d", "dkv128d", "dq128d", 32},
              {"sq1000 d72", "fwd128d", "dkv128d", "dq128d", 32},
              {"sq1000 d256", "fwd256d", "dkv256d", "dq256d", 64}};
  Caps rdna3 = caps_of("rdna3_radv");
  for (const auto& row : rows) {
    CAPTURE(std::string(row.rest));
    Plan fwd, bwd;
    REQUIRE(make_plan(problem_of(std::string("fwd f16 hq2 ") + row.rest), rdna3, &fwd).ok());
    REQUIRE(make_plan(problem_of(std::string("bwd f16 hq2 ") + row.rest), rdna3, &bwd).ok());
    CHECK(std::string(fwd.path) == "coopmat");
    CHECK(std::string(bwd.path) == "coopmat");
    CHECK(std::string(fwd.launches[0].tile.name) == row.fwd);
    CHECK(std::string(bwd.find(Stem::bwd_dkv)->tile.name) == row.dkv);
    CHECK(std::string(bwd.find(Stem::bwd_dq)->tile.name) == row.dq);
    for (const Launch* l : {fwd.find(Stem::fwd), bwd.find(Stem::bwd_dkv), bwd.find(Stem::bwd_dq)})
      CHECK(l->of<MatrixLaunch>().subgroup == row.subgroup);
  }
  for (const auto& row : {std::pair<const char*, const char*>{"sq1000 d64", "row64d"},
                          {"sq60 d64", "row64dn"},
                          {"sq1000 d128", "row128d"},
                          {"sq60 d72", "row128dn"},
                          {"sq1000 d256", "row256d"}}) {
    CAPTURE(std::string(row.first));
    Plan plan;
    REQUIRE(make_plan(problem_of(std::string("bwd f16 hq2 ") + row.first +
                                 " elastic bias:f16:1x1x1 grads=qkvbt d_bias:f32"),
                      rdna3, &plan)
                .ok());
    CHECK(std::string(plan.path) == "coopmat");
    REQUIRE(plan.find(Stem::bwd_row_sums));
    CHECK(std::string(plan.find(Stem::bwd_row_sums)->tile.name) == row.second);
    REQUIRE(plan.find(Stem::bwd_dbias));
    const bool few = std::strstr(row.first, "sq60") != nullptr;
    CHECK(std::string(plan.find(Stem::bwd_dbias)->tile.name) == (few ? "dbiasdn" : "dbiasd"));
  }
  Plan one;
  REQUIRE(make_plan(problem_of("fwd f16 hq2 sq1 sk1000 d128"), rdna3, &one).ok());
  CHECK(std::string(one.path) == "coopmat");
  CHECK(std::string(one.launches[0].tile.name) == "fwd16d");
  CHECK(one.launches[0].of<MatrixLaunch>().subgroup == 32);
  // Without one of them there, the others would spill: the path is refused, and says why.
  const auto refusal = [](const char* line, const Caps& caps) {
    Plan plan;
    REQUIRE(make_plan(problem_of(line), caps, &plan).ok());
    CHECK(std::string(plan.path) == "scalar");
    std::string all;
    for (const Refusal& r : plan.refusals) all += r.candidate + ": " + r.reason + "\n";
    return all;
  };
  Caps caps = rdna3;
  caps.subgroup_max = 32;  // none of 64 for wide heads
  const std::string why = refusal("bwd f16 sq100 d256", caps);
  INFO(why);
  CHECK(why.find("vulkan.coopmat dkv256d: needs subgroups of 64, the device has 32 to 32") !=
        std::string::npos);
  CHECK(why.find("no bwd_dkv tile") != std::string::npos);
  CHECK(why.find("holds each half of an operand twice") != std::string::npos);
  CHECK(why.find("dkv256:") == std::string::npos);
  // Elsewhere they are the last resort.
  caps = caps_of("h100_vulkan");
  Plan plan;
  REQUIRE(parse_disabled("fwd64,fwd64n,fwd128,fwd128n,fwd256t,fwd256s,fwd256,fwd256n,fwd16,fwd16w",
                         &caps.disabled)
              .ok());
  REQUIRE(make_plan(problem_of("fwd f16 sq1000 d64"), caps, &plan).ok());
  CHECK(std::string(plan.path) == "coopmat2");
  CHECK(std::string(plan.launches[0].tile.name) == "fwd64d");
  CHECK(plan.launches[0].of<MatrixLaunch>().subgroup == 32);
}

TEST_CASE("matrix paths: lean tiles where invocations have few registers") {
  const Caps xe2 = caps_of("arc_b580_mesa");
  const auto plan_for = [](const std::string& line, const Caps& caps) {
    Plan plan;
    REQUIRE(make_plan(problem_of(line), caps, &plan).ok());
    return plan;
  };
  for (const auto& row : {std::pair<const char*, const char*>{"d64", "64l"}, {"d72", "128l"}}) {
    const Plan fwd = plan_for(std::string("fwd f16 hq2 sq1000 ") + row.first, xe2);
    const Plan bwd = plan_for(std::string("bwd f16 b2 hq2 sq1000 ") + row.first +
                                  " elastic bias:f16:1x1x1 grads=qkvbt d_bias:f32",
                              xe2);
    CHECK(std::string(bwd.find(Stem::bwd_dbias)->tile.name) == "dbiasl");
    for (const auto& [plan, stem, name] :
         {std::tuple<const Plan&, Stem, const char*>{fwd, Stem::fwd, "fwd"},
          {bwd, Stem::bwd_row_sums, "row"},
          {bwd, Stem::bwd_dkv, "dkv"},
          {bwd, Stem::bwd_dq, "dq"}}) {
      REQUIRE(plan.find(stem));
      const Launch& l = *plan.find(stem);
      CHECK(std::string(plan.path) == "coopmat");
      CHECK(std::string(l.tile.name) == std::string(name) + row.second);
      CHECK(l.of<MatrixLaunch>().subgroup == 16);
      CHECK(std::string(kKernels[l.kernel].variant) == "lean");
    }
  }
  // Wide heads have none, and the tiles for other devices would spill.
  const Plan wide = plan_for("fwd f16 hq2 sq1000 d256", xe2);
  CHECK(std::string(wide.path) == "scalar");
  std::string why;
  for (const Refusal& r : wide.refusals) why += r.candidate + ": " + r.reason + "\n";
  CHECK(why.find("no fwd tile fits a device with this quirk: a thread has 128 registers") !=
        std::string::npos);
  // Nor are there any for many optional inputs.
  CHECK(std::string(plan_for("fwd f16 hq2 sq1000 d128 bias:f16:1x1x1", xe2).path) == "coopmat");
  CHECK(std::string(plan_for("fwd f16 hq2 sq1000 d128 softcap=5 bias:f16:1x1x1", xe2).path) ==
        "scalar");
  CHECK(std::string(plan_for("fwd f16 hq2 sq1000 d64 softcap=5 bias:f16:1x1x1", xe2).path) ==
        "coopmat");
  // Elsewhere they are the last resort of coopmat.
  Caps caps = caps_of("lavapipe");
  for (const MatrixTile& t : kMatrixTiles)
    if (!t.is_lean()) caps.disabled.push_back(t.name);
  const Plan last = plan_for("fwd f16 hq2 sq1000 d64", caps);
  CHECK(std::string(last.path) == "coopmat");
  CHECK(std::string(last.launches[0].tile.name) == "fwd64l");
}

TEST_CASE("matrix paths: features of heads over 256 are split over subgroups") {
  const Caps h100 = caps_of("h100_vulkan");
  const auto plan_for = [](const std::string& line, const Caps& caps) {
    Plan plan;
    REQUIRE(make_plan(problem_of(line), caps, &plan).ok());
    return plan;
  };
  const auto owners_of = [](const Launch& l) {
    return std::find_if(std::begin(kMatrixTiles), std::end(kMatrixTiles),
                        [&](const MatrixTile& t) { return std::string(t.name) == l.tile.name; })
        ->owners;
  };
  const auto reasons = [](const Plan& plan) {
    std::string why;
    for (const Refusal& r : plan.refusals) why += std::string(r.reason.c_str()) + "\n";
    return why;
  };
  for (const char* disabled : {"", "vulkan.coopmat2"}) {
    Caps caps = h100;
    REQUIRE(parse_disabled(disabled, &caps.disabled).ok());
    const char* path = *disabled ? "coopmat" : "coopmat2";
    for (const char* line :
         {"fwd f16 hq8 sq1000 d512", "bwd f16 hq8 sq1000 d512", "bwd bf16 hq8 sq1000 d576 dv512",
          "bwd f16 hq8 sq1000 d257", "bwd f16 hq8 sq1000 d40 dv576"}) {
      INFO(line);
      const Plan plan = plan_for(line, caps);
      CHECK(std::string(plan.path) == path);
      for (const Launch& l : plan.launches) {
        if (!l.as<MatrixLaunch>()) continue;
        CHECK(l.has(trait::split_d | trait::redo));
        CHECK(l.shared_bytes <= 48 * 1024);
        CHECK(l.d_blocks % owners_of(l) == 0);
        CHECK(l.dv_blocks % owners_of(l) == 0);
        CHECK(l.d_blocks * 16 >= plan.problem.head_dim);
        CHECK(l.dv_blocks * 16 >= plan.problem.head_dim_v);
        CHECK((l.stem == Stem::fwd || l.d_blocks == l.dv_blocks));
      }
    }
    // dS is in the workspace where it may be, on both paths.
    for (const auto& row : {std::pair("bwd f16 hq8 sq4096 d512", "dq512s"),
                            std::pair("bwd bf16 hq8 sq4096 d576 dv512", "dq576s"),
                            std::pair("bwd f16 hq8 sq4096 d512 kv_padded", "dq576")}) {
      const Plan plan = plan_for(row.first, caps);
      CHECK(std::string(plan.path) == path);
      CHECK(std::string(plan.find(Stem::bwd_dq)->tile.name) == row.second);
      CHECK(plan.find(Stem::bwd_dq)->has(trait::ds) == plan.find(Stem::bwd_dkv)->has(trait::ds));
      CHECK(plan.find(Stem::bwd_dq)->has(trait::ds) == (std::string(row.second) != "dq576"));
    }
    // d_bias has a kernel of its own.
    const Plan dbias =
        plan_for("bwd f16 hq2 sq1000 d512 bias:f16:1x2x1000 grads=qkvb d_bias:f32", caps);
    CHECK(std::string(dbias.path) == path);
    CHECK(dbias.find(Stem::bwd_dbias) != nullptr);
    CHECK_FALSE(dbias.find(Stem::bwd_dq)->stores_d_bias);
    // Refusals of the path.
    for (const char* line : {"fwd f16 sq1000 d512 elastic", "bwd f16 sq1000 d512 entmax=1.5"}) {
      const Plan plan = plan_for(line, caps);
      CHECK(std::string(plan.path) == "scalar");
      CHECK(reasons(plan).find("heads over 256 are for softmax alone") != std::string::npos);
    }
  }
  CHECK(std::string(plan_for("fwd f16 hq8 sq1000 d256", h100).launches[0].tile.name) == "fwd256t");
  const Plan intel = plan_for("bwd f16 hq2 sq1000 d512", caps_of("arc_b580_mesa"));
  CHECK(std::string(intel.path) == "scalar");
  CHECK(reasons(intel).find("heads over 256 have more registers") != std::string::npos);
  // With 32 KiB no two tiles of 16 rows fit.
  Caps small = h100;
  small.shared_bytes = 32 * 1024;
  const Plan none = plan_for("fwd f16 hq8 sq1000 d512", small);
  CHECK(std::string(none.path) == "scalar");
  CHECK(reasons(none).find("bytes of shared memory, the device has 32768") != std::string::npos);
}

TEST_CASE("matrix paths: rows that come and go by tensor addressing, or by strips") {
  const Caps h100 = caps_of("h100_vulkan");
  const auto tile = [](const char* line, const Caps& caps, const char* reason) {
    Plan plan;
    REQUIRE(make_plan(problem_of(line), caps, &plan).ok());
    const Launch* l = plan.find(Stem::fwd);
    REQUIRE(l != nullptr);
    const bool tensors = std::string(l->tile.name) == "fwd256t";
    CHECK(l->has(trait::tensor) == tensors);
    CHECK((module_name(plan, *l).find("_tensor") != String::npos) == tensors);
    std::string why;
    for (const Refusal& r : plan.refusals)
      if (r.candidate.find("fwd256t") != String::npos) why += r.reason.c_str();
    INFO(why);
    CHECK(why.find(reason) != std::string::npos);
    return std::string(l->tile.name);
  };
  for (const char* line :
       {"fwd f16 sq1000 d256", "fwd bf16 sq1000 d136", "fwd f16 sq65 d100 dv200"})
    CHECK(tile(line, h100, "") == "fwd256t");
  CHECK(tile("fwd f16 sq1000 d128", h100, "") == "fwd128");
  CHECK(tile("fwd f16 sq60 d256", h100, "") == "fwd256");  // empty by more than half
  // Rows that overlap, have strided features, or are beyond 32 bits of index.
  const char* const rows = "rows of q or o";
  CHECK(tile("fwd f16 sq1000 d256 q=0,0,0,1", h100, rows) == "fwd256s");
  CHECK(tile("fwd f16 sq1000 d256 q=256000,256000,1,1000", h100, rows) == "fwd256s");
  CHECK(tile("fwd f16 sq1000 d256 o=8388608000,8388608000,8388608,1", h100, rows) == "fwd256s");
  Caps caps = h100;
  caps.coopmat_tensors = false;
  CHECK(tile("fwd f16 sq1000 d256", caps, "cooperativeMatrixTensorAddressing") == "fwd256s");
  caps = h100;
  REQUIRE(parse_disabled("vulkan.coopmat2", &caps.disabled).ok());
  CHECK(tile("fwd f16 hq16 sq1000 d256", caps, "belongs to coopmat2") == "fwd256s");
  caps = h100;
  REQUIRE(parse_disabled("fwd256t", &caps.disabled).ok());
  CHECK(tile("fwd f16 sq1000 d256", caps, "disabled") == "fwd256s");
  REQUIRE(parse_disabled("fwd256t,fwd256s", &caps.disabled).ok());
  CHECK(tile("fwd f16 sq1000 d256", caps, "disabled") == "fwd256");
  // What it saves: rows of 528 bytes, 128 of them, would be more than the device has.
  const MatrixTile& t = *std::find_if(std::begin(kMatrixTiles), std::end(kMatrixTiles),
                                      [](const MatrixTile& x) { return x.tensors; });
  MatrixTile plain = t, strips = t;
  plain.tensors = strips.tensors = false;
  strips.strips = true;
  CHECK(matrix_shared_bytes(t, 256, 256, {16, 16, 16}) == 64 * 528 + 8 * 320 * 4 + 64);
  CHECK(matrix_shared_bytes(strips, 256, 256, {16, 16, 16}) == 64 * 528 + 8 * 320 * 4 + 64);
  CHECK(matrix_shared_bytes(plain, 256, 256, {16, 16, 16}) == 128 * 528 + 8 * 320 * 4 + 64);
}

TEST_CASE("matrix paths: with keep two workgroups still share the 48 KiB of an NVIDIA SM") {
  const Caps h100 = caps_of("h100_vulkan");
  for (const char* line :
       {"fwd f16 hq8 sq1000 d64 keep:1x1x1000", "bwd f16 hq8 sq1000 d64 keep:1x1x1000"}) {
    CAPTURE(std::string(line));
    Plan plan;
    REQUIRE(make_plan(problem_of(line), h100, &plan).ok());
    for (const Launch& l : plan.launches)
      if (l.stem == Stem::fwd || l.stem == Stem::bwd_dkv) CHECK(l.shared_bytes <= 24576);
  }
}

TEST_CASE("matrix paths: the shape is one that the device lists, and that nothing forbids") {
  const auto shape = [](const Caps& caps, const char* path) {
    Plan plan;
    REQUIRE(make_plan(problem_of("bwd f16 hq2 sq500 d100 dv72"), caps, &plan).ok());
    CHECK(std::string(plan.path) == path);
    const Launch* l = plan.find(Stem::bwd_dq);
    CHECK(l->tile.br ==
          l->tile.tr * l->of<MatrixLaunch>().row_blocks * l->of<MatrixLaunch>().matrix.m);
    CHECK(l->d_blocks ==
          (100 + l->of<MatrixLaunch>().matrix.k - 1) / std::max(l->of<MatrixLaunch>().matrix.k, 1));
    return std::string(l->of<MatrixLaunch>().matrix.name().c_str());
  };
  const auto without = [](Caps caps, const char* words) {
    REQUIRE(parse_disabled(words, &caps.disabled).ok());
    return caps;
  };
  const Caps h100 = caps_of("h100_vulkan");
  CHECK(shape(h100, "coopmat2") == "16x16x16");
  CHECK(shape(caps_of("arc_b580_mesa"), "coopmat") == "8x16x16");
  CHECK(shape(caps_of("arc_b580_win"), "coopmat") == "8x16x16");
  CHECK(shape(caps_of("lavapipe"), "coopmat2") == "8x8x8");
  // Conversions keep the edges: coopmat2 goes on to the next shape, coopmat takes this one through
  // shared memory.
  CHECK(shape(without(h100, "16x16x16"), "coopmat2") == "16x8x8");
  CHECK(shape(without(h100, "16x16x16,vulkan.coopmat2"), "coopmat") == "16x8x16");
  CHECK(shape(without(h100, "vulkan.coopmat2"), "coopmat") == "16x16x16");
  CHECK(shape(without(h100, "16x16x16,16x8x8"), "coopmat") == "16x8x16");
  CHECK(shape(without(h100, "16x16x16,16x8x16,vulkan.coopmat2"), "coopmat") == "16x8x8");
  Caps caps = h100;
  CHECK(!parse_disabled("16x16x32", &caps.disabled).ok());
  Plan plan;
  REQUIRE(make_plan(problem_of("fwd f16 sq100 d64"), without(h100, "16x16x16,16x8x8"), &plan).ok());
  CHECK(std::string(plan.path) == "coopmat");
  const String text = explain(problem_of("fwd f16 sq100 d64"), without(h100, "16x16x16,16x8x8"));
  const std::string why = text.c_str();
  INFO(why);
  CHECK(why.find("the device has 16x16x16, 16x8x16, 16x8x8") != std::string::npos);
  CHECK(why.find("16x16x16 is disabled by TANDEM_DISABLE") != std::string::npos);
  CHECK(why.find("16x8x16 would change its edges") != std::string::npos);
  // A quirk forbids a shape as TANDEM_DISABLE does.
  caps = h100;
  caps.name = "Tesla T4";
  const Problem problem = problem_of("fwd f16 sq100 d64");
  for (bool nv : {true, false}) {
    CHECK(matrix_shape(problem, caps, nv).name() == (nv ? "16x8x8" : "16x8x16"));
    // Another prefers one in forward, for the path and the type that can take it.
    CHECK(matrix_shape(problem, h100, nv).name() == (nv ? "16x16x16" : "16x8x16"));
    for (const char* line : {"fwd bf16 sq100 d64", "bwd f16 sq100 d64", "fwd f16 sq100 d64 alibi",
                             "fwd f16 sq100 d64 bias:f16:1x1x100", "fwd f16 sq100 d64 softcap=5"})
      CHECK(matrix_shape(problem_of(line), h100, nv).name() == "16x16x16");
    CHECK(matrix_shape(problem, without(h100, "16x8x16"), nv).name() == "16x16x16");
    Caps other = h100;
    other.driver_id = kRadv;
    CHECK(matrix_shape(problem, other, nv).name() == "16x16x16");
  }
  // Sums over the batch go block by block: not where a step of the kernel is two.
  const Problem sums =
      problem_of("bwd f16 b4 hq32 sq1024 d128 bias:f16:1x32x1024 grads=qkvb d_bias:f16");
  for (const auto& row : {std::pair<const char*, bool>{"vulkan.coopmat2", false},
                          {"vulkan.coopmat2,shared_ds", true},
                          {"16x16x16,shared_ds", true},
                          {"16x16x16,vulkan.coopmat2", false}}) {
    REQUIRE(make_plan(sums, without(h100, row.first), &plan).ok());
    CHECK(plan.find(Stem::bwd_dq)->of<MatrixLaunch>().sums_d_bias == row.second);
    CHECK((plan.find(Stem::bwd_dbias) == nullptr) == row.second);
  }
}

TEST_CASE("matrix paths: pairs of subgroups for wide heads, and parts of d_k and d_v") {
  Caps caps = caps_of("h100_vulkan");
  const auto dkv = [&](const std::string& words) {
    Plan plan;
    CAPTURE(words);
    REQUIRE(make_plan(problem_of("bwd " + words), caps, &plan).ok());
    const Launch& l = *plan.find(Stem::bwd_dkv);
    CHECK(l.has(trait::parts) == (l.splits > 1));
    CHECK((plan.find_sum(TANDEM_GRAD_V) != nullptr) == (l.splits > 1));
    return text("%s %s %u", l.tile.name, kKernels[l.kernel].variant, l.splits);
  };
  for (const char* disabled : {"", "vulkan.coopmat2"}) {
    caps = caps_of("h100_vulkan");
    if (*disabled) REQUIRE(parse_disabled(disabled, &caps.disabled).ok());
    CHECK(dkv("bf16 hq4 sq500 d256") == "dkv256p pair_ds 1");
    CHECK(dkv("bf16 b4 hq71 hk1 sq2048 d64") == "dkv64 parts 8");
  }
  caps = caps_of("h100_vulkan");
  CHECK(dkv("bf16 hq4 sq500 d256") == "dkv256p pair_ds 1");
  CHECK(dkv("bf16 hq4 sq500 d192 dv128 keep:1x1x1") == "dkv256p pair 1");
  CHECK(dkv("bf16 hq4 sq500 d128") == "dkv128 ds 1");
  // Each of a pair forms a gradient.
  CHECK(dkv("bf16 hq4 sq500 d256 grads=qv") == "dkv256 base 1");
  CHECK(dkv("bf16 hq4 sq500 d256 grads=kv") == "dkv256p pair 1");
  CHECK(dkv("bf16 hq1 hk1 sq500 d256 k=0,0,1073741824,1") == "dkv256 ds 1");
  // 64 tiles of keys for 132 compute units; whole tiles and matrices; no lengths.
  CHECK(dkv("bf16 b4 hq71 hk1 sq2048 d64") == "dkv64 parts 8");
  CHECK(dkv("bf16 b4 hq71 hk1 sq2048 d64 grads=v") == "dkv64 parts 8");
  CHECK(dkv("bf16 b5 hq71 hk1 sq2048 d64") == "dkv64 base 1");
  CHECK(dkv("bf16 b4 hq71 hk1 sq2048 sk2040 d64") == "dkv64 base 1");
  CHECK(dkv("bf16 b4 hq71 hk1 sq2048 d60") == "dkv64 base 1");
  CHECK(dkv("bf16 b4 hq71 hk1 sq2048 d64 kv_padded") == "dkv64 base 1");
  CHECK(dkv("bf16 b4 hq1 hk1 sq500 sk2048 d64") == "dkv64 base 1");  // 8 tiles of query rows
  REQUIRE(parse_disabled("dkv_parts,dkv256p", &caps.disabled).ok());
  CHECK(dkv("bf16 b4 hq71 hk1 sq2048 d64") == "dkv64 base 1");
}

TEST_CASE("matrix paths: ds goes by way of the workspace, chunk by chunk") {
  Caps caps = caps_of("h100_vulkan");
  const auto plan_of = [&](const std::string& words) {
    Plan plan;
    CAPTURE(words);
    REQUIRE(make_plan(problem_of("bwd " + words), caps, &plan).ok());
    REQUIRE(std::string(plan.path) == "coopmat2");
    return plan;
  };
  const auto stems = [](const Plan& plan) {
    std::string s;
    for (const Piece& piece : pieces_of(plan)) {
      const Launch& l = piece.launch;
      if (l.stem == Stem::bwd_origin) continue;
      s += std::string(s.empty() ? "" : " ") + stem_name(l.stem) + (piece.stamp ? "." : "");
      CHECK(l.total + l.of<ScalarLaunch>().joined_heads == l.groups_x * l.groups_y);
      if (!l.has(trait::ds)) continue;
      CHECK(module_name(plan, l).find("_ds") != String::npos);
      CHECK(l.total == l.tiles * l.splits * uint32_t(l.of<MatrixLaunch>().heads));
    }
    return s;
  };
  const auto shares = [&](const std::string& words) {
    return plan_of(words).find(Stem::bwd_dkv)->has(trait::ds);
  };
  // 33.5 MB a head: 8 of them at a time, 256 workgroups.
  const Plan full = plan_of("bf16 b1 hq20 sq4096 d128");
  CHECK(full.launches.size() == 4);
  CHECK(stems(full) == "bwd_dot. bwd_dkv bwd_dq bwd_dkv bwd_dq bwd_dkv. bwd_dq.");
  CHECK(full.find(Stem::bwd_dkv)->of<MatrixLaunch>().heads == 7);
  CHECK(std::string(full.find(Stem::bwd_dq)->tile.name) == "dq128s");
  const uint64_t delta = 3 * 4 * 20 * 4096;  // and what lies in front of it
  CHECK(full.workspace_size == delta + 7 * uint64_t(2 * 4096 * 4096));
  CHECK(full.workspace_size <= delta + uint64_t(kDsBytes));
  // Kv heads and their groups: the last chunk has what is left.
  const Plan group = plan_of("f16 b3 hq12 hk6 sq2000 d128");
  int heads = 0, queries = 0;
  for (const Piece& piece : pieces_of(group)) {
    if (piece.launch.stem == Stem::bwd_dkv) heads += piece.launch.of<MatrixLaunch>().heads;
    if (piece.launch.stem == Stem::bwd_dq) queries += piece.launch.of<MatrixLaunch>().heads;
  }
  CHECK(heads == 18);
  CHECK(queries == 36);
  CHECK(stems(group) == "bwd_dot. bwd_dkv bwd_dq bwd_dkv. bwd_dq.");
  // d_bias of each entry, or of all: then a chunk holds all entries of its heads.
  const Plan own = plan_of("bf16 b2 hq4 sq500 d128 bias:f16:2x4x500 grads=qkvb d_bias:f16");
  CHECK(stems(own) == "bwd_dot. bwd_dkv. bwd_dq. bwd_dbias.");
  const Plan sum = plan_of("bf16 b8 hq16 sq2048 d128 bias:bf16:1x16x2048 grads=qkvb d_bias:bf16");
  CHECK(sum.find(Stem::bwd_dkv)->of<MatrixLaunch>().kv_heads == 32);
  CHECK(sum.find(Stem::bwd_dbias)->of<MatrixLaunch>().heads == 4);
  CHECK(!sum.find(Stem::bwd_dq)->of<MatrixLaunch>().sums_d_bias);
  CHECK(sum.stores_d_bias());
  CHECK(stems(plan_of("bf16 hq4 sq500 d128 bias:f16:1x4x1 grads=qkvb d_bias:f16"))
            .find("bwd_dq. bwd_dbias.") != std::string::npos);
  CHECK(!shares("bf16 hq4 sq500 d128 bias:f16:1x4x1 grads=qkvb d_bias:f16"));
  // Narrow heads share dS where bwd_dbias would form it again; few heads sum it in splits.
  const Plan narrow = plan_of("f16 b4096 hq3 sq49 d32 bias:f16:1x3x49 grads=qkvb d_bias:f16");
  CHECK(stems(narrow) ==
        "bwd_dot. bwd_dkv bwd_dq bwd_dbias bwd_dkv. bwd_dq. bwd_dbias. bwd_sum_splits.");
  CHECK(std::string(narrow.find(Stem::bwd_dq)->tile.name) == "dq64sn");
  CHECK(narrow.find(Stem::bwd_dbias)->splits == 264);
  CHECK(narrow.find(Stem::bwd_dbias)->members == 4096);
  const Plan rows = plan_of("bf16 b8 hq4 sq200 d64 bias:f32:1x4x200 grads=qkvb d_bias:f32");
  CHECK(std::string(rows.find(Stem::bwd_dq)->tile.name) == "dq64s");
  CHECK(rows.find(Stem::bwd_dbias)->splits == 8);
  CHECK(shares("bf16 b8 hq4 sq200 d64 bias:f32:1x4x200 grads=qkvb d_bias:f32 keep:8x1x1"));
  CHECK(shares("bf16 b8 hq4 sq200 d96 bias:f32:1x4x200 grads=qkvb d_bias:f32 keep:8x1x200"));
  CHECK(!shares("bf16 b8 hq4 sq200 d64 bias:f32:1x4x200"));
  // Heads of 65 to 112: chunks of masked tiles have to fill the device 3.8 times.
  CHECK(std::string(plan_of("bf16 b4 hq32 sq2048 d80").find(Stem::bwd_dq)->tile.name) == "dq96s");
  CHECK(shares("bf16 b4 hq32 sq2048 d80 causal_top_left"));
  CHECK(shares("bf16 b2 hq32 sq4096 d96"));
  CHECK(!shares("bf16 b2 hq32 sq4096 d96 causal_top_left"));
  CHECK(!shares("bf16 b8 hq4 sq200 d64 bias:f32:1x4x200 grads=kvb d_bias:f32"));
  CHECK(!shares("bf16 b8 hq4 sq200 d64 bias:f32:8x4x200 grads=qkvb d_bias:f32"));   // by bwd_dq
  CHECK(!shares("f16 b4 hq80 sq256 d64 bias:f16:1x80x256 grads=qkvb d_bias:f16"));  // summed there
  // bwd_dist_bias comes before: one barrier for all that bwd_sum_splits, which does the work of
  // bwd_head_sums, and bwd_dq read.
  const Plan dist = plan_of("bf16 hq2 sq512 d128 causal_top_left elastic dist=8 grads=qkvdt");
  CHECK(stems(dist) ==
        "bwd_row_sums. bwd_dist_bias. bwd_dkv. bwd_dq. bwd_sum_splits. bwd_head_sums.");
  CHECK(dist.launches.back().joins());
  int barriers = 0;
  for (const Launch& l : dist.launches) barriers += l.waits;
  CHECK(barriers == 3);  // with that between bwd_origin and bwd_row_sums
  // What it is not for.
  CHECK(shares("f16 hq4 sq500 d128 dropout=0.1 softcap=3 alibi causal_top_left"));
  CHECK(shares("f16 hq4 sq500 d128 softcap=3 bias:f16:1x4x500"));
  CHECK(shares("f16 hq4 sq500 d128 bias:f16:1x4x500 grads=qkvb d_bias:f16"));
  CHECK(!shares("f16 hq4 sq500 d128 softcap=3 bias:f16:1x4x500 grads=qkvb d_bias:f16"));
  CHECK(shares("f16 hq4 sq500 d256"));
  CHECK(!shares("f16 hq4 sq500 d64"));
  CHECK(!shares("f16 hq4 sq500 d128 keep:1x1x1"));
  CHECK(!shares("f16 hq4 sq500 d128 kv_padded"));
  CHECK(!shares("f16 hq4 sq500 d128 entmax=1.5"));
  CHECK(!shares("f16 hq4 sq500 d128 grads=qv"));
  CHECK(!shares("f16 hq2 sq131072 d128"));
  CHECK(explain(problem_of("bwd f16 hq64 sq4096 d128"), caps)
            .find("leaves ds, 8 kv heads at a time") != String::npos);
  REQUIRE(parse_disabled("shared_ds", &caps.disabled).ok());
  CHECK(!shares("f16 hq4 sq500 d128"));
}

TEST_CASE("quirks: names, versions, and what planning makes of them") {
  CHECK(name_matches("*", ""));
  CHECK(name_matches("abc", "abc"));
  CHECK(!name_matches("abc", "abcd"));
  CHECK(!name_matches("abcd", "abc"));
  CHECK(name_matches("x|*b#*", "ab7"));
  CHECK(!name_matches("x|*b#*", "abc"));
  CHECK(name_matches(TANDEM_RDNA3, "AMD EPYC (RADV STRIX1)"));  // Mesa 26, GFX1150
  CHECK(!name_matches(TANDEM_RDNA3, "AMD Radeon Graphics (RADV GFX1201)"));
  CHECK(name_matches("!x|y", "z"));
  CHECK(!name_matches("!x|y", "y"));

  const auto path = [](const char* name, uint32_t driver, uint32_t version) {
    Caps caps = caps_of("h100_vulkan");
    caps.name = name;
    caps.driver_id = driver;
    caps.driver_version = version;
    Plan plan;
    REQUIRE(make_plan(problem_of("fwd f16 sq100 d64"), caps, &plan).ok());
    const Quirk* quirk = find_quirk(caps, QuirkAction::no_matrices);
    bool said = quirk == nullptr;
    for (const Refusal& r : plan.refusals)
      said |= quirk && r.reason.find(quirk->reason) != std::string::npos &&
              r.reason.find(quirk->link) != std::string::npos;
    CHECK(said);
    CHECK(describe_caps(caps).find("quirk") != (quirk ? std::string::npos : 0));
    return std::string(plan.path);
  };
  const struct {
    const char* name;
    uint32_t driver, version;
    bool matrices;
  } rows[] = {{"AMD Radeon RX 7900 XTX", kAmdProprietary, 1, true},
              {"AMD Radeon RX 9070 XT", kAmdProprietary, 1, true},
              {"AMD Radeon(TM) 780M Graphics", kAmdProprietary, 1, true},
              {"AMD Radeon(TM) 8060S Graphics", kAmdOpenSource, 1, true},
              {"AMD Radeon RX 6800 XT", kAmdProprietary, 1, false},
              {"AMD Radeon RX 580", kAmdOpenSource, 1, false},
              {"Radeon RX Vega", kAmdProprietary, 1, false},
              {"AMD Radeon RX 7900 XTX (RADV NAVI31)", kRadv, 1, true},
              {"AMD Radeon RX 6800 (RADV NAVI21)", kRadv, 1, false},
              {"Intel(R) Arc(tm) B580 Graphics (BMG G21)", kIntelMesa, mesa(26, 0, 8), true},
              {"Intel(R) Arc(tm) B580 Graphics (BMG G21)", kIntelMesa, mesa(26, 2, 3), false},
              {"Intel(R) Arc(tm) A770 Graphics (DG2)", kIntelMesa, mesa(26, 0, 8), false},
              {"Intel(R) Arc(TM) 140V GPU (16GB)", kIntelWindows, 1, true},
              {"Intel(R) Arc(TM) A770 Graphics", kIntelWindows, 1, false},
              {"NVIDIA GeForce RTX 2080 Ti", kNvidia, 1, false},
              {"Tesla T4", kNvidia, 1, false},
              {"NVIDIA GeForce GTX 1660", kNvidia, 1, false},
              {"NVIDIA GeForce RTX 3090", kNvidia, 1, true},
              {"NVIDIA H100 80GB HBM3", kNvidia, 1, true},
              {"Adreno (TM) 840", kQualcomm, 1, false},
              {"Turnip Adreno (TM) 750", kTurnip, 1, false},
              {"Apple M3", kMoltenVk, 1, false}};
  for (const auto& row : rows) {
    CAPTURE(std::string(row.name));
    CHECK((path(row.name, row.driver, row.version) != "scalar") == row.matrices);
  }
  for (const Quirk& quirk : kQuirks) {
    CHECK(std::strlen(quirk.reason) > 10);
    CHECK(std::strncmp(quirk.link, "https://", 8) == 0);
    CHECK(quirk.from <= quirk.until);
    const bool numbered =
        quirk.action == QuirkAction::pin || quirk.action == QuirkAction::no_shape ||
        quirk.action == QuirkAction::fwd_shape || quirk.action == QuirkAction::few_registers;
    CHECK(numbered == (quirk.number > 0));
  }
  // Pinned where the device has the size, and only there; the first row that applies counts.
  Caps caps = caps_of("rdna3_radv");
  Plan plan;
  REQUIRE(make_plan(problem_of("fwd f16 sq100 d64"), caps, &plan).ok());
  CHECK(plan.launches[0].of<MatrixLaunch>().subgroup == 32);
  caps.subgroup_min = 64;
  REQUIRE(make_plan(problem_of("fwd f16 sq100 d64"), caps, &plan).ok());
  CHECK(plan.launches[0].of<MatrixLaunch>().subgroup == 64);
  caps.name = "AMD Radeon RX 9070 XT (RADV GFX1201)";
  caps.subgroup_min = caps.subgroup_size = 32;
  REQUIRE(make_plan(problem_of("fwd f16 sq100 d64"), caps, &plan).ok());
  CHECK(plan.launches[0].of<MatrixLaunch>().subgroup == 64);
  caps.subgroup_max = 32;
  REQUIRE(make_plan(problem_of("fwd f16 sq100 d64"), caps, &plan).ok());
  CHECK(plan.launches[0].of<MatrixLaunch>().subgroup == 32);
  // bf16 alone.
  caps.name = "AMD Radeon RX 9070 XT (RADV GFX1201)";
  caps.matrices.push_back({16, 16, 16, "bf16"});
  REQUIRE(make_plan(problem_of("fwd bf16 sq100 d64"), caps, &plan).ok());
  CHECK(std::string(plan.path) == "coopmat");
  caps.name = "AMD Radeon RX 7900 XTX (RADV NAVI31)";
  REQUIRE(make_plan(problem_of("fwd bf16 sq100 d64"), caps, &plan).ok());
  CHECK(std::string(plan.path) == "scalar");
}

TEST_CASE("regression: dS is not shared where the device has no room to sum it for d_bias") {
  const char* line =
      "bwd f16 b4 hq16 hk16 sq512 sk512 d32 dv32 bias:f32:1x16x512 grads=qkvb d_bias:f32 slices";
  for (const char* device : {"lavapipe", "h100_vulkan"})
    for (const uint32_t bytes : {16384u, 24576u, 32768u}) {
      Caps caps = caps_of(device);
      caps.shared_bytes = bytes;
      Plan plan;
      if (!make_plan(problem_of(line), caps, &plan).ok()) continue;
      CAPTURE(std::string(device) + " " + std::to_string(bytes));
      CHECK(plan.find(Stem::bwd_dbias)->has(trait::ds) ==
            (bytes == 32768 || (bytes == 24576 && std::string(device) == "lavapipe")));
      for (const Launch& l : plan.launches) CHECK(l.shared_bytes <= bytes);
    }
}

TEST_CASE("regression: dS of one head beyond the limit, where chunks need not fill the device") {
  Caps caps = caps_of("h100_vulkan");
  caps.disabled = {"vulkan.coopmat.rule.chunks_of_ds"};
  const Plan plan = plan_of("bwd f16 b1 hq4 hk4 sq16384 sk16384 d128", caps);
  for (const Launch& l : plan.launches) CHECK(!l.has(trait::ds));
}
