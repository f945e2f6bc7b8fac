// SPDX-License-Identifier: MIT OR Apache-2.0
// Prints what layout.rs compares: sizes, offsets, constants and initialisers of the C headers.
#include <stdio.h>
#include <tandem/tandem_cuda.h>
#if defined(__has_include)
#if __has_include(<vulkan/vulkan_core.h>)
#define WITH_VULKAN
#include <tandem/tandem_vulkan.h>
#endif
#endif

static void bytes(const char* name, const void* at, size_t size) {
  printf("%s ", name);
  for (size_t n = 0; n < size; ++n) printf("%02x", ((const unsigned char*)at)[n]);
  printf("\n");
}

int main(void) {
#define FACT(label, number) printf("%s %lld\n", label, number);
#define INIT(type, initialiser)               \
  {                                           \
    static const type made = initialiser;     \
    bytes(#initialiser, &made, sizeof(made)); \
  }
#include "layout/facts.inc"
  return 0;
}
