// SPDX-License-Identifier: MIT OR Apache-2.0
// The tables of kernels, paths and tiles fit together, and plans count the shared memory that the
// Vulkan modules declare.
#include <doctest/doctest.h>

#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "plan/tiles.h"
#include "plan_fixture.h"
#if TANDEM_WITH_VULKAN
#include "shaders/spec_ids.h"
#include "spirv_shared.h"
#include "vulkan/modules.h"
#endif

using namespace tandem;
using namespace plan_fixture;

TEST_CASE("the registry, the paths and the tiles fit together") {
  for (const KernelRow& row : kKernels) {
    bool known = false;
    for (const PathRow& path : kPaths)
      known |= path.backend == row.backend && std::strcmp(path.name, row.path) == 0;
    CHECK_MESSAGE(known, std::string(backend_name(row.backend))
                             << "." << row.path << " is no path");
    int same = 0;
    for (const KernelRow& other : kKernels) same += kernel_name(other) == kernel_name(row);
    CHECK(same == 1);
    CHECK(std::strlen(row.variant) < sizeof(tandem_kernel_info::variant));
  }
  for (const PathRow& path : kPaths)
    for (Stem stem : std::strcmp(path.name, "sm90") == 0
                         ? std::vector<Stem>{Stem::fwd, Stem::bwd_dot, Stem::bwd_dkv_dq,
                                             Stem::bwd_dq_cast, Stem::bwd_dkv, Stem::bwd_dq}
                         : std::vector<Stem>{Stem::fwd, Stem::bwd_dot, Stem::bwd_dkv, Stem::bwd_dq})
      CHECK(has_kernels(path.id, stem));
  // The bytes that tiles.inc promises in its comments.
  const struct {
    const char* name;
    int bytes;
  } promised[] = {{"t64r8", 27648},   {"t128r8", 23056}, {"t64r8k8", 23552}, {"t64k32", 35840},
                  {"t64k16", 27648},  {"t32k16", 9728},  {"t64r4l", 27748},  {"t64l", 35940},
                  {"t64k16l", 27748}, {"t32l", 13924}};
  int found = 0;
  for (const auto& p : promised)
    for (const Tile& t : kTiles)
      if (std::strcmp(t.name, p.name) == 0) {
        CHECK(tile_shared_bytes(t) == p.bytes);
        ++found;
      }
  CHECK(found == kTileCount);
}

TEST_CASE("no row of the registry hides a later one") {
  const auto types = [](const KernelRow& row) {
    int bits = 0;
    for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16, TANDEM_BF16})
      bits |= has_dtype(row.dtypes, dtype) ? 1 << int(dtype) : 0;
    return bits;
  };
  for (int late = 0; late < kKernelCount; ++late)
    for (int early = 0; early < late; ++early) {
      const KernelRow &a = kKernels[early], &b = kKernels[late];
      if (a.path_id != b.path_id || a.stem != b.stem || a.traits != b.traits || a.tiles != b.tiles)
        continue;
      // find_kernel() takes the first row that has a problem's type and inputs.
      const bool hidden =
          (types(b) & ~types(a)) == 0 && (a.needs & ~b.needs) == 0 && (b.inputs & ~a.inputs) == 0;
      CHECK_MESSAGE(!hidden, kernel_name(a) << " hides " << kernel_name(b));
    }
}

