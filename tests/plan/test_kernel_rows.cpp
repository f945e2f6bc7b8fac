// SPDX-License-Identifier: MIT OR Apache-2.0
// The registry against plans: columns of a row hold for each launch that runs it,
// tests/gpu/kernels.txt reaches each kernel of cuda.sm90 and cuda.sm80, and kernels and tiles are
// switched off by name.
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "kernels/kernel_rows.h"
#include "plan/sm90/rules.h"
#include "plan/tiles.h"
#include "plan_fixture.h"
#if TANDEM_WITH_VULKAN
#include "vulkan/modules.h"
#include "vulkan/unpack.h"
#endif

using namespace plan_fixture;

namespace {

// Whether a tile is of a row's table.
bool is_of(const KernelRow& row, const Launch& l) {
  const String name = l.tile.name ? l.tile.name : "";
  const auto among = [&](const auto& table) {
    for (const auto& t : table)
      if (name == t.name) return true;
    return false;
  };
  switch (row.tiles) {
    case TileTable::none:
      return name.empty();
    case TileTable::any:
      return true;
    case TileTable::simt:
      return among(kTiles);
    case TileTable::outer:
      return name == kOuterFwd.name;
    case TileTable::matrix:
      return among(kMatrixTiles);
    case TileTable::ampere_plain:
    case TileTable::ampere_full:
    case TileTable::ampere_whole_heads:
    case TileTable::ampere_lengths:
    case TileTable::ampere_inputs:
      return among(kAmpereTiles);
    case TileTable::hopper_fwd:
      return among(kFwdTiles);
    case TileTable::hopper_bwd:
      return among(kBwdShapes);
    case TileTable::hopper_row:
      return among(kRowShapes);
    case TileTable::hopper_dq:
      return among(kDqShapes);
    case TileTable::hopper_support:
      return among(kSupportShapes);
  }
  return false;
}

void check_rows(const Plan& plan, std::set<int>* seen) {
  for (const Launch& l : plan.launches)
    for (int n : {l.kernel, l.other_kernel, l.second_kernel}) {
      if (n < 0) continue;
      const KernelRow& row = kKernels[n];
      const String name = kernel_name(row);
      CHECK_MESSAGE(row.stem == l.stem, name);
      CHECK_MESSAGE((row.backend == plan.backend && String(row.path) == plan.path), name);
      CHECK_MESSAGE(has_dtype(row.dtypes, plan.problem.dtype), name);
      CHECK_MESSAGE(plan.problem.extras(row.inputs).empty(),
                    name << ": " << plan.problem.extras(row.inputs));
      CHECK_MESSAGE(is_of(row, l), name << ": " << (l.tile.name ? l.tile.name : ""));
      seen->insert(n);
    }
  if (const auto& unaligned = plan.of<Sm90Plan>().unaligned) check_rows(*unaligned, seen);
}

// Problems of a file of lines "path problem line", by path.
std::vector<std::pair<String, String>> lines_of(const char* file) {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/" + file);
  REQUIRE_MESSAGE(in.good(), file);
  std::vector<std::pair<String, String>> all;
  for (std::string line; std::getline(in, line);) {
    const size_t space = line.find(' ');
    REQUIRE_MESSAGE(space != std::string::npos, line);
    all.emplace_back(String(line.substr(0, space).c_str()), String(line.substr(space + 1).c_str()));
  }
  return all;
}

// The recorded H100 with one path of CUDA.
Caps only(const String& path) {
  Caps caps = caps_of("h100_cuda");
  for (const PathRow& row : kPaths)
    if (row.backend == Backend::cuda && path != row.name)
      caps.disabled.push_back(String("cuda.") + row.name);
  return caps;
}

}  // namespace

