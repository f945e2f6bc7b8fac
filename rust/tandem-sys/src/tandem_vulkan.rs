// SPDX-License-Identifier: MIT OR Apache-2.0
// Made by scripts/rust-headers of include/tandem/tandem_vulkan.h. Do not edit.
use super::*;


#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_vk_feature_storage {
    pub opaque: [u64; 128],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_vk_device_desc {
    pub struct_size: u32,
    pub api_version: u32,
    pub next: *const c_void,
    pub instance: VkInstance,
    pub gpu: VkPhysicalDevice,
    pub device: VkDevice,
    pub gipa: PFN_vkGetInstanceProcAddr,
    pub extension_count: u32,
    pub reserved: u32,
    pub extensions: *const *const c_char,
    pub features: *const VkPhysicalDeviceFeatures2,
    pub cache: VkPipelineCache,
    pub allocator: *const VkAllocationCallbacks,
    pub instance_extensions: *const *const c_char,
    pub instance_extension_count: u32,
    pub reserved2: u32,
    pub queue: VkQueue,
    pub queue_family: u32,
    pub reserved3: u32,
}
/// What to start from, as in C.
pub const TANDEM_VK_DEVICE_DESC_INIT: tandem_vk_device_desc = tandem_vk_device_desc {
    struct_size: size_of::<tandem_vk_device_desc>() as u32,
    api_version: 1 << 22 | 2 << 12,
    // SAFETY: all members may be zeros.
    ..unsafe { zeroed() }
};

extern "C" {
    pub fn tandem_vk_required_extensions(gipa: PFN_vkGetInstanceProcAddr, instance: VkInstance, gpu: VkPhysicalDevice, count: *mut u32, names: *mut *const *const c_char) -> tandem_status;
    pub fn tandem_vk_required_features(gipa: PFN_vkGetInstanceProcAddr, instance: VkInstance, gpu: VkPhysicalDevice, chain: *mut VkPhysicalDeviceFeatures2, storage: *mut tandem_vk_feature_storage) -> tandem_status;
    pub fn tandem_vk_device_create(desc: *const tandem_vk_device_desc, options: *const tandem_device_options, device: *mut *mut tandem_device) -> tandem_status;
    pub fn tandem_vk_execute_timed(plan: *const tandem_plan, cmd: VkCommandBuffer, args: *const tandem_args, pool: VkQueryPool, first_query: u32) -> tandem_status;
}