TEST_CASE("tiles of pairs come first where a quirk says so and workgroups fill the device") {
  const auto tile = [](const char* id, const char* disabled, const char* line) {
    Caps caps = caps_of(id);
    REQUIRE(parse_disabled(disabled, &caps.disabled).ok());
    Plan plan;
    REQUIRE(make_plan(problem_of(line), caps, &plan).ok());
    REQUIRE(std::string(plan.path) == "scalar");
    return std::string(plan.tile().name);
  };
  const struct {
    const char *id, *line, *name;
  } rows[] = {{"h100_vulkan", "fwd f32 b4 hq32 sq4096 d64", "t128r8"},
              {"h100_vulkan", "fwd f32 b4 hq32 sq4096 d64 causal_top_left", "t128r8"},
              {"h100_vulkan", "bwd f32 b4 hq32 sq4096 d64", "t64r8k8"},
              {"h100_vulkan", "fwd f32 b4 hq32 sq4096 d128", "t64r8k8"},
              {"h100_vulkan", "fwd f32 b4 hq32 sq4096 d256", "t32k16"},
              {"h100_vulkan", "fwd f32 b4 hq32 sq4096 d64 alibi", "t64k32"},
              // 66 and 65 workgroups of 132 cores; in backward rows of keys count, too.
              {"h100_vulkan", "fwd f32 hq11 sq768 d64", "t128r8"},
              {"h100_vulkan", "fwd f32 hq13 sq640 d64", "t64k32"},
              {"h100_vulkan", "bwd f32 hq11 sq384 d64", "t64r8k8"},
              {"h100_vulkan", "bwd f32 hq11 sq384 sk320 d64", "t64k32"},
              {"rdna3_radv", "fwd f32 b4 hq32 sq4096 d64", "t64k32"},
              {"rdna3_radv", "bwd f32 b4 hq32 sq4096 d64", "t64k32"}};
  for (const auto& row : rows) {
    CAPTURE(std::string(row.line));
    CHECK(tile(row.id, "", row.line) == row.name);
  }
  // Elsewhere they come last, to be tried.
  const char* others = "t64k32,t64k16,t32k16,t64r4l,t64l,t64k16l,t32l";
  CHECK(tile("lavapipe", others, "fwd f32 sq200 d64") == "t128r8");
  CHECK(tile("lavapipe", others, "bwd f32 sq200 d64") == "t64r8k8");
}

#if TANDEM_WITH_VULKAN
namespace {
using Constants = std::map<uint32_t, uint32_t>;
#define TANDEM_INTERFACE(Name)                                                     \
  constexpr auto constants_of_##Name = []([[maybe_unused]] const Name##Spec& spec, \
                                          [[maybe_unused]] Constants& constants) {
#define TANDEM_SPEC(name, fallback) constants[TANDEM_ID_##name] = spec.name;
#include "kernels/abi/all.inc"

// The shared memory of the module that runs a launch, with the launch's constants.
uint32_t module_bytes(const Plan& plan, const Launch& l) {
  Constants constants;
  switch (l.stem) {
#define TANDEM_STEM(Name, name)                           \
  case Stem::name:                                        \
    constants_of_##Name(name##_spec(plan, l), constants); \
    break;
#define TANDEM_HOPPER(Name, name)                 \
  case Stem::name:                                \
    constants_of_##Name(Name##Spec(), constants); \
    break;
#include "kernels/stems.inc"
  }
  const String name = module_name(plan, l);
  static std::map<const SpirvModule*, spirv::Module> read;
  for (const SpirvModule* module : kModules)
    if (name == module->name) {
      if (const auto found = read.find(module); found != read.end())
        return found->second.shared_bytes(constants);
      const Vec<uint32_t> words = words_of(*module);
      return read.try_emplace(module, words.data(), words.size())
          .first->second.shared_bytes(constants);
    }
  FAIL("no module " << name.c_str());
  return 0;
}
}  // namespace

