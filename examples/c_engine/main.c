/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What a game does with the engine: a few frames of attention, forward and backward, on the device
 * of the command line, and a look at whether the results are right. c_engine [cpu | vulkan[:N] |
 * cuda[:N]] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"

enum { H = 4, S = 48, D = 32, COUNT = H * S * D, FRAMES = 3 };
static const char* const FORWARD = "fwd f32 b1 hq4 sq48 d32 causal_top_left";
static const char* const BACKWARD = "bwd f32 b1 hq4 sq48 d32 causal_top_left";

static float random_float(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 16777216.0f - 0.5f;
}

/* The output for one query row, from the definition. */
static void expect(const float* q, const float* k, const float* v, int h, int i, double* o) {
  double p[S], sum = 0;
  int j, d;
  for (j = 0; j <= i; ++j) {
    double x = 0;
    for (d = 0; d < D; ++d) x += (double)q[(h * S + i) * D + d] * (double)k[(h * S + j) * D + d];
    sum += p[j] = exp(x / sqrt(D));
  }
  for (d = 0; d < D; ++d)
    for (o[d] = 0, j = 0; j <= i; ++j) o[d] += p[j] / sum * (double)v[(h * S + j) * D + d];
}

/* The weights of a row sum to 1, so the keys' d_v sum to the rows' d_o. And o is compared with its
 * definition. */
static double largest_error(float* const* t, const float* o, const float* d_v) {
  double worst = 0, want[D];
  int h, i, d;
  for (h = 0; h < H; ++h) {
    for (d = 0; d < D; ++d) {
      double sum = 0;
      for (i = 0; i < S; ++i)
        sum += (double)d_v[(h * S + i) * D + d] - (double)t[3][(h * S + i) * D + d];
      if (!(fabs(sum) <= worst)) worst = fabs(sum);
    }
    for (i = 0; i < S; ++i) {
      expect(t[0], t[1], t[2], h, i, want);
      for (d = 0; d < D; ++d)
        if (!(fabs(o[(h * S + i) * D + d] - want[d]) <= worst))
          worst = fabs(o[(h * S + i) * D + d] - want[d]);
    }
  }
  return worst;
}

int main(int argc, char** argv) {
  static float values[4][COUNT], o[COUNT], d_v[COUNT];
  float* const host[4] = {values[0], values[1], values[2], values[3]};
  engine* e = engine_open(argc > 1 ? argv[1] : "cpu", (size_t)8 << 20);
  engine_attention with = {{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}};
  engine_tensor* const inputs[] = {&with.q, &with.k, &with.v, &with.d_o};
  engine_tensor* const outputs[] = {&with.o, &with.lse, &with.d_q, &with.d_k, &with.d_v};
  engine_stats stats;
  uint32_t state = 1;
  double error = 0;
  int frame, i, n, ok = 1;

  if (!e) return printf("FAILED: %s\n", engine_error()), 1;
  printf("%s\n", engine_name(e));
  for (i = 0; i < 4; ++i) *inputs[i] = engine_make(e, sizeof values[i]);
  for (i = 0; i < 5; ++i) *outputs[i] = engine_make(e, sizeof o);

  for (frame = 0; frame < FRAMES && ok; ++frame) {
    for (i = 0; i < 4; ++i) {
      for (n = 0; n < COUNT; ++n) values[i][n] = random_float(&state);
      ok = ok && engine_write(e, *inputs[i], values[i]);
    }
    ok = ok && engine_begin(e) && engine_attend(e, FORWARD, &with) &&
         engine_attend(e, BACKWARD, &with) && engine_end(e) && engine_read(e, with.o, o) &&
         engine_read(e, with.d_v, d_v);
    if (!ok) break;
    error = largest_error(host, o, d_v);
    printf("frame %d: largest error %.1e\n", frame, error);
    ok = error < 1e-4;
  }
  if (!ok) printf("FAILED: %s\n", engine_error());

  /* A mistake ends in a sentence, and the frame goes on without it. */
  if (ok && engine_begin(e)) {
    const int refused = !engine_attend(e, "fwd f32 sq48 d999", &with);
    printf("%s\n", refused ? engine_error() : "a head of 999 was not refused");
    ok = refused && engine_attend(e, FORWARD, &with) && engine_end(e);
  }
  stats = engine_get_stats(e);
  printf("%u plans made, %u found again; arena: %zu of %zu bytes\n", stats.plans_made,
         stats.plans_found, stats.arena_peak, stats.arena_bytes);
  ok = ok && stats.plans_made == 2 && stats.plans_found == 2 * FRAMES - 2 + 1;
  engine_close(e);
  return ok ? 0 : 1;
}
