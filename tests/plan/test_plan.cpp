// SPDX-License-Identifier: MIT OR Apache-2.0
// The planner over recorded devices: what holds for every plan of every problem on every device,
// what is refused and in which words, and that a plan depends on nothing but its arguments.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "plan/coopmat/tiles.h"
#include "plan/sm80/heuristics.h"
#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

// What a kernel's interface file adds up to when its shared arrays are declared.
using vec4 = float[4];
using ivec4 = int32_t[4];
#define TANDEM_INTERFACE(Name) \
  constexpr auto shared_of_##Name = []([[maybe_unused]] const Name##Spec& spec, uint32_t& bytes) { bytes = 0;
#define TANDEM_SHARED(type, name, count) bytes += uint32_t(sizeof(type)) * spec.count;
#include "kernels/abi/all.inc"

uint32_t declared_shared(const Plan& plan, const Launch& l) {
  uint32_t bytes = 0;
  switch (l.stem) {
#define TANDEM_STEM(Name, name)                    \
  case Stem::name:                                 \
    shared_of_##Name(name##_spec(plan, l), bytes); \
    break;
#define TANDEM_HOPPER(Name, name)          \
  case Stem::name:                         \
    shared_of_##Name(Name##Spec(), bytes); \
    break;
#include "kernels/stems.inc"
  }
  return bytes;
}

// Subgroups that own the same rows of a tile of the matrix paths.
uint32_t owners_of(const char* name) {
  for (const MatrixTile& t : kMatrixTiles)
    if (std::strcmp(t.name, name) == 0) return uint32_t(t.owners);
  return 1;
}

// What shaders/coopmat relies on.
void check_matrix_launch(const Plan& plan, const Caps& caps, const Launch& l) {
  const char* operands = plan.problem.dtype == TANDEM_F16 ? "f16" : "bf16";
  CHECK(plan.problem.dtype != TANDEM_F32);
  CHECK(std::count_if(caps.matrices.begin(), caps.matrices.end(), [&](const MatrixShape& m) {
          return m.m == l.of<MatrixLaunch>().matrix.m && m.n == l.of<MatrixLaunch>().matrix.n &&
                 m.k == l.of<MatrixLaunch>().matrix.k && std::strcmp(m.operands, operands) == 0;
        }) > 0);
  CHECK(l.of<MatrixLaunch>().subgroup >= caps.subgroup_min);
  CHECK(l.of<MatrixLaunch>().subgroup <= caps.subgroup_max);
  CHECK(uint32_t(l.tile.tr) <= caps.max_subgroups);
  const auto check = [&](const auto& spec) {
    CHECK(spec.SUBGROUP == l.of<MatrixLaunch>().subgroup);
    CHECK(spec.MM == uint32_t(l.of<MatrixLaunch>().matrix.m));
    CHECK(spec.MN == uint32_t(l.of<MatrixLaunch>().matrix.n));
    const bool two = module_name(plan, l).find("_k2") != String::npos;
    CHECK(uint32_t(l.of<MatrixLaunch>().matrix.k) == spec.MN * (two ? 2 : 1));
    CHECK((!two || (std::string(plan.path) == "coopmat" && plan.problem.dtype == TANDEM_F16)));
    CHECK(spec.WG % spec.SUBGROUP == 0);
    const uint32_t owners = l.has(trait::pair) ? 2 : owners_of(l.tile.name);
    CHECK(spec.ROWS == spec.WG / spec.SUBGROUP * spec.RM * spec.MM / owners);
    CHECK(spec.COLS % uint32_t(l.of<MatrixLaunch>().matrix.k) == 0);
    CHECK(spec.COLS % 4 == 0);  // a tile's columns begin where a draw of dropout does
  };
  if (l.stem == Stem::fwd) check(fwd_spec(plan, l));
  if (l.stem == Stem::bwd_dkv) check(bwd_dkv_spec(plan, l));
  if (l.stem == Stem::bwd_dq) check(bwd_dq_spec(plan, l));
}