TEST_CASE("the plan's bytes of shared memory are those that the Vulkan kernels declare") {
  int matrix = 0, scalar = 0;
  std::set<Stem> seen;
  std::set<std::string> shapes;
  for (const char* id : {"h100_vulkan", "lavapipe", "rdna3_radv", "arc_b580_mesa"})
    for (const char* disabled :
         {"", "vulkan.coopmat2", "vulkan.coopmat2,vulkan.coopmat", "fwd64d,fwd128d,dkv64d,dq64d",
          "16x16x16", "vulkan.coopmat2,16x16x16", "vulkan.coopmat2,16x16x16,16x8x16"})
      for (const char* direction : {"fwd", "bwd"})
        for (const char* dtype : {"f16", "bf16"})
          for (const char* rest :
               {"sq300 d32",
                "sq300 d64",
                "sq300 d60 dv100",
                "sq300 d128",
                "sq300 d200",
                "sq300 d256 dv64",
                "sq300 d64 softcap=5",
                "sq300 d64 dropout=0.1",
                "sq300 d64 keep:1x1x1",
                "sq300 d64 dropout=0.1 keep:1x1x1",
                "sq300 d200 keep:1x1x300",
                "sq1 d64",
                "sq300 d100 dv72 splits=9",
                "sq300 d64 entmax=1.5",
                "sq300 d64 elastic",
                "sq300 d200 bias:f16:1x1x300 elastic dist=9 alibi sink",
                "sq300 d64 elastic keep:1x1x300 bias:f32:1x1x1 dist=40 alibi sink",
                "sq300 d64 spans=1:1x1",
                "b2 sq300 d64 q_gapped=500 kv_gapped=500",
                "sq300 d64 blocks=64x128:3+1:1x1",
                "sq300 d64 table=169:u8:1",
                "b3 sq300 d32 keep:3x1x1 bias:f16:1x2x300",
                "b3 sq60 d64 bias:f16:1x2x60"}) {
            Caps caps = caps_of(id);
            REQUIRE(parse_disabled(disabled, &caps.disabled).ok());
            std::string line = std::string(direction) + " " + dtype + " hq2 " + rest;
            if (line.find("bias:") != std::string::npos && *direction == 'b')
              line += std::string(line.find("dist=") != std::string::npos ? " grads=qkvbdats"
                                                                          : " grads=qkvb") +
                      " d_bias:f32";
            if (line.find("table=") != std::string::npos && *direction == 'b')
              line += " grads=qkvi";
            CAPTURE(line);
            CAPTURE(std::string(id));
            Plan plan;
            REQUIRE(make_plan(problem_of(line), caps, &plan).ok());
            CAPTURE(plan.name());
            for (const Launch& l : plan.launches) {
              CAPTURE(std::string(stem_name(l.stem)));
              const uint32_t declared = module_bytes(plan, l);
              // They use no P tile, and spirv-opt leaves it out, where the build has spirv-opt.
              if (l.stem == Stem::bwd_row_sums || l.stem == Stem::bwd_dbias) {
                CHECK(declared <= l.shared_bytes);
                CHECK(3 * declared > l.shared_bytes);
              } else {
                CHECK(declared == l.shared_bytes);
              }
              (l.as<MatrixLaunch>() ? matrix : scalar) += 1;
              if (l.as<MatrixLaunch>()) shapes.insert(l.of<MatrixLaunch>().matrix.name().c_str());
              seen.insert(l.stem);
            }
          }
  for (const char* line :
       {"merge bf16 hq2 sq300 dv64 parts=3", "merge f32 hq2 sq9 dv256 parts=1 into",
        "bwd_merge f16 hq2 sq300 dv64 parts=3 d_lse"}) {
    CAPTURE(std::string(line));
    Plan plan;
    REQUIRE(make_plan(problem_of(line), caps_of("rdna3_radv"), &plan).ok());
    REQUIRE(plan.launches.size() == 1);
    CHECK(plan.launches[0].shared_bytes == module_bytes(plan, plan.launches[0]));
    seen.insert(plan.launches[0].stem);
  }
  CHECK(matrix > 100);
  CHECK(shapes.size() == std::size(kMatrixDims));
  CHECK(scalar > 100);
  for (const KernelRow& row : kKernels)
    if (row.backend == Backend::vulkan)
      CHECK_MESSAGE(seen.count(row.stem) == 1, stem_name(row.stem));
}
#endif
