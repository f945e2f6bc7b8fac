// SPDX-License-Identifier: MIT OR Apache-2.0
// What the tests of the planner share: recorded devices, and problems from their lines.
#ifndef TANDEM_TESTS_PLAN_PLAN_FIXTURE_H
#define TANDEM_TESTS_PLAN_PLAN_FIXTURE_H
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel_rows.h"
#include "plan/plan.h"
#include "plan/sm90/bwd_parts.h"
#include "plan/sm90/heuristics.h"
#include "plan/sm90/tiles.h"

namespace plan_fixture {

using namespace tandem;

inline int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

// f32 on sm80: whether the sums of d_q are few enough to be rounded by the last workgroup of a
// head.
inline bool sums_few(const Problem& p) {
  const int64_t all = p.batch * p.heads_q * p.seq_q * p.head_dim;
  return p.dtype == TANDEM_F32 && all <= (1 << 20) && all <= 65536 * p.batch * p.heads_kv;
}

// The same on sm90: whether the last workgroup of a head does, or, of few workgroups, all of them
// together.
inline bool fuses_dq_postprocess(const Plan& plan) {
  const Launch* fused = plan.find(Stem::bwd_dkv_dq);
  return (fuses_dq_postprocess(plan.problem, 0) && !(fused && fused->has(trait::persistent))) ||
         (fused && fused->of<Sm90Launch>().cooperative_postprocess);
}

// Whether cuda.sm80 holds whole heads of a plan's problem: the plan has one launch, and perhaps one
// that sums d_bias.
inline bool has_whole_heads(const Plan& plan) {
  for (const Launch& l : plan.launches)
    if (l.as<Sm80Launch>() && l.row().tiles == TileTable::ampere_whole_heads) return true;
  return false;
}

struct Profile {
  const char* id;
  Caps caps;
  std::string path, tile, f16, bf16;
};

inline std::vector<Profile> profiles() {
  std::vector<Profile> all;
  auto add = [&](const char* id, Backend backend, const char* name, const char* driver,
                 uint32_t vendor, uint32_t shared, uint32_t invocations, uint32_t groups_x,
                 uint32_t groups_y, uint32_t sub_min, uint32_t sub_max, uint32_t sub,
                 uint32_t cores, uint32_t clock_mhz, uint32_t memory_gbps, int version,
                 const char* flags, uint32_t push, uint32_t driver_id, const char* matrices,
                 const char* path, const char* tile, const char* f16, const char* bf16) {
    Caps c;
    auto has = [&](char f) { return std::strchr(flags, f) != nullptr; };
    c.backend = backend;
    c.name = name;
    c.driver = driver;
    c.vendor_id = vendor;
    c.shared_bytes = shared;
    c.max_invocations = invocations;
    c.max_groups_x = groups_x;
    c.max_groups_y = groups_y;
    c.subgroup_min = sub_min;
    c.subgroup_max = sub_max;
    c.subgroup_size = sub;
    c.cores = cores;
    c.clock_mhz = clock_mhz;
    c.memory_gbps = memory_gbps;
    if (backend == Backend::cuda) {
      c.compute_major = version / 10;
      c.compute_minor = version % 10;
      c.sm80_code = has('T');
      c.sm90_code = has('W');
      c.early_launches = has('P');
    } else {
      c.api_version = 1u << 22 | uint32_t(version) << 12;
      c.buffer_address = has('A');
      c.inline_uniform = has('U');
      c.storage16 = has('S');
      c.float16 = has('H');
      c.bfloat16 = has('B');
      c.int64 = has('L');
      c.push_bytes = push;
      c.driver_id = driver_id;
      c.memory_model = c.maintenance4 = has('M');
      c.subgroup_pin = has('G');
      c.subgroup_control = c.full_subgroups = has('G') || has('F');
      c.max_subgroups = c.subgroup_control ? 32 : 0;
      c.coopmat = c.coopmat_compute = has('K');
      c.subgroup_votes = true;
      c.bfloat16_coopmat = has('B') && has('K');
      c.coopmat_reductions = c.coopmat_conversions = c.coopmat_per_element = has('N');
      c.coopmat_tensors = has('E');
      c.denormals = has('D');
      c.infinities = has('I');
      const char* operands = "f16";
      for (const char* s = matrices; *s; ++s) {
        MatrixShape m{0, 0, 0, operands};
        if (*s == ';') operands = "bf16";
        int length = 0;
        if (std::sscanf(s, "%dx%dx%d%n", &m.m, &m.n, &m.k, &length) != 3) continue;
        c.matrices.push_back(m);
        s += length - 1;
      }
    }
    all.push_back({id, c, path, tile, f16, bf16});
  };
#define TANDEM_PROFILE(id, backend, name, driver, vendor, shared, inv, gx, gy, smin, smax, sub, \
                       cores, mhz, gbps, version, flags, push, drv, matrices, path, tile, f16,  \
                       bf16)                                                                    \
  add(#id, Backend::backend, name, driver, vendor, shared, inv, gx, gy, smin, smax, sub, cores, \
      mhz, gbps, version, flags, push, drv, matrices, path, tile, f16, bf16);
#include "profiles.inc"
  Caps cpu;
  cpu.threads = 4;
  all.push_back({"cpu", cpu, "simd", "", "simd", "simd"});
  return all;
}

inline Caps caps_of(const char* id) {
  for (const Profile& p : profiles())
    if (std::strcmp(p.id, id) == 0) return p.caps;
  FAIL("no profile " << id);
  return Caps();
}

inline Problem problem_of(std::string_view line) {
  tandem_problem given;
  Status status = parse_problem(String(line).c_str(), &given);
  REQUIRE_MESSAGE(status.ok(), status.message());
  Problem problem;
  status = make_problem(&given, &problem);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return problem;
}