// Of cuda.sm80.
void check_ampere_launch(const Plan& plan, const Caps& caps, const Launch& l) {
  const Problem& p = plan.problem;
  REQUIRE(l.of<Sm80Launch>().row < kAmpereTileCount);
  const AmpereTile& t = kAmpereTiles[l.of<Sm80Launch>().row];
  const bool cast = l.stem == Stem::bwd_dq_cast;
  CHECK(t.stem == (cast ? Stem::bwd_dkv_dq : l.stem));
  const bool whole = has_whole_heads(plan), dbias = l.stem == Stem::bwd_dbias;
  if (whole)
    CHECK((t.table == TileTable::ampere_whole_heads));
  else
    CHECK((t.table != TileTable::ampere_plain) ==
          (dbias ? !p.extras(kHasBias | kHasKeep | kHasLengths | kHasSink).empty()
                 : p.inputs() != 0));
  CHECK((!whole || sm80_takes_whole(p, caps)));
  CHECK(t.width >= std::max(p.head_dim, p.head_dim_v));
  CHECK(l.shared_bytes <= caps.shared_bytes);
  CHECK(uint32_t(l.invocations()) <= caps.max_invocations);
  const bool keys = t.owns_keys() && !cast;
  const int64_t length = keys ? p.seq_kv : p.seq_q, heads = keys ? p.heads_kv : p.heads_q;
  const int64_t rows = cast ? 64 : t.owned(), columns = cast ? t.panels() : 1;
  if (dbias) {
    const int64_t down = p.bias.rows == 1 ? 1 : (p.seq_q + t.br - 1) / t.br;
    CHECK(int64_t(l.tiles) == down * ((p.seq_kv + t.bc - 1) / t.bc));
    CHECK(int64_t(l.total) == int64_t(l.tiles) * p.bias.heads * p.bias.batch * l.splits);
  } else if (whole) {
    CHECK(int64_t(l.tiles) <= (sm80_slices_batch(p) ? p.batch : p.batch * p.heads_q));
    CHECK(int64_t(l.total) == int64_t(l.tiles) * (sm80_slices_batch(p) ? p.heads_q : 1));
    CHECK(sm80_holds_whole(p, caps, t));
  } else {
    CHECK(int64_t(l.tiles) == (length + rows - 1) / rows * columns);
    CHECK(int64_t(l.total) == int64_t(l.tiles) * heads * p.batch * l.splits);
  }
  CHECK(uint64_t(l.groups_x) * l.groups_y >= l.total);
  if (cast) return;
  CHECK(l.shared_bytes >= uint32_t(ampere_shared_bytes(t)) +
                              (whole && p.bias ? t.br * whole_bias_pitch(t.bc, 2) : 0));
  CHECK(l.invocations() == t.threads());
  if (whole) {
    CHECK(plan.unordered() == 0);
    CHECK(plan.zeroed_size == 0);
  } else if (t.stem ==
             Stem::bwd_dkv_dq) {  // sums of d_q in whole blocks of rows, zeroed at each execute
    CHECK(!p.deterministic);
    CHECK(plan.unordered() == TANDEM_GRAD_Q);
    const bool rounds = !plan.find(Stem::bwd_dq_cast);  // a count for each head of keys
    CHECK(rounds == (sums_few(p)));
    CHECK(plan.zeroed_size ==
          uint64_t(p.batch * p.heads_q * ((p.seq_q + 63) / 64) * 64) * uint64_t(t.width) * 4 +
              uint64_t(rounds ? 4 * p.batch * p.heads_kv : 0));
    CHECK(plan.scratch[Scratch::d_q_counts].offset ==
          (rounds ? plan.workspace_size - uint64_t(4 * p.batch * p.heads_kv) : 0));
    CHECK(plan.workspace_size == plan.scratch[Scratch::d_q_accum].offset + plan.zeroed_size);
  }
}

