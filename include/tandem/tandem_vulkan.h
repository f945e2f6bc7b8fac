/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * tandem_vulkan.h - Tandem on a VkDevice that you own. Needs only vulkan_core.h.
 *
 * Needs     Vulkan 1.2, or newer, with bufferDeviceAddress, and inline uniform blocks (core in 1.3,
 *           VK_EXT_inline_uniform_block before). Faster with matrix units:
 *           VK_KHR_cooperative_matrix, VK_NV_cooperative_matrix2, VK_KHR_shader_bfloat16 and a few
 *           core features, all optional. tandem_vk_required_* say what to enable: the needed, and
 *           of the optional what this GPU has. Optional ones that you leave out are not used, and
 *           tandem_explain() names them.
 * Buffers   Created with VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT (and memory allocated with the
 *           matching flag). A tandem_buffer is {VkBuffer, byte offset} or {0, device address}.
 * Barriers  tandem_execute() records into a primary or secondary command buffer in the recording
 *           state, outside a render pass, on a queue family with compute. It binds a compute
 *           pipeline, descriptor set 0 and push constants, and so disturbs yours at the compute
 *           bind point. Before it: make your writes visible to stage COMPUTE_SHADER, accesses
 *           SHADER_READ and SHADER_WRITE (those to memory around the outputs too: 16-bit results
 *           may be merged into words), and wait for earlier reads of the outputs. After it: make
 *           stage COMPUTE_SHADER, access SHADER_WRITE visible to your reads, and let your writes to
 *           its inputs wait for that stage. Two executes that share a workspace or a tensor need
 *           the same barrier between them.
 * Slices    tandem_execute_slice() cuts dispatches between any two workgroups (vkCmdDispatchBase),
 *           so that each slice may go into a command buffer and a submission of its own. Every
 *           slice but the first begins with a barrier that waits for those before it on the queue.
 *           Its pipelines have VK_PIPELINE_CREATE_DISPATCH_BASE; those of other plans do not.
 * Lifetime  instance, physical device and device outlive the tandem_device. The plan owns the
 *           pipelines' descriptor sets: keep it until the GPU has finished.
 * More      docs/guide/engines.md: a frame with barriers, queues, lifetimes, errors;
 *           examples/vulkan_app. */
#ifndef TANDEM_TANDEM_VULKAN_H
#define TANDEM_TANDEM_VULKAN_H
#include <vulkan/vulkan_core.h>

#include "tandem.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Extensions to enable on this GPU, for tandem to work at all and then for its faster paths. names
 * points to static storage. */
TANDEM_API tandem_status tandem_vk_required_extensions(PFN_vkGetInstanceProcAddr gipa,
                                                       VkInstance instance, VkPhysicalDevice gpu,
                                                       uint32_t* count, const char* const** names);

/* Features to enable, needed and optional: patches the structs already in chain in place and links
 * missing ones from storage, which must outlive vkCreateDevice. Go with the extensions above: some
 * of the structs belong to them. */
typedef struct tandem_vk_feature_storage {
  uint64_t opaque[128];
} tandem_vk_feature_storage;
TANDEM_API tandem_status tandem_vk_required_features(PFN_vkGetInstanceProcAddr gipa,
                                                     VkInstance instance, VkPhysicalDevice gpu,
                                                     VkPhysicalDeviceFeatures2* chain,
                                                     tandem_vk_feature_storage* storage);

