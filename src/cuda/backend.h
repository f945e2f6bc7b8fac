// SPDX-License-Identifier: MIT OR Apache-2.0
// What the C border asks of the CUDA backend, which is in this library or in one that is opened at
// run time (plugin/).
#ifndef TANDEM_SRC_CUDA_BACKEND_H
#define TANDEM_SRC_CUDA_BACKEND_H
#include "api/device.h"

struct CUevent_st;

namespace tandem {

struct CudaBackend {
  // desc: a whole tandem_cuda_device_desc.
  Status (*open)(const DeviceOptions& options, const void* desc, std::unique_ptr<Device>* device);
  // Program::record() with an event before the first launch and one behind each. The program is one
  // that a device of this backend has built.
  Status (*record_timed)(const Program& program, tandem_stream stream, const tandem_args& args,
                         CUevent_st* const* events);
  bool (*has_sm90)();  // whether it has code for sm_90a
};

// Of device.cpp.
extern const CudaBackend kCudaBackend;

// Finds the backend. builtin.cpp has it in this library, plugin/find.cpp opens the other one, which
// stays open.
Status find_cuda_backend(const CudaBackend** backend);

}  // namespace tandem
#endif
