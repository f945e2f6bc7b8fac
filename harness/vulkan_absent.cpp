// SPDX-License-Identifier: MIT OR Apache-2.0
// Takes the place of vulkan_session.cpp in a build without Vulkan.
#include "backends.h"

namespace tandem::harness {
namespace {
constexpr const char* kNotBuilt = "this build has no Vulkan (TANDEM_VULKAN=OFF)";
}

int total_validation_messages() { return 0; }

void list_vulkan(std::vector<DeviceName>* devices) {
  DeviceName none;
  none.name = "vulkan";
  none.reason = kNotBuilt;
  devices->push_back(none);
}

std::unique_ptr<Session> open_vulkan(int, const SessionOptions&) {
  throw Error(TANDEM_ERROR_NO_BACKEND, kNotBuilt);
}

}  // namespace tandem::harness
