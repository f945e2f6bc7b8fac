// SPDX-License-Identifier: MIT OR Apache-2.0
// Block lists, spans, lengths, offsets and indices of any numbers: both paths of the CPU read and
// write nothing outside of the tensors, leave gaps as they are, and agree.
#include <algorithm>
#include <cmath>

#include "compare.h"
#include "small.h"

namespace {

using fuzz::Buffer;

// A device with one of the paths; nullptr: this machine does not have these vector instructions.
tandem_device* open_cpu(const char* disable, const char* isa) {
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.threads = 1;
  options.disable = disable;
  setenv("TANDEM_CPU_ISA", isa, 1);
  tandem_device* device = nullptr;
  FUZZ_CHECK(tandem_cpu_device_create(&options, &device) == TANDEM_OK || *isa);
  return device;
}

// The path simd with the machine's best instructions, and with each of the others.
std::vector<tandem_device*> open_all() {
  std::vector<tandem_device*> all;
  for (const char* isa : {"", "avx512", "avx2", "baseline"})
    if (tandem_device* device = open_cpu("cpu.ref", isa)) all.push_back(device);
  return all;
}

using Heap = std::vector<std::unique_ptr<uint8_t[]>>;

// Runs the problem with copies of the inputs; false: it is refused.
bool run(tandem_device* device, const tandem_problem& p, const std::vector<Buffer>& buffers,
         const Heap& inputs, Heap* outputs) {
  tandem_plan* plan = nullptr;
  const tandem_status status = tandem_plan_create(device, &p, &plan);
  if (status != TANDEM_OK) {
    FUZZ_CHECK_OF(fuzz::is_refusal(p, status), fuzz::line_of(p));
    return false;
  }
  tandem_plan_info info{};
  info.struct_size = sizeof info;
  FUZZ_CHECK(tandem_plan_get_info(plan, &info) == TANDEM_OK);
  tandem_args args = TANDEM_ARGS_INIT;
  outputs->resize(buffers.size());
  for (size_t n = 0; n < buffers.size(); ++n) {
    (*outputs)[n].reset(new uint8_t[buffers[n].size]);
    std::memcpy((*outputs)[n].get(), inputs[n].get(), buffers[n].size);
    args.*buffers[n].arg = {uint64_t(reinterpret_cast<uintptr_t>((*outputs)[n].get())), 0};
  }
  // The workspace is aligned, and of just the size that the plan says.
  const size_t size = size_t(info.workspace_size);
  void* workspace = nullptr;
  FUZZ_CHECK(posix_memalign(&workspace, 256, size > 0 ? size : 1) == 0);
  std::memset(workspace, 0xff, size);
  args.workspace = {uint64_t(reinterpret_cast<uintptr_t>(workspace)), 0};
  args.workspace_size = info.workspace_size;
  args.dropout_seed = 7;
  FUZZ_CHECK_OF(tandem_execute(plan, {0}, &args) == TANDEM_OK, fuzz::line_of(p));
  std::free(workspace);
  tandem_plan_destroy(plan);
  for (size_t n = 0; n < buffers.size(); ++n)
    FUZZ_CHECK_OF(buffers[n].output ||
                      std::memcmp((*outputs)[n].get(), inputs[n].get(), buffers[n].size) == 0,
                  "an input was written: " + fuzz::line_of(p));
  return true;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  static tandem_device* const ref = open_cpu("cpu.simd", "");
  static const std::vector<tandem_device*> simds = open_all();
  tandem_device* const simd = simds[size > 0 ? data[size - 1] % simds.size() : 0];
  const tandem_problem p = fuzz::draw_small(bytes);
  {
    tandem_plan* plan = nullptr;
    if (tandem_plan_create(ref, &p, &plan) != TANDEM_OK) return 0;
    tandem_plan_destroy(plan);
  }
  const std::vector<Buffer> buffers = fuzz::buffers_of(p);
  Heap inputs, a, b;
  bool small = true;
  for (const Buffer& buffer : buffers) {
    inputs.emplace_back(new uint8_t[buffer.size]);
    std::memset(inputs.back().get(), 0xff, buffer.size);
    if (!buffer.output || buffer.arg == &tandem_args::max_logit)
      small &= fuzz::fill_input(bytes, p, buffer, inputs.back().get());
  }
  // A backward's o and lse are those of its forward.
  if (p.direction == TANDEM_BACKWARD) {
    const tandem_problem forward = tandem::harness::forward_of(p);
    const std::vector<Buffer> of_forward = fuzz::buffers_of(forward);
    Heap taken, made;
    const auto find = [&](const std::vector<Buffer>& list, const Buffer& b) {
      return size_t(
          std::find_if(list.begin(), list.end(), [&](const Buffer& x) { return x.arg == b.arg; }) -
          list.begin());
    };
    for (const Buffer& buffer : of_forward) {
      taken.emplace_back(new uint8_t[buffer.size]);
      std::memset(taken.back().get(), 0xff, buffer.size);
      const size_t n = find(buffers, buffer);
      if (n < buffers.size() && !buffer.output)
        std::memcpy(taken.back().get(), inputs[n].get(), buffer.size);
    }
    if (!run(ref, forward, of_forward, taken, &made)) return 0;
    for (const Buffer& buffer : buffers) {
      const size_t n = find(of_forward, buffer);
      if (n < of_forward.size() && of_forward[n].output && !buffer.output)
        std::memcpy(inputs[find(buffers, buffer)].get(), made[n].get(), buffer.size);
    }
  }
  if (!run(ref, p, buffers, inputs, &a)) return 0;
  if (!run(simd, p, buffers, inputs, &b)) return 0;
  if (p.normalizer != TANDEM_SOFTMAX) return 0;  // a threshold may be crossed by a rounding
  if (!small || tandem::harness::main_dtype(p) != TANDEM_F32 || p.bias.dtype > TANDEM_F32) return 0;
  // Entries may share rows of outputs.
  if (p.lengths_q >= TANDEM_LENGTHS_PACKED) return 0;
  if (p.direction == TANDEM_BACKWARD && p.lengths_kv >= TANDEM_LENGTHS_PACKED) return 0;
  for (size_t n = 0; n < buffers.size(); ++n) {
    if (!buffers[n].output) continue;
    // Its error grows with the scores, which slopes make large.
    if (!buffers[n].other && buffers[n].role == tandem::harness::Role::d_slope) continue;
    // A key too many or too few changes more than this; accuracy is judged elsewhere.
    float largest = 0;
    for (size_t at = 0; at + 4 <= buffers[n].size; at += 4) {
      float x = 0;
      std::memcpy(&x, a[n].get() + at, 4);
      if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    }
    const float most =
        p.direction == TANDEM_BACKWARD ? 0.03f * (1 + largest) : 1e-3f * (1 + largest);
    for (size_t at = 0; at + 4 <= buffers[n].size; at += 4) {
      float x = 0, y = 0;
      std::memcpy(&x, a[n].get() + at, 4);
      std::memcpy(&y, b[n].get() + at, 4);
      const bool same = std::memcmp(&x, &y, 4) == 0 || x == y || std::fabs(x - y) <= most;
      FUZZ_CHECK_OF(same,
                    std::string(buffers[n].other ? "lse or max_logit"
                                                 : tandem::harness::role_name(buffers[n].role)) +
                        " " + std::to_string(at / 4) + ": " + std::to_string(x) + ", " +
                        std::to_string(y) + " in " + fuzz::line_of(p));
    }
  }
  return 0;
}
