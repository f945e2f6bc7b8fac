// SPDX-License-Identifier: MIT OR Apache-2.0
// What a backend gives to session.cpp.
#ifndef TANDEM_HARNESS_BACKENDS_H
#define TANDEM_HARNESS_BACKENDS_H
#include "session.h"

namespace tandem::harness {

tandem_device_options device_options(const SessionOptions& options);

// Each appends its devices, or one entry with the reason why there are none.
void list_vulkan(std::vector<DeviceName>* devices);
void list_cuda(std::vector<DeviceName>* devices);
std::unique_ptr<Session> open_vulkan(int index, const SessionOptions& options);
std::unique_ptr<Session> open_cuda(int index, const SessionOptions& options);

}  // namespace tandem::harness
#endif