TEST_CASE("tests/gpu/kernels.txt reaches every kernel of cuda.sm90 and cuda.sm80") {
  // The problems run with addresses at multiples of 16 bytes (scripts/gpu-problems). bwd_dot
  // without 16-byte loads, and tiles of simt without wide loads, are kernels for others.
  std::set<int> reached, columns;
  for (const auto& listed : lines_of("tests/gpu/kernels.txt")) {
    const auto &path = listed.first, &line = listed.second;
    for (bool backward : {false, true}) {
      // `tandem check` runs the forward of a backward problem, too.
      if (backward && line.compare(0, 4, "bwd ") != 0) continue;
      Problem p = problem_of(line.c_str());
      if (!backward && p.backward) {
        tandem_problem given;
        REQUIRE(parse_problem(line.c_str(), &given).ok());
        given.direction = TANDEM_FORWARD;
        given.gradients = given.d_lse = 0;
        REQUIRE(make_problem(&given, &p).ok());
      }
      Plan plan;
      const Status made = make_plan(p, only(path), &plan);
      REQUIRE_MESSAGE(made.ok(), line << ": " << made.message());
      check_rows(plan, &columns);
      for (int row : kernels_at(plan, Addresses{})) reached.insert(row);
    }
  }
  for (int n = 0; n < kKernelCount; ++n) {
    const KernelRow& row = kKernels[n];
    const String path = row.path, variant = row.variant;
    if (row.backend != Backend::cuda || path == "simt") continue;
    const bool narrow =
        variant.size() > 7 && variant.compare(variant.size() - 7, 7, "_narrow") == 0;
    if (narrow || (row.stem == Stem::bwd_dot && variant != "fast")) continue;
    CHECK_MESSAGE(reached.count(n) == 1, kernel_name(row));
  }
}

TEST_CASE("a kernel does not run for a problem with an input that its row lacks") {
  Caps caps = caps_of("h100_cuda");
  caps.disabled = {"cuda.sm90", "cuda.sm80"};
  Plan plan;
  REQUIRE(make_plan(problem_of("fwd f32 b1 hq1 hk1 sq8 sk8 d8 dv8"), caps, &plan).ok());
  REQUIRE(kernel_name(kKernels[plan.find(Stem::fwd)->kernel]) == "cuda.simt.fwd.plain");
  CHECK(kernels_refusal(caps, plan) == "");
  plan.problem.dropout = 0.5;
  plan.problem.dist_window = 3;
  CHECK(kernels_refusal(caps, plan) == "its kernel fwd.plain has no dist_bias, dropout");
}

TEST_CASE("columns of the registry hold for the launches of each recorded device") {
  std::set<int> seen;
  for (const Profile& profile : profiles())
    for (const auto& [path, line] : lines_of("tests/gpu/kernels.txt"))
      for (const PathRow& off : kPaths) {
        Caps caps = profile.caps;
        if (off.backend != caps.backend) continue;
        caps.disabled = {String(backend_name(off.backend)) + "." + off.name};
        Plan plan;
        if (make_plan(problem_of(line.c_str()), caps, &plan).ok()) check_rows(plan, &seen);
      }
  CHECK(seen.size() > 100);
}

