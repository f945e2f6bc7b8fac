// SPDX-License-Identifier: MIT OR Apache-2.0
// A device and its plans, as Python holds them.
#ifndef TANDEM_PYTHON_DEVICE_H
#define TANDEM_PYTHON_DEVICE_H
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "session.h"

namespace tandem::python {

// The buffers of tandem_args. Python gives them in this order, which it gets from here.
struct NamedBuffer {
  std::string_view name;
  tandem_buffer tandem_args::*member;
};
constexpr NamedBuffer kBuffers[] = {
#define TANDEM_ARG(name) {#name, &tandem_args::name},
#include "../../src/kernels/args.inc"
};
constexpr size_t kBufferCount = sizeof(kBuffers) / sizeof(kBuffers[0]);

// The place in kBuffers; throws harness::Error where no buffer has the name.
size_t buffer_of(std::string_view name);

// Host memory of one buffer of a staged call. address 0: not given.
struct HostBuffer {
  uint64_t address = 0;
  size_t bytes = 0;
  bool read = false;     // by the call: it is sent
  bool written = false;  // it comes back
};
using HostBuffers = std::array<HostBuffer, kBufferCount>;

struct Dropout {
  uint64_t seed = 0;
  uint32_t offset = 0;
};

// One tandem_device. Staged calls of several threads run one after the other. Calls on device
// memory do not wait for each other.
class Device {
 public:
  Device(const std::string& name, const std::string& disable, uint32_t threads);
  harness::Session& session() { return *session_; }
  bool on_host() const { return session_->backend() == "cpu"; }
  // Copies the inputs to buffers of this device, executes, waits, and copies the outputs back. The
  // buffers stay for the next call.
  void run_staged(const harness::Plan& plan, const HostBuffers& host, Dropout dropout);
  void release_buffers();
  size_t buffer_bytes();

 private:
  harness::Buffer& buffer(size_t place, size_t bytes);

  std::mutex mutex_;  // of the buffers and of the session's queue
  std::unique_ptr<harness::Session> session_;
  std::array<harness::Buffer, kBufferCount> buffers_;
};

// A plan keeps its device.
struct Plan {
  Plan(std::shared_ptr<Device> d, const tandem_problem& problem)
      : device(std::move(d)), plan(device->session(), problem) {}
  std::shared_ptr<Device> device;
  harness::Plan plan;
};

// The device of that name, opened once a process; throws harness::Error.
std::shared_ptr<Device> shared_device(const std::string& name);
// In the child of a fork: the parent's devices have threads and queues that the child lacks. The
// child leaves them alone and opens its own.
void abandon_devices();

// Operators for torch (torch.cpp).
//
// Registers them, in a namespace of operators, with the torch whose libraries are in that folder.
// Returns why it could not.
std::string torch_connect(const std::string& folder, const std::string& space);
// Has them serve ATen's overrideable attention, too; returns why they could not.
std::string torch_override();
// The key of the last call of this thread, for which there was no plan; empty: it had one.
std::string torch_missed();
// An array that a call makes. dtype is empty where the call does not make it.
struct TorchOutput {
  std::string dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};
// Keeps the plan of the calls of that key, and returns how many are kept.
size_t torch_remember(const std::string& key, std::shared_ptr<Plan> plan,
                      const std::vector<TorchOutput>& outputs);
// Forgets all plans but those of captured graphs, or these too.
void torch_forget(bool captured);
// In the child of a fork: the parent's plans are left alone.
void torch_abandon();
struct TorchCalls {
  uint64_t forward = 0, backward = 0, declined = 0;
};
TorchCalls torch_calls();

#if TANDEM_PYTHON_JAX
// Handlers for XLA, as XLA_FFI_Handler* (jax.cpp).
void* jax_cpu_handler();
void* jax_cuda_handler();
#endif

}  // namespace tandem::python
#endif
