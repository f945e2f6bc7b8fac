// SPDX-License-Identifier: MIT OR Apache-2.0
// A Vulkan application with attention in its frame, on a queue beside its own. Headless; every
// frame is checked.
//
//   render queue   upload 0 | upload 1 | show 0 | upload 2 | show 1 | ...
//   compute queue             attention 0 | attention 1 | attention 2 | ...
// upload copies q, k and v in, show copies o out.
//
// Two frames are in flight, each with buffers of its own. Three timelines order the queues; frame n
// raises each to n + 1.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "gpu.h"
#include "tandem/tandem.hpp"

namespace {

constexpr const char* kProblem = "fwd f32 b1 hq4 hk2 sq200 sk300 d64 dv64 causal_bottom_right";
constexpr size_t kQ = 4 * 200 * 64, kK = 2 * 300 * 64;  // elements; v has k's, o has q's
constexpr size_t kScene = kQ + 2 * kK, kO = kQ;         // q, k and v are in one buffer
constexpr uint32_t kInFlight = 2;

constexpr VkPipelineStageFlags kCopy = VK_PIPELINE_STAGE_TRANSFER_BIT,
                               kShader = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;

void fill_scene(float* scene, uint32_t frame) {
  for (size_t i = 0; i < kScene; ++i) scene[i] = std::sin(float((i * 37 + frame * 101) % 1009));
}

tandem_args scene_args(tandem_buffer scene, tandem_buffer o) {
  tandem_args args = TANDEM_ARGS_INIT;
  args.q = args.k = args.v = scene;
  args.k.offset += kQ * sizeof(float);
  args.v.offset += (kQ + kK) * sizeof(float);
  args.o = o;
  return args;
}

// The largest difference between what was shown and what the CPU device, which every machine has,
// makes of that frame.
float compare(const tandem::Plan& on_cpu, uint32_t frame, const float* shown) {
  std::vector<float> scene(kScene), o(kO);
  fill_scene(scene.data(), frame);
  const auto at = [](const std::vector<float>& v) {
    return tandem_buffer{uint64_t(uintptr_t(v.data())), 0};
  };
  on_cpu.execute({0}, scene_args(at(scene), at(o)));
  float most = 0;
  for (size_t i = 0; i < kO; ++i)
    if (!(std::fabs(shown[i] - o[i]) <= most)) most = std::fabs(shown[i] - o[i]);  // a NaN stays
  return most;
}

class App {
 public:
  explicit App(uint32_t gpu);
  ~App() { gpu_.DeviceWaitIdle(gpu_.device); }  // before the plan goes
  void run(uint32_t frames);

 private:
  struct Slot {  // of a frame in flight
    Buffer staging, scene, o, workspace, shown;
    VkCommandBuffer upload, attention, show;
    VkQueryPool stamps;
  };
  void upload(uint32_t frame);
  void attention(uint32_t frame);
  void show(uint32_t frame);
  void finish(uint32_t frame);
  void hand_over(VkCommandBuffer cmd, const Buffer& buffer, const Queue& from, const Queue& to,
                 VkPipelineStageFlags stage, VkAccessFlags wrote, VkAccessFlags reads);

