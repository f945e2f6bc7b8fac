// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem_execute() and plans on the CPU device: missing and misplaced buffers, sizes of 0, many
// threads. Values are the parity suite's business; here a failing call must write nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "api_fixture.h"

namespace {

tandem_buffer at(const void* p) { return {uint64_t(uintptr_t(p)), 0}; }

constexpr size_t kSlack = 64;  // floats before and after every tensor, to see writes outside

// Buffers of a contiguous f32 problem in host memory.
struct Memory {
  std::vector<float> q, k, v, o, lse, d_o, d_q, d_k, d_v;
  std::vector<float> workspace;
  tandem_args args = TANDEM_ARGS_INIT;

  explicit Memory(const tandem_problem& p, uint64_t workspace_bytes = 0) {
    const size_t queries = size_t(p.batch * p.heads_q * p.seq_q);
    const size_t keys = size_t(p.batch * p.heads_kv * p.seq_kv);
    const size_t d = size_t(p.head_dim), dv = size_t(p.head_dim_v);
    auto input = [&](std::vector<float>& t, size_t n, tandem_buffer* buffer) {
      t.resize(n + 2 * kSlack);
      for (size_t i = 0; i < t.size(); ++i) t[i] = float(int(i * 2654435761u >> 7) % 17 - 8) / 8;
      *buffer = at(t.data() + kSlack);
    };
    auto output = [&](std::vector<float>& t, size_t n, tandem_buffer* buffer) {
      t.assign(n + 2 * kSlack, std::nanf(""));
      *buffer = at(t.data() + kSlack);
    };
    input(q, queries * d, &args.q);
    input(k, keys * d, &args.k);
    input(v, keys * dv, &args.v);
    input(d_o, queries * dv, &args.d_o);
    output(o, queries * dv, &args.o);
    output(lse, queries, &args.lse);
    output(d_q, queries * d, &args.d_q);
    output(d_k, keys * d, &args.d_k);
    output(d_v, keys * dv, &args.d_v);
    workspace.assign(workspace_bytes / 4 + 256, std::nanf(""));
    args.workspace = at(aligned());
    args.workspace_size = workspace_bytes;
  }
  float* aligned() {
    const uintptr_t p = reinterpret_cast<uintptr_t>(workspace.data());
    return workspace.data() + ((p + 255) / 256 * 256 - p) / 4;
  }
  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> all;
    for (const auto* t : {&q, &k, &v, &o, &lse, &d_o, &d_q, &d_k, &d_v, &workspace}) {
      const size_t n = all.size();
      all.resize(n + t->size());
      if (!t->empty()) std::memcpy(&all[n], t->data(), t->size() * 4);
    }
    return all;
  }
};

struct PlanOf {
  tandem_plan* plan = nullptr;
  tandem_plan_info info{};
  PlanOf(tandem_device* device, const tandem_problem& problem) {
    const tandem_status status = tandem_plan_create(device, &problem, &plan);
    INFO(std::string(tandem_last_message()));
    REQUIRE(status == TANDEM_OK);
    info.struct_size = sizeof(info);
    REQUIRE(tandem_plan_get_info(plan, &info) == TANDEM_OK);
  }
  ~PlanOf() { tandem_plan_destroy(plan); }
};

bool all_zero(const std::vector<float>& t) {
  return std::all_of(t.begin() + kSlack, t.end() - kSlack, [](float x) { return x == 0; });
}
bool slack_kept(const std::vector<float>& t) {
  return std::all_of(t.begin(), t.begin() + kSlack, [](float x) { return std::isnan(x); }) &&
         std::all_of(t.end() - kSlack, t.end(), [](float x) { return std::isnan(x); });
}

}  // namespace