void check_launch(const Plan& plan, const Caps& caps, const Launch& l) {
  const Problem& p = plan.problem;
  REQUIRE(l.kernel >= 0);
  REQUIRE(l.kernel < kKernelCount);
  CHECK(kKernels[l.kernel].stem == l.stem);
  CHECK(kKernels[l.kernel].backend == plan.backend);
  CHECK(std::string(kKernels[l.kernel].path) == plan.path);

  const bool keys = l.stem == Stem::bwd_dkv;
  const int64_t length = keys ? p.seq_kv : p.seq_q, heads = keys ? p.heads_kv : p.heads_q;
  if (l.tile.br > 0) {
    CHECK((p.tile_rows == 0 || p.tile_rows == l.tile.br));
    CHECK((p.tile_cols == 0 || p.tile_cols == l.tile.bc));
  }
  if (plan.backend == Backend::cpu || l.as<Sm90Launch>()) return;  // test_sm90.cpp
  if (l.as<Sm80Launch>()) return check_ampere_launch(plan, caps, l);

  const bool combine = l.stem == Stem::fwd_combine;
  const int64_t rows = l.stem == Stem::bwd_dot      ? kDotRows
                       : l.stem == Stem::bwd_origin ? kLineGroup
                       : combine                    ? CombineShape(l.splits, p.head_dim_v).rows()
                       : keys                       ? l.tile.bc
                                                    : l.tile.br;
  REQUIRE(rows > 0);
  // Exactly as many tiles as cover the rows, and as many workgroups as there are tiles of all
  // heads.
  CHECK(int64_t(l.tiles) * rows >= length);
  CHECK((int64_t(l.tiles) - 1) * rows < length);
  // Of one chunk, where launches take turns.
  CHECK(int64_t(l.total) == int64_t(l.tiles) * (combine ? 1 : l.splits) *
                                (l.has(trait::ds) ? l.of<MatrixLaunch>().heads : heads * p.batch));
  CHECK(l.total > 0);
  CHECK(l.groups_x > 0);
  CHECK(l.groups_x <= caps.max_groups_x);
  CHECK(l.groups_y <= caps.max_groups_y);
  const uint64_t dispatched = uint64_t(l.groups_x) * l.groups_y;
  if (l.stem == Stem::bwd_origin && plan.backend == Backend::cuda) {  // goes on to further tiles
    const uint64_t most = 4 * (caps.cores ? caps.cores : 32);
    CHECK(dispatched == std::min<uint64_t>(l.total, most));
  } else {
    CHECK(dispatched >= l.total);
    CHECK(dispatched - l.total < l.groups_x);
  }
  // Kernels compute y * groups_x + x in 32 bits.
  CHECK(dispatched <= uint64_t(1) << 32);

  CHECK(l.shared_bytes <= caps.shared_bytes);
  if (l.as<MatrixLaunch>())
    check_matrix_launch(plan, caps, l);
  else {  // The Vulkan kernels' words for votes and tiles that count come on top, one of each at
          // least, and those of lean tiles.
    const bool votes = plan.backend == Backend::vulkan && l.tile.br > 0;
    const uint32_t extra = !votes ? 0 : l.stem == Stem::fwd ? 12 : 4;
    const uint32_t lean = l.tile.is_lean() ? kLeanBytes : 0;
    if (l.row().tiles == TileTable::outer)
      CHECK(l.shared_bytes == 4 * (l.stem == Stem::fwd ? kOuterFwdFloats : kOuterBwdFloats));
    else
      CHECK(l.shared_bytes == declared_shared(plan, l) + extra + lean);
  }
  CHECK(uint32_t(l.invocations()) <= caps.max_invocations);
  if (l.stem == Stem::bwd_dot) {
    CHECK(uint32_t(kDotRows * kDotLanes) <= caps.max_invocations);
    return;
  }
  if (combine || l.stem == Stem::bwd_origin) return;
  CHECK(uint32_t(l.tile.invocations()) <= caps.max_invocations);
  CHECK(l.tile.max_d >= std::max(p.head_dim, p.head_dim_v));
  const int cols = l.as<MatrixLaunch>() ? l.of<MatrixLaunch>().matrix.k : l.tile.block_cols();
  CHECK(l.d_blocks * cols >= p.head_dim);
  CHECK(l.dv_blocks * cols >= p.head_dim_v);
  if (l.has(trait::split_d)) return;  // whole slices
  CHECK((l.d_blocks - 1) * cols < p.head_dim);
  CHECK((l.dv_blocks - 1) * cols < p.head_dim_v);
}

// The stems that a problem needs, in order, without those whose output is empty.
std::vector<Stem> needed_but_origins(const Problem& p, bool split, bool fused, bool always_delta,
                                     bool rounds) {
  const bool q = p.batch * p.heads_q * p.seq_q != 0, kv = p.batch * p.heads_kv * p.seq_kv != 0;
  std::vector<Stem> s;
  if (!p.backward && q) s.push_back(Stem::fwd);
  if (split) s.push_back(Stem::fwd_combine);
  if (p.backward && fused) {
    s = {Stem::bwd_dot, Stem::bwd_dkv_dq};
    if ((p.gradients & TANDEM_GRAD_Q) && !rounds) s.push_back(Stem::bwd_dq_cast);
    return s;
  }
  if (p.backward && (always_delta || (p.gradients & (TANDEM_GRAD_Q | TANDEM_GRAD_K))) && q)
    s.push_back(Stem::bwd_dot);
  if (p.backward && (p.gradients & (TANDEM_GRAD_K | TANDEM_GRAD_V)) && kv)
    s.push_back(Stem::bwd_dkv);
  if (p.backward && (p.gradients & TANDEM_GRAD_Q) && q) s.push_back(Stem::bwd_dq);
  return s;
}