TEST_CASE("kernels and tiles are switched off by name") {
  const auto plan_without = [](const char* line, std::initializer_list<const char*> off) {
    Caps caps = caps_of("h100_cuda");
    for (const char* name : off) {
      Vec<String> known;
      const Status status = parse_disabled(name, &known);
      REQUIRE_MESSAGE(status.ok(), status.message());
      caps.disabled.insert(caps.disabled.end(), known.begin(), known.end());
    }
    return plan_of(line, caps);
  };
  const auto name_of = [](const Plan& plan, size_t launch) {
    return kernel_name(kKernels[plan.launches[launch].kernel]);
  };
  const char* plain = "fwd bf16 hq8 sq4096 d64";
  CHECK(name_of(plan_without(plain, {}), 0) == "cuda.sm90.fwd.decoupled");
  // Another tile's kernel of the path, or another path.
  CHECK(name_of(plan_without(plain, {"cuda.sm90.fwd.decoupled"}), 0) == "cuda.sm90.fwd.plain");
  CHECK(name_of(plan_without(plain, {"cuda.sm90.fwd.decoupled", "cuda.sm90.fwd.plain",
                                     "cuda.sm90.fwd.wide_heads"}),
                0) == "cuda.sm80.fwd.plain");
  const char* bias = "fwd bf16 hq8 sq512 d64 bias:bf16:1x8x512";
  CHECK(name_of(plan_without(bias, {}), 0) == "cuda.sm90.fwd.scaled_bias");
  CHECK(name_of(plan_without(bias, {"cuda.sm90.fwd.scaled_bias"}), 0) == "cuda.sm90.fwd.bias");
  const char* backward = "bwd bf16 hq8 sq512 d64";
  CHECK(name_of(plan_without(backward, {}), 0) == "cuda.sm90.bwd_dot.fast");
  CHECK(name_of(plan_without(backward, {"cuda.sm90.bwd_dot.fast"}), 0) == "cuda.sm90.bwd_dot.zero");
  // A plan cannot know the addresses, so it needs the kernel for others, too.
  CHECK(String(plan_without(backward, {"cuda.sm90.bwd_dot.zero"}).path) == "sm80");
  const char* simt = "fwd f32 hq8 sq512 d64 dist=9";
  CHECK(name_of(plan_without(simt, {}), 0) == "cuda.simt.fwd.full");
  CHECK(name_of(plan_without(simt, {"cuda.simt.fwd.full"}), 0) == "cuda.simt.fwd.full_narrow");
  // Tiles of the kernels of cuda.sm90 that are beside another one.
  const struct {
    const char *line, *tile;
  } beside[] = {{"bwd bf16 hq8 sq512 d64 elastic grads=qkvt", "hr64"},
                {"bwd bf16 hq8 sq512 d256", "hq256"},
                {"bwd bf16 hq8 sq512 d64 entmax=1.5", "hs64"}};
  for (const auto& b : beside) {
    const Plan with = plan_without(b.line, {});
    CHECK(String(with.path) == "sm90");
    bool has = false;
    for (const Launch& l : with.launches) has |= l.tile.name && String(l.tile.name) == b.tile;
    CHECK_MESSAGE(has, b.tile);
    CHECK(String(plan_without(b.line, {b.tile}).path) != "sm90");
  }
}

#if TANDEM_WITH_VULKAN
TEST_CASE("the modules of SPIR-V are those that the rows of Vulkan name") {
  std::set<std::string> named, built;
  for (const KernelRow& row : kKernels)
    for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16, TANDEM_BF16})
      if (row.backend == Backend::vulkan && !row.has(trait::redo) && has_dtype(row.dtypes, dtype))
        named.insert(row_module(row, dtype).c_str());
  for (const SpirvModule* module : kModules)  // but what probe.cpp runs
    if (std::strncmp(module->name, "matrix_places_", 14) != 0) built.insert(module->name);
  CHECK(built.size() + 2 == kModuleCount);
  CHECK(named == built);
}

