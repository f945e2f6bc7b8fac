// SPDX-License-Identifier: MIT OR Apache-2.0
// SPIR-V with the values of its specialisation constants (src/vulkan/specialise.h): what the
// library hands to a driver, and words that are no module. That results are right is for the parity
// suite to say.
//   TANDEM_TEST_SPIRV  a folder for the modules, which test specialise.valid reads
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "attention.h"
#include "fake_driver.h"
#include "vulkan/specialise.h"

using namespace vulkan_app;

namespace {

using Words = std::vector<uint32_t>;
Words words_of(const tandem::Vec<uint32_t>& v) { return {v.begin(), v.end()}; }

std::set<Words> modules_made;
PFN_vkCreateShaderModule real_create = nullptr;
VkResult VKAPI_CALL keep_module(VkDevice device, const VkShaderModuleCreateInfo* info,
                                const VkAllocationCallbacks* allocator, VkShaderModule* module) {
  modules_made.emplace(info->pCode, info->pCode + info->codeSize / 4);
  return real_create(device, info, allocator, module);
}

// Pipelines that are not real have no names.
VkResult VKAPI_CALL name_nothing(VkDevice, const VkDebugUtilsObjectNameInfoEXT*) {
  return VK_SUCCESS;
}

// The modules of these problems' pipelines. disable: for the device.
std::set<Words> modules_of(const App& app, const std::vector<std::string>& lines,
                           const char* disable) {
  tandem_vk_device_desc desc = app.desc();
  desc.gipa = fake_driver::install(app.gipa);
  fake_driver::make_no_pipelines();
  const auto gdpa =
      reinterpret_cast<PFN_vkGetDeviceProcAddr>(app.gipa(app.instance, "vkGetDeviceProcAddr"));
  real_create =
      reinterpret_cast<PFN_vkCreateShaderModule>(gdpa(app.device, "vkCreateShaderModule"));
  auto& replace = fake_driver::state().replace;
  replace["vkCreateShaderModule"] = reinterpret_cast<PFN_vkVoidFunction>(keep_module);
  replace["vkSetDebugUtilsObjectNameEXT"] = reinterpret_cast<PFN_vkVoidFunction>(name_nothing);
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.threads = 1;
  options.disable = disable;
  modules_made.clear();
  const Device device(desc, &options);
  for (const std::string& line : lines) const Plan plan(device, line.c_str());
  return modules_made;
}

int count_of(const Words& module, uint32_t first_op, uint32_t last_op) {
  int count = 0;
  for (size_t at = 5; at < module.size(); at += module[at] >> 16) {
    REQUIRE((module[at] >> 16) > 0);
    count += (module[at] & 0xffff) >= first_op && (module[at] & 0xffff) <= last_op;
  }
  return count;
}
constexpr uint32_t kSpecFirst = 48, kSpecLast = 52, kName = 5;

const std::vector<std::string> kLines = {
    "fwd f32 b1 hq2 hk1 sq20 sk30 d8",
    "bwd f32 b1 hq2 hk1 sq20 sk30 d7 causal_top_left",
    "bwd f16 b1 hq2 hk1 sq200 sk300 d64 causal_bottom_right",
    "fwd bf16 b1 hq2 hk1 sq200 sk300 d128",
    "bwd bf16 b1 hq2 hk1 sq200 sk300 d128",
    "bwd f16 b1 hq2 hk2 sq100 sk100 d72 entmax=1.5 grads=qkv",
    "bwd f16 b1 hq2 hk1 sq200 sk30 d16 elastic dist=4 bias:f32:1x2x200 d_bias:f32 grads=qkvbdt",
    "fwd f16 b1 hq8 hk1 sq1 sk4000 d128 splits=4 dropout=0.1 keep:1x1x1 softcap=5"};

}  // namespace

TEST_CASE("Vulkan specialise: a driver gets modules without constants to specialise") {
  App app;
  if (!usable(app)) return;
  size_t before = 0, after = 0;
  for (const char* paths : {"", "vulkan.coopmat2", "vulkan.coopmat2,vulkan.coopmat"}) {
    CAPTURE(paths);
    const std::string off = std::string(paths) + (*paths ? "," : "") + "specialise";
    const std::set<Words> whole = modules_of(app, kLines, off.c_str()),
                          made = modules_of(app, kLines, paths);
    REQUIRE(whole.size() > 5);
    CHECK(made.size() > whole.size());  // one for each set of constants
    size_t largest = 0, largest_made = 0;
    for (const Words& m : whole) {
      CHECK(count_of(m, kSpecFirst, kSpecLast) > 10);
      largest = std::max(largest, m.size());
    }
    int number = 0;
    for (const Words& m : made) {
      CHECK(count_of(m, kSpecFirst, kSpecLast) == 0);
      CHECK(count_of(m, kName, kName) == 0);
      largest_made = std::max(largest_made, m.size());
      // Nothing is left to do.
      tandem::Vec<uint32_t> again;
      REQUIRE(tandem::specialise(m.data(), m.size(), nullptr, 0, &again));
      CHECK(words_of(again) == m);
      if (const char* folder = std::getenv("TANDEM_TEST_SPIRV")) {
        const std::string name = std::string(folder) + "/" + (*paths ? paths : "all") + "." +
                                 std::to_string(number++) + ".spv";
        std::FILE* file = std::fopen(name.c_str(), "wb");
        REQUIRE(file);
        CHECK(std::fwrite(m.data(), 4, m.size(), file) == m.size());
        std::fclose(file);
      }
    }
    CHECK(largest_made < largest);
    before += largest, after += largest_made;
  }
  CHECK(2 * after < before);
}