// Kernels of GPUs that read lse take far rows by what bwd_origin leaves of them.
std::vector<Stem> needed(const Problem& p, Backend backend, bool split, bool fused,
                         bool always_delta, bool rounds) {
  std::vector<Stem> s = needed_but_origins(p, split, fused, always_delta, rounds);
  // Two products: one of all five leaves 64 bits.
  const bool pairs = p.batch * p.heads_q * p.seq_q != 0 && p.heads_kv * p.seq_kv != 0;
  if (p.backward && backend != Backend::cpu && pairs)
    s.insert(s.begin() + (s.front() == Stem::bwd_dot ? 1 : 0), Stem::bwd_origin);
  return s;
}

// Everything that holds for any plan. Returns whether a path accepts the problem.
bool check_plan(const Problem& problem, const Caps& caps) {
  Plan plan, again;
  const Status status = make_plan(problem, caps, &plan);
  const Status status_again = make_plan(problem, caps, &again);
  CHECK(dump(status, plan) == dump(status_again, again));
  for (const Refusal& r : plan.refusals) {
    CHECK(!r.reason.empty());
    CHECK(r.candidate.rfind(backend_name(caps.backend), 0) == 0);
  }
  const String words = explain(problem, caps);
  if (!status.ok()) {
    CHECK(status.code() == TANDEM_ERROR_UNSUPPORTED);
    CHECK(!plan.refusals.empty());
    for (const Refusal& r : plan.refusals) {
      CHECK(status.message().find(r.reason) != std::string::npos);
      CHECK(words.find(r.reason) != std::string::npos);
    }
    CHECK(words.find("taken") == std::string::npos);
    return false;
  }
  CHECK(words.find(plan.name()) != std::string::npos);
  std::vector<Stem> stems;
  // Sums of parts of d_k and d_v, which no other path has, come last.
  uint64_t parts_end = 0;
  for (const Launch& l : plan.launches) {
    const bool k = l.gradient == TANDEM_GRAD_K, v = l.gradient == TANDEM_GRAD_V;
    if (k || v) {
      const ScratchArray& parts = plan.scratch[k ? Scratch::d_k_parts : Scratch::d_v_parts];
      CHECK(l.splits == plan.find(Stem::bwd_dkv)->splits);
      CHECK(parts.size == 4 * uint64_t(l.splits * gradient_elements(problem, l.gradient)));
      parts_end = parts.offset + parts.size;
    } else if (!l.has(trait::redo)) {
      stems.push_back(l.stem);
    }
  }
  const Launch* fwd = plan.find(Stem::fwd);
  // On the matrix paths fwd has a second launch for rows that need f32, of the same workgroups.
  const bool redo = fwd && fwd->as<MatrixLaunch>();
  if (parts_end == 0) CHECK(stems.size() + (redo ? 1 : 0) == plan.launches.size());
  if (redo) CHECK(plan.launches[1].has(trait::redo));
  const bool split = fwd && fwd->splits > 1;
  const bool hopper = std::strcmp(plan.path, "sm90") == 0;
  const bool fused =
      (hopper && std::max(problem.head_dim, problem.head_dim_v) <= kMaxFusedHeadDim) ||
      plan.find(Stem::bwd_dkv_dq);
  if (has_whole_heads(plan))
    CHECK(stems == std::vector<Stem>{problem.backward ? Stem::bwd_dkv_dq : Stem::fwd});
  else
    CHECK(stems == needed(problem, plan.backend, split, fused, hopper,
                          hopper ? fuses_dq_postprocess(plan) : sums_few(problem)));
  for (const Launch& l : plan.launches) check_launch(plan, caps, l);
  const bool dot = std::count(stems.begin(), stems.end(), Stem::bwd_dot) > 0;
  const uint64_t rows =
      uint64_t(problem.batch) * uint64_t(problem.heads_q) * uint64_t(problem.seq_q);
  if (split) {
    const uint64_t o = fwd->splits * rows * uint64_t(part_pitch(problem.head_dim_v)) * 4;
    CHECK(plan.scratch[Scratch::o_parts].offset == 0);
    CHECK(plan.scratch[Scratch::lse_parts].offset ==
          (o + 255) / 256 * 256 + fwd->splits * rows * 4);
    CHECK(plan.workspace_size == plan.scratch[Scratch::lse_parts].offset + fwd->splits * rows * 4);
  } else if (!fused || !problem.backward) {
    const Launch* d_q = plan.find(Stem::bwd_dq);
    if (d_q && d_q->has(trait::ds))
      CHECK(plan.workspace_size == plan.scratch[Scratch::ds].offset + ds_size(problem, *d_q));
    else if (parts_end > 0)
      CHECK(plan.workspace_size == parts_end);
    else
      CHECK(plan.workspace_size ==
            plan.scratch[Scratch::delta].offset + (dot || redo ? rows * 4 : 0));
  }
  // Two numbers of each row lie in front of delta.
  CHECK(plan.scratch[Scratch::delta].offset == (has_far_rows(plan) ? far_size(problem) : 0));
  return true;
}

}  // namespace

