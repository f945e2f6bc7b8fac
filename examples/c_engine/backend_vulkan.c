/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Vulkan: an instance, a device with a queue for compute, a command buffer, and the arena as one buffer in memory that
 * the host sees. The loader is opened at run time. examples/vulkan_app has more than one queue. */
#include <dlfcn.h>
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

/* Between what shaders (and at the ends of a frame, the host) wrote and what shaders and host read. */
static void barrier(struct vulkan* v, VkPipelineStageFlags from, VkAccessFlags written,
                    VkPipelineStageFlags to, VkAccessFlags read) {
  VkMemoryBarrier m;
  memset(&m, 0, sizeof m);
  m.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  m.srcAccessMask = written;
  m.dstAccessMask = read;
  v->vkCmdPipelineBarrier(v->cmd, from, to, 0, 1, &m, 0, NULL, 0, NULL);
}
static int vulkan_barrier(backend* b) {
  barrier((struct vulkan*)b, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
          VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
          VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
  return 1;
}
static int vulkan_begin(backend* b) { /* what the host wrote before a submit is visible to it */
  struct vulkan* v = (struct vulkan*)b;
  VkCommandBufferBeginInfo info;
  memset(&info, 0, sizeof info);
  info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  info.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  return GOOD(v, vkBeginCommandBuffer, (v->cmd, &info));
}
static int vulkan_end(backend* b) {
  struct vulkan* v = (struct vulkan*)b;
  VkSubmitInfo info;
  barrier(v, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
          VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT);
  memset(&info, 0, sizeof info);
  info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  info.commandBufferCount = 1;
  info.pCommandBuffers = &v->cmd;
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
  VkApplicationInfo app;
  VkInstanceCreateInfo info;
  VkPhysicalDevice gpus[16];
  uint32_t count = 16;
  PFN_vkCreateInstance create;
  void* library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return engine_fail("this machine has no Vulkan loader");
  *(void**)&v->gipa = dlsym(library, "vkGetInstanceProcAddr");
  if (!v->gipa) return engine_fail("libvulkan.so.1 has no vkGetInstanceProcAddr");
  memset(&app, 0, sizeof app);
  app.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  app.apiVersion = VK_API_VERSION_1_2;
  memset(&info, 0, sizeof info);
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pApplicationInfo = &app;
  create = (PFN_vkCreateInstance)v->gipa(NULL, "vkCreateInstance");
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

/* The device, with what Tandem asks for, and Tandem's view of it. */
static int make_device(struct vulkan* v) {
  const float priority = 1;
  VkQueueFamilyProperties families[16];
  uint32_t count = 16, family = 0, extension_count = 0;
  VkPhysicalDeviceFeatures2 features;
  tandem_vk_feature_storage storage;
  VkDeviceQueueCreateInfo queue;
  VkDeviceCreateInfo info;
  VkCommandPoolCreateInfo pool;
  VkCommandBufferAllocateInfo buffers;
  tandem_vk_device_desc desc = TANDEM_VK_DEVICE_DESC_INIT;
  v->vkGetPhysicalDeviceQueueFamilyProperties(v->gpu, &count, families);
  while (family < count && !(families[family].queueFlags & VK_QUEUE_COMPUTE_BIT)) ++family;
  memset(&features, 0, sizeof features);
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  desc.instance = v->instance;
  desc.gpu = v->gpu;
  desc.gipa = v->gipa;
  if (tandem_vk_required_extensions(v->gipa, v->instance, v->gpu, &extension_count,
                                    &desc.extensions) != TANDEM_OK ||
      tandem_vk_required_features(v->gipa, v->instance, v->gpu, &features, &storage) != TANDEM_OK)
    return engine_fail_tandem("vulkan");
  memset(&queue, 0, sizeof queue);
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueFamilyIndex = family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  memset(&info, 0, sizeof info);
  info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  info.pNext = &features;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = extension_count;
  info.ppEnabledExtensionNames = desc.extensions;
  if (!GOOD(v, vkCreateDevice, (v->gpu, &info, NULL, &v->device))) return 0;
#define FIND(name) v->name = (PFN_##name)v->vkGetDeviceProcAddr(v->device, #name);
  DEVICE_FUNCTIONS(FIND)
#undef FIND
  v->vkGetDeviceQueue(v->device, family, 0, &v->queue);
  memset(&pool, 0, sizeof pool);
  pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pool.queueFamilyIndex = family;
  if (!GOOD(v, vkCreateCommandPool, (v->device, &pool, NULL, &v->pool))) return 0;
  memset(&buffers, 0, sizeof buffers);
  buffers.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  buffers.commandPool = v->pool;
  buffers.commandBufferCount = 1;
  if (!GOOD(v, vkAllocateCommandBuffers, (v->device, &buffers, &v->cmd))) return 0;
  desc.device = v->device;
  desc.features = &features;
  desc.extension_count = extension_count;
  if (tandem_vk_device_create(&desc, NULL, &v->base.device) != TANDEM_OK)
    return engine_fail_tandem("vulkan");
  v->base.stream = tandem_vk_stream(v->cmd);
  return 1;
}

/* A real engine keeps tensors in memory of the GPU's own and uploads; the host's is enough for an example. */
static int make_arena(struct vulkan* v, size_t bytes) {
  const VkMemoryPropertyFlags wanted =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  VkBufferCreateInfo info;
  VkMemoryRequirements needs;
  VkPhysicalDeviceMemoryProperties memory;
  VkMemoryAllocateFlagsInfo flags;
  VkMemoryAllocateInfo allocate;
  uint32_t type = 0;
  memset(&info, 0, sizeof info);
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.size = bytes;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  if (!GOOD(v, vkCreateBuffer, (v->device, &info, NULL, &v->buffer))) return 0;
  v->vkGetBufferMemoryRequirements(v->device, v->buffer, &needs);
  v->vkGetPhysicalDeviceMemoryProperties(v->gpu, &memory);
  while (type < memory.memoryTypeCount &&
         (!(needs.memoryTypeBits >> type & 1) ||
          (memory.memoryTypes[type].propertyFlags & wanted) != wanted))
    ++type;
  memset(&flags, 0, sizeof flags);
  flags.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO;
  flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  memset(&allocate, 0, sizeof allocate);
  allocate.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  allocate.pNext = &flags;
  allocate.allocationSize = needs.size;
  allocate.memoryTypeIndex = type;
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
