// SPDX-License-Identifier: MIT OR Apache-2.0
// Outputs that share memory with an input, another output or the workspace are refused, and nothing
// is written; outputs that interleave with other tensors, as the gradients of a fused qkv buffer
// do, are accepted, with the results that tensors of their own get.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "api_fixture.h"

namespace {

using A = tandem_args;

// Every tensor of a problem, in an arena of its own, with the workspace in one more.
class Arenas {
 public:
  static constexpr size_t kFloats = 4096;
  Arenas() {
    Arena* arena = arenas_.data();
    for (tandem_buffer A::*b : buffers()) {
      for (size_t i = 0; i < kFloats; ++i)
        arena->values[i] = float(int(i * 2654435761u >> 7) % 17 - 8) / 8;
      args.*b = {uint64_t(uintptr_t(arena++)), 0};
    }
    args.workspace_size = sizeof(Arena);
    for (const tandem_buffer& b : {args.lengths_q, args.lengths_kv})
      for (int i = 0; i < 8; ++i) reinterpret_cast<int32_t*>(uintptr_t(b.handle))[i] = 3;
  }
  static std::vector<tandem_buffer A::*> buffers() {
    return {&A::q,      &A::k,           &A::v,       &A::o,      &A::lse,       &A::d_o,
            &A::d_q,    &A::d_k,         &A::d_v,     &A::bias,   &A::keep,      &A::dist_bias,
            &A::slope,  &A::tau,         &A::sink,    &A::d_tau,  &A::lengths_q, &A::lengths_kv,
            &A::d_bias, &A::d_dist_bias, &A::d_slope, &A::d_sink, &A::workspace};
  }
  float* floats(tandem_buffer A::*b) const {
    return reinterpret_cast<float*>(uintptr_t((args.*b).handle));
  }
  bool operator==(const Arenas& other) const {
    return std::memcmp(arenas_.data(), other.arenas_.data(), sizeof(Arena) * arenas_.size()) == 0;
  }
  tandem_args args = TANDEM_ARGS_INIT;

 private:
  struct alignas(256) Arena {
    float values[kFloats];
  };
  std::vector<Arena> arenas_ = std::vector<Arena>(buffers().size());
};

struct PlanOf {
  tandem_plan* plan = nullptr;
  uint64_t workspace_size = 0;
  PlanOf(tandem_device* device, const tandem_problem& problem) {
    const tandem_status status = tandem_plan_create(device, &problem, &plan);
    INFO(std::string(tandem_last_message()));
    REQUIRE(status == TANDEM_OK);
    tandem_plan_info info{};
    info.struct_size = sizeof info;
    REQUIRE(tandem_plan_get_info(plan, &info) == TANDEM_OK);
    workspace_size = info.workspace_size;
  }
  ~PlanOf() { tandem_plan_destroy(plan); }
};

tandem_problem parse(const std::string& line) {
  tandem_problem problem;
  INFO(line);
  REQUIRE(tandem_problem_parse(line.c_str(), &problem) == TANDEM_OK);
  return problem;
}

// Everything that a backward of all optional inputs reads and writes.
const char* const kEverything =
    "bwd f32 b2 hq2 hk1 sq5 sk7 d4 dv4 elastic dist=4 alibi sink bias:f32:1x2x5 d_bias:f32 "
    "keep:2x1x1 q_padded kv_padded grads=qkvbdats";

}  // namespace

TEST_CASE("shared memory: an output in the place of another tensor is refused") {
  CpuDevice cpu;
  for (const char* line : {"fwd f32 b2 hq2 hk1 sq5 sk7 d4 dv4", kEverything,
                           "fwd f32 b2 hq2 hk1 sq5 sk7 d4 dv4 bias:f32:1x2x5 keep:2x1x1 sink "
                           "alibi dist=4 elastic q_packed=9 kv_padded"}) {
    CAPTURE(std::string(line));
    const tandem_problem problem = parse(line);
    PlanOf made(cpu.device, problem);
    const bool backward = problem.direction == TANDEM_BACKWARD;
    const bool everything = problem.sink != 0;
    std::vector<tandem_buffer A::*> outputs{&A::o, &A::lse}, inputs{&A::q, &A::k, &A::v};
    if (everything)
      inputs.insert(inputs.end(), {&A::bias, &A::keep, &A::dist_bias, &A::slope, &A::tau, &A::sink,
                                   &A::lengths_q, &A::lengths_kv});
    if (backward) {
      outputs = {&A::d_q,         &A::d_k,     &A::d_v,   &A::d_bias,
                 &A::d_dist_bias, &A::d_slope, &A::d_tau, &A::d_sink};
      inputs.insert(inputs.end(), {&A::d_o, &A::lse});
    }
    if (made.workspace_size > 0) outputs.push_back(&A::workspace);
    for (tandem_buffer A::*output : outputs) {
      std::vector<tandem_buffer A::*> others = inputs;
      for (tandem_buffer A::*other : outputs)
        if (other != output) others.push_back(other);
      for (tandem_buffer A::*other : others) {
        const bool space = output == &A::workspace || other == &A::workspace;
        Arenas arenas;
        const Arenas before;
        tandem_args args = arenas.args;
        args.*output = args.*other;
        CHECK(tandem_execute(made.plan, {0}, &args) ==
              (space ? TANDEM_ERROR_WORKSPACE : TANDEM_ERROR_INVALID_ARGUMENT));
        const std::string message = tandem_last_message();
        CAPTURE(message);
        CHECK(message.find("shares memory with") != std::string::npos);
        CHECK(arenas == before);
      }
    }
    Arenas arenas;
    CHECK(tandem_execute(made.plan, {0}, &arenas.args) == TANDEM_OK);
  }
}

