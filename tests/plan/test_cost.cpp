// SPDX-License-Identifier: MIT OR Apache-2.0
// Estimated times: what they say, how they rank paths, and of which plans they warn. The test
// plan.cost_fit (plan.cmake) compares them with the results in bench/results.
#include <array>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "api/device.h"
#include "models.h"
#include "plan/cost/cost.h"
#include "plan_fixture.h"
#include "session.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

constexpr const char* kPlain = "fwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128";
// 16 rows and few keys: cuda.sm90 has tiles of 256 rows, cuda.sm80 of 16.
constexpr const char* kShortTiles = "fwd bf16 b2048 hq8 hk8 sq16 sk77 d64 dv64";
constexpr const char* kSummedBias =
    "bwd bf16 b4 hq16 hk16 sq1024 sk1024 d64 dv64 bias:f32:1x1x1024 d_bias:f32 grads=qkvb";
constexpr const char* kF32Bias =
    "fwd bf16 b16 hq16 hk16 sq512 sk512 d64 dv64 scale=1 bias:f32:1x16x512";

bool has(const String& text, const char* words) { return text.find(words) != String::npos; }

Estimate estimate_of(const char* line, const Caps& caps) {
  return estimate(plan_of(line, caps), caps);
}

Caps with_disabled(Caps caps, const char* path) {
  caps.disabled.push_back(path);
  return caps;
}

std::string reason_of(const std::string& line, const Caps& caps = caps_of("h100_cuda")) {
  return std::string(find_slow(plan_of(line, caps), caps).reason);
}

}  // namespace

TEST_CASE("cost: devices without measured times have no estimate, and the fixed order") {
  int without = 0;
  for (const Profile& device : profiles()) {
    if (cost_device(device.caps)) continue;
    ++without;
    Plan plan;
    const Problem problem = problem_of(kPlain);
    if (!make_plan(problem, device.caps, &plan).ok()) continue;
    CAPTURE(device.id);
    CHECK_FALSE(estimate(plan, device.caps));
    CHECK(find_slow(plan, device.caps).reason.empty());
    CHECK_FALSE(has(explain(problem, device.caps), "about"));
    for (const PathRow& row : kPaths) {
      if (row.backend != device.caps.backend) continue;
      CHECK(least_ms(problem, device.caps, row.name) == 0);
    }
    CHECK_FALSE(may_rank(problem, device.caps));
  }
  CHECK(without > 10);
}

TEST_CASE("cost: every path of the measured devices has an estimate") {
  const auto inside = [](const char* line, const char* device, const char* path) {
    CAPTURE(line);
    CAPTURE(path);
    Caps caps = caps_of(device);
    for (const PathRow& row : kPaths)
      if (row.backend == caps.backend && std::strcmp(row.name, path) != 0)
        caps.disabled.push_back(String(backend_name(row.backend)) + "." + row.name);
    const Estimate e = estimate_of(line, caps);
    CHECK(e.inside);
    CHECK_FALSE(e.at_least);
    CHECK(e.margin > 1);
    CHECK(e.scaled == (caps.backend == Backend::cuda));  // Vulkan does not tell clocks
  };
  inside(kPlain, "h100_cuda", "sm90");
  inside(kPlain, "h100_cuda", "sm80");
  inside("fwd f32 b4 hq16 hk16 sq4096 sk4096 d64 dv64", "h100_cuda", "simt");
  inside(kPlain, "h100_vulkan", "coopmat2");
  inside("fwd bf16 b4 hq16 hk16 sq4096 sk4096 d64 dv64 causal_top_left entmax=1.5", "h100_vulkan",
         "scalar");
}

