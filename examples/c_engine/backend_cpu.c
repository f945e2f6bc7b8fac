/* SPDX-License-Identifier: MIT OR Apache-2.0
 * The CPU: what is recorded has been done already. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"

enum { PAGE = 4096 };

struct cpu {
  backend base;
  void* allocation;
  unsigned char* memory; /* from a page's start on */
};

static int cpu_write(backend* b, size_t at, const void* data, size_t bytes) {
  memcpy(((struct cpu*)b)->memory + at, data, bytes);
  return 1;
}
static int cpu_read(backend* b, size_t at, void* data, size_t bytes) {
  memcpy(data, ((struct cpu*)b)->memory + at, bytes);
  return 1;
}
static int cpu_nothing(backend* b) { return b != NULL; }
static void cpu_close(backend* b) {
  tandem_device_destroy(b->device);
  free(((struct cpu*)b)->allocation);
  free(b);
}

backend* backend_open_cpu(int index, size_t arena_bytes) {
  struct cpu* c = (struct cpu*)calloc(1, sizeof *c);
  if (!c) return engine_fail("no memory"), NULL;
  c->base.write = cpu_write;
  c->base.read = cpu_read;
  c->base.begin = c->base.barrier = c->base.end = cpu_nothing;
  c->base.close = cpu_close;
  c->allocation = malloc(arena_bytes + PAGE);
  if (index != 0 || !c->allocation) {
    cpu_close(&c->base);
    return engine_fail(index ? "there is one cpu" : "no memory for the arena"), NULL;
  }
  c->memory = (unsigned char*)(((uintptr_t)c->allocation + PAGE - 1) / PAGE * PAGE);
  c->base.arena.handle = (uint64_t)(uintptr_t)c->memory;
  if (tandem_cpu_device_create(NULL, &c->base.device) != TANDEM_OK) {
    cpu_close(&c->base);
    return engine_fail_tandem("cpu"), NULL;
  }
  return &c->base;
}