/* Start from TANDEM_VK_DEVICE_DESC_INIT. Older and newer structs: tandem.h, under Structs. */
typedef struct tandem_vk_device_desc {
  uint32_t struct_size;
  /* VkApplicationInfo::apiVersion that you used; at least 1.2, which INIT has. The path coopmat2
   * needs 1.3 */
  uint32_t api_version;
  const void* next; /* must be NULL in this version */
  VkInstance instance;
  VkPhysicalDevice gpu;
  VkDevice device;
  PFN_vkGetInstanceProcAddr gipa; /* NULL: the system's loader is opened */
  uint32_t extension_count;
  uint32_t reserved;                         /* must be 0 */
  const char* const* extensions;             /* enabled on device; what is not listed is not used */
  const VkPhysicalDeviceFeatures2* features; /* given to vkCreateDevice; what is off is not used */
  /* Optional, yours: tandem_device_set_cache() then leaves it to you. Threads use it side by side,
   * so not one with VK_PIPELINE_CACHE_CREATE_EXTERNALLY_SYNCHRONIZED_BIT */
  VkPipelineCache cache;
  /* Optional, copied: goes to every vkCreate* and vkDestroy* that the library calls, on the thread
   * that called the library, and where tandem_device_options.threads is above 1 on threads of the
   * device. What the driver allocates; the library's own is tandem_device_options'. */
  const VkAllocationCallbacks* allocator;
  /* Enabled on instance. With VK_EXT_debug_utils among them, the objects that the library makes
   * have names, and what it records stands in labels: one for each execute, in it one for each
   * kernel. */
  const char* const* instance_extensions;
  uint32_t instance_extension_count;
  uint32_t reserved2; /* must be 0 */
  /* Optional: a queue of device, of a family with compute, and the family. If the device has
   * VK_KHR_cooperative_matrix and not VK_NV_cooperative_matrix2, tandem_vk_device_create() runs a
   * shader of one workgroup there and waits for it: where matrices lie in registers as products
   * take them, kernels leave out a way through shared memory (NVIDIA: backward 1.2 times as fast).
   * The queue is the library's meanwhile, and is not used afterwards. */
  VkQueue queue;
  uint32_t queue_family;
  uint32_t reserved3; /* must be 0 */
} tandem_vk_device_desc;
#define TANDEM_VK_DEVICE_DESC_INIT                                                                \
  {                                                                                               \
    (uint32_t)sizeof(tandem_vk_device_desc), VK_API_VERSION_1_2, NULL, VK_NULL_HANDLE,            \
        VK_NULL_HANDLE, VK_NULL_HANDLE, NULL, 0, 0, NULL, NULL, VK_NULL_HANDLE, NULL, NULL, 0, 0, \
        VK_NULL_HANDLE, 0, 0                                                                      \
  }

/* NO_BACKEND: this build lacks Vulkan, or there is no loader. MISSING_FEATURE: names what is
 * missing. */
TANDEM_API tandem_status tandem_vk_device_create(const tandem_vk_device_desc* desc,
                                                 const tandem_device_options* options,
                                                 tandem_device** device);

/* tandem_execute() that also writes kernel_count + 1 timestamps (tandem_plan_info) from first_query
 * on: one when all commands before are done, then one behind each kernel. So the difference of
 * queries first_query + n + 1 and first_query + n is what kernels[n] took, or added where the GPU
 * runs two at a time. pool is of VK_QUERY_TYPE_TIMESTAMP and these queries of it are reset; the
 * queue family has timestampValidBits. A plan without kernels writes its one timestamp, a call that
 * fails none. */
TANDEM_API tandem_status tandem_vk_execute_timed(const tandem_plan* plan, VkCommandBuffer cmd,
                                                 const tandem_args* args, VkQueryPool pool,
                                                 uint32_t first_query);

static inline tandem_stream tandem_vk_stream(VkCommandBuffer cmd) {
  tandem_stream s;
  s.handle = (uint64_t)(uintptr_t)cmd;
  return s;
}
static inline tandem_buffer tandem_vk_buffer(VkBuffer buffer, VkDeviceSize offset) {
  tandem_buffer b;
  b.handle = (uint64_t)buffer;
  b.offset = offset;
  return b;
}
static inline tandem_buffer tandem_vk_address(VkDeviceAddress address) {
  tandem_buffer b;
  b.handle = 0;
  b.offset = address;
  return b;
}

#ifdef __cplusplus
}
#endif
#endif
