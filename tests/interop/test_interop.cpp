// SPDX-License-Identifier: MIT OR Apache-2.0
// CUDA and Vulkan together, on one GPU and in one piece of memory: forward on either, backward on
// either, in all four ways, ordered by a timeline semaphore alone. The results are judged against
// the reference, and against each other, by the limits of the parity suite. Then both ways many
// times in a row without the host waiting in between; and with one of the two waits left out, which
// has to show. Exit status 77 (skipped) where there is no such GPU.
#include <cstring>
#include <map>

#include "harness/compare.h"
#include "shared_memory.h"
#include "tandem/tandem_cuda.h"

namespace {

using namespace interop;
using cuda_driver::cu;

constexpr size_t kBytes = size_t(96) << 20;
constexpr int kRounds = 20;

enum class Mistake { none, vulkan_does_not_wait, cuda_does_not_wait };

// Different paths and inputs on both sides; deterministic, so that rounds can be compared bit by
// bit.
constexpr const char* kLines[] = {
    "bwd f32 b2 hq4 hk2 sq200 sk230 d64 dv64 causal_bottom_right deterministic",
    "bwd bf16 b2 hq4 hk2 sq512 sk512 d128 dv128 causal_top_left deterministic",
    "bwd f16 b2 hq4 hk4 sq300 sk300 d64 dv64 bias:f16:1x4x300 d_bias:f32 grads=qkvb deterministic",
    "bwd bf16 b1 hq4 hk2 sq400 sk400 d64 dv64 causal_top_left elastic dist=128 grads=qkvdt "
    "deterministic",
    "bwd f32 b2 hq2 hk2 sq150 sk170 d40 dv24 entmax=1.5 dropout=0.2 softcap=20 deterministic",
    "bwd f16 b3 hq4 hk2 sq200 sk260 d80 dv80 kv_padded sink grads=qkvs deterministic"};

bool needed(const tandem_problem& p, Role role) { return is_input(p, role) || is_output(p, role); }

// A case's tensors in the shared memory, plans of both directions on both backends.
class Shared {
 public:
  Shared(Case& c, VulkanSide& vulkan, CudaSide& cuda, tandem_device* cuda_device)
      : case_(c), vulkan_(vulkan), cuda_(cuda) {
    problems_[1] = c.problem();
    problems_[0] = forward_of(problems_[1]);
    size_t end = 0;
    const auto place = [&](size_t bytes) {
      const size_t at = end;
      end += (bytes + 4095) / 4096 * 4096;
      return at;
    };
    for (int i = 0; i < kRoleCount; ++i)
      if (const Role role = Role(i); role == Role::o || needed(problems_[1], role))
        at_[role] = place(HostTensor(problems_[1], role).bytes.size());
    lse_ = place(rows() * 4);
    size_t workspace = 0;
    for (int direction = 0; direction < 2; ++direction)
      for (int on_cuda = 0; on_cuda < 2; ++on_cuda) {
        tandem_plan*& plan = plans_[direction][on_cuda];
        check(tandem_plan_create(on_cuda ? cuda_device : vulkan.device(), &problems_[direction],
                                 &plan));
        tandem_plan_info info{};
        info.struct_size = sizeof(info);
        check(tandem_plan_get_info(plan, &info));
        workspace = std::max(workspace, size_t(info.workspace_size));
        if (direction) paths_[on_cuda] = std::string(info.backend) + "." + info.path;
      }
    workspace_ = place(workspace);
    workspace_size_ = workspace;
    end_ = end;
    if (end > kBytes) throw Error(TANDEM_ERROR_INVALID_ARGUMENT, "the shared memory is too small");
    for (int direction = 0; direction < 2; ++direction)
      commands_[direction] = vulkan.record([&](VkCommandBuffer cmd) {
        const tandem_args a = args(direction, false);
        check(tandem_execute(plans_[direction][0], tandem_vk_stream(cmd), &a));
      });
    // The inputs, by CUDA.
    NEED(cu.cuMemsetD8(cuda.pointer(), 0xff, kBytes));
    for (const auto& [role, at] : at_)
      if (is_input(problems_[1], role)) {
        const std::vector<uint8_t>& bytes = c.input(role).bytes;
        NEED(cu.cuMemcpyHtoD(cuda.pointer() + at, bytes.data(), bytes.size()));
      }
    NEED(cu.cuStreamSynchronize(nullptr));  // the stream that is used does not wait for this one
  }
  ~Shared() {
    vulkan_.wait_idle();
    for (auto& direction : plans_)
      for (tandem_plan* plan : direction) tandem_plan_destroy(plan);
  }

