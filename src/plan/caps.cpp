// SPDX-License-Identifier: MIT OR Apache-2.0
#include "caps.h"

#include <cstring>

#include "base/status.h"
#include "plan.h"
#include "plan/sm90/tiles.h"
#include "quirks.h"
#include "rules.h"
#include "tiles.h"

namespace tandem {

String describe_caps(const Caps& c) {
  String s;
  auto line = [&](const char* name, const String& value) {
    s += text("%-20s %s\n", name, value.c_str());
  };
  auto number = [&](const char* name, uint32_t value) { line(name, text("%u", value)); };
  auto flag = [&](const char* name, bool value) { line(name, value ? "yes" : "no"); };
  line("backend", backend_name(c.backend));
  line("name", c.name);
  line("driver", c.driver);
  if (c.backend == Backend::cpu) {
    number("threads", c.threads);
    line("vector_isa", c.vector_isa);
  } else {
    number("shared_bytes", c.shared_bytes);
    number("max_invocations", c.max_invocations);
    line("max_groups", text("%u x %u", c.max_groups_x, c.max_groups_y));
    line("subgroup_size", text("%u (%u to %u)", c.subgroup_size, c.subgroup_min, c.subgroup_max));
    number("cores", c.cores);
    number("clock_mhz", c.clock_mhz);
    number("memory_gbps", c.memory_gbps);
  }
  if (c.backend == Backend::cuda)
    line("compute_capability", text("%d.%d", c.compute_major, c.compute_minor));
  if (c.backend == Backend::cuda) {
    flag("sm80_code", c.sm80_code);
    flag("sm90_code", c.sm90_code);
    flag("early_launches", c.early_launches);
  }
  if (c.backend == Backend::vulkan) {
    line("ids", text("vendor 0x%x device 0x%x driver %u version 0x%x", c.vendor_id, c.device_id,
                     c.driver_id, c.driver_version));
    line("api_version", text("%u.%u.%u", c.api_version >> 22, (c.api_version >> 12) & 0x3ff,
                             c.api_version & 0xfff));
    flag("buffer_address", c.buffer_address);
    flag("inline_uniform", c.inline_uniform);
    flag("storage16", c.storage16);
    flag("float16", c.float16);
    flag("bfloat16", c.bfloat16);
    flag("int64", c.int64);
    flag("memory_model", c.memory_model);
    flag("subgroup_control", c.subgroup_control);
    flag("full_subgroups", c.full_subgroups);
    flag("subgroup_pin", c.subgroup_pin);
    number("max_subgroups", c.max_subgroups);
    flag("denormals", c.denormals);
    flag("infinities", c.infinities);
    flag("maintenance4", c.maintenance4);
    flag("coopmat", c.coopmat);
    flag("coopmat_reductions", c.coopmat_reductions);
    flag("coopmat_conversions", c.coopmat_conversions);
    flag("coopmat_per_element", c.coopmat_per_element);
    flag("coopmat_tensors", c.coopmat_tensors);
    flag("bfloat16_coopmat", c.bfloat16_coopmat);
    number("push_bytes", c.push_bytes);
    String list;
    for (const MatrixShape& m : c.matrices)
      list += text("%s%s %dx%dx%d", list.empty() ? "" : ", ", m.operands, m.m, m.n, m.k);
    if (!list.empty()) line("matrices", list);
    list.clear();
    for (const MatrixShape& m : c.matrices)
      if (m.copies)
        list += text("%s%s %dx%dx%d", list.empty() ? "" : ", ", m.operands, m.m, m.n, m.k);
    if (!list.empty()) line("matrix_copies", list);
    list.clear();
    const auto lacks = [&](const char* what) {
      list += text("%s%s", list.empty() ? "" : ", ", what);
    };
    if (!c.subgroup_votes) lacks("subgroup votes");
    if (c.coopmat && !c.coopmat_compute) lacks("cooperative matrices in compute shaders");
    for (const MatrixShape& m : c.matrices)
      if (!m.f16_accumulators)
        lacks(text("f16 accumulators beside %s %dx%dx%d", m.operands, m.m, m.n, m.k).c_str());
    if (!list.empty()) line("lacks", list);
    list.clear();
    for (const Quirk& quirk : kQuirks)
      if (quirk_applies(quirk, c))
        list +=
            text("%s%s: %s (%s)", list.empty() ? "" : "; ", quirk.what(), quirk.reason, quirk.link);
    if (!list.empty()) line("quirks", list);
  }
  for (const String& path : c.disabled) line("disabled", path);
  return s;
}

Status parse_disabled(const char* list, Vec<String>* disabled) {
  if (!list) return Status();
  Vec<String> found;
  while (*list) {
    const size_t n = std::strcspn(list, ",");
    const String word(list, n);
    list += n + (list[n] == ',');
    if (word.empty()) continue;
    bool known = false;
    for (const PathRow& row : kPaths)
      known |= word == String(backend_name(row.backend)) + "." + row.name;
    for (const Tile& tile : kTiles) known |= word == tile.name;
    known |= word == kOuterFwd.name;
    for (const MatrixTile& tile : kMatrixTiles) known |= word == tile.name;
    for (const MatrixDims& dims : kMatrixDims) known |= word == dims.name();
    for (const AmpereTile& tile : kAmpereTiles) known |= word == tile.name;
    for (const FwdTile& tile : kFwdTiles) known |= word == tile.name;
    for (const BwdShape& tile : kBwdShapes) known |= word == tile.name;
    for (const RowShape& tile : kRowShapes) known |= word == tile.name;
    for (const DqShape& tile : kDqShapes) known |= word == tile.name;
    for (const SupportShape& tile : kSupportShapes) known |= word == tile.name;
    for (const KernelRow& row : kKernels)
      known |= word == kernel_name(row) || (is_fixed_set(row) && word == fixed_set_name(row));
    for (const SpeedRule* rule : speed_rules()) known |= word == rule->name;
    known |= word == kDsWord || word == kPartsWord || word == kCopiesWord ||
             word == kUnalignedWord || word == kSpecialiseWord;
    if (!known)
      return fail(
          TANDEM_ERROR_INVALID_ARGUMENT,
          "cannot disable '%s': no such path, kernel, rule, tile or shape of matrices; `tandem "
          "info` lists them",
          word.c_str());
    found.push_back(word);
  }
  disabled->insert(disabled->end(), found.begin(), found.end());
  return Status();
}

}  // namespace tandem
