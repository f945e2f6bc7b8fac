/* SPDX-License-Identifier: MIT OR Apache-2.0
 * The header as a C99 compiler sees it, with -pedantic -Werror: names, initialisers, layout. The
 * sizes are part of the binary interface. */
#include <stddef.h>
#include <string.h>

#include "tandem/tandem.h"
#include "tandem/tandem_cuda.h"

#define PIN(name, condition) typedef char pin_##name[(condition) ? 1 : -1]
PIN(status_is_int, sizeof(tandem_status) == 4);
PIN(tensor, sizeof(tandem_tensor) == 40);
PIN(buffer, sizeof(tandem_buffer) == 16);
PIN(problem_q, offsetof(tandem_problem, q) == 72);
PIN(problem_scale, offsetof(tandem_problem, scale) == 72 + 8 * 40);
PIN(problem_normalizer, offsetof(tandem_problem, normalizer) == 72 + 8 * 40 + 48);
PIN(problem, sizeof(tandem_problem) == 72 + 8 * 40 + 24 + 48 + 48 + 32 + 24 + 80 + 24 + 40 + 32 +
                                           16 + 24 + 8 + 8 + 8 + 112);
PIN(args, sizeof(tandem_args) == 8 + 10 * 16 + 8 + 13 * 16 + 16 + 48 + 48 + 16 + 16 + 32 + 64);
PIN(slices, sizeof(tandem_slices) == 32);
PIN(options, sizeof(tandem_device_options) == 8 + 7 * sizeof(void*));

int tandem_c99_header_check(void);
int tandem_c99_header_check(void) {
  tandem_args args = TANDEM_ARGS_INIT;
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  tandem_device* device = NULL;
  tandem_problem problem;
  tandem_buffer buffer = tandem_cuda_buffer(&args);
  if (args.struct_size != sizeof(args) || args.workspace_size != 0) return 1;
  if (buffer.handle == 0 || tandem_cuda_stream(NULL).handle != 0) return 2;
  tandem_problem_init(&problem);
  if (problem.struct_size != sizeof(problem) || problem.window_left != TANDEM_UNBOUNDED) return 3;
  if (tandem_cpu_device_create(&options, &device) != TANDEM_OK) return 4;
  tandem_device_destroy(device);
  return strlen(tandem_status_string(TANDEM_OK)) > 0 ? 0 : 5;
}

/* In C an enum takes any number. */
void tandem_c99_contiguous(tandem_problem* problem, int dtype);
void tandem_c99_contiguous(tandem_problem* problem, int dtype) {
  tandem_problem_contiguous(problem, (tandem_dtype)dtype);
}