// By the number of their workgroups, most of them. UndefinedBehaviorSanitizer watches that no
// product of sizes is beyond 64 bits.
TEST_CASE("problems as large as they may be are refused") {
  const char* lines[] = {
      "bwd f16 b134217728 hq134217728 hk1 sq2 sk500000 d8 keep:1x1x2",
      "bwd bf16 b65536 hq134217728 hk1024 sq1000 sk268435456 d8 alibi",
      "bwd bf16 b536870911 hq262144 hk2 sq128 sk268435456 d1 spans=2:1x262144",
      "bwd f16 b134217728 hq131072 hk1 sq128 sk536870911 d1 dist=64",
      ("bwd f16 b1048576 hq131072 hk1 sq1000 sk536870911 d64 bias:f16:1x131072x1000 grads=qkvb "
       "d_bias:f32")};
  for (const Profile& device : profiles()) {
    if (device.caps.backend == Backend::cpu) continue;
    for (const char* line : lines) {
      Plan plan;
      const Status status = make_plan(problem_of(line), device.caps, &plan);
      CHECK_MESSAGE(status.code() == TANDEM_ERROR_UNSUPPORTED, device.id << ": " << line);
    }
  }
}

TEST_CASE("each recorded device plans as recorded, or says why not") {
  for (const Profile& profile : profiles()) {
    CAPTURE(std::string(profile.id));
    for (const char* direction : {"fwd", "bwd"}) {
      Plan plan;
      const Problem problem = problem_of(std::string(direction) + " f32 b2 hq4 hk2 sq1024 d64");
      const Status status = make_plan(problem, profile.caps, &plan);
      INFO(status.message());
      CHECK(status.ok() == !profile.path.empty());
      if (!status.ok()) continue;
      CHECK(plan.path == profile.path);
      if (!profile.tile.empty()) CHECK(plan.tile().name == profile.tile);
      for (const char* d : {"d64", "d128", "d256"}) {
        Plan other;
        const auto make = [&](const char* dtype) {
          const std::string line = std::string(direction) + " " + dtype + " b1 hq2 sq1024 " + d;
          const Status made = make_plan(problem_of(line), profile.caps, &other);
          REQUIRE_MESSAGE(made.ok(), made.message());
        };
        CAPTURE(std::string(d));
        make("f32");
        // The path sm80 has no tiles for the widest heads in backward in f32.
        const bool wide = std::string(direction) == "bwd" && std::string(d) == "d256";
        CHECK(other.path == (wide && profile.path == "sm80" ? "simt" : profile.path));
        if (!profile.tile.empty() && std::string(d) == "d256")
          CHECK(std::string(other.tile().name) == (plan.tile().is_lean() ? "t32l" : "t32k16"));
        // Nor may the path sm90 in 16 bits.
        const bool none = wide && profile.f16 == "sm90" && kBwdShapes[kBwdShapeCount - 1].d < 256;
        // Lean tiles of matrices are for heads up to 128, where fwd needs more than 32 KiB.
        const bool no_lean = plan.tile().is_lean() &&
                             (std::string(d) == "d256" ||
                              (std::string(d) == "d128" && std::string(direction) == "fwd" &&
                               profile.caps.shared_bytes <= 32768));
        make("f16");
        CHECK(other.path == (none ? "sm80" : no_lean ? profile.path : profile.f16));
        make("bf16");
        CHECK(other.path == (none ? "sm80" : no_lean ? profile.path : profile.bf16));
      }
    }
  }
}