TEST_CASE("shared memory: ends of contiguous tensors that meet, and that overlap") {
  CpuDevice cpu;
  const tandem_problem problem = parse("fwd f32 b2 hq2 hk1 sq5 sk7 d4 dv4");
  PlanOf made(cpu.device, problem);
  constexpr uint64_t k_bytes = 2 * 1 * 7 * 4 * 4, o_bytes = 2 * 2 * 5 * 4 * 4;
  Arenas arenas;
  tandem_args args = arenas.args;
  const uint64_t at = args.k.handle + 1024;
  args.k.handle = at;
  for (const uint64_t free : {at + k_bytes, at - o_bytes}) {
    args.o = {free, 0};
    CHECK(tandem_execute(made.plan, {0}, &args) == TANDEM_OK);
    args.o = {free - 4096, 4096};  // the offset counts
    CHECK(tandem_execute(made.plan, {0}, &args) == TANDEM_OK);
  }
  for (const uint64_t taken : {at + k_bytes - 4, at - o_bytes + 4, at + 16}) {
    args.o = {taken, 0};
    CHECK(tandem_execute(made.plan, {0}, &args) == TANDEM_ERROR_INVALID_ARGUMENT);
    const std::string message = tandem_last_message();
    CAPTURE(message);
    CHECK(message.find("args.o") != std::string::npos);
    CHECK(message.find("args.k") != std::string::npos);
  }
  // Inputs may share whatever they like.
  args = arenas.args;
  args.k = args.v = args.q;
  CHECK(tandem_execute(made.plan, {0}, &args) == TANDEM_OK);
}

TEST_CASE("shared memory: what a plan does not use, or of size 0, shares nothing") {
  CpuDevice cpu;
  Arenas arenas;
  {
    PlanOf made(cpu.device, parse("bwd f32 b2 hq2 hk1 sq5 sk7 d4 dv4 grads=v"));
    tandem_args args = arenas.args;
    args.d_q = args.d_k = args.d_v;  // not asked for
    CHECK(tandem_execute(made.plan, {0}, &args) == TANDEM_OK);
  }
  {
    PlanOf made(cpu.device, parse("fwd f32 b2 hq2 hk1 sq5 sk0 d4 dv4"));
    tandem_args args = arenas.args;
    args.k = args.v = args.bias = args.o;
    CHECK(tandem_execute(made.plan, {0}, &args) == TANDEM_OK);
    args.q = args.o;
    CHECK(tandem_execute(made.plan, {0}, &args) == TANDEM_ERROR_INVALID_ARGUMENT);
  }
  {
    // A workspace that is larger than the plan's may end in tensors.
    PlanOf made(cpu.device, parse("bwd f32 b2 hq2 hk1 sq5 sk7 d4 dv4"));
    REQUIRE(made.workspace_size > 0);
    tandem_args args = arenas.args;
    args.d_q = {args.workspace.handle + made.workspace_size, 0};
    CHECK(tandem_execute(made.plan, {0}, &args) == TANDEM_OK);
    args.d_q.handle -= 4;
    CHECK(tandem_execute(made.plan, {0}, &args) == TANDEM_ERROR_WORKSPACE);
  }
}

TEST_CASE("shared memory: gradients that interleave in a fused qkv buffer are accepted") {
  CpuDevice cpu;
  constexpr int64_t B = 2, S = 5, D = 4;
  for (const int64_t Hk : {2, 1})
    for (const bool by_head : {false, true}) {  // [B,S,3,H,D], or [B,S,H,3,D]
      if (by_head && Hk != 2) continue;         // heads of q and k are not in step
      CAPTURE(Hk);
      CAPTURE(by_head);
      const int64_t Hq = 2, row = (Hq + 2 * Hk) * D;
      tandem_problem problem = parse("bwd f32 b2 hq2 hk" + std::to_string(Hk) + " sq5 sk5 d4 dv4");
      Arenas own, fused;
      {
        PlanOf made(cpu.device, problem);
        REQUIRE(tandem_execute(made.plan, {0}, &own.args) == TANDEM_OK);
      }
      const int64_t head = by_head ? 3 * D : D;
      for (tandem_tensor* t : {&problem.d_q, &problem.d_k, &problem.d_v}) {
        t->stride[0] = S * row, t->stride[1] = head, t->stride[2] = row, t->stride[3] = 1;
      }
      PlanOf made(cpu.device, problem);
      const uint64_t base = fused.args.d_q.handle;
      const int64_t k_at = by_head ? D : Hq * D, v_at = by_head ? 2 * D : (Hq + Hk) * D;
      fused.args.d_k = {base + uint64_t(k_at) * 4, 0};
      fused.args.d_v = {base + uint64_t(v_at) * 4, 0};
      CHECK(tandem_execute(made.plan, {0}, &fused.args) == TANDEM_OK);
      const struct {
        tandem_buffer A::*tensor;
        int64_t heads;
      } all[] = {{&A::d_q, Hq}, {&A::d_k, Hk}, {&A::d_v, Hk}};
      for (const auto& t : all)
        for (int64_t b = 0; b < B; ++b)
          for (int64_t h = 0; h < t.heads; ++h)
            for (int64_t s = 0; s < S; ++s)
              for (int64_t d = 0; d < D; ++d)
                CHECK(fused.floats(t.tensor)[b * S * row + s * row + h * head + d] ==
                      own.floats(t.tensor)[((b * t.heads + h) * S + s) * D + d]);
      // A head further they meet the next tensor.
      const Arenas before = fused;
      fused.args.d_k.handle -= uint64_t(D) * 4;
      CHECK(tandem_execute(made.plan, {0}, &fused.args) == TANDEM_ERROR_INVALID_ARGUMENT);
      CHECK(fused == before);
    }
}