TEST_CASE("Vulkan specialise: values decide branches, and what is behind them goes") {
  App app;
  if (!usable(app)) return;
  // One module, as one problem's and as the other's.
  const auto largest = [&](const char* line) {
    size_t most = 0;
    for (const Words& m : modules_of(app, {line}, "vulkan.coopmat2,vulkan.coopmat"))
      most = std::max(most, m.size());
    return most;
  };
  const size_t plain = largest("fwd f32 b1 hq2 hk1 sq20 sk30 d8"),
               full = largest("fwd f32 b1 hq2 hk1 sq20 sk30 d8 entmax=1.5 dropout=0.1 alibi");
  CHECK(plain > 1000);
  CHECK(full > plain + plain / 4);
}

TEST_CASE("Vulkan specialise: modules with debug lines lose as much as those without") {
  App app;
  if (!usable(app)) return;
  constexpr uint32_t kLine = 8, kFunction = 54, kNoLine = 317, kLabel = 248;
  for (const Words& m : modules_of(app, {kLines[0], kLines[1]}, "vulkan.coopmat2,specialise")) {
    Words lines(m.begin(), m.begin() + 5);
    for (size_t at = 5; at < m.size(); at += m[at] >> 16) {
      const uint32_t op = m[at] & 0xffff;
      const auto line = [&] { lines.insert(lines.end(), {4u << 16 | kLine, m[at + 2], 0, 0}); };
      if (op == kFunction) line();
      lines.insert(lines.end(), m.begin() + std::ptrdiff_t(at),
                   m.begin() + std::ptrdiff_t(at + (m[at] >> 16)));
      if (op == kLabel) lines.insert(lines.end(), {1u << 16 | kNoLine});
    }
    REQUIRE(count_of(lines, kLine, kLine) > 1);
    tandem::Vec<uint32_t> expected, made;
    REQUIRE(tandem::specialise(m.data(), m.size(), nullptr, 0, &expected));
    REQUIRE(tandem::specialise(lines.data(), lines.size(), nullptr, 0, &made));
    Words without(made.begin(), made.begin() + 5);
    for (size_t at = 5; at < made.size(); at += made[at] >> 16) {
      const uint32_t op = made[at] & 0xffff;
      if (op == kLine || op == kNoLine) continue;
      without.insert(without.end(), made.begin() + std::ptrdiff_t(at),
                     made.begin() + std::ptrdiff_t(at + (made[at] >> 16)));
    }
    CHECK(without == words_of(expected));
  }
}

TEST_CASE("Vulkan specialise: what is no module is refused, and nothing outside it is read") {
  App app;
  if (!usable(app)) return;
  const std::set<Words> made = modules_of(app, {kLines[0]}, "vulkan.coopmat2,specialise");
  REQUIRE(!made.empty());
  const Words whole = *made.begin();
  tandem::Vec<uint32_t> out;
  CHECK(tandem::specialise(whole.data(), whole.size(), nullptr, 0, &out));
  CHECK(!tandem::specialise(whole.data(), 0, nullptr, 0, &out));
  Words magic = whole;
  magic[0] ^= 1;
  CHECK(!tandem::specialise(magic.data(), magic.size(), nullptr, 0, &out));
  // Cut off: each piece in memory of its own, for the address sanitizer. Only where a function ends
  // is it a module.
  int taken = 0, refused = 0;
  for (size_t n = 1; n < whole.size(); n += n < 300 ? 1 : 37) {
    const Words part(whole.begin(), whole.begin() + std::ptrdiff_t(n));
    ++(tandem::specialise(part.data(), part.size(), nullptr, 0, &out) ? taken : refused);
  }
  CHECK(refused > taken);
  // Changed at random: whatever comes out, it ends.
  std::mt19937 random(1);
  for (int n = 0; n < 300; ++n) {
    Words changed = whole;
    for (int k = 0; k < 3; ++k) changed[5 + random() % (changed.size() - 5)] = random() % 20000;
    changed[3] = whole[3];
    tandem::specialise(changed.data(), changed.size(), nullptr, 0, &out);
  }
}