TEST_CASE("what can be wrong with the arguments of execute") {
  CpuDevice cpu;
  tandem_problem backward = good_problem();
  tandem_problem forward = backward;
  forward.direction = TANDEM_FORWARD;
  PlanOf bwd(cpu.device, backward), fwd(cpu.device, forward);
  REQUIRE(bwd.info.workspace_size > 0);
  CHECK(fwd.info.workspace_size == 0);
  CHECK(bwd.info.workspace_alignment >= 4);

  using A = tandem_args;
  constexpr tandem_status argument = TANDEM_ERROR_INVALID_ARGUMENT, space = TANDEM_ERROR_WORKSPACE;
  const struct {
    const char* what;
    const tandem_plan* plan;
    std::function<void(A&)> spoil;
    tandem_status status;
    const char* word;
  } rows[] = {
      {"reserved", fwd.plan, [](A& a) { a.reserved = 3; }, argument, "args.reserved"},
      {"short", fwd.plan, [](A& a) { a.struct_size = 0; }, TANDEM_ERROR_INVALID_STRUCT,
       "args.struct_size"},
      {"forward q", fwd.plan,
       [](A& a) {
         a.q = {0, 0};
       },
       argument, "args.q "},
      {"forward k", fwd.plan,
       [](A& a) {
         a.k = {0, 0};
       },
       argument, "args.k "},
      {"forward v", fwd.plan,
       [](A& a) {
         a.v = {0, 0};
       },
       argument, "args.v "},
      {"forward o", fwd.plan,
       [](A& a) {
         a.o = {0, 0};
       },
       argument, "args.o "},
      {"backward q", bwd.plan,
       [](A& a) {
         a.q = {0, 0};
       },
       argument, "args.q "},
      {"backward k", bwd.plan,
       [](A& a) {
         a.k = {0, 0};
       },
       argument, "args.k "},
      {"backward v", bwd.plan,
       [](A& a) {
         a.v = {0, 0};
       },
       argument, "args.v "},
      {"backward o", bwd.plan,
       [](A& a) {
         a.o = {0, 0};
       },
       argument, "args.o "},
      {"backward without lse", bwd.plan,
       [](A& a) {
         a.lse = {0, 0};
       },
       argument, "args.lse"},
      {"backward d_o", bwd.plan,
       [](A& a) {
         a.d_o = {0, 0};
       },
       argument, "args.d_o"},
      {"backward d_q", bwd.plan,
       [](A& a) {
         a.d_q = {0, 0};
       },
       argument, "args.d_q"},
      {"backward d_k", bwd.plan,
       [](A& a) {
         a.d_k = {0, 0};
       },
       argument, "args.d_k"},
      {"backward d_v", bwd.plan,
       [](A& a) {
         a.d_v = {0, 0};
       },
       argument, "args.d_v"},
      {"misaligned q", fwd.plan, [](A& a) { a.q.offset = 2; }, argument, "args.q "},
      {"misaligned lse", bwd.plan, [](A& a) { a.lse.handle += 1; }, argument, "args.lse"},
      {"misaligned d_v", bwd.plan, [](A& a) { a.d_v.handle += 3; }, argument, "args.d_v"},
      {"no workspace", bwd.plan,
       [](A& a) {
         a.workspace = {0, 0};
       },
       space, "args.workspace "},
      {"workspace of 0", bwd.plan, [](A& a) { a.workspace_size = 0; }, space,
       "args.workspace_size is 0"},
      {"workspace a byte short", bwd.plan, [](A& a) { a.workspace_size -= 1; }, space,
       "args.workspace_size"},
      {"workspace misaligned", bwd.plan, [](A& a) { a.workspace.offset = 16; }, space,
       "args.workspace "},
  };
  Memory memory(backward, bwd.info.workspace_size);
  const std::vector<uint32_t> before = memory.bits();
  for (const auto& row : rows) {
    CAPTURE(std::string(row.what));
    tandem_args args = memory.args;
    row.spoil(args);
    CHECK(tandem_execute(row.plan, {0}, &args) == row.status);
    const std::string message = tandem_last_message();
    CAPTURE(message);
    CHECK(message.find(row.word) != std::string::npos);
    CHECK(memory.bits() == before);
  }
  // The same arguments, unspoiled, are accepted.
  CHECK(tandem_execute(fwd.plan, {0}, &memory.args) == TANDEM_OK);
  CHECK(tandem_execute(bwd.plan, {0}, &memory.args) == TANDEM_OK);
  CHECK(memory.bits() != before);
  for (const auto* t : {&memory.o, &memory.lse, &memory.d_q, &memory.d_k, &memory.d_v})
    CHECK(slack_kept(*t));
  // lse may be absent from forward; a gradient that is not asked for from backward.
  Memory other(backward, bwd.info.workspace_size);
  tandem_args args = other.args;
  args.lse = {0, 0};
  CHECK(tandem_execute(fwd.plan, {0}, &args) == TANDEM_OK);
  CHECK(std::equal(other.o.begin() + kSlack, other.o.end() - kSlack, memory.o.begin() + kSlack));
  tandem_problem only_v = backward;
  only_v.gradients = TANDEM_GRAD_V;
  PlanOf v(cpu.device, only_v);
  CHECK(v.info.workspace_size == 0);
  args = memory.args;
  args.d_q = args.d_k = args.workspace = {0, 0};
  args.workspace_size = 0;
  CHECK(tandem_execute(v.plan, {0}, &args) == TANDEM_OK);
}

