// SPDX-License-Identifier: MIT OR Apache-2.0
// The C API of tandem_cuda.h. No CUDA header: the backend may be in a library of its own.
#include "backend.h"
#include "base/structs.h"
#include "tandem/tandem_cuda.h"

namespace tandem {
namespace {

Status open_given(const DeviceOptions& options, const void* desc, std::unique_ptr<Device>* device) {
  const CudaBackend* cuda = nullptr;
  TANDEM_TRY(find_cuda_backend(&cuda));
  return cuda->open(options, desc, device);
}

Status open_described(const DeviceOptions& options, const void* given,
                      std::unique_ptr<Device>* device) {
  tandem_cuda_device_desc desc;
  TANDEM_TRY(read_struct("desc", static_cast<const tandem_cuda_device_desc*>(given), &desc));
  if (desc.next) return fail(TANDEM_ERROR_INVALID_STRUCT, "desc.next is not NULL");
  if (desc.ordinal == -1 && !desc.context)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "desc names neither an ordinal nor a context");
  return open_given(options, &desc, device);
}

}  // namespace
}  // namespace tandem

extern "C" {

tandem_status tandem_cuda_device_create(int ordinal, const tandem_device_options* options,
                                        tandem_device** device) {
  tandem_cuda_device_desc desc = TANDEM_CUDA_DEVICE_DESC_INIT;
  desc.ordinal = ordinal;
  return tandem::create_device(options, device, tandem::open_given, &desc);
}

tandem_status tandem_cuda_device_create_with(const tandem_cuda_device_desc* desc,
                                             const tandem_device_options* options,
                                             tandem_device** device) {
  return tandem::create_device(options, device, tandem::open_described, desc);
}

tandem_status tandem_cuda_execute_timed(const tandem_plan* plan, struct CUstream_st* stream,
                                        const tandem_args* args, struct CUevent_st* const* events,
                                        uint32_t count) {
  using namespace tandem;
  struct Call {
    CUstream_st* stream;
    CUevent_st* const* events;
    uint32_t count;
  } const call{stream, events, count};
  const Backend backend = Backend::cuda;
  return execute(
      plan, &backend, args,
      [](const Plan& p, const Program& program, const tandem_args& a, const void* context) {
        const Call& c = *static_cast<const Call*>(context);
        const size_t needed = p.launches.size() + 1;
        if (!c.events) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "events is NULL");
        if (c.count < needed)
          return fail(TANDEM_ERROR_INVALID_ARGUMENT, "count is %u, %zu kernels need %zu", c.count,
                      needed - 1, needed);
        const CudaBackend* cuda = nullptr;
        TANDEM_TRY(find_cuda_backend(&cuda));
        return cuda->record_timed(program, tandem_cuda_stream(c.stream), a, c.events);
      },
      &call);
}

}  // extern "C"