TEST_CASE("cost: estimates follow the device's speeds") {
  const Caps h100 = caps_of("h100_cuda");
  const Estimate e = estimate_of(kPlain, h100);
  REQUIRE(e.inside);
  Caps other = h100;
  other.clock_mhz = h100.clock_mhz * 3 / 4;  // products bound this plan
  CHECK(estimate_of(kPlain, other).ms == doctest::Approx(e.ms * 4 / 3).epsilon(0.02));
  CHECK(estimate_of(kPlain, other).scaled);
  other = h100;
  other.cores = 66;
  CHECK(estimate_of(kPlain, other).ms == doctest::Approx(e.ms * 2).epsilon(0.05));
  // Decoding is bound by memory.
  const char* decode = "fwd f16 b8 hq32 hk8 sq1 sk32768 d128 dv128";
  other = h100;
  other.memory_gbps = 4800;
  CHECK(estimate_of(decode, other).ms < 0.8 * estimate_of(decode, h100).ms);
  CHECK(estimate_of(kPlain, other).ms == doctest::Approx(e.ms));
  // A device that is unlike the measured one is not sure, nor is one that does not tell its clocks.
  for (const auto& [clock, gbps, cores] : {std::array<uint32_t, 3>{0, 3352, 132},
                                           {1980, 0, 132},
                                           {1980, 3352, 0},
                                           {990, 3352, 132},
                                           {1980, 10000, 132},
                                           {1980, 3352, 32}}) {
    other = h100;
    other.clock_mhz = clock, other.memory_gbps = gbps, other.cores = cores;
    CHECK_FALSE(estimate_of(kPlain, other).scaled);
    CHECK_FALSE(may_rank(problem_of(kPlain), other));
  }
}

TEST_CASE("cost: what no measured problem had") {
  const Caps caps = caps_of("h100_cuda");
  // Rows of q that are loaded element by element.
  const Estimate narrow =
      estimate_of("fwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128 q=34078720,2129920,130,1", caps);
  CHECK(narrow.at_least);
  CHECK_FALSE(narrow.inside);
  CHECK(has(narrow.words(), "or more"));
  // Larger and smaller than all of them.
  for (const char* line : {"fwd bf16 b64 hq64 hk64 sq65536 sk65536 d128 dv128",
                           "fwd bf16 b1 hq1 hk1 sq64 sk64 d64 dv64"}) {
    const Estimate e = estimate_of(line, caps);
    CHECK(e);
    CHECK_FALSE(e.inside);
    CHECK(has(e.words(), "unlike any measured problem"));
  }
  CHECK(Estimate().words().empty());
}

TEST_CASE("cost: a later path wins where it surely is faster") {
  const Caps caps = caps_of("h100_cuda");
  Caps silent = caps;
  silent.clock_mhz = 0;
  const Plan ranked = plan_of(kShortTiles, caps), fixed = plan_of(kShortTiles, silent);
  CHECK(std::string(ranked.path) == "sm80");
  CHECK(std::string(fixed.path) == "sm90");
  const Estimate fast = estimate(ranked, caps), slow = estimate(fixed, caps);
  CHECK(slow.ms > kRankMargin * fast.ms);
  // The refusal names both times.
  bool named = false;
  for (const Refusal& r : ranked.refusals)
    named |= has(r.candidate, "cuda.sm90") &&
             r.reason == slow.words() + "; cuda.sm80 takes " + fast.words();
  CHECK(named);
  CHECK(has(explain(problem_of(kShortTiles), caps), slow.words().c_str()));
  // A plan is the same each time, and a problem that forces tiles keeps the fixed order.
  CHECK(dump(Status(), ranked) == dump(Status(), plan_of(kShortTiles, caps)));
  CHECK(std::string(plan_of(std::string(kShortTiles) + " tile=256x64", caps).path) == "sm90");
  CHECK(std::string(plan_of(kShortTiles, with_disabled(caps, "cuda.sm80")).path) == "sm90");
  // Nor does anything change where cuda.sm90 is the faster one.
  CHECK(std::string(plan_of(kPlain, caps).path) == "sm90");
}

