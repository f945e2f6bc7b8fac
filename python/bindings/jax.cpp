// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls from XLA: what jax.ffi.ffi_call runs. The problem comes as its line and is planned at the
// first call of the process. So a compiled program may be stored and loaded elsewhere.
#include <algorithm>
#include <map>
#include <string>

#include "device.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace tandem::python {
namespace {

// Plans live as long as the process: XLA does not say when a program is gone.
std::shared_ptr<const Plan> plan_of(const std::string& device, const std::string& line) {
  struct Plans {
    std::mutex mutex;
    std::map<std::pair<const Device*, std::string>, std::shared_ptr<const Plan>> made;
  };
  static Plans* const plans = new Plans;
  const std::shared_ptr<Device> opened = shared_device(device);
  const std::lock_guard<std::mutex> lock(plans->mutex);
  std::shared_ptr<const Plan>& plan = plans->made[{opened.get(), line}];
  if (!plan) plan = std::make_shared<const Plan>(opened, harness::parse(line));
  return plan;
}

ffi::Error error_of(const harness::Error& error) {
  const bool unsupported = error.code() == TANDEM_ERROR_UNSUPPORTED;
  return {unsupported ? ffi::ErrorCode::kUnimplemented : ffi::ErrorCode::kInternal, error.what()};
}

// names: of the operands and then of the results, with spaces between them. A stored program calls
// buffers by these, not by places, which another version may have moved.
ffi::Error fill(tandem_args* args, std::string_view names, ffi::RemainingArgs operands,
                ffi::RemainingRets results) {
  for (size_t n = 0; n < operands.size() + results.size(); ++n) {
    const std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    void* data = nullptr;
    if (n < operands.size()) {
      const auto buffer = operands.get<ffi::AnyBuffer>(n);
      if (buffer.has_error()) return buffer.error();
      data = buffer->untyped_data();
    } else {
      auto buffer = results.get<ffi::AnyBuffer>(n - operands.size());
      if (buffer.has_error()) return buffer.error();
      data = (*buffer)->untyped_data();
    }
    (args->*kBuffers[buffer_of(name)].member).handle = uint64_t(reinterpret_cast<uintptr_t>(data));
  }
  if (!names.empty())
    return {ffi::ErrorCode::kInvalidArgument, "buffers names more than the call has"};
  return ffi::Error::Success();
}

ffi::Error run_on_cpu(std::string_view line, std::string_view names, ffi::RemainingArgs operands,
                      ffi::RemainingRets results) try {
  tandem_args args = TANDEM_ARGS_INIT;
  ffi::Error error = fill(&args, names, operands, results);
  if (error.failure()) return error;
  const auto plan = plan_of("cpu", std::string(line));
  const tandem_plan_info& info = plan->plan.info();
  harness::Buffer workspace;
  if (info.workspace_size) {
    workspace = plan->device->session().buffer(info.workspace_size, false);
    args.workspace = workspace.handle();
    args.workspace_size = info.workspace_size;
  }
  harness::check(tandem_execute(plan->plan, {0}, &args));
  return ffi::Error::Success();
} catch (const harness::Error& error) {
  return error_of(error);
} catch (const std::exception& error) {
  return {ffi::ErrorCode::kResourceExhausted, error.what()};
}

ffi::Error run_on_cuda(void* stream, int32_t ordinal, ffi::ScratchAllocator scratch,
                       std::string_view line, std::string_view names, ffi::RemainingArgs operands,
                       ffi::RemainingRets results) try {
  tandem_args args = TANDEM_ARGS_INIT;
  ffi::Error error = fill(&args, names, operands, results);
  if (error.failure()) return error;
  const auto plan = plan_of("cuda:" + std::to_string(ordinal), std::string(line));
  const tandem_plan_info& info = plan->plan.info();
  if (info.workspace_size) {
    // XLA refuses to align scratch memory to more than 16 bytes.
    const size_t align = info.workspace_alignment;
    const auto space = scratch.Allocate(info.workspace_size + align, 16);
    if (!space)
      return {ffi::ErrorCode::kResourceExhausted, "the device has no memory for the workspace of " +
                                                      std::to_string(info.workspace_size) +
                                                      " bytes"};
    const uint64_t start = uint64_t(reinterpret_cast<uintptr_t>(*space));
    args.workspace.handle = (start + align - 1) / align * align;
    args.workspace_size = info.workspace_size;
  }
  harness::check(
      tandem_execute(plan->plan, {uint64_t(reinterpret_cast<uintptr_t>(stream))}, &args));
  return ffi::Error::Success();
} catch (const harness::Error& error) {
  return error_of(error);
} catch (const std::exception& error) {
  return {ffi::ErrorCode::kResourceExhausted, error.what()};
}

XLA_FFI_DEFINE_HANDLER(kCpuHandler, run_on_cpu,
                       ffi::Ffi::Bind()
                           .Attr<std::string_view>("problem")
                           .Attr<std::string_view>("buffers")
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(kCudaHandler, run_on_cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::ScratchAllocator>()
                           .Attr<std::string_view>("problem")
                           .Attr<std::string_view>("buffers")
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

void* jax_cpu_handler() { return reinterpret_cast<void*>(kCpuHandler); }
void* jax_cuda_handler() { return reinterpret_cast<void*>(kCudaHandler); }

}  // namespace tandem::python
