// SPDX-License-Identifier: MIT OR Apache-2.0
// What the tests of this folder say of a failure. They are programs of their own: doctest's suites
// are for any device.
#ifndef TANDEM_TESTS_CUDA_EMULATED_CHECK_H
#define TANDEM_TESTS_CUDA_EMULATED_CHECK_H
#include <cstdio>

#include "tandem/tandem.h"

inline int failures = 0;

// A printf format and its values say where.
#define CHECK(condition, ...)                                            \
  do {                                                                   \
    if (!(condition)) {                                                  \
      std::printf("FAILED %s:%d  %s  ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                          \
      std::printf("  [%s]\n", tandem_last_message());                    \
      ++failures;                                                        \
    }                                                                    \
  } while (false)

#endif