TEST_CASE("a refusal names what is missing") {
  const struct {
    const char* profile;
    const char* word;
  } rows[] = {{"no_address", "bufferDeviceAddress"},
              {"no_inline", "inline uniform"},
              {"small_shared", "8192"},
              {"few_threads", "64"},
              {"p100_cuda", "6.0"}};
  for (const auto& row : rows) {
    CAPTURE(std::string(row.profile));
    Plan plan;
    const Status status =
        make_plan(problem_of("bwd f32 hq2 sq100 d64"), caps_of(row.profile), &plan);
    CHECK(status.code() == TANDEM_ERROR_UNSUPPORTED);
    INFO(status.message());
    CHECK(status.message().find(row.word) != std::string::npos);
  }
  // A device that lacks what no path of Vulkan does without.
  const struct {
    void (*change)(Caps*);
    const char* word;
  } changes[] = {{[](Caps* c) { c->push_bytes = 124; }, "124 bytes of push constants"},
                 {[](Caps* c) { c->inline_uniform_bytes = kMostUniformBytes - 16; },
                  "the device has 416 bytes of inline uniform blocks a pipeline, 432 are needed"},
                 {[](Caps* c) { c->no_device_scope = true; }, "vulkanMemoryModelDeviceScope"}};
  for (const auto& row : changes) {
    Caps caps = caps_of("h100_vulkan");
    row.change(&caps);
    for (const char* line :
         {"fwd f32 sq100 d64", "bwd bf16 sq100 d64", "merge f32 hq2 sq9 dv8 parts=2"}) {
      CAPTURE(line);
      Plan plan;
      const Status status = make_plan(problem_of(line), caps, &plan);
      CHECK(status.code() == TANDEM_ERROR_UNSUPPORTED);
      INFO(status.message());
      CHECK(status.message().find(row.word) != std::string::npos);
    }
  }
  Caps caps = caps_of("h100_vulkan");
  caps.inline_uniform_bytes = kMostUniformBytes;
  CHECK(std::string(plan_of("bwd bf16 sq100 d64", caps).path) == "coopmat2");
}

TEST_CASE("every plan of a grid of problems keeps the rules on every device") {
  int taken = 0, refused = 0;
  for (const Profile& profile : profiles()) {
    CAPTURE(std::string(profile.id));
    for (const char* direction : {"fwd", "bwd"})
      for (const char* sizes : {"b1 hq1 sq1 sk1", "b1 hq8 hk2 sq1 sk4096", "b3 hq6 hk1 sq64 sk63",
                                "b2 hq4 sq1023 sk1025", "b0 hq4 sq16 sk16", "b1 hq0 hk2 sq16 sk16",
                                "b1 hq4 sq0 sk16", "b1 hq4 sq16 sk0", "b65536 hq32 sq4096 sk4096"})
        for (const char* dims : {"d1", "d64", "d128 dv64", "d3 dv256", "d256"})
          for (const char* rest :
               {"", "causal_top_left", "causal_bottom_right left=40", "tile=32x32", "tile=64x64",
                "tile=48x48", "tile=0x64", "splits=5"}) {
            const std::string line =
                std::string(direction) + " bf16 " + sizes + " " + dims + " " + rest;
            CAPTURE(line);
            (check_plan(problem_of(line), profile.caps) ? taken : refused) += 1;
          }
  }
  CHECK(taken > 3000);
  CHECK(refused > 1000);
}

