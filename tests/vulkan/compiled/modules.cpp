// SPDX-License-Identifier: MIT OR Apache-2.0
// SPIR-V as the library hands it to the driver of a recorded device (tests/plan/profiles.inc), for
// the problems of the gates: for translators and compilers that are no Vulkan drivers.
//
//   tandem_modules DEVICE FOLDER [PATH]
//
// PATH: scalar, or coopmat, as if the driver had matrices of 8x8x8 f16 and no quirk. Files are
// called PATH.KERNEL.NUMBER.spv; of modules with the same words there is one.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#define DOCTEST_CONFIG_IMPLEMENT
#include "gates.h"
#include "plan/quirks.h"
#include "tests/plan/plan_fixture.h"
#include "tests/vulkan/keeping_driver.h"

namespace gates {
namespace {

using keeping_driver::Words;

Caps caps_for(const char* device, const std::string& path) {
  for (const plan_fixture::Profile& profile : plan_fixture::profiles()) {
    if (std::strcmp(profile.id, device) != 0) continue;
    Caps caps = profile.caps;
    if (path == "scalar") return caps;
    caps.driver_id = kAnyDriver;  // every quirk is one driver's
    caps.coopmat = caps.coopmat_compute = caps.memory_model = caps.subgroup_control =
        caps.full_subgroups = true;
    caps.subgroup_pin = true;
    caps.max_subgroups = caps.max_invocations / caps.subgroup_size;
    caps.matrices = {{8, 8, 8, "f16"}};
    return caps;
  }
  throw std::runtime_error(std::string("no recorded device ") + device);
}

void write(const std::string& file, const Words& words) {
  std::FILE* out = std::fopen(file.c_str(), "wb");
  const bool whole = out && std::fwrite(words.data(), 4, words.size(), out) == words.size();
  if (!out || std::fclose(out) != 0 || !whole) throw std::runtime_error("cannot write " + file);
}

int run(int argc, char** argv) {
  const std::string path = argc == 4 ? argv[3] : "scalar";
  if ((argc != 3 && argc != 4) || (path != "scalar" && path != "coopmat"))
    return std::puts("usage: tandem_modules DEVICE FOLDER [scalar | coopmat]"), 2;
  const std::vector<Job> jobs = jobs_for(caps_for(argv[1], path), false);
  std::set<Words> seen;
  std::map<std::string, int> numbers;  // of a kernel's modules
  for (const Job& job : jobs) {
    if (path != job.plan.path) continue;
    keeping_driver::kept().modules.clear();
    const std::unique_ptr<Device> device = keeping_driver::open();
    std::unique_ptr<Program> program;
    const Status status = device->build(job.plan, &program);
    if (!status.ok()) throw std::runtime_error(status.message().c_str());
    const std::string kernel = path + "." + stem_name(job.plan.launches[0].stem);
    for (const Words& words : keeping_driver::kept().modules)
      if (seen.insert(words).second)
        write(
            std::string(argv[2]) + "/" + kernel + "." + std::to_string(numbers[kernel]++) + ".spv",
            words);
  }
  const std::vector<String> missing = missing_kernels(jobs);
  for (const String& kernel : missing) std::printf("FAILED: no module of %s\n", kernel.c_str());
  for (const auto& [kernel, count] : numbers)
    std::printf("%s: %d modules\n", kernel.c_str(), count);
  return seen.empty() || !missing.empty();
}

}  // namespace
}  // namespace gates

int main(int argc, char** argv) {
  try {
    return gates::run(argc, argv);
  } catch (const std::exception& e) {
    std::printf("FAILED: %s\n", e.what());
    return 1;
  }
}
