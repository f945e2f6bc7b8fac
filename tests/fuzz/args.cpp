// SPDX-License-Identifier: MIT OR Apache-2.0
// A tandem_args of any bits, on the CPU: an execute is refused and writes nothing, or it writes its
// outputs and its workspace alone. All buffers lie in one arena, so that they may overlap.
#include <algorithm>

#include "small.h"

namespace {

constexpr size_t kArena = size_t(1) << 20;

tandem_device* device() {
  static tandem_device* made = [] {
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.threads = 1;
    tandem_device* d = nullptr;
    FUZZ_CHECK(tandem_cpu_device_create(&options, &d) == TANDEM_OK);
    return d;
  }();
  return made;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  const uint8_t kind = bytes.byte();
  tandem_problem p = fuzz::draw_small(bytes);
  if (kind % 8 >= 5) p.flags |= TANDEM_FLAG_SLICES;
  tandem_plan* plan = nullptr;
  if (tandem_plan_create(device(), &p, &plan) != TANDEM_OK) return 0;
  tandem_plan_info info{};
  info.struct_size = sizeof info;
  FUZZ_CHECK(tandem_plan_get_info(plan, &info) == TANDEM_OK);
  static uint8_t* const arena = static_cast<uint8_t*>(std::aligned_alloc(256, kArena));
  static const std::vector<uint8_t> fresh = [] {  // numbers that are neither large nor NaN
    std::vector<uint8_t> made(kArena);
    for (size_t n = 0; n < kArena; n += 4) {
      const float number = float(n * 2654435761u >> 8 & 15) / 8 - 1;
      std::memcpy(made.data() + n, &number, 4);
    }
    return made;
  }();
  std::memcpy(arena, fresh.data(), kArena);
  const auto address_of = [&](size_t at) {
    return uint64_t(reinterpret_cast<uintptr_t>(arena + at));
  };

  tandem_args args = TANDEM_ARGS_INIT;
  std::vector<fuzz::Buffer> buffers = fuzz::buffers_of(p);
  buffers.push_back(
      {&tandem_args::workspace, size_t(info.workspace_size), true, tandem::harness::Role::q, true});
  std::vector<std::pair<size_t, size_t>> written;  // ranges that outputs reach
  size_t end = 0;
  for (const fuzz::Buffer& b : buffers) {
    if (b.size > kArena / 8) return tandem_plan_destroy(plan), 0;
    size_t at = (end + 255) / 256 * 256;
    const uint8_t how = bytes.byte();
    if (how % 16 == 1) at = size_t(bytes.value<uint32_t>()) % (kArena - b.size);  // overlapping
    if (how % 16 == 2) at += size_t(bytes.below(9));                              // misaligned
    if (at + b.size > kArena) return tandem_plan_destroy(plan), 0;
    if (how % 16 == 1)
      at = at / 4 * 4;
    else
      end = std::max(end, at + b.size);
    if (!b.output) (void)fuzz::fill_input(bytes, p, b, arena + at);
    const uint64_t offset = how % 4 == 3 ? uint64_t(bytes.awkward()) : 0;  // may wrap around
    args.*b.arg = {address_of(at) - offset, offset};
    if (how % 16 == 4) args.*b.arg = {0, 0};
    if (b.output) written.push_back({at, at + b.size});
  }
  // What the plan does not use is not looked at.
  using A = tandem_args;
  for (tandem_buffer A::*m : {&A::bias, &A::keep, &A::tau, &A::sink, &A::spans, &A::blocks,
                              &A::d_bias, &A::part_o, &A::offsets_q, &A::d_dist_bias}) {
    const bool used = std::any_of(buffers.begin(), buffers.end(),
                                  [&](const fuzz::Buffer& b) { return b.arg == m; });
    if (!used) args.*m = {bytes.value<uint64_t>(), uint64_t(bytes.awkward())};
  }
  args.workspace_size = info.workspace_size;
  if (kind % 8 == 1) args.workspace_size = uint64_t(bytes.awkward());
  args.dropout_seed = bytes.value<uint64_t>();
  args.dropout_offset = bytes.value<uint32_t>();
  if (kind % 8 == 2) args.reserved = uint32_t(bytes.awkward());
  if (kind % 8 == 3) args.reserved2 = uint32_t(bytes.awkward());
  if (kind % 8 == 4) args.struct_size = uint32_t(bytes.awkward());
  // A struct that is as long as it says, where a version may have that length.
  const uint32_t given = args.struct_size;
  const bool legal = given == 176 || given == sizeof args ||
                     (given > sizeof args && given <= 4096 && given % 8 == 0);
  const size_t room = legal ? given : 8;
  const std::unique_ptr<uint64_t[]> memory(new uint64_t[(room + 7) / 8]());
  std::memcpy(memory.get(), &args, std::min(room, sizeof args));
  if (room > sizeof args && kind >= 128) reinterpret_cast<uint8_t*>(memory.get())[room - 1] = 1;

  const std::vector<uint8_t> before(arena, arena + kArena);
  const auto* given_args = reinterpret_cast<const tandem_args*>(memory.get());
  const tandem_stream stream{bytes.value<uint64_t>()};
  tandem_status status = TANDEM_OK;
  if (kind % 8 >= 5) {  // one slice of it, as the plan says or of any bits
    tandem_slices slices{};
    slices.struct_size = sizeof slices;
    const tandem_status cut = tandem_plan_get_slices(plan, bytes.value<double>(), &slices);
    FUZZ_CHECK(cut == TANDEM_OK || cut == TANDEM_ERROR_INVALID_ARGUMENT);
    if (kind % 8 == 6) slices.count = uint32_t(bytes.awkward());
    if (kind % 8 == 7) slices.operations = bytes.value<double>();
    status = tandem_execute_slice(plan, stream, given_args, &slices,
                                  bytes.one_of(4) ? bytes.value<uint32_t>() : 0);
  } else {
    status = tandem_execute(plan, stream, given_args);
  }
  if (status != TANDEM_OK) {
    FUZZ_CHECK_OF(status == TANDEM_ERROR_INVALID_ARGUMENT || status == TANDEM_ERROR_WORKSPACE ||
                      status == TANDEM_ERROR_INVALID_STRUCT,
                  tandem_status_string(status));
    FUZZ_CHECK_OF(std::memcmp(before.data(), arena, kArena) == 0, "a refused execute has written");
  } else {
    std::sort(written.begin(), written.end());
    size_t at = 0;
    const auto same = [&](size_t to) {
      if (to <= at) return;
      FUZZ_CHECK_OF(std::memcmp(before.data() + at, arena + at, to - at) == 0,
                    "written outside of outputs: " + fuzz::line_of(p));
    };
    for (const auto& [from, to] : written) {
      same(from);
      at = std::max(at, to);
    }
    same(kArena);
  }
  tandem_plan_destroy(plan);
  return 0;
}