TEST_CASE("random problems keep the rules on random devices") {
  std::mt19937_64 random(20240607);
  auto pick = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  int taken = 0, refused = 0;
  for (int n = 0; n < 20000; ++n) {
    tandem_problem given;
    tandem_problem_init(&given);
    given.direction = uint32_t(pick({TANDEM_FORWARD, TANDEM_BACKWARD}));
    given.gradients = uint32_t(1 + random() % 7);
    given.batch = pick({0, 1, 2, 7, 1000, 70000});
    given.heads_kv = pick({1, 2, 5, 128});
    given.heads_q = given.heads_kv * pick({0, 1, 4, 16});
    given.seq_q = pick({0, 1, 31, 64, 129, 5000, 1 << 20, TANDEM_SEQ_LIMIT - 1});
    given.seq_kv = pick({0, 1, 31, 64, 129, 5000, 1 << 20, TANDEM_SEQ_LIMIT - 1});
    given.head_dim = 1 + int64_t(random() % 256);
    given.head_dim_v = 1 + int64_t(random() % 256);
    given.mask = uint32_t(random() % 2);
    given.align = uint32_t(random() % 2);
    given.window_left = pick({-1, 0, 100});
    given.tile_rows = uint32_t(pick({0, 0, 32, 64, 5}));
    given.tile_cols = uint32_t(pick({0, 0, 32, 64}));
    given.splits = uint32_t(pick({0, 0, 0, 1, 3, 65535}));
    tandem_problem_contiguous(&given, tandem_dtype(1 + random() % 3));
    Problem problem;
    const Status status = make_problem(&given, &problem);
    if (!status.ok()) {  // only by its size: everything else above is legal
      CHECK(status.code() == TANDEM_ERROR_INVALID_LAYOUT);
      continue;
    }
    Caps caps = caps_of(random() % 2 ? "lavapipe" : "h100_cuda");
    caps.shared_bytes = uint32_t(pick({8192, 16384, 32768, 49152, 232448}));
    caps.max_invocations = uint32_t(pick({64, 128, 256, 1024}));
    caps.max_groups_x = uint32_t(pick({65535, 2147483647, 4294967295}));
    caps.max_groups_y = uint32_t(pick({1, 65535}));
    CAPTURE(print_problem(given));
    CAPTURE(describe_caps(caps));
    (check_plan(problem, caps) ? taken : refused) += 1;
  }
  CHECK(taken > 2000);
  CHECK(refused > 2000);
}

TEST_CASE("a forced tile is honoured or refused in a sentence") {
  const Problem p32 = problem_of("fwd f32 hq2 sq500 d64 tile=32x32");
  const Problem p64 = problem_of("fwd f32 hq2 sq500 d64 tile=64x64");
  const Problem p48 = problem_of("fwd f32 hq2 sq500 d64 tile=48x64");
  for (const char* id : {"h100_cuda", "h100_vulkan", "lavapipe", "cpu"}) {
    CAPTURE(std::string(id));
    Plan plan;
    REQUIRE(make_plan(p32, caps_of(id), &plan).ok());
    CHECK(plan.launches[0].tile.br == 32);
    CHECK(plan.launches[0].tile.bc == 32);
    REQUIRE(make_plan(p64, caps_of(id), &plan).ok());
    CHECK(plan.launches[0].tile.br == 64);
    CHECK(plan.launches[0].tile.bc == 64);
  }
  Plan plan;
  const Status status = make_plan(p48, caps_of("lavapipe"), &plan);
  CHECK(status.code() == TANDEM_ERROR_UNSUPPORTED);
  CHECK(status.message().find("48x64") != std::string::npos);
  CHECK(!make_plan(p64, caps_of("minimum"), &plan).ok());
  // Wide heads leave only the narrow tile; asking for the other one is refused with the size.
  const Status wide =
      make_plan(problem_of("fwd f32 sq500 d200 tile=64x64"), caps_of("lavapipe"), &plan);
  CHECK(wide.code() == TANDEM_ERROR_UNSUPPORTED);
  CHECK(wide.message().find("200") != std::string::npos);
}

TEST_CASE("a tile that does not exist is refused on every device, the CPU's reference included") {
  for (const char* id : {"cpu", "lavapipe", "h100_cuda"}) {
    CAPTURE(id);
    Plan plan;
    const Status status = make_plan(problem_of("fwd f32 sq100 d64 tile=48x48"), caps_of(id), &plan);
    CHECK(status.code() == TANDEM_ERROR_UNSUPPORTED);
    CHECK(status.message().find("48x48") != std::string::npos);
  }
}

TEST_CASE("a plan that goes element by element says so and names what is in the way") {
  const auto told = [](const char* line, const char* id) {
    return explain(problem_of(line), caps_of(id));
  };
  for (const char* id : {"h100_cuda", "h100_vulkan"}) {
    CAPTURE(id);
    CHECK(told("bwd f16 hq2 sq100 d64", id).find("slower") == std::string::npos);
    CHECK(told("fwd f32 hq2 sq100 d63 dv64", id).find("4: q, k, head_dim\n") != std::string::npos);
    CHECK(told("bwd f32 hq2 sq100 d64 d_o=0,0,0,0", id).find("4: d_o\n") != std::string::npos);
  }
  CHECK(told("fwd f16 hq2 sq100 d60", "h100_vulkan").find("8: q, k, v, head_dim, head_dim_v\n") !=
        std::string::npos);
  CHECK(told("fwd f32 hq2 sq100 d63", "cpu").find("slower") == std::string::npos);
}

