// SPDX-License-Identifier: MIT OR Apache-2.0
// A tandem_problem of any bits and any size, at every function that takes one.
#include <algorithm>
#include <memory>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  static tandem_device* cpu = [] {
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.threads = 1;
    tandem_device* device = nullptr;
    FUZZ_CHECK(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
    return device;
  }();
  // Bytes of a struct that is as long as it says, or of one that lies.
  const uint8_t kind = bytes.byte();
  tandem_problem base = fuzz::draw_problem(bytes);
  const uint32_t sizes[] = {uint32_t(sizeof base), 440, uint32_t(sizeof base) + 8, 4096,
                            uint32_t(bytes.awkward())};
  base.struct_size = sizes[kind % 5];
  // A size that no version has is not read behind: 4 bytes are enough for it.
  const uint32_t given = base.struct_size;
  const bool legal = given == 440 || given == sizeof base ||
                     (given > sizeof base && given <= 4096 && given % 8 == 0);
  const size_t room = legal ? given : 8;
  const std::unique_ptr<uint64_t[]> memory(new uint64_t[(room + 7) / 8]());
  std::memcpy(memory.get(), &base, std::min(room, sizeof base));
  if (room > sizeof base && kind >= 128)
    reinterpret_cast<uint8_t*>(
        memory.get())[sizeof base + size_t(bytes.below(int64_t(room - sizeof base)))] =
        bytes.byte();
  const auto* p = reinterpret_cast<const tandem_problem*>(memory.get());

  std::string line(tandem_problem_print(p, nullptr, 0), '\0');
  for (tandem_device* device :
       {cpu, fuzz::recorded_device(bytes.byte() % fuzz::recorded_count())}) {
    if (device == cpu && !fuzz::is_small_on_cpu(base)) continue;
    tandem_plan* const none = reinterpret_cast<tandem_plan*>(uintptr_t(0x5a5a5a5a));
    tandem_plan* plan = none;
    const tandem_status status = tandem_plan_create(device, p, &plan);
    uint64_t least = 77;
    const tandem_status asked = tandem_least_workspace(device, p, &least);
    FUZZ_CHECK_OF(asked == TANDEM_OK || least == 77, "an out-parameter was changed");
    char text[64];
    tandem_explain(device, p, text, sizeof text);
    if (status == TANDEM_OK) {
      FUZZ_CHECK(legal && line.size() > 1);
      tandem_plan_info info{};
      info.struct_size = sizeof info;
      FUZZ_CHECK(tandem_plan_get_info(plan, &info) == TANDEM_OK);
      FUZZ_CHECK_OF(info.flops >= 0 && info.estimated_ms >= 0, info.name);
      FUZZ_CHECK_OF(asked == TANDEM_OK, info.name);
      tandem_plan_destroy(plan);
    } else {
      FUZZ_CHECK_OF(plan == none, "an out-parameter was changed");
      FUZZ_CHECK(std::strlen(tandem_last_message()) > 10);
      FUZZ_CHECK_OF(fuzz::is_refusal(base, status), tandem_status_string(status));
    }
  }
  if (!line.empty()) {  // a struct of this size and with these bits is printed, and read again
    tandem_problem_print(p, &line[0], line.size());
    tandem_problem again;
    FUZZ_CHECK_OF(tandem_problem_parse(line.c_str(), &again) == TANDEM_OK, line);
    FUZZ_CHECK_OF(fuzz::line_of(again) == line.c_str(), line);
  }
  return 0;
}
