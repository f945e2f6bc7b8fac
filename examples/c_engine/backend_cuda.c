/* SPDX-License-Identifier: MIT OR Apache-2.0
 * CUDA, by its runtime: a stream, and the arena as one allocation. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <tandem/tandem_cuda.h>

#include "backend.h"

struct cuda {
  backend base;
  cudaStream_t stream;
  void* memory;
};

static int good(cudaError_t error, const char* what) {
  return error == cudaSuccess || engine_fail("%s: %s", what, cudaGetErrorString(error));
}
static int cuda_write(backend* b, size_t at, const void* data, size_t bytes) {
  struct cuda* c = (struct cuda*)b;
  return good(
             cudaMemcpyAsync((char*)c->memory + at, data, bytes, cudaMemcpyHostToDevice, c->stream),
             "upload") &&
         good(cudaStreamSynchronize(c->stream), "upload");
}
static int cuda_read(backend* b, size_t at, void* data, size_t bytes) {
  struct cuda* c = (struct cuda*)b;
  return good(
             cudaMemcpyAsync(data, (char*)c->memory + at, bytes, cudaMemcpyDeviceToHost, c->stream),
             "download") &&
         good(cudaStreamSynchronize(c->stream), "download");
}
static int cuda_nothing(backend* b) { return b != NULL; } /* a stream is in order by itself */
static int cuda_end(backend* b) {
  return good(cudaStreamSynchronize(((struct cuda*)b)->stream), "frame");
}
static void cuda_close(backend* b) {
  struct cuda* c = (struct cuda*)b;
  tandem_device_destroy(b->device);
  if (c->stream) cudaStreamDestroy(c->stream);
  cudaFree(c->memory);
  free(c);
}

backend* backend_open_cuda(int index, size_t arena_bytes) {
  struct cuda* c = (struct cuda*)calloc(1, sizeof *c);
  if (!c) return engine_fail("no memory"), NULL;
  c->base.write = cuda_write;
  c->base.read = cuda_read;
  c->base.begin = c->base.barrier = cuda_nothing;
  c->base.end = cuda_end;
  c->base.close = cuda_close;
  /* First Tandem: it has a sentence for a machine without driver or GPU. */
  if (tandem_cuda_device_create(index, NULL, &c->base.device) != TANDEM_OK) {
    engine_fail_tandem("cuda");
    free(c);
    return NULL;
  }
  if (!good(cudaSetDevice(index), "cudaSetDevice") ||
      !good(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "stream") ||
      !good(cudaMalloc(&c->memory, arena_bytes), "arena")) {
    cuda_close(&c->base);
    return NULL;
  }
  c->base.stream = tandem_cuda_stream(c->stream);
  c->base.arena = tandem_cuda_buffer(c->memory);
  return &c->base;
}
