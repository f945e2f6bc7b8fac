// SPDX-License-Identifier: MIT OR Apache-2.0
#include "device.h"

#include <algorithm>
#include <map>

namespace tandem::python {

size_t buffer_of(std::string_view name) {
  for (size_t n = 0; n < kBufferCount; ++n)
    if (kBuffers[n].name == name) return n;
  throw harness::Error(TANDEM_ERROR_INVALID_ARGUMENT, "no buffer is named " + std::string(name));
}

Device::Device(const std::string& name, const std::string& disable, uint32_t threads) {
  harness::SessionOptions options;
  options.disable = disable;
  options.threads = threads;
  options.aligned = true;  // arrays are staged, each from the start of a buffer
  session_ = harness::Session::open(name, options);
}

harness::Buffer& Device::buffer(size_t place, size_t bytes) {
  harness::Buffer& buffer = buffers_[place];
  if (!buffer || buffer.size() < bytes) {
    buffer = {};  // the old one goes first: both may not fit
    buffer = session_->buffer(std::max<size_t>(bytes, 16), false);
  }
  return buffer;
}

void Device::run_staged(const harness::Plan& plan, const HostBuffers& host, Dropout dropout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tandem_args args = TANDEM_ARGS_INIT;
  for (size_t n = 0; n < kBufferCount; ++n) {
    const HostBuffer& of = host[n];
    if (of.address == 0) continue;
    harness::Buffer& own = buffer(n, of.bytes);
    if (of.read)
      own.upload(reinterpret_cast<const void*>(static_cast<uintptr_t>(of.address)), of.bytes);
    args.*kBuffers[n].member = own.handle();
  }
  args.workspace_size = plan.info().workspace_size;
  if (args.workspace_size)
    args.workspace = buffer(buffer_of("workspace"), args.workspace_size).handle();
  args.dropout_seed = dropout.seed;
  args.dropout_offset = dropout.offset;
  session_->run(plan, args);
  for (size_t n = 0; n < kBufferCount; ++n)
    if (host[n].address && host[n].written)
      buffers_[n].download(reinterpret_cast<void*>(static_cast<uintptr_t>(host[n].address)),
                           host[n].bytes);
}

namespace {
using Devices = std::map<std::string, std::shared_ptr<Device>>;
// Never destroyed: at the end of the process drivers may be gone before it.
std::mutex* g_mutex = new std::mutex;
Devices* g_devices = new Devices;
}  // namespace

std::shared_ptr<Device> shared_device(const std::string& name) {
  const std::lock_guard<std::mutex> lock(*g_mutex);
  std::shared_ptr<Device>& device = (*g_devices)[name];
  if (!device) device = std::make_shared<Device>(name, "", 0);
  return device;
}

void abandon_devices() {
  g_mutex = new std::mutex;  // a thread of the parent may have held the old one
  g_devices = new Devices;
}

void Device::release_buffers() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (harness::Buffer& b : buffers_) b = {};
}

size_t Device::buffer_bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const harness::Buffer& b : buffers_) bytes += b.size();
  return bytes;
}

}  // namespace tandem::python