  // Destroyed from the last to the first: a plan before its device, that before the VkDevice.
  Gpu gpu_;
  tandem::Device device_, cpu_ = tandem::Device::cpu();
  tandem::Plan plan_, on_cpu_;
  tandem_plan_info info_{};
  VkSemaphore uploaded_, attended_, shown_;
  Slot slots_[kInFlight] = {};
  float worst_ = 0;
  double ms_ = 0;
};

App::App(uint32_t gpu) : gpu_(gpu) {
  tandem_device* device = nullptr;
  tandem::check(tandem_vk_device_create(&gpu_.desc, nullptr, &device));
  device_ = tandem::Device(device);
  plan_ = tandem::Plan(device_, tandem::parse(kProblem));
  on_cpu_ = tandem::Plan(cpu_, tandem::parse(kProblem));
  info_ = plan_.info();
  uploaded_ = gpu_.timeline(), attended_ = gpu_.timeline(), shown_ = gpu_.timeline();
  const VkBufferUsageFlags from = VK_BUFFER_USAGE_TRANSFER_SRC_BIT,
                           to = VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                           tensor = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                    VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  for (Slot& s : slots_) {
    s.staging = gpu_.buffer(kScene * sizeof(float), from, true);
    s.scene = gpu_.buffer(kScene * sizeof(float), tensor | to, false);
    s.o = gpu_.buffer(kO * sizeof(float), tensor | from, false);
    s.workspace = gpu_.buffer(info_.workspace_size + 4, tensor, false);  // no buffer has 0 bytes
    s.shown = gpu_.buffer(kO * sizeof(float), to, true);
    s.upload = gpu_.commands(gpu_.render);
    s.attention = gpu_.commands(gpu_.compute);
    s.show = gpu_.commands(gpu_.render);
    s.stamps = gpu_.stamps(info_.kernel_count + 1);
  }
  std::printf("%s: render on family %u, attention on family %u, %s\n%s\n",
              gpu_.properties.deviceName, gpu_.render.family, gpu_.compute.family,
              gpu_.render.handle == gpu_.compute.handle ? "one queue" : "two queues", info_.name);
}

// Recorded twice, on the queue that gives a buffer away and on the one that takes it. The timeline
// between the two makes the memory visible; this changes the owner, which is of interest only where
// the families differ.
void App::hand_over(VkCommandBuffer cmd, const Buffer& buffer, const Queue& from, const Queue& to,
                    VkPipelineStageFlags stage, VkAccessFlags wrote, VkAccessFlags reads) {
  if (from.family == to.family) return;
  auto barrier = made<VkBufferMemoryBarrier>(VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER);
  barrier.srcAccessMask = wrote;
  barrier.dstAccessMask = reads;
  barrier.srcQueueFamilyIndex = from.family;
  barrier.dstQueueFamilyIndex = to.family;
  barrier.buffer = buffer.handle;
  barrier.size = VK_WHOLE_SIZE;
  gpu_.CmdPipelineBarrier(cmd, stage, stage, 0, 0, nullptr, 1, &barrier, 0, nullptr);
}

// Attention has read the slot's old scene, as the timeline says, and nothing reads it any more. So
// it need not be handed back.
void App::upload(uint32_t frame) {
  Slot& s = slots_[frame % kInFlight];
  fill_scene(s.staging.mapped, frame);
  gpu_.begin(s.upload);
  const VkBufferCopy all{0, 0, s.scene.bytes};
  gpu_.CmdCopyBuffer(s.upload, s.staging.handle, s.scene.handle, 1, &all);
  hand_over(s.upload, s.scene, gpu_.render, gpu_.compute, kCopy, VK_ACCESS_TRANSFER_WRITE_BIT, 0);
  const uint64_t read = frame < kInFlight ? 0 : frame - kInFlight + 1;
  gpu_.submit(gpu_.render, s.upload, {attended_, read}, kCopy, {uploaded_, frame + 1});
}

// tandem_vulkan.h wants our writes visible to SHADER_READ and SHADER_WRITE, and leaves behind
// SHADER_WRITE. Waits in all stages, so that the first timestamp waits, too.
void App::attention(uint32_t frame) {
  Slot& s = slots_[frame % kInFlight];
  gpu_.begin(s.attention);
  hand_over(s.attention, s.scene, gpu_.render, gpu_.compute, kShader, 0,
            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
  tandem_args args =
      scene_args(tandem_vk_buffer(s.scene.handle, 0), tandem_vk_buffer(s.o.handle, 0));
  args.workspace = tandem_vk_buffer(s.workspace.handle, 0);
  args.workspace_size = info_.workspace_size;
  if (gpu_.timestamps) {
    gpu_.CmdResetQueryPool(s.attention, s.stamps, 0, info_.kernel_count + 1);
    tandem::check(tandem_vk_execute_timed(plan_.get(), s.attention, &args, s.stamps, 0));
  } else {
    plan_.execute(tandem_vk_stream(s.attention), args);
  }
  hand_over(s.attention, s.o, gpu_.compute, gpu_.render, kShader, VK_ACCESS_SHADER_WRITE_BIT, 0);
  gpu_.submit(gpu_.compute, s.attention, {uploaded_, frame + 1}, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
              {attended_, frame + 1});
}

void App::show(uint32_t frame) {
  Slot& s = slots_[frame % kInFlight];
  gpu_.begin(s.show);
  hand_over(s.show, s.o, gpu_.compute, gpu_.render, kCopy, 0, VK_ACCESS_TRANSFER_READ_BIT);
  const VkBufferCopy all{0, 0, s.o.bytes};
  gpu_.CmdCopyBuffer(s.show, s.o.handle, s.shown.handle, 1, &all);
  auto host = made<VkMemoryBarrier>(VK_STRUCTURE_TYPE_MEMORY_BARRIER);
  host.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
  host.dstAccessMask = VK_ACCESS_HOST_READ_BIT;
  gpu_.CmdPipelineBarrier(s.show, kCopy, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &host, 0, nullptr, 0,
                          nullptr);
  gpu_.submit(gpu_.render, s.show, {attended_, frame + 1}, kCopy, {shown_, frame + 1});
}

// Waits until a frame has been shown, and looks at it. Its slot is free then.
void App::finish(uint32_t frame) {
  Slot& s = slots_[frame % kInFlight];
  gpu_.wait({shown_, frame + 1});
  const float difference = compare(on_cpu_, frame, s.shown.mapped);
  worst_ = std::fmax(worst_, difference);
  if (!(difference < 1e-4f))
    throw std::runtime_error("frame " + std::to_string(frame) + " is wrong");
  if (!gpu_.timestamps) return;
  std::vector<uint64_t> t(info_.kernel_count + 1);  // one more than there are kernels
  vk(gpu_.GetQueryPoolResults(gpu_.device, s.stamps, 0, uint32_t(t.size()), t.size() * 8, t.data(),
                              8, VK_QUERY_RESULT_64_BIT),
     "vkGetQueryPoolResults");
  ms_ += double(t.back() - t.front()) * double(gpu_.properties.limits.timestampPeriod) / 1e6;
}

void App::run(uint32_t frames) {
  for (uint32_t frame = 0; frame < frames + kInFlight; ++frame) {
    if (frame >= kInFlight) finish(frame - kInFlight);
    if (frame < frames) upload(frame), attention(frame);
    if (frame >= 1 && frame <= frames) show(frame - 1);  // the next upload does not wait for it
  }
  std::printf("%u frames, largest difference from the CPU device %.2g\n", frames, double(worst_));
  if (gpu_.timestamps) std::printf("attention takes %.3f ms a frame\n", ms_ / frames);
}

}  // namespace

int main(int argc, char** argv) {  // vulkan_app [FRAMES [GPU]]
  try {
    App app(argc > 2 ? uint32_t(std::atoi(argv[2])) : 0);
    app.run(argc > 1 ? uint32_t(std::max(std::atoi(argv[1]), 1)) : 8);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "vulkan_app: %s\n", e.what());
    return 1;
  }
}