TEST_CASE("cost: sure is what beats the margins of both fits") {
  const auto made = [](double ms, double margin) {
    Estimate e;
    e.ms = ms, e.margin = margin;
    e.inside = e.scaled = true;
    return e;
  };
  CHECK(is_surely_faster(made(1, 1.1), made(1.31, 1.1)));
  CHECK_FALSE(is_surely_faster(made(1, 1.1), made(1.29, 1.1)));
  CHECK_FALSE(is_surely_faster(made(1, 1.5), made(1.4, 1.1)));  // 1.5 and more
  CHECK(is_surely_faster(made(1, 1.5), made(1.6, 1.1)));
  for (bool Estimate::*of : {&Estimate::inside, &Estimate::scaled}) {
    Estimate fast = made(1, 1.1), slow = made(9, 1.1);
    CHECK(is_surely_faster(fast, slow));
    fast.*of = false;
    CHECK_FALSE(is_surely_faster(fast, slow));
    fast.*of = true, slow.*of = false;
    CHECK_FALSE(is_surely_faster(fast, slow));
  }
}

TEST_CASE("cost: explain() has the estimate of every candidate") {
  const Caps caps = caps_of("h100_cuda");
  const String text = explain(problem_of(kSummedBias), caps);
  CHECK(has(text, "cuda.sm80 32x64          taken"));
  CHECK(has(text, "cuda.simt                not tried: about"));
  CHECK(has(text, "slow plan: cuda.sm80 32x64 takes about"));
  // A path that another one is preferred to says what it would take.
  CHECK(has(explain(problem_of("fwd f16 b4096 hq6 hk6 sq24 sk24 d32 dv32"), caps),
            "whose workgroups take several heads; alone it takes about"));
  const String plain = explain(problem_of(kPlain), caps);
  CHECK(has(plain, ", about"));
  CHECK_FALSE(has(plain, "slow plan"));
}

TEST_CASE("cost: why a nearby problem is faster") {
  // The bias's type, where cuda.sm90 refuses it.
  CHECK(reason_of(kF32Bias) ==
        (std::string(plan_of(kF32Bias).path) == "sm90"
             ? ""
             : "bias is f32; one of the tensors' type, bf16, takes the fast path"));
  // Rows of keep: cuda.sm90 reads 16 bytes at once.
  CHECK(reason_of("fwd bf16 b1 hq32 hk8 sq2048 sk6404 d128 dv128 keep:1x1x2048") ==
        "keep rows are 6404 bytes apart; multiples of 16 take the fast path");
  CHECK(reason_of("fwd bf16 b1 hq32 hk8 sq2048 sk6400 d128 dv128 keep:1x1x2048") == "");
  // What d_bias is summed over. The bias's type may be in the way as well.
  const std::string line = kSummedBias, of = "bias:f32:1x1x1024";
  const auto with = [&](const char* bias) {
    return reason_of(std::string(line).replace(line.find(of), of.size(), bias));
  };
  CHECK(has(String(with("bias:f32:1x1x1024").c_str()),
            "d_bias is summed over heads; a bias with all of them takes the fast path"));
  CHECK(has(String(with("bias:f32:1x16x1").c_str()),
            "d_bias is summed over query rows; a bias with all of them takes the fast path"));
  CHECK_FALSE(has(String(with("bias:f32:1x16x1024").c_str()), "d_bias is summed"));
  // The sentence has both times, and the refusal of the faster path.
  const Caps caps = caps_of("h100_cuda");
  const Slow slow = find_slow(plan_of(kSummedBias, caps), caps);
  CHECK(has(slow.sentence, "slow plan: cuda.sm80 32x64 takes about"));
  CHECK(has(slow.sentence, "; a nearby problem would take about"));
  CHECK(has(slow.sentence, ("on cuda.sm90: " + slow.reason + " (cuda.sm90 refused: ").c_str()));
  // Odd, and not slow: a copy of the bias costs little.
  CHECK(reason_of("fwd bf16 b128 hq12 hk12 sq197 sk197 d64 dv64 bias:bf16:1x12x197") == "");
}