TEST_CASE("regression: what a plan does not use may lie anywhere") {
  CpuDevice cpu;
  tandem_problem problem = good_problem();
  const PlanOf backward(cpu.device, problem);
  Memory memory(problem, backward.info.workspace_size);
  problem.direction = TANDEM_FORWARD;
  const PlanOf forward(cpu.device, problem);
  REQUIRE(forward.info.workspace_size == 0);
  tandem_args args = memory.args;
  // Nothing may read there either.
  args.workspace = {3, 0};
  args.d_o = args.d_q = args.bias = args.sink = {1, 2};
  CHECK(tandem_execute(forward.plan, {0}, &args) == TANDEM_OK);
  args.workspace_size = 4096;
  CHECK(tandem_execute(forward.plan, {0}, &args) == TANDEM_OK);
  // Where it is used, or may be, it is checked still.
  args.lse.offset += 1;
  CHECK(tandem_execute(forward.plan, {0}, &args) == TANDEM_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("sizes of 0 do nothing, except to zero gradients and rows that see no key") {
  CpuDevice cpu;
  const struct {
    const char* what;
    std::function<void(tandem_problem&)> change;
    bool o_zero, keys_zero;  // what has to be written, as zeros
  } rows[] = {
      {"no batch", [](tandem_problem& p) { p.batch = 0; }, false, false},
      {"no query heads", [](tandem_problem& p) { p.heads_q = 0; }, false, true},
      {"no heads", [](tandem_problem& p) { p.heads_q = p.heads_kv = 0; }, false, false},
      {"no queries", [](tandem_problem& p) { p.seq_q = 0; }, false, true},
      {"no keys", [](tandem_problem& p) { p.seq_kv = 0; }, true, false},
      {"nothing",
       [](tandem_problem& p) { p.batch = p.heads_q = p.heads_kv = p.seq_q = p.seq_kv = 0; }, false,
       false},
  };
  for (const auto& row : rows)
    for (const char* disable : {"", "cpu.simd"}) {
      CAPTURE(std::string(row.what));
      CAPTURE(std::string(disable));
      tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
      options.disable = disable;
      tandem_device* device = nullptr;
      REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
      tandem_problem problem = good_problem();
      row.change(problem);
      tandem_problem_contiguous(&problem, TANDEM_F32);
      tandem_problem forward = problem;
      forward.direction = TANDEM_FORWARD;
      PlanOf fwd(device, forward), bwd(device, problem);
      Memory memory(problem, bwd.info.workspace_size);
      CHECK(tandem_execute(fwd.plan, {0}, &memory.args) == TANDEM_OK);
      CHECK(tandem_execute(bwd.plan, {0}, &memory.args) == TANDEM_OK);
      if (row.o_zero) {
        CHECK(all_zero(memory.o));
        CHECK(all_zero(memory.d_q));
        for (size_t i = kSlack; i + kSlack < memory.lse.size(); ++i)
          CHECK(memory.lse[i] == -std::numeric_limits<float>::infinity());
      }
      if (row.keys_zero) {
        CHECK(all_zero(memory.d_k));
        CHECK(all_zero(memory.d_v));
      }
      for (const auto* t : {&memory.o, &memory.lse, &memory.d_q, &memory.d_k, &memory.d_v})
        CHECK(slack_kept(*t));
      // With nothing to do no buffer is needed either.
      if (fwd.info.kernel_count == 0) {
        tandem_args none = TANDEM_ARGS_INIT;
        CHECK(tandem_execute(fwd.plan, {0}, &none) == TANDEM_OK);
      }
      tandem_device_destroy(device);
    }
}

TEST_CASE("plan info: kernels are registry rows, workspace and flops are the formulas") {
  CpuDevice cpu;
  tandem_problem p = good_problem();
  p.mask = TANDEM_MASK_NONE;
  p.window_left = TANDEM_UNBOUNDED;
  PlanOf bwd(cpu.device, p);
  CHECK(bwd.info.kernel_count == 3);
  const char* stems[] = {"bwd_dot", "bwd_dkv", "bwd_dq"};
  for (uint32_t i = 0; i < bwd.info.kernel_count; ++i) {
    tandem_kernel_info kernel{};
    kernel.struct_size = sizeof(kernel);
    REQUIRE(tandem_kernel_get(bwd.info.kernels[i], &kernel) == TANDEM_OK);
    CHECK(std::string(kernel.stem) == stems[i]);
    CHECK(std::string(kernel.backend) == "cpu");
    CHECK(std::string(kernel.path) == bwd.info.path);
    CHECK(kernel.built == 1);
  }
  CHECK(bwd.info.workspace_size == 2 * 4 * 5 * 4);
  CHECK(bwd.info.flops == 2.5 * 4 * 2 * 4 * 5 * 7 * 12);
  CHECK(std::string(bwd.info.backend) == "cpu");
  const std::string name = bwd.info.name;
  const std::string line =
      text_of([&](char* out, size_t n) { return tandem_problem_print(&p, out, n); });
  CHECK(name.find(line) != std::string::npos);

  // flops count what is visible: causal bottom-right with a window, by hand.
  p = good_problem();
  p.direction = TANDEM_FORWARD;
  int64_t visible = 0;
  for (int64_t i = 0; i < p.seq_q; ++i)
    for (int64_t j = 0; j < p.seq_kv; ++j) visible += j <= i + 2 && j >= i + 2 - 3;
  PlanOf fwd(cpu.device, p);
  CHECK(fwd.info.flops == 4.0 * 2 * 4 * double(visible) * 12);
}

TEST_CASE("one plan, many threads, each with its own workspace: the same bits") {
  CpuDevice cpu;
  tandem_problem problem = good_problem(), forward = problem;
  forward.direction = TANDEM_FORWARD;
  PlanOf fwd(cpu.device, forward), bwd(cpu.device, problem);
  const int kThreads = 8;
  std::vector<Memory> memories;
  for (int t = 0; t < kThreads; ++t) memories.emplace_back(problem, bwd.info.workspace_size);
  for (Memory& m : memories) {  // moving a Memory keeps its vectors' storage, but be sure
    m.args.workspace = at(m.aligned());
  }
  std::vector<int> failures(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int n = 0; n < 50; ++n) {
        failures[size_t(t)] +=
            tandem_execute(fwd.plan, {0}, &memories[size_t(t)].args) != TANDEM_OK;
        failures[size_t(t)] +=
            tandem_execute(bwd.plan, {0}, &memories[size_t(t)].args) != TANDEM_OK;
        tandem_plan* own = nullptr;  // plans may be made beside it
        failures[size_t(t)] += tandem_plan_create(cpu.device, &problem, &own) != TANDEM_OK;
        tandem_plan_destroy(own);
      }
    });
  for (std::thread& t : threads) t.join();
  for (int t = 0; t < kThreads; ++t) {
    CHECK(failures[size_t(t)] == 0);
    CHECK(std::memcmp(memories[size_t(t)].d_q.data() + kSlack, memories[0].d_q.data() + kSlack,
                      (memories[0].d_q.size() - 2 * kSlack) * 4) == 0);
    CHECK(std::memcmp(memories[size_t(t)].d_k.data() + kSlack, memories[0].d_k.data() + kSlack,
                      (memories[0].d_k.size() - 2 * kSlack) * 4) == 0);
  }
}

