/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Vulkan: an instance, a device with a queue for compute, a command buffer, and the arena as one
 * buffer in memory that the host sees. The loader is opened at run time. examples/vulkan_app has
 * more than one queue. */
#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem/tandem_vulkan.h>

#include "backend.h"

#define INSTANCE_FUNCTIONS(X)                 \
  X(vkDestroyInstance)                        \
  X(vkEnumeratePhysicalDevices)               \
  X(vkGetPhysicalDeviceQueueFamilyProperties) \
  X(vkGetPhysicalDeviceMemoryProperties)      \
  X(vkCreateDevice)                           \
  X(vkGetDeviceProcAddr)
#define DEVICE_FUNCTIONS(X)        \
  X(vkDestroyDevice)               \
  X(vkGetDeviceQueue)              \
  X(vkCreateCommandPool)           \
  X(vkDestroyCommandPool)          \
  X(vkAllocateCommandBuffers)      \
  X(vkBeginCommandBuffer)          \
  X(vkEndCommandBuffer)            \
  X(vkCmdPipelineBarrier)          \
  X(vkQueueSubmit)                 \
  X(vkQueueWaitIdle)               \
  X(vkCreateBuffer)                \
  X(vkDestroyBuffer)               \
  X(vkGetBufferMemoryRequirements) \
  X(vkAllocateMemory)              \
  X(vkFreeMemory)                  \
  X(vkBindBufferMemory)            \
  X(vkMapMemory)

struct vulkan {
  backend base;
  VkInstance instance;
  VkPhysicalDevice gpu;
  VkDevice device;
  VkQueue queue;
  VkCommandPool pool;
  VkCommandBuffer cmd;
  VkBuffer buffer;
  VkDeviceMemory memory;
  unsigned char* mapped;
  PFN_vkGetInstanceProcAddr gipa;
#define MEMBER(name) PFN_##name name;
  INSTANCE_FUNCTIONS(MEMBER)
  DEVICE_FUNCTIONS(MEMBER)
#undef MEMBER
};

static int good(VkResult result, const char* what) {
  return result == VK_SUCCESS || engine_fail("%s: VkResult %d", what, (int)result);
}
#define GOOD(v, name, arguments) good((v)->name arguments, #name)

static int vulkan_write(backend* b, size_t at, const void* data, size_t bytes) {
  memcpy(((struct vulkan*)b)->mapped + at, data, bytes);
  return 1;
}
static int vulkan_read(backend* b, size_t at, void* data, size_t bytes) {
  memcpy(data, ((struct vulkan*)b)->mapped + at, bytes);
  return 1;
}

/* Between what shaders (and at the ends of a frame, the host) wrote and what shaders and host read.
 */
static void barrier(struct vulkan* v, VkPipelineStageFlags to, VkAccessFlags access) {
  const VkMemoryBarrier m = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                             .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                             .dstAccessMask = access};
  v->vkCmdPipelineBarrier(v->cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, to, 0, 1, &m, 0, NULL, 0,
                          NULL);
}
static int vulkan_barrier(backend* b) {
  barrier((struct vulkan*)b, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
          VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
  return 1;
}
static int vulkan_begin(backend* b) { /* what the host wrote before a submit is visible to it */
  struct vulkan* v = (struct vulkan*)b;
  const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                         .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
  return GOOD(v, vkBeginCommandBuffer, (v->cmd, &info));
}
static int vulkan_end(backend* b) {
  struct vulkan* v = (struct vulkan*)b;
  const VkSubmitInfo info = {
      .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &v->cmd};
  barrier(v, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT);
  return GOOD(v, vkEndCommandBuffer, (v->cmd)) &&
         GOOD(v, vkQueueSubmit, (v->queue, 1, &info, VK_NULL_HANDLE)) &&
         GOOD(v, vkQueueWaitIdle, (v->queue));
}

static void vulkan_close(backend* b) {
  struct vulkan* v = (struct vulkan*)b;
  tandem_device_destroy(b->device);
  if (v->device) {
    if (v->buffer) v->vkDestroyBuffer(v->device, v->buffer, NULL);
    if (v->memory) v->vkFreeMemory(v->device, v->memory, NULL);
    if (v->pool) v->vkDestroyCommandPool(v->device, v->pool, NULL);
    v->vkDestroyDevice(v->device, NULL);
  }
  if (v->instance) v->vkDestroyInstance(v->instance, NULL);
  free(v);
}

static int make_instance(struct vulkan* v, int index) {
  const VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                 .apiVersion = VK_API_VERSION_1_2};
  const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                     .pApplicationInfo = &app};
  VkPhysicalDevice gpus[16];
  uint32_t count = 16;
#ifdef _WIN32
  HMODULE library = LoadLibraryExW(L"vulkan-1.dll", NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
  if (!library) return engine_fail("this machine has no Vulkan loader");
  const FARPROC found = GetProcAddress(library, "vkGetInstanceProcAddr");
  memcpy(&v->gipa, &found, sizeof v->gipa);
#else
  void* library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return engine_fail("this machine has no Vulkan loader");
  *(void**)&v->gipa = dlsym(library, "vkGetInstanceProcAddr");
#endif
  if (!v->gipa) return engine_fail("the Vulkan loader has no vkGetInstanceProcAddr");
  const PFN_vkCreateInstance create = (PFN_vkCreateInstance)v->gipa(NULL, "vkCreateInstance");
  if (!good(create(&info, NULL, &v->instance), "vkCreateInstance")) return 0;
#define FIND(name) v->name = (PFN_##name)v->gipa(v->instance, #name);
  INSTANCE_FUNCTIONS(FIND)
#undef FIND
  v->vkEnumeratePhysicalDevices(v->instance, &count, gpus);
  if (index < 0 || (uint32_t)index >= count)
    return engine_fail("vulkan:%d: this machine has %u Vulkan devices", index, count);
  v->gpu = gpus[index];
  return 1;
}

