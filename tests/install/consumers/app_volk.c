/* SPDX-License-Identifier: MIT OR Apache-2.0
 * An application with a Volk of its own, global functions and all, beside a library that has Volk
 * inside: neither sees the other's. */
#define VK_NO_PROTOTYPES
#define VOLK_IMPLEMENTATION
#include <stdio.h>
#include <tandem/tandem_vulkan.h>
#include <volk.h>

/* An application's loader that has nothing. */
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL nothing(VkInstance instance, const char* name) {
  (void)instance;
  (void)name;
  return NULL;
}

int main(void) {
  tandem_vk_device_desc desc = TANDEM_VK_DEVICE_DESC_INIT;
  tandem_device* device = NULL;
  tandem_status status;
  volkInitializeCustom(nothing);
  if (vkGetInstanceProcAddr != nothing || vkCreateInstance != NULL) return 1;
  status = tandem_vk_device_create(&desc, NULL, &device);
  printf("%s: %s\n", tandem_status_string(status), tandem_last_message());
  if (status == TANDEM_OK || device != NULL) return 2; /* desc names no device */
  return vkGetInstanceProcAddr == nothing && vkCreateInstance == NULL ? 0 : 3;
}
