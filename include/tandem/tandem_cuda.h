/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * tandem_cuda.h - Tandem on a CUDA device. Includes no CUDA header.
 *
 * Context   tandem_cuda_device_create() takes the primary context of an ordinal, the one of the
 *           CUDA runtime; tandem_cuda_device_create_with() any context of yours. Each GPU, and each
 *           context of one, is a tandem_device of its own; a process may have many. Every call
 *           leaves the calling thread's current context and device as they were, whatever that was.
 * Stream    A cudaStream_t or CUstream of that context; 0 is its legacy default stream. Work is
 *           ordered by the stream alone: what other streams, or Vulkan, do to the same buffers is
 *           yours to order, by events or external semaphores.
 * Slices    tandem_execute_slice() cuts kernels between workgroups, and the forwards of the path
 *           sm90 between heads or batch entries (docs/guide/slices.md).
 * Capture   tandem_execute() may be called while the stream is being captured into a graph. The
 *           graph keeps args as they were: addresses, dropout's seed and offset. What lies at the
 *           addresses, lengths and masks too, is read anew by each replay. Keep the plan as long as
 *           the graph. */
#ifndef TANDEM_TANDEM_CUDA_H
#define TANDEM_TANDEM_CUDA_H
#include "tandem.h"
#ifdef __cplusplus
extern "C" {
#endif

struct CUctx_st;    /* CUcontext is a pointer to it */
struct CUstream_st; /* cudaStream_t and CUstream */
struct CUevent_st;  /* cudaEvent_t and CUevent */

/* NO_BACKEND: this build lacks CUDA, its library libtandem_cuda was not found or is of another
 * build (docs/guide/consuming.md), or the machine has no driver. NO_DEVICE: no such ordinal. */
TANDEM_API tandem_status tandem_cuda_device_create(int ordinal,
                                                   const tandem_device_options* options,
                                                   tandem_device** device);

/* Start from TANDEM_CUDA_DEVICE_DESC_INIT. */
typedef struct tandem_cuda_device_desc {
  uint32_t struct_size;
  int32_t ordinal;  /* as cuDeviceGet and cudaSetDevice count; -1: the GPU of context */
  const void* next; /* must be NULL in this version */
  /* yours: it outlives the tandem_device. NULL: the primary one of ordinal, retained as long as the
   * tandem_device lives */
  struct CUctx_st* context;
} tandem_cuda_device_desc;
#define TANDEM_CUDA_DEVICE_DESC_INIT \
  { (uint32_t)sizeof(tandem_cuda_device_desc), -1, NULL, NULL }
TANDEM_API tandem_status tandem_cuda_device_create_with(const tandem_cuda_device_desc* desc,
                                                        const tandem_device_options* options,
                                                        tandem_device** device);

/* tandem_execute() that also records kernel_count + 1 events (tandem_plan_info): one before the
 * first kernel, then one behind each. So the time from events[n] to events[n + 1] is what
 * kernels[n] took. They are yours, of the stream's context, made with timing; count is how many
 * there are. A captured graph records them at each replay. UNSUPPORTED where inputs at unaligned
 * addresses make other kernels run than the plan names. */
TANDEM_API tandem_status tandem_cuda_execute_timed(const tandem_plan* plan,
                                                   struct CUstream_st* stream,
                                                   const tandem_args* args,
                                                   struct CUevent_st* const* events,
                                                   uint32_t count);

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
