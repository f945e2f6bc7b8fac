/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * tandem_cuda.h - Tandem on a CUDA device. Includes no CUDA header.
 *
 * Context   The primary context of the ordinal is used, as the CUDA runtime does; work goes to the
 *           stream that you give, which must belong to it. The current device of the calling thread
 *           is left as it was.
 * Capture   tandem_execute() may be called while the stream is being captured into a graph. */
#ifndef TANDEM_TANDEM_CUDA_H
#define TANDEM_TANDEM_CUDA_H
#include "tandem.h"
#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t and CUstream are pointers to it */

/* NO_BACKEND: this build lacks CUDA, or the machine has no driver. NO_DEVICE: no such ordinal. */
TANDEM_API tandem_status tandem_cuda_device_create(int ordinal,
                                                   const tandem_device_options* options,
                                                   tandem_device** device);

static inline tandem_stream tandem_cuda_stream(struct CUstream_st* stream) {
  tandem_stream s;
  s.handle = (uint64_t)(uintptr_t)stream;
  return s;
}
static inline tandem_buffer tandem_cuda_buffer(const void* device_pointer) {
  tandem_buffer b;
  b.handle = (uint64_t)(uintptr_t)device_pointer;
  b.offset = 0;
  return b;
}

#ifdef __cplusplus
}
#endif
#endif
