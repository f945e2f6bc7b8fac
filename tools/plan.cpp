// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem plan: what becomes of one problem on the machine's devices.
#include <fmt/core.h>

#include <memory>

#include "plan_time.h"
#include "tandem/tandem.h"
#include "tools.h"

namespace tandem::tool {
namespace {

struct Options {
  std::string line;
  std::vector<std::string> devices;
  std::string disable;
  bool time = false;
};

void show(const harness::Session& session, const tandem_problem& problem) {
  fmt::print("{}: {}\n", session.name(), session.info().name);
  const std::string why = harness::explain(session.device(), problem);
  for (size_t at = 0; at < why.size();) {
    const size_t end = std::min(why.find('\n', at), why.size());
    fmt::print("  {}\n", why.substr(at, end - at));
    at = end + 1;
  }
  const harness::Plan plan(session, problem);
  const tandem_plan_info& info = plan.info();
  const std::vector<tandem_kernel_info> registry = harness::registry();
  std::string kernels;
  for (uint32_t n = 0; n < info.kernel_count; ++n) {
    const tandem_kernel_info& k = registry[info.kernels[n]];
    kernels += fmt::format("{}{}", n ? ", " : "", harness::kernel_name(k));
  }
  fmt::print("  plan       {}\n", info.name);
  fmt::print("  kernels    {}\n", kernels.empty() ? "none: there is nothing to do" : kernels);
  if (info.tile_rows)
    fmt::print("  tile       {} x {} (query rows x keys)\n", info.tile_rows, info.tile_cols);
  fmt::print("  workspace  {} bytes, aligned to {}\n", info.workspace_size,
             info.workspace_alignment);
  fmt::print("  flops      {:.6g}\n", info.flops);
}

int run(const Options& options) {
  const tandem_problem problem = harness::parse(options.line);
  if (options.time) without_driver_caches();
  fmt::print("{}\n", harness::print(problem));
  int code = 0;
  for (const std::string& name : chosen_devices(options.devices)) {
    fmt::print("\n");
    try {
      harness::SessionOptions o;
      o.disable = options.disable;
      o.cache = !options.time;
      // First, while the driver knows none of the kernels.
      const bool vulkan = name.compare(0, 6, "vulkan") == 0;
      if (options.time && vulkan) time_pipelines(name, options.line, options.disable);
      if (options.time && !vulkan) fmt::print("{}: only Vulkan's plans make pipelines\n", name);
      show(*harness::Session::open(name, o), problem);
    } catch (const harness::Error& e) {
      fmt::print("{}{}\n", e.code() == TANDEM_ERROR_UNSUPPORTED ? "  " : name + ": ", e.what());
      code = 1;
    }
  }
  return code;
}

}  // namespace

void add_plan(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("plan", "A problem's plan and every refusal");
  auto options = std::make_shared<Options>();
  command->add_option("problem", options->line, "The problem line, as \"fwd f32 b1 hq8 ...\"")
      ->required();
  command->add_option("--device", options->devices,
                      "cpu, vulkan:N, cuda:N, or as cpu/ref with one path; default: all");
  command->add_option("--disable", options->disable, "Paths to do without, as \"cpu.simd\"");
  command->add_flag("--time", options->time,
                    "Vulkan: what each pipeline takes, new and from a cache's blob; of a backward, "
                    "those of its forward, too");
  command->callback([options, exit_code] { *exit_code = run(*options); });
}

}  // namespace tandem::tool