TEST_CASE("packed modules of SPIR-V are the compiler's words, and damaged ones end in a refusal") {
  for (const SpirvModule* module : kModules) {
    const Vec<uint32_t> words = words_of(*module);
    std::ifstream file(std::string(TANDEM_BINARY_DIR "/shaders/") + module->name + ".spv",
                       std::ios::binary);
    const std::string compiled((std::istreambuf_iterator<char>(file)), {});
    REQUIRE(words.size() * 4 == module->bytes);
    CHECK_MESSAGE(compiled.size() == module->bytes, module->name);
    CHECK_MESSAGE(std::memcmp(compiled.data(), words.data(), module->bytes) == 0, module->name);
  }
  // Ends cut off, bits changed: it says so, or what it has unpacked is right all the same, and it
  // stays inside its arrays (the packed one has just its bytes, for a sanitizer).
  const SpirvModule& small = module_matrix_places_f16;
  const Vec<uint32_t> right = words_of(small);
  const Vec<uint8_t> packed(small.packed, small.packed + small.packed_bytes);
  constexpr size_t kBehind = 64;
  Vec<uint8_t> out(small.bytes + kBehind, 0x5a);
  const auto unpacks = [&](const Vec<uint8_t>& from, size_t size) {
    const bool done = unpack(from.data(), from.size(), out.data(), size);
    const Vec<uint8_t> behind(out.begin() + std::ptrdiff_t(size), out.end());
    REQUIRE(behind == Vec<uint8_t>(behind.size(), 0x5a));
    return done;
  };
  CHECK(!unpacks(packed, small.bytes - 1));
  out.assign(out.size(), 0x5a);
  CHECK(unpacks(packed, small.bytes));
  for (size_t cut = 0; cut < packed.size(); ++cut)
    if (unpacks(Vec<uint8_t>(packed.begin(), packed.begin() + std::ptrdiff_t(cut)), small.bytes))
      CHECK(cut > packed.size() - 64);  // only what stands behind the block is lost
  size_t shows = 0;
  for (size_t bit = 0; bit < 8 * packed.size(); ++bit) {
    Vec<uint8_t> changed = packed;
    changed[bit / 8] = uint8_t(changed[bit / 8] ^ 1u << bit % 8);
    if (!unpacks(changed, small.bytes))
      ++shows;
    else
      REQUIRE_MESSAGE(std::memcmp(out.data(), right.data(), small.bytes) == 0, bit);
  }
  CHECK(shows > 7 * packed.size());
}
#endif

TEST_CASE("rules of speed of cuda.sm90 are switched off by name") {
  const struct {
    const char *rule, *line, *with, *without;  // tiles with the rule, and without it
  } rows[] = {
      {"whole_heads", "fwd f16 b4096 hq3 sq49 d32", "a_fwdw32", "h64a"},
      {"few_heads", "fwd bf16 hq8 sq32 sk8192 d128", "a_fwd128", "h128a"},
      {"packed_rows", "fwd bf16 b2048 hq16 sq1 sk48 d64", "a_fwd64d", "h64a"},
      {"keys", "fwd bf16 hq8 sq9000 d64", "h64", "h64a"},
      {"rows_192", "fwd bf16 b4 hq32 sq2048 d80 causal_top_left", "h96", "h80a"},
      {"cluster", "fwd bf16 hq2 sq1024 d512", "h512", "h512s"},
      {"one_row_mask", "fwd f16 b32 hq12 sq512 d64 bias:f32:32x1x1 causal_top_left", "h64", "h64a"},
      {"bias_192_mask", "fwd bf16 b8 hq16 sq4096 d128 bias:bf16:1x16x4096 causal_top_left", "h128",
       "h128b"},
      {"bias_192_few", "fwd bf16 hq8 sq512 d128 bias:bf16:1x8x512", "h128", "h128b"},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.rule));
    Caps caps = caps_of("h100_cuda");
    CHECK(std::string(plan_of(row.line, caps).tile().name) == row.with);
    REQUIRE(parse_disabled((String("cuda.sm90.rule.") + row.rule).c_str(), &caps.disabled).ok());
    CHECK(std::string(plan_of(row.line, caps).tile().name) == row.without);
  }
  CHECK(int(std::size(rows)) == kSm90RuleCount);
}

// What a rule of a path's choices may decide, as text.
static std::string decisions(const Plan& plan) {
  std::string text = plan.path;
  for (const Launch& l : plan.launches) {
    text += std::string(" ") + stem_name(l.stem) + "." + l.row().variant + " " +
            (l.tile.name ? l.tile.name : "-") + (l.joins() ? " joins " : " ") +
            std::to_string(l.splits) + " of " + std::to_string(l.total);
    if (const MatrixLaunch* own = l.as<MatrixLaunch>())
      text += own->plain_loop.runs ? " plain" : "";
    if (l.of<Sm80Launch>().programmatic) text += " programmatic";
  }
  return text;
}

