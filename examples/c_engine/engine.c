/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"

enum { MAX_TENSORS = 256, MAX_PLANS = 64, ALIGNMENT = 256, LINE = 512 };

/* ---- errors ---------------------------------------------------------------------------------- */

static char last_error[512];

const char* engine_error(void) { return last_error; }

int engine_fail(const char* format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof last_error, format, args);
  va_end(args);
  return 0;
}

int engine_fail_tandem(const char* what) {
  return engine_fail("%s: %s", what, tandem_last_message());
}

/* ---- the engine ------------------------------------------------------------------------------ */

struct tensor {
  size_t at, bytes;
};
struct cached_plan {
  char line[LINE]; /* the key: the problem line as Tandem prints it */
  tandem_plan* plan;
  tandem_plan_info info;
};
struct engine {
  backend* on;
  char name[160];
  size_t size, front, back, peak; /* tensors grow from the front, workspaces from the back */
  uint32_t tensor_count, plan_count, found;
  int recording;
  struct tensor tensors[MAX_TENSORS];
  struct cached_plan plans[MAX_PLANS];
};

engine* engine_open(const char* device, size_t arena_bytes) {
  static const struct {
    const char* name;
    backend* (*open)(int, size_t);
  } backends[] = {
      {"cpu", backend_open_cpu}, {"vulkan", backend_open_vulkan}, {"cuda", backend_open_cuda}};
  const size_t length = strcspn(device, ":");
  const int index = device[length] ? atoi(device + length + 1) : 0;
  tandem_device_info info;
  engine* e = NULL;
  backend* on = NULL;
  size_t i;
  arena_bytes = (arena_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  for (i = 0; i < sizeof backends / sizeof *backends; ++i)
    if (strncmp(device, backends[i].name, length) == 0 && !backends[i].name[length]) {
      on = backends[i].open(index, arena_bytes);
      if (!on) return NULL;
    }
  if (!on) return engine_fail("no backend is named '%s': cpu, vulkan, cuda", device), NULL;
  e = (engine*)calloc(1, sizeof *e);
  info.struct_size = sizeof info;
  if (!e || tandem_device_get_info(on->device, &info) != TANDEM_OK) {
    on->close(on);
    free(e);
    return engine_fail("no memory for an engine"), NULL;
  }
  e->on = on;
  e->size = e->back = arena_bytes;
  snprintf(e->name, sizeof e->name, "%s: %s", info.backend, info.name);
  return e;
}

void engine_close(engine* e) {
  uint32_t i;
  if (!e) return;
  for (i = 0; i < e->plan_count; ++i) tandem_plan_destroy(e->plans[i].plan);
  e->on->close(e->on);
  free(e);
}

const char* engine_name(const engine* e) { return e->name; }

/* ---- the arena ------------------------------------------------------------------------------- */

static void note_peak(engine* e) {
  const size_t used = e->front + (e->size - e->back);
  if (used > e->peak) e->peak = used;
}

engine_tensor engine_make(engine* e, size_t bytes) {
  engine_tensor t = {0};
  const size_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (e->tensor_count == MAX_TENSORS) return engine_fail("no more than %d tensors", MAX_TENSORS), t;
  if (whole > e->back - e->front)
    return engine_fail("the arena has %zu bytes left, a tensor needs %zu", e->back - e->front,
                       whole),
           t;
  e->tensors[e->tensor_count].at = e->front;
  e->tensors[e->tensor_count].bytes = bytes;
  e->front += whole;
  note_peak(e);
  t.id = ++e->tensor_count;
  return t;
}

static const struct tensor* find_tensor(const engine* e, engine_tensor t) {
  if (t.id == 0 || t.id > e->tensor_count)
    return engine_fail("no tensor has the id %u", t.id), NULL;
  return &e->tensors[t.id - 1];
}

int engine_write(engine* e, engine_tensor t, const void* data) {
  const struct tensor* to = find_tensor(e, t);
  return to && e->on->write(e->on, to->at, data, to->bytes);
}

int engine_read(engine* e, engine_tensor t, void* data) {
  const struct tensor* from = find_tensor(e, t);
  return from && e->on->read(e->on, from->at, data, from->bytes);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* The plan of a problem, made at the first question. Lines that say the same are one key. */
static struct cached_plan* find_plan(engine* e, const char* line) {
  tandem_problem problem;
  struct cached_plan* p = &e->plans[e->plan_count];
  char key[LINE];
  uint32_t i;
  if (tandem_problem_parse(line, &problem) != TANDEM_OK) return engine_fail_tandem(line), NULL;
  if (tandem_problem_print(&problem, key, sizeof key) > sizeof key)
    return engine_fail("a problem line of more than %d characters", LINE), NULL;
  for (i = 0; i < e->plan_count; ++i)
    if (strcmp(e->plans[i].line, key) == 0) return ++e->found, &e->plans[i];
  if (e->plan_count == MAX_PLANS) return engine_fail("no more than %d plans", MAX_PLANS), NULL;
  if (tandem_plan_create(e->on->device, &problem, &p->plan) != TANDEM_OK)
    return engine_fail_tandem(key), NULL;
  p->info.struct_size = sizeof p->info;
  if (tandem_plan_get_info(p->plan, &p->info) != TANDEM_OK) {
    tandem_plan_destroy(p->plan);
    return engine_fail_tandem(key), NULL;
  }
  memcpy(p->line, key, sizeof key);
  return ++e->plan_count, p;
}

/* ---- frames ---------------------------------------------------------------------------------- */

int engine_begin(engine* e) {
  if (e->recording) return engine_fail("engine_begin: the frame before has not ended");
  return e->recording = e->on->begin(e->on);
}

int engine_end(engine* e) {
  if (!e->recording) return engine_fail("engine_end without engine_begin");
  e->recording = 0;
  e->back = e->size; /* end waits, so the workspaces are free again */
  return e->on->end(e->on);
}

static int give(const engine* e, engine_tensor t, tandem_buffer* to) {
  const struct tensor* from;
  if (t.id == 0) return 1;
  if (!(from = find_tensor(e, t))) return 0;
  *to = e->on->arena;
  to->offset += from->at;
  return 1;
}

int engine_attend(engine* e, const char* line, const engine_attention* with) {
  tandem_args args = TANDEM_ARGS_INIT;
  struct cached_plan* p;
  size_t need;
  if (!e->recording) return engine_fail("engine_attend outside a frame");
  if (!(p = find_plan(e, line))) return 0;
  if (!give(e, with->q, &args.q) || !give(e, with->k, &args.k) || !give(e, with->v, &args.v) ||
      !give(e, with->o, &args.o) || !give(e, with->lse, &args.lse) ||
      !give(e, with->d_o, &args.d_o) || !give(e, with->d_q, &args.d_q) ||
      !give(e, with->d_k, &args.d_k) || !give(e, with->d_v, &args.d_v) ||
      !give(e, with->bias, &args.bias) || !give(e, with->d_bias, &args.d_bias))
    return 0;
  need = ((size_t)p->info.workspace_size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (need > e->back - e->front)
    return engine_fail("the arena has %zu bytes left, a workspace needs %zu", e->back - e->front,
                       need);
  if (need > 0) {
    e->back -= need;
    note_peak(e);
    args.workspace = e->on->arena;
    args.workspace.offset += e->back;
    args.workspace_size = p->info.workspace_size;
  }
  if (tandem_execute(p->plan, e->on->stream, &args) != TANDEM_OK)
    return engine_fail_tandem(p->line);
  return e->on->barrier(e->on);
}

engine_stats engine_get_stats(const engine* e) {
  engine_stats s;
  s.plans_made = e->plan_count;
  s.plans_found = e->found;
  s.arena_bytes = e->size;
  s.arena_peak = e->peak;
  return s;
}
