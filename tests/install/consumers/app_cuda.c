/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Says in a sentence what became of the CUDA backend, which may be in a library of its own. Exit
 * status 0: it is there, with or without a GPU; 1: it is not. */
#include <stdio.h>
#include <string.h>
#include <tandem/tandem.h>
#include <tandem/tandem_cuda.h>

int main(void) {
  tandem_device* device = NULL;
  tandem_status status;
  tandem_kernel_info info;
  uint32_t n, built = 0;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  for (n = 0; n < tandem_kernel_count(); ++n) {
    if (tandem_kernel_get(n, &info) != TANDEM_OK) return 1;
    if (strcmp(info.backend, "cuda") == 0) built += info.built;
  }
  status = tandem_cuda_device_create(0, NULL, &device);
  printf("the CUDA backend has %u kernels; device 0: %s\n", (unsigned)built,
         status == TANDEM_OK ? "it works" : tandem_last_message());
  tandem_device_destroy(device);
  return built ? 0 : 1;
}