TEST_CASE("a limit of the workspace, and the least that is possible") {
  CpuDevice cpu;
  tandem_problem problem = good_problem();
  uint64_t least = 0;
  REQUIRE(tandem_least_workspace(cpu.device, &problem, &least) == TANDEM_OK);
  CHECK(least == PlanOf(cpu.device, problem).info.workspace_size);
  REQUIRE(least > 1);
  problem.workspace_limit = least;
  CHECK(PlanOf(cpu.device, problem).info.workspace_size == least);
  problem.workspace_limit = least - 1;
  tandem_plan* plan = nullptr;
  CHECK(tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_ERROR_WORKSPACE);
  CHECK(plan == nullptr);
  const std::string message = tandem_last_message();
  CHECK_MESSAGE(message.find(std::to_string(least) + " bytes") != std::string::npos, message);
  // The limit of the problem that is asked about has no part in the answer.
  uint64_t again = 0;
  CHECK(tandem_least_workspace(cpu.device, &problem, &again) == TANDEM_OK);
  CHECK(again == least);
  problem.direction = TANDEM_FORWARD;
  CHECK(tandem_least_workspace(cpu.device, &problem, &again) == TANDEM_OK);
  CHECK(again == 0);
  problem.head_dim = 0;
  CHECK(tandem_least_workspace(cpu.device, &problem, &again) == TANDEM_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("slices on the CPU: one, and what is asked for wrongly is said") {
  CpuDevice cpu;
  tandem_problem problem = good_problem();
  PlanOf whole(cpu.device, problem);
  tandem_slices slices{};
  slices.struct_size = sizeof slices;
  const auto refused = [&](tandem_status status, const char* word) {
    CHECK(status == TANDEM_ERROR_INVALID_ARGUMENT);
    const std::string message = tandem_last_message();
    CHECK_MESSAGE(message.find(word) != std::string::npos, message);
  };
  refused(tandem_plan_get_slices(whole.plan, 1e6, &slices), "TANDEM_FLAG_SLICES");
  problem.flags |= TANDEM_FLAG_SLICES;
  PlanOf cut(cpu.device, problem);
  for (double none : {0.0, -1.0, std::nan("")})
    refused(tandem_plan_get_slices(cut.plan, none, &slices), "operations");
  CHECK(slices.count == 0);
  REQUIRE(tandem_plan_get_slices(cut.plan, 1, &slices) == TANDEM_OK);
  CHECK(slices.count == 1);
  CHECK(slices.operations == 1);
  CHECK(slices.largest > 1);
  CHECK(slices.whole == slices.largest);

  Memory at_once(problem, whole.info.workspace_size), by_slices(problem, cut.info.workspace_size);
  const std::vector<uint32_t> before = by_slices.bits();
  refused(tandem_execute_slice(cut.plan, {0}, &by_slices.args, &slices, 1), "index is 1");
  tandem_slices other = slices;
  other.count = 2;
  refused(tandem_execute_slice(cut.plan, {0}, &by_slices.args, &other, 0), "slices.count is 2");
  refused(tandem_execute_slice(whole.plan, {0}, &by_slices.args, &slices, 0), "TANDEM_FLAG_SLICES");
  CHECK(tandem_execute_slice(cut.plan, {0}, &by_slices.args, nullptr, 0) != TANDEM_OK);
  CHECK(by_slices.bits() == before);
  CHECK(tandem_execute(whole.plan, {0}, &at_once.args) == TANDEM_OK);
  CHECK(tandem_execute_slice(cut.plan, {0}, &by_slices.args, &slices, 0) == TANDEM_OK);
  CHECK(by_slices.d_q.size() == at_once.d_q.size());
  CHECK(std::memcmp(by_slices.d_q.data(), at_once.d_q.data(), 4 * at_once.d_q.size()) == 0);
}

TEST_CASE("slices of a plan without work: none") {
  CpuDevice cpu;
  tandem_problem problem = good_problem();
  problem.direction = TANDEM_FORWARD;
  problem.batch = 0;
  problem.flags |= TANDEM_FLAG_SLICES;
  PlanOf none(cpu.device, problem);
  tandem_slices slices{};
  slices.struct_size = sizeof slices;
  REQUIRE(tandem_plan_get_slices(none.plan, 1e6, &slices) == TANDEM_OK);
  CHECK(slices.count == 0);
  CHECK(slices.whole == 0);
}