// Row of the table of its tiles, on sm80 and sm90; else -1.
inline int row_of(const Launch& l) {
  if (const Sm80Launch* own = l.as<Sm80Launch>()) return own->row;
  return l.as<Sm90Launch>() ? l.as<Sm90Launch>()->row : -1;
}

// What a launch has of its path, as text.
inline String dump_path(const Launch& l) {
  if (const ScalarLaunch* own = l.as<ScalarLaunch>()) return text(" scalar %u", own->joined_heads);
  if (const MatrixLaunch* m = l.as<MatrixLaunch>())
    return text(" matrix %s %u %d %d %d %d %d %d %d %u %u %d %d %u %d %d %d",
                m->matrix.name().c_str(), m->subgroup, m->row_blocks, m->left_shared, m->copies,
                m->register_prefetch, m->sums_d_bias, m->entries, m->plain_loop.runs,
                m->plain_loop.k_row, m->plain_loop.v_row, m->plain_loop.keys_exist, m->redoes,
                m->chunks, m->kv_heads, m->heads, m->first_head);
  if (const SimtLaunch* own = l.as<SimtLaunch>())
    return text(" simt %u %u %d %d", own->fast_tiles, own->fast_total, own->tf32,
                own->programmatic);
  if (const Sm80Launch* own = l.as<Sm80Launch>())
    return text(" sm80 %d %d", own->row, own->programmatic);
  if (const Sm90Launch* own = l.as<Sm90Launch>())
    return text(" sm90 %d %d %d %d %d %u %u %u %d %d %lld %d %d", own->row, own->programmatic,
                own->stream_k_units, own->stream_k_unit, own->short_tiles, own->interleaved_heads,
                own->wave, own->eager_zero_heads, own->parts.most, own->parts.pairs,
                (long long)own->parts.workgroups, own->cooperative_postprocess, own->passes);
  return "";
}

// A plan as text: everything in it but its problem, and the least workspace, which is there with a
// limit alone. So two plans of a problem are equal iff their texts are.
inline String dump(const Status& status, const Plan& plan) {
  const auto number = [](uint64_t n) { return text(" %llu", (unsigned long long)n); };
  String s = status.message() + "|" + backend_name(plan.backend) + "." + plan.path + "|" +
             plan.name() + "|";
  for (const uint64_t n :
       {plan.workspace_size, plan.zeroed_offset, plan.zeroed_size, uint64_t(plan.slope_parts)})
    s += number(n);
  for (int n = 0; n < kScratchCount; ++n) {
    const ScratchArray& array = plan.scratch[Scratch(n)];
    if (array.present)
      s += text(" %s", kScratch[n].name) + number(array.offset) + number(array.size);
  }
  s += "|";
  for (const Launch& l : plan.launches) {
    s += text(" %s %d %d %d %s %dx%d %d %d %u %u %u %u %u %u %d %d %lld %u %u", stem_name(l.stem),
              l.kernel, l.other_kernel, l.second_kernel, l.tile.name ? l.tile.name : "-", l.tile.br,
              l.tile.bc, l.d_blocks, l.dv_blocks, l.feature_parts, l.tiles, l.total, l.groups_x,
              l.groups_y, l.shared_bytes, l.waits, l.stores_d_bias, (long long)l.members, l.splits,
              l.gradient);
    s += dump_path(l) + ";";
  }
  if (const Sm90Plan* own = std::get_if<Sm90Plan>(&plan.of_path)) {
    s += number(own->lazy_zero.eager_bytes) + number(own->lazy_zero.bytes) +
         number(own->lazy_zero.slices);
    if (own->unaligned) s += "{" + dump(Status(), *own->unaligned) + "}";
  }
  for (const Refusal& r : plan.refusals) s += r.candidate + ": " + r.reason + ";";
  return s;
}

// The operations of a plan, in order, but for bwd_origin, which every backward on a GPU has
// (test_plan.cpp).
inline std::string stems(const Plan& plan) {
  std::string s;
  for (const Launch& l : plan.launches)
    if (l.stem != Stem::bwd_origin) s += (s.empty() ? "" : " ") + std::string(stem_name(l.stem));
  return s;
}

// Bytes in front of delta, where bwd_origin leaves two numbers a row.
inline uint64_t far_size(const Problem& p) {
  return (uint64_t(p.batch * p.heads_q * p.seq_q) * 8 + 255) / 256 * 256;
}
// Whether a plan has room for them. Without keys there is no bwd_origin, but kernels may read them.
inline bool has_far_rows(const Plan& plan) {
  return plan.find(Stem::bwd_origin) ||
         (plan.backend != Backend::cpu && plan.problem.heads_kv * plan.problem.seq_kv == 0 &&
          plan.scratch[Scratch::delta].present);
}

// The plan of a problem that has one.
inline Plan plan_of(std::string_view line, const Caps& caps) {
  Plan plan;
  const Status status = make_plan(problem_of(line), caps, &plan);
  REQUIRE_MESSAGE(status.ok(), line << ": " << status.message());
  return plan;
}
inline Plan plan_of(std::string_view line, const char* profile = "h100_cuda") {
  return plan_of(line, caps_of(profile));
}

// Bytes of ds in the workspace: of the heads of a chunk, whole blocks.
inline uint64_t ds_size(const Problem& p, const Launch& d_q) {
  const auto blocks = [](int64_t n) { return uint64_t((n + 127) / 128 * 128); };
  return 2 * uint64_t(d_q.of<MatrixLaunch>().heads) * blocks(p.seq_kv) * blocks(p.seq_q);
}

}  // namespace plan_fixture
#endif