TEST_CASE("a tile can be switched off by its name") {
  Caps caps = caps_of("h100_vulkan");
  Plan plan;
  const Problem problem = problem_of("fwd f32 hq2 sq100 d64");
  REQUIRE(make_plan(problem, caps, &plan).ok());
  const String first = plan.launches.at(0).tile.name;
  REQUIRE(parse_disabled(first.c_str(), &caps.disabled).ok());
  REQUIRE(make_plan(problem, caps, &plan).ok());
  CHECK(first != plan.launches.at(0).tile.name);
  bool said = false;
  for (const Refusal& r : plan.refusals)
    said |=
        r.candidate == "vulkan.scalar " + first && r.reason.find("disabled") != std::string::npos;
  CHECK(said);
  CHECK(parse_disabled("t65", &caps.disabled).code() == TANDEM_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("a disabled path is not taken and the reason says so") {
  for (const char* id : {"cpu", "lavapipe", "h100_cuda"}) {
    Caps caps = caps_of(id);
    Plan plan;
    const Problem problem = problem_of("fwd f32 hq2 sq100 d64");
    REQUIRE(make_plan(problem, caps, &plan).ok());
    const String first = plan.path, full = String(backend_name(caps.backend)) + "." + first;
    CAPTURE(full);
    caps.disabled = {full};
    const Status status = make_plan(problem, caps, &plan);
    if (status.ok()) CHECK(first != plan.path);
    bool said = false;
    for (const Refusal& r : plan.refusals)
      said |= r.candidate == full && r.reason.find("disabled") != std::string::npos;
    CHECK(said);
    CHECK(status.ok() == (caps.backend != Backend::vulkan));  // which has no other path for f32
  }
}

TEST_CASE("sizes whose products leave 64 bits are refused, not wrapped to nothing") {
  // All inputs repeat one element, so no stride is too long; the rows alone are 2^68.
  tandem_problem given;
  tandem_problem_init(&given);
  given.direction = TANDEM_BACKWARD;
  given.gradients = TANDEM_GRAD_K;
  given.batch = 1 << 30;
  given.heads_q = 1 << 30;
  given.heads_kv = 1;
  given.seq_q = 256;
  given.seq_kv = 1;
  given.head_dim = given.head_dim_v = 1;
  tandem_problem_contiguous(&given, TANDEM_F32);
  for (tandem_tensor* t : {&given.q, &given.k, &given.v, &given.o, &given.d_o})
    std::fill(t->stride, t->stride + 4, 0);
  Problem problem;
  Status status = make_problem(&given, &problem);
  Plan plan;
  if (status.ok()) status = make_plan(problem, caps_of("h100_vulkan"), &plan);
  CHECK(!status.ok());
  CHECK(!status.message().empty());
}

TEST_CASE("regression: pairs of rows and keys that 64 bits do not count") {
  // 2^66 pairs: a product that wraps is 0, as if there were none for bwd_dkv_dist.
  Plan plan;
  const char* line = "bwd bf16 b4 hq16 hk16 sq268435456 d64 elastic dist=64 grads=qkvd";
  const Status made = make_plan(problem_of(line), caps_of("h100_cuda"), &plan);
  REQUIRE_MESSAGE(made.ok(), made.message());
  CHECK(plan.find(Stem::bwd_dkv_dist));
  CHECK(!plan.find(Stem::bwd_dist_bias));
}

TEST_CASE("regression: more cores than a grid has workgroups") {
  // The driver's mistake; launches of the matrix paths have a workgroup a core where they sum
  // d_bias.
  const Problem problem = problem_of(
      "bwd f16 b2 hq4096 hk4096 sq8192 sk64 d64 dv64 bias:f32:1x4096x8192 d_bias:f32 grads=qkvb");
  for (const Profile& profile : profiles()) {
    Caps caps = profile.caps;
    if (caps.backend == Backend::cpu) continue;
    caps.cores = 70000;
    Plan plan;
    if (!make_plan(problem, caps, &plan).ok()) continue;
    CAPTURE(profile.id);
    for (const Launch& l : plan.launches) {
      CAPTURE(stem_name(l.stem));
      CHECK(l.groups_x <= caps.max_groups_x);
      CHECK(l.groups_y <= caps.max_groups_y);
    }
  }
}
