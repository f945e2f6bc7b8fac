/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What stands around a block that uses CUDA: a context and a stream, as an application has them.
 * Machines without an NVIDIA GPU compile and link the block, and do not run it. */
#include <dlfcn.h>
#include <stdio.h>
#include <tandem/tandem_cuda.h>

/* The driver's own context of the first GPU; NULL where there is none. */
static struct CUctx_st* primary_context(void) {
  struct CUctx_st* context = NULL;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned) = NULL;
  int (*retain)(struct CUctx_st**, int) = NULL;
  if (!driver) return NULL;
  *(void**)&init = dlsym(driver, "cuInit");
  *(void**)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  return init && retain && init(0) == 0 && retain(&context, 0) == 0 ? context : NULL;
}

/* What the block makes of a context. It also executes a plan: none yet, which is refused. */
static tandem_device* block(struct CUctx_st* context, struct CUstream_st* stream,
                            const tandem_plan* plan, tandem_args args) {
  tandem_device* device = NULL;
#include "block.inc"
  return device;
}

int main(void) {
  const tandem_args args = TANDEM_ARGS_INIT;
  struct CUctx_st* context = primary_context();
  tandem_device* device;
  if (!context) return puts("not run: no NVIDIA GPU"), 0;
  device = block(context, NULL, NULL, args);
  if (!device) return fprintf(stderr, "no device: %s\n", tandem_last_message()), 1;
  tandem_device_destroy(device);
  return 0;
}