TEST_CASE("rules of speed of cuda.sm80 and of matrices are switched off by name") {
  const struct {
    const char *rule, *device, *line;
  } rows[] = {
      {"cuda.sm80.rule.dq_postprocess", "h100_cuda", "bwd f32 b1 hq2 sq128 d64"},
      {"cuda.sm80.rule.small_tiles", "h100_cuda", "fwd f16 hq8 sq512 d256"},
      {"cuda.sm80.rule.dbias_tiles", "h100_cuda",
       "bwd f16 b4 hq2 sq150 d64 bias:f16:1x2x150 d_bias:f16 grads=qkvb"},
      {"cuda.sm80.rule.all_keys", "h100_cuda", "bwd f32 b8 hq4 sq96 d32 bias:f32:8x4x96"},
      {"cuda.sm80.rule.deep_stages", "h100_cuda", "fwd f16 b16 hq20 hk20 sq1 sk1500 d64"},
      {"cuda.sm80.rule.few_splits", "h100_cuda", "fwd bf16 hq64 hk8 sq1 sk32768 d64"},
      {"cuda.sm80.rule.key_warps", "h100_cuda", "fwd bf16 hq64 hk8 sq1 sk32768 d128"},
      {"cuda.sm80.rule.few_lengths", "h100_cuda", "fwd bf16 b32 hq8 hk1 sq1 sk8192 d128 kv_padded"},
      {"cuda.sm80.rule.programmatic", "h100_cuda", "fwd bf16 hq64 hk8 sq1 sk32768 d128"},
      {"cuda.sm80.rule.joins_dq", "h100_cuda", "bwd f16 b1 hq2 sq64 d64 softcap=20"},
      {"cuda.sm80.rule.whole_few_rows", "h100_cuda", "fwd f16 b2048 hq16 sq8 sk48 d64"},
      {"cuda.sm80.rule.whole_few_heads", "h100_cuda", "fwd f16 b8 hq4 sq100 d32"},
      {"cuda.sm80.rule.whole_forward_bias", "h100_cuda",
       "fwd f16 b512 hq4 sq128 d8 bias:f16:512x4x128"},
      {"vulkan.coopmat.rule.narrow_tiles", "h100_vulkan", "fwd f16 b64 hq12 sq77 d64"},
      {"vulkan.coopmat.rule.filled_tiles", "h100_vulkan", "fwd f16 hq4 sq16 sk300 d64"},
      {"vulkan.coopmat.rule.plain_loop", "h100_vulkan", "fwd f16 b4 hq16 sq1024 d128"},
      {"vulkan.coopmat.rule.chunks_of_ds", "h100_vulkan",
       "bwd bf16 b16 hq32 sq4096 d80 causal_top_left"},
      {"vulkan.coopmat.rule.sums_in_dq", "h100_vulkan",
       "bwd bf16 b16 hq16 sq2048 d64 bias:bf16:1x16x2048 d_bias:bf16 grads=qkvb"},
  };
  size_t found = size_t(kSm90RuleCount);
  for (const auto& row : rows) {
    CAPTURE(std::string(row.rule));
    Caps caps = caps_of(row.device);
    if (caps.backend == Backend::cuda) REQUIRE(parse_disabled("cuda.sm90", &caps.disabled).ok());
    const std::string with = decisions(plan_of(row.line, caps));
    Vec<String> rule;
    REQUIRE(parse_disabled(row.rule, &rule).ok());
    caps.disabled.push_back(rule[0]);
    CHECK_MESSAGE(decisions(plan_of(row.line, caps)) != with, with);
    ++found;
  }
  CHECK(speed_rules().size() == found);
}
