// SPDX-License-Identifier: MIT OR Apache-2.0
// What a backend implements: a device that turns plans into programs, and programs that record.
#ifndef TANDEM_SRC_API_DEVICE_H
#define TANDEM_SRC_API_DEVICE_H
#include <memory>

#include "base/status.h"
#include "plan/caps.h"
#include "plan/plan.h"
#include "plan/slices.h"

namespace tandem {

class Logger {
 public:
  Logger() = default;
  explicit Logger(const tandem_device_options& o) : log_(o.log), user_(o.user) {}
  explicit operator bool() const { return log_ != nullptr; }
  void operator()(tandem_log_level level, const String& message) const {
    if (log_) log_(user_, level, message.c_str());
  }

 private:
  void (*log_)(void*, tandem_log_level, const char*) = nullptr;
  void* user_ = nullptr;
};

// A plan prepared on a device: pipelines, parameter blocks. Immutable; any thread may call
// record().
class Program : public HostObject {
 public:
  virtual ~Program() = default;
  // args have been checked against the plan: all tensors that it needs are given.
  virtual Status record(tandem_stream stream, const tandem_args& args) const = 0;
  // A slice of it. The base class is for programs that are not cut: their only slice is all of it.
  virtual Status record_slice(tandem_stream stream, const tandem_args& args, const Slice&) const {
    return record(stream, args);
  }
};

class Device : public HostObject {
 public:
  virtual ~Device() = default;
  const Caps& caps() const { return caps_; }
  const Logger& log() const { return log_; }
  virtual Status build(const Plan& plan, std::unique_ptr<Program>* program) = 0;
  // Hash of the code from which this build compiles pipelines.
  virtual uint64_t code_hash() const { return 0; }
  // Compiled pipelines. A backend without a cache has an empty blob body.
  virtual Status cache_get(Vec<uint8_t>* body) { return body->clear(), Status(); }
  virtual Status cache_set(const uint8_t*, size_t) { return Status(); }

 protected:
  Caps caps_;
  Logger log_;
};

// Checked options; all openers take them.
struct DeviceOptions {
  Logger log;
  uint32_t threads = 0;
  Vec<String> disabled;
};

// Runs open() with checked options behind the C border, and returns the device. Catches all
// exceptions.
tandem_status create_device(const tandem_device_options* options, tandem_device** device,
                            Status (*open)(const DeviceOptions&, const void* context,
                                           std::unique_ptr<Device>*),
                            const void* context);

// The same for an execute: record() gets checked arguments. backend: the backend that the plan must
// have; nullptr: any.
tandem_status execute(const tandem_plan* plan, const Backend* backend, const tandem_args* args,
                      Status (*record)(const Plan&, const Program&, const tandem_args&,
                                       const void* context),
                      const void* context);

Status open_cpu_device(const DeviceOptions& options, const void*, std::unique_ptr<Device>* device);
Status open_vulkan_device(const DeviceOptions& options, const void* desc,
                          std::unique_ptr<Device>* device);  // desc: tandem_vk_device_desc

// Whether this build holds a kernel.
bool kernel_built(const KernelRow& row);

}  // namespace tandem
#endif