  const std::string& path(bool on_cuda) const { return paths_[on_cuda]; }

  // Enqueues; the host waits for nothing.
  void forward_backward(const bool (&on_cuda)[2], uint64_t* time, Mistake mistake = Mistake::none) {
    if (mistake == Mistake::vulkan_does_not_wait)  // CUDA is busy for some milliseconds
      for (int i = 0; i < 200; ++i)
        NEED(cu.cuMemsetD8Async(cuda_.pointer() + end_, 0xff, kBytes - end_, cuda_.stream()));
    for (const auto& [role, at] : at_)  // what the last round wrote is gone
      if (role == Role::o || is_output(problems_[1], role))
        NEED(cu.cuMemsetD8Async(cuda_.pointer() + at, 0xff,
                                HostTensor(problems_[1], role).bytes.size(), cuda_.stream()));
    NEED(cu.cuMemsetD8Async(cuda_.pointer() + lse_, 0xff, rows() * 4, cuda_.stream()));
    for (int direction = 0; direction < 2; ++direction) {
      if (on_cuda[direction]) {
        const tandem_args a = args(direction, true);
        check(tandem_execute(plans_[direction][1], tandem_cuda_stream(cuda_.stream()), &a));
        continue;
      }
      const bool signals = mistake != Mistake::vulkan_does_not_wait;
      if (signals) cuda_.signal(++*time);
      const uint64_t before = *time;
      if (mistake == Mistake::cuda_does_not_wait)  // Vulkan is
        for (int i = 0; i < 200; ++i) vulkan_.submit(commands_[0], before, ++*time);
      const uint64_t after = ++*time;
      vulkan_.submit(commands_[direction], before, after);
      if (mistake != Mistake::cuda_does_not_wait) cuda_.wait(after);
    }
  }

  void wait_for_both() {
    vulkan_.wait_idle();
    NEED(cu.cuStreamSynchronize(cuda_.stream()));
  }

  Outputs outputs() {
    NEED(cu.cuStreamSynchronize(cuda_.stream()));
    Outputs out;
    for (Role role : kOutputs) {
      if (role != Role::o && !is_output(problems_[1], role)) continue;
      HostTensor& t = out.tensor(role) = HostTensor(problems_[1], role);
      NEED(cu.cuMemcpyDtoH(t.bytes.data(), cuda_.pointer() + at_.at(role), t.bytes.size()));
    }
    out.lse.resize(rows());
    NEED(cu.cuMemcpyDtoH(out.lse.data(), cuda_.pointer() + lse_, rows() * 4));
    return out;
  }

 private:
  size_t rows() const {
    const tandem_problem& p = problems_[1];
    return size_t(p.batch * p.heads_q * p.seq_q);
  }
  tandem_args args(int direction, bool on_cuda) const {
    const auto buffer = [&](size_t at) {
      return on_cuda ? tandem_buffer{uint64_t(cuda_.pointer()), at}
                     : tandem_vk_buffer(vulkan_.buffer(), at);
    };
    tandem_args a = TANDEM_ARGS_INIT;
    for (const auto& [role, at] : at_)
      if (role == Role::o || needed(problems_[direction], role)) buffer_of(a, role) = buffer(at);
    a.lse = buffer(lse_);
    a.workspace = buffer(workspace_);
    a.workspace_size = workspace_size_;
    a.dropout_seed = case_.dropout_seed;
    a.dropout_offset = case_.dropout_offset;
    return a;
  }

  Case& case_;
  VulkanSide& vulkan_;
  CudaSide& cuda_;
  tandem_problem problems_[2];  // forward, backward
  std::map<Role, size_t> at_;
  size_t lse_ = 0, workspace_ = 0, workspace_size_ = 0, end_ = 0;
  tandem_plan* plans_[2][2] = {};  // of a direction; on Vulkan, on CUDA
  std::string paths_[2];
  VkCommandBuffer commands_[2] = {};
};

bool same_bits(const Outputs& a, const Outputs& b) {
  bool same = std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * 4) == 0;
  for (Role role : kOutputs) same &= a.tensor(role).bytes == b.tensor(role).bytes;
  return same;
}

