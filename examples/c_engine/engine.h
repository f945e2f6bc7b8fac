/* SPDX-License-Identifier: MIT OR Apache-2.0
 * An engine's view of attention: an arena, tensors as handles, frames, and attentions by their
 * problem line. Behind it Tandem on the CPU, on Vulkan or on CUDA, which the caller names when the
 * engine is opened.
 *
 * Functions return 0 on failure, and engine_error() has the sentence. One thread at a time. */
#ifndef C_ENGINE_H
#define C_ENGINE_H
#include <stddef.h>
#include <stdint.h>

typedef struct engine engine;
typedef struct engine_tensor { /* {0} is no tensor */
  uint32_t id;
} engine_tensor;

/* device: "cpu", "vulkan" or "cuda", with ":1" behind it the second one. All device memory is one
 * arena. */
engine* engine_open(const char* device, size_t arena_bytes);
void engine_close(engine* e); /* NULL is allowed */
const char* engine_name(const engine* e);
const char* engine_error(void);

/* Tensors live as long as the engine. */
engine_tensor engine_make(engine* e, size_t bytes);
int engine_write(engine* e, engine_tensor t, const void* data);
int engine_read(engine* e, engine_tensor t, void* data);

/* Between begin and end attentions are recorded; end runs them in their order and waits. Each gets
 * a workspace of its own from the far end of the arena, which end gives back. */
int engine_begin(engine* e);
int engine_end(engine* e);

typedef struct engine_attention { /* what a line does not use stays {0} */
  engine_tensor q, k, v, o, lse;
  engine_tensor d_o, d_q, d_k, d_v;
  engine_tensor bias, d_bias;
} engine_attention;
/* line: a whole problem, as "fwd f32 b1 hq4 sq128 d64 causal_top_left". Its plan is made once and
 * kept. */
int engine_attend(engine* e, const char* line, const engine_attention* with);

typedef struct engine_stats {
  uint32_t plans_made, plans_found;
  size_t arena_bytes, arena_peak;
} engine_stats;
engine_stats engine_get_stats(const engine* e);
#endif
