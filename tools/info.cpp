// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem info: what this machine has, which path each device takes and why not the others. Its text
// is for people, its json (docs/guide/bug-reports.md) is what a bug report begins with.
#include <fmt/core.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/utsname.h>
#endif

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/registry.h"
#include "plan/rules.h"
#include "plan/sm90/tiles.h"
#include "plan/tiles.h"
#include "tandem/tandem.h"
#include "tools.h"
#include "usual.h"

namespace tandem::tool {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string system_text() {
#if defined(__unix__) || defined(__APPLE__)
  utsname name{};
  if (uname(&name) == 0)  // without the machine's own name
    return fmt::format("{} {} {}", name.sysname, name.release, name.machine);
#elif defined(_WIN32)
  return "Windows";
#endif
  return "unknown";
}

namespace {

using nlohmann::ordered_json;

ordered_json device_json(const harness::DeviceName& d) {
  ordered_json j;
  j["name"] = d.name;
  j["usable"] = d.usable();
  if (!d.usable()) {
    if (!d.human.empty()) j["device"] = d.human;
    j["reason"] = d.reason;
    return j;
  }
  try {
    const auto session = harness::Session::open(d.name);
    const tandem_device_info& info = session->info();
    j["device"] = info.name;
    j["driver"] = info.driver;
    j["backend"] = info.backend;
    j["shared_bytes"] = info.shared_bytes;
    ordered_json caps = ordered_json::object();
    for (const std::string& line : lines_of(harness::describe(session->device()))) {
      const size_t space = line.find(' ');
      const size_t value = line.find_first_not_of(' ', space);
      caps[line.substr(0, space)] = value == std::string::npos ? "" : line.substr(value);
    }
    j["capabilities"] = caps;
    for (const Usual& u : kUsual) {
      ordered_json p;
      p["what"] = u.what;
      p["problem"] = u.line;
      p["explain"] = lines_of(harness::explain(session->device(), harness::parse(u.line)));
      j["problems"].push_back(p);
    }
  } catch (const harness::Error& e) {
    j["usable"] = false;
    j["reason"] = e.what();
  }
  return j;
}

// How the library and this program were compiled.
ordered_json build_json() {
  ordered_json j;
#if defined(__clang__)
  j["compiler"] = "clang " __clang_version__;
#elif defined(__GNUC__)
  j["compiler"] = "gcc " __VERSION__;
#elif defined(_MSC_VER)
  j["compiler"] = fmt::format("msvc {}", _MSC_FULL_VER);
#else
  j["compiler"] = "unknown";
#endif
#if defined(NDEBUG)
  j["assertions"] = false;
#else
  j["assertions"] = true;
#endif
  j["backends"] = ordered_json::array();
  for (const Backend b : {Backend::cpu, Backend::vulkan, Backend::cuda})
    if (backend_built(b)) j["backends"].push_back(backend_name(b));
  return j;
}

// What changes the choice of devices, drivers and paths. Nothing else of the environment is
// printed.
ordered_json environment_json() {
  ordered_json j = ordered_json::object();
  for (const char* name : {"TANDEM_DEVICE", "TANDEM_DISABLE", "TANDEM_VERBOSE", "TANDEM_CPU_ISA",
                           "VK_DRIVER_FILES", "VK_ADD_DRIVER_FILES", "VK_ICD_FILENAMES",
                           "VK_INSTANCE_LAYERS", "VK_LOADER_LAYERS_ENABLE", "CUDA_VISIBLE_DEVICES"})
    if (const char* value = std::getenv(name)) j[name] = value;
  return j;
}

ordered_json collect() {
  ordered_json j;
  j["form"] = 1;  // counts up when a member changes its meaning or goes away
  j["version"] = version_text();
  j["commit"] = build_commit();
  j["build"] = build_json();
  j["system"] = system_text();
  j["environment"] = environment_json();
  for (const harness::DeviceName& d : harness::list_devices())
    j["devices"].push_back(device_json(d));
  for (const PathRow& row : kPaths)
    j["paths"].push_back(
        {{"name", fmt::format("{}.{}", backend_name(row.backend), row.name)}, {"what", row.what}});
  for (const SpeedRule* rule : speed_rules())
    j["rules"].push_back({{"name", rule->name}, {"evidence", rule->evidence}});
  for (const Tile& t : kTiles)
    j["tiles"].push_back({{"name", t.name},
                          {"rows", t.br},
                          {"cols", t.bc},
                          {"max_head_dim", t.max_d},
                          {"shared_bytes", tile_shared_bytes(t)}});
  for (const MatrixTile& t : kMatrixTiles)
    j["matrix_tiles"].push_back({{"name", t.name},
                                 {"stem", stem_name(t.stem)},
                                 {"subgroups", t.subgroups},
                                 {"row_blocks", t.row_blocks},
                                 {"cols", t.cols},
                                 {"left_shared", t.left},
                                 {"doubled_operands", t.doubled},
                                 {"tensor_addressing", t.tensors},
                                 {"owners", t.owners},
                                 {"max_head_dim", t.max_d}});
  for (const AmpereTile& t : kAmpereTiles)
    j["ampere_tiles"].push_back({{"name", t.name},
                                 {"stem", stem_name(t.stem)},
                                 {"rows", t.br},
                                 {"cols", t.bc},
                                 {"warps", t.warps},
                                 {"optional_inputs", t.table != tandem::TileTable::ampere_plain},
                                 {"max_head_dim", t.width},
                                 {"shared_bytes", ampere_shared_bytes(t)}});
  for (const FwdTile& t : kFwdTiles)
    j["hopper_tiles"].push_back({{"name", t.name},
                                 {"stem", stem_name(Stem::fwd)},
                                 {"rows", t.rows()},
                                 {"cols", t.bc},
                                 {"max_head_dim", t.d},
                                 {"max_head_dim_v", t.dv},
                                 {"shared_bytes", fwd_shared_bytes(t)}});
  for (const BwdShape& s : kBwdShapes)
    j["hopper_tiles"].push_back(
        {{"name", s.name},
         {"stem", stem_name(Stem::bwd_dkv_dq)},
         {"rows", s.br},
         {"cols", s.bc},
         {"max_head_dim", s.d},
         {"max_head_dim_v", s.dv()},
         {"shared_bytes", s.two_sided() ? bwd_two_sided_shared_bytes(s) : bwd_shared_bytes(s)}});
  const auto hopper_tile = [&](Stem stem, const auto& t, int rows, int shared) {
    j["hopper_tiles"].push_back({{"name", t.name},
                                 {"stem", stem_name(stem)},
                                 {"rows", rows},
                                 {"cols", t.bc},
                                 {"max_head_dim", t.d},
                                 {"max_head_dim_v", t.d},
                                 {"shared_bytes", shared}});
  };
  for (const RowShape& t : kRowShapes)
    hopper_tile(Stem::bwd_row_sums_dq, t, t.br, row_shared_bytes(t));
  for (const DqShape& t : kDqShapes) hopper_tile(Stem::bwd_dq, t, t.br, dq_shared_bytes(t));
  for (const SupportShape& t : kSupportShapes)
    hopper_tile(Stem::bwd_row_sums, t, t.br(), support_shared_bytes(t));
  for (const tandem_kernel_info& k : harness::registry())
    j["kernels"].push_back({{"name", harness::kernel_name(k)},
                            {"stem", k.stem},
                            {"backend", k.backend},
                            {"path", k.path},
                            {"variant", k.variant},
                            {"built", k.built != 0}});
  return j;
}

std::string word(const ordered_json& j, const char* key) { return j.value(key, std::string()); }

void print_text(const ordered_json& j) {
  fmt::print("Tandem {} ({}), {}, on {}\n", word(j, "version"), word(j, "commit"),
             word(j["build"], "compiler"), word(j, "system"));
  for (const auto& [name, value] : j["environment"].items())
    fmt::print("{}={}\n", name, value.get<std::string>());
  fmt::print("\nDevices\n");
  for (const auto& d : j["devices"]) {
    if (d["usable"])
      fmt::print("  {:<10} {}; driver: {}\n", word(d, "name"), word(d, "device"),
                 word(d, "driver"));
    else
      fmt::print("  {:<10} not usable: {}\n", word(d, "name"), word(d, "reason"));
  }
  for (const auto& d : j["devices"]) {
    if (!d["usable"]) continue;
    fmt::print("\n{}: {}\n  Capabilities\n", word(d, "name"), word(d, "device"));
    for (const auto& [name, value] : d["capabilities"].items())
      fmt::print("    {:<20} {}\n", name, value.get<std::string>());
    fmt::print("  Usual problems and their paths\n");
    for (const auto& p : d["problems"]) {
      fmt::print("    {}: {}\n", word(p, "what"), word(p, "problem"));
      for (const auto& line : p["explain"]) fmt::print("      {}\n", line.get<std::string>());
    }
  }
  fmt::print(
      "\nPaths (TANDEM_DISABLE takes these names, those of rules and tiles, and those of kernels "
      "as "
      "backend.path.stem.variant)\n");
  for (const auto& p : j["paths"]) fmt::print("  {:<15} {}\n", word(p, "name"), word(p, "what"));
  fmt::print("\nRules of speed\n");
  for (const auto& r : j["rules"]) fmt::print("  {}: {}\n", word(r, "name"), word(r, "evidence"));
  fmt::print("\nTiles\n");
  for (const auto& t : j["tiles"])
    fmt::print("  {:<15} {} x {}, head sizes up to {}, {} bytes of shared memory\n",
               word(t, "name"), t["rows"].get<int>(), t["cols"].get<int>(),
               t["max_head_dim"].get<int>(), t["shared_bytes"].get<int>());
  fmt::print(
      "\nTiles of the matrix paths (matrices of 16 rows; of 8: half of the rows; of 8 x 8: half of "
      "the columns, too)\n");
  for (const auto& t : j["matrix_tiles"])
    fmt::print(
        "  {:<15} {:<8} {} subgroups of {} x 16 rows, {} columns a step, head sizes up to {}{}\n",
        word(t, "name"), word(t, "stem"), t["subgroups"].get<int>(), t["row_blocks"].get<int>(),
        t["cols"].get<int>(), t["max_head_dim"].get<int>(),
        t["doubled_operands"].get<bool>() ? ", where operands take twice the registers" : "");
  fmt::print("\nTiles of cuda.sm80\n");
  for (const auto& t : j["ampere_tiles"])
    fmt::print(
        "  {:<15} {:<10} {} x {}, {} warps, head sizes up to {}, {} bytes of shared memory{}\n",
        word(t, "name"), word(t, "stem"), t["rows"].get<int>(), t["cols"].get<int>(),
        t["warps"].get<int>(), t["max_head_dim"].get<int>(), t["shared_bytes"].get<int>(),
        t["optional_inputs"].get<bool>() ? ", with optional inputs" : "");
  fmt::print("\nTiles of cuda.sm90\n");
  for (const auto& t : j["hopper_tiles"])
    fmt::print("  {:<15} {:<10} {} x {}, head sizes up to {} and {}, {} bytes of shared memory\n",
               word(t, "name"), word(t, "stem"), t["rows"].get<int>(), t["cols"].get<int>(),
               t["max_head_dim"].get<int>(), t["max_head_dim_v"].get<int>(),
               t["shared_bytes"].get<int>());
  fmt::print("\nKernels\n");
  Table kernels({"  stem", "backend", "path", "variant", "in this build"});
  for (const auto& k : j["kernels"])
    kernels.add({"  " + word(k, "stem"), word(k, "backend"), word(k, "path"), word(k, "variant"),
                 k["built"] ? "yes" : "no"});
  fmt::print("{}", kernels.text());
}

}  // namespace

void add_info(CLI::App& app, int*) {
  CLI::App* command = app.add_subcommand("info", "Devices, capabilities, paths and kernels");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON: the form of a bug report");
  command->callback([json] {
    const ordered_json j = collect();
    if (*json)
      fmt::print("{}\n", j.dump(2, ' ', false, ordered_json::error_handler_t::replace));
    else
      print_text(j);
  });
}

}  // namespace tandem::tool