int run(const char* line, uint64_t seed, VulkanSide& vulkan, CudaSide& cuda, tandem_device* device,
        uint64_t* time) {
  int failures = 0;
  Case c(parse(line), seed);
  std::printf("%s\n", line);
  Shared shared(c, vulkan, cuda, device);
  std::printf("  %s, %s\n", shared.path(false).c_str(), shared.path(true).c_str());
  const char* const names[] = {"Vulkan", "CUDA"};
  std::vector<Outputs> all;
  for (bool forward : {true, false})
    for (bool backward : {true, false}) {
      const bool on_cuda[] = {forward, backward};
      shared.forward_backward(on_cuda, time);
      all.push_back(shared.outputs());
      CaseResult result;
      result.ok = true;
      c.judge(all.back(), &result);
      const double worst = result.worst_ratio();
      for (size_t i = 0; i + 1 < all.size(); ++i) c.judge_pair(all[i], all.back(), &result);
      std::printf("  forward %-6s  backward %-6s  %s, worst ratio %.2f of %.0f\n", names[forward],
                  names[backward], result.ok ? "agree" : "FAILED", worst, kRatioLimit);
      if (!result.ok) ++failures, std::printf("    %s\n", result.message.c_str());
    }
  for (bool forward : {true, false}) {
    const bool on_cuda[] = {forward, !forward};
    for (int i = 0; i < kRounds; ++i) shared.forward_backward(on_cuda, time);
    const bool same = same_bits(shared.outputs(), all[forward ? 1 : 2]);
    std::printf("  %d rounds of forward %s, backward %s: %s\n", kRounds, names[forward],
                names[!forward], same ? "the same bits" : "FAILED: other bits");
    failures += !same;
  }
  for (Mistake mistake : {Mistake::vulkan_does_not_wait, Mistake::cuda_does_not_wait}) {
    int noticed = 0;
    for (int i = 0; i < kRounds; ++i) {
      shared.forward_backward({true, false}, time, mistake);
      noticed += !same_bits(shared.outputs(), all[1]);
      shared.wait_for_both();
    }
    std::printf("  %s does not wait: noticed %d times of %d\n",
                names[mistake == Mistake::cuda_does_not_wait], noticed, kRounds);
    if (noticed == 0) ++failures, std::printf("    FAILED: a wait that is missing does not show\n");
  }
  return failures;
}

int skipped(const char* why) { return std::printf("skipped: %s\n", why), 77; }

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF,
               1024);  // compiling pipelines takes a while: say how far it is
  const char* reason = "";
  const int gpus = cu.open(&reason);
  if (gpus == 0) return skipped(reason);
  int failures = 0, ran = 0;
  std::string why;
  for (int ordinal = 0; ordinal < gpus; ++ordinal) {
    CUdevice gpu = 0;
    CUuuid uuid{};
    char name[64];
    NEED(cu.cuDeviceGet(&gpu, ordinal));
    NEED(cu.cuDeviceGetUuid(&uuid, gpu));
    NEED(cu.cuDeviceGetName(name, sizeof name, gpu));
    std::printf("CUDA device %d: %s\n", ordinal, name);
    try {
      VulkanSide vulkan(uuid, kBytes);
      CUcontext context = nullptr;
      NEED(cu.create_context(&context, 0, gpu));
      tandem_cuda_device_desc desc = TANDEM_CUDA_DEVICE_DESC_INIT;
      desc.context = context;
      tandem_device* device = nullptr;
      check(tandem_cuda_device_create_with(&desc, nullptr, &device));
      {
        CudaSide cuda(vulkan);
        uint64_t time = 0, seed = 1;
        if (argc > 1)
          for (int i = 1; i < argc; ++i)
            failures += run(argv[i], seed, vulkan, cuda, device, &time);
        else
          for (const char* line : kLines)
            failures += run(line, seed++, vulkan, cuda, device, &time);
      }
      failures += vulkan.messages();
      tandem_device_destroy(device);
      NEED(cu.cuCtxDestroy(context));
      ++ran;
    } catch (const Error& e) {
      const bool none = e.code() == TANDEM_ERROR_NO_BACKEND || e.code() == TANDEM_ERROR_NO_DEVICE ||
                        e.code() == TANDEM_ERROR_MISSING_FEATURE;
      std::printf("CUDA device %d: %s: %s\n", ordinal, none ? "left out" : "FAILED", e.what());
      failures += !none;
      why = e.what();
    }
  }
  if (ran == 0 && failures == 0) return skipped(why.c_str());
  std::printf("%s: %d GPUs\n", failures ? "FAILED" : "OK", ran);
  return failures ? 1 : 0;
}
