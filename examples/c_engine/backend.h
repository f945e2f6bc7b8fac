/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What an engine needs of a backend: a device, one arena of its memory, and a place to record to.
 */
#ifndef C_ENGINE_BACKEND_H
#define C_ENGINE_BACKEND_H
#include <tandem/tandem.h>

typedef struct backend backend;
struct backend {
  tandem_device* device;
  tandem_buffer arena;  /* its first byte, as Tandem gets it */
  tandem_stream stream; /* to record to between begin and end */
  int (*write)(backend* b, size_t at, const void* data, size_t bytes);
  int (*read)(backend* b, size_t at, void* data, size_t bytes);
  int (*begin)(backend* b);
  int (*barrier)(backend* b); /* what comes after it sees what came before */
  int (*end)(backend* b);     /* submits and waits */
  void (*close)(backend* b);
};

/* Each returns NULL, after engine_fail(). index: of the device among those of the backend. */
backend* backend_open_cpu(int index, size_t arena_bytes);
backend* backend_open_vulkan(int index, size_t arena_bytes);
backend* backend_open_cuda(int index, size_t arena_bytes);

/* Keeps the sentence for engine_error(); returns 0. */
int engine_fail(const char* format, ...);
int engine_fail_tandem(const char* what); /* with tandem_last_message() */
#endif
