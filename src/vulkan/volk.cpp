// SPDX-License-Identifier: MIT OR Apache-2.0
// The one file that compiles Volk.
#include "vk.h"

#define volk tandem_volk
#include <volk.c>
#undef volk

namespace tandem {

void load_table(VkTable* table, PFN_vkGetDeviceProcAddr gdpa, VkDevice device) {
  // volkLoadDeviceTable() itself would use a global vkGetDeviceProcAddr.
  struct Context {
    PFN_vkGetDeviceProcAddr gdpa;
    VkDevice device;
  } context{gdpa, device};
  *table = VkTable{};
  tandem_volk::volkGenLoadDeviceTable(table, &context, [](void* c, const char* name) {
    auto* from = static_cast<Context*>(c);
    return from->gdpa(from->device, name);
  });
}

}  // namespace tandem