static int make_queue(struct vulkan* v, uint32_t family) {
  const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                        .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                        .queueFamilyIndex = family};
  v->vkGetDeviceQueue(v->device, family, 0, &v->queue);
  if (!GOOD(v, vkCreateCommandPool, (v->device, &pool, NULL, &v->pool))) return 0;
  const VkCommandBufferAllocateInfo buffer = {
      .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
      .commandPool = v->pool,
      .commandBufferCount = 1};
  return GOOD(v, vkAllocateCommandBuffers, (v->device, &buffer, &v->cmd));
}

/* The device, with what Tandem asks for, and Tandem's view of it. */
static int make_device(struct vulkan* v) {
  VkQueueFamilyProperties families[16];
  uint32_t count = 16, family = 0;
  v->vkGetPhysicalDeviceQueueFamilyProperties(v->gpu, &count, families);
  while (family < count && !(families[family].queueFlags & VK_QUEUE_COMPUTE_BIT)) ++family;
  if (family == count) return engine_fail("this Vulkan device has no queue for compute");

  VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
  tandem_vk_feature_storage storage;
  tandem_vk_device_desc desc = TANDEM_VK_DEVICE_DESC_INIT;
  if (tandem_vk_required_extensions(v->gipa, v->instance, v->gpu, &desc.extension_count,
                                    &desc.extensions) != TANDEM_OK ||
      tandem_vk_required_features(v->gipa, v->instance, v->gpu, &features, &storage) != TANDEM_OK)
    return engine_fail_tandem("vulkan");

  const float priority = 1;
  const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                         .queueFamilyIndex = family,
                                         .queueCount = 1,
                                         .pQueuePriorities = &priority};
  const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                   .pNext = &features,
                                   .queueCreateInfoCount = 1,
                                   .pQueueCreateInfos = &queue,
                                   .enabledExtensionCount = desc.extension_count,
                                   .ppEnabledExtensionNames = desc.extensions};
  if (!GOOD(v, vkCreateDevice, (v->gpu, &info, NULL, &v->device))) return 0;
#define FIND(name) v->name = (PFN_##name)v->vkGetDeviceProcAddr(v->device, #name);
  DEVICE_FUNCTIONS(FIND)
#undef FIND
  if (!make_queue(v, family)) return 0;

  desc.instance = v->instance;
  desc.gpu = v->gpu;
  desc.gipa = v->gipa;
  desc.device = v->device;
  desc.features = &features;
  if (tandem_vk_device_create(&desc, NULL, &v->base.device) != TANDEM_OK)
    return engine_fail_tandem("vulkan");
  v->base.stream = tandem_vk_stream(v->cmd);
  return 1;
}

/* A real engine keeps tensors in memory of the GPU's own and uploads; the host's is enough for an
 * example. */
static int make_arena(struct vulkan* v, size_t bytes) {
  const VkBufferCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
      .size = bytes,
      .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT};
  if (!GOOD(v, vkCreateBuffer, (v->device, &info, NULL, &v->buffer))) return 0;

  const VkMemoryPropertyFlags wanted =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  VkMemoryRequirements needs;
  VkPhysicalDeviceMemoryProperties memory;
  uint32_t type = 0; /* Vulkan promises one of these */
  v->vkGetBufferMemoryRequirements(v->device, v->buffer, &needs);
  v->vkGetPhysicalDeviceMemoryProperties(v->gpu, &memory);
  while (!(needs.memoryTypeBits >> type & 1) ||
         (memory.memoryTypes[type].propertyFlags & wanted) != wanted)
    ++type;
  const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                           .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
  const VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                         .pNext = &flags,
                                         .allocationSize = needs.size,
                                         .memoryTypeIndex = type};
  v->base.arena = tandem_vk_buffer(v->buffer, 0);
  return GOOD(v, vkAllocateMemory, (v->device, &allocate, NULL, &v->memory)) &&
         GOOD(v, vkBindBufferMemory, (v->device, v->buffer, v->memory, 0)) &&
         GOOD(v, vkMapMemory, (v->device, v->memory, 0, bytes, 0, (void**)&v->mapped));
}

backend* backend_open_vulkan(int index, size_t arena_bytes) {
  struct vulkan* v = (struct vulkan*)calloc(1, sizeof *v);
  if (!v) return engine_fail("no memory"), NULL;
  v->base.write = vulkan_write;
  v->base.read = vulkan_read;
  v->base.begin = vulkan_begin;
  v->base.barrier = vulkan_barrier;
  v->base.end = vulkan_end;
  v->base.close = vulkan_close;
  if (make_instance(v, index) && make_device(v) && make_arena(v, arena_bytes)) return &v->base;
  vulkan_close(&v->base);
  return NULL;
}