namespace {

class NoProgram final : public Program {
  Status record(tandem_stream, const tandem_args&) const override { return Status(); }
};

// A recorded device. It builds programs that do nothing.
class RecordedDevice final : public Device {
 public:
  RecordedDevice(const Caps& caps, const DeviceOptions& options) {
    caps_ = caps;
    log_ = options.log;
  }
  Status build(const Plan&, std::unique_ptr<Program>* program) override {
    program->reset(new NoProgram);
    return Status();
  }
};

Status open_recorded(const DeviceOptions& options, const void* caps,
                     std::unique_ptr<Device>* device) {
  device->reset(new RecordedDevice(*static_cast<const Caps*>(caps), options));
  return Status();
}

}  // namespace

TEST_CASE("cost: a slow plan is logged once a device and reason") {
  std::vector<std::string> warnings;
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.user = &warnings;
  options.log = [](void* user, tandem_log_level level, const char* text) {
    if (level == TANDEM_LOG_WARN) static_cast<std::vector<std::string>*>(user)->push_back(text);
  };
  const Caps caps = caps_of("h100_cuda");
  const auto opened = [&] {
    tandem_device* device = nullptr;
    REQUIRE(create_device(&options, &device, open_recorded, &caps) == TANDEM_OK);
    return device;
  };
  const auto plan = [](tandem_device* device, const char* line) {
    tandem_problem problem;
    REQUIRE(tandem_problem_parse(line, &problem) == TANDEM_OK);
    tandem_plan* made = nullptr;
    REQUIRE(tandem_plan_create(device, &problem, &made) == TANDEM_OK);
    tandem_plan_destroy(made);
  };
  const char* slow = "fwd bf16 b1 hq32 hk8 sq2048 sk6404 d128 dv128 keep:1x1x2048";
  tandem_device* device = opened();
  plan(device, "fwd bf16 b1 hq32 hk8 sq2048 sk6400 d128 dv128 keep:1x1x2048");
  CHECK(warnings.empty());
  plan(device, slow);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].rfind("slow plan: cuda.sm90 128x128 takes about", 0) == 0);
  CHECK(warnings[0].find("keep rows are 6404 bytes apart; multiples of 16") != std::string::npos);
  CHECK(warnings[0].find(slow) != std::string::npos);
  plan(device, slow);  // out of the cache
  // Another problem, the same reason.
  plan(device, "fwd bf16 b2 hq32 hk8 sq2048 sk6404 d128 dv128 keep:1x1x2048");
  CHECK(warnings.size() == 1);
  plan(device, "fwd bf16 b1 hq32 hk8 sq2048 sk6405 d128 dv128 keep:1x1x2048");
  CHECK(warnings.size() == 2);
  tandem_device_destroy(device);
  device = opened();
  plan(device, slow);
  CHECK(warnings.size() == 3);
  tandem_device_destroy(device);
}

// What the planner chooses for attention of models on an H100, so that a change is seen. Where one
// is meant, replace the file by what the failure prints.
TEST_CASE("cost: choices for models, golden") {
  const Caps caps = caps_of("h100_cuda");
  std::string chosen;
  for (const harness::Model& m : harness::models()) {
    tandem_problem given = harness::parse(m.line);
    for (tandem_direction direction : {TANDEM_FORWARD, TANDEM_BACKWARD}) {
      if (uint32_t(direction) > given.direction) continue;  // inference alone
      tandem_problem one = given;
      one.direction = direction;
      Problem problem;
      REQUIRE(make_problem(&one, &problem).ok());
      Plan plan;
      REQUIRE(make_plan(problem, caps, &plan).ok());
      const String reason = find_slow(plan, caps).reason;
      chosen += std::string(m.name) + (direction == TANDEM_FORWARD ? " fwd " : " bwd ") +
                std::string(plan.name()) +
                (reason.empty() ? "" : ", slow: " + std::string(reason)) + "\n";
    }
  }
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/tests/plan/model_paths.txt");
  std::stringstream golden;
  golden << file.rdbuf();
  CHECK_MESSAGE(chosen == golden.str(), chosen);
}
