// SPDX-License-Identifier: MIT OR Apache-2.0
//! libtandem's C API as it is: attention, forward and backward, on any GPU. The comments of
//! `include/tandem/*.h` say what each call does; `docs/guide/bindings.md` who owns what.
//!
//! The functions that a program of version 0.1.0 calls without the size of its structs are
//! here the inline ones below, as in C.
#![no_std]
#![allow(non_camel_case_types, non_snake_case)]

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::marker::{PhantomData, PhantomPinned};
use core::mem::{size_of, zeroed};

#[rustfmt::skip]
mod tandem;
#[rustfmt::skip]
mod tandem_cuda;
#[rustfmt::skip]
mod tandem_vulkan;

pub use tandem::*;
pub use tandem_cuda::*;
pub use tandem_vulkan::*;

// Vulkan's types, for ash, vulkano and others to cast theirs to: a handle that is dispatched is a
// pointer, any other one a number, and structs are looked at by Vulkan alone.
pub type VkInstance = *mut c_void;
pub type VkPhysicalDevice = *mut c_void;
pub type VkDevice = *mut c_void;
pub type VkQueue = *mut c_void;
pub type VkCommandBuffer = *mut c_void;
pub type VkBuffer = u64;
pub type VkPipelineCache = u64;
pub type VkQueryPool = u64;
pub type VkPhysicalDeviceFeatures2 = c_void;
pub type VkAllocationCallbacks = c_void;
pub type PFN_vkVoidFunction = Option<unsafe extern "system" fn()>;
pub type PFN_vkGetInstanceProcAddr =
    Option<unsafe extern "system" fn(instance: VkInstance, name: *const c_char) -> PFN_vkVoidFunction>;

/// Fills in a problem: `struct_size` and all defaults.
///
/// # Safety
/// `problem` points to memory for one.
#[inline]
pub unsafe fn tandem_problem_init(problem: *mut tandem_problem) {
    tandem_problem_init_sized(problem, size_of::<tandem_problem>() as u32)
}

/// Reads a problem line.
///
/// # Safety
/// `text` ends with a NUL, and `problem` points to memory for one.
#[inline]
pub unsafe fn tandem_problem_parse(text: *const c_char, problem: *mut tandem_problem) -> tandem_status {
    tandem_problem_parse_sized(text, problem, size_of::<tandem_problem>() as u32)
}

#[inline]
pub fn tandem_cuda_stream(stream: *mut CUstream_st) -> tandem_stream {
    tandem_stream { handle: stream as usize as u64 }
}
#[inline]
pub const fn tandem_cuda_buffer(device_pointer: u64) -> tandem_buffer {
    tandem_buffer { handle: device_pointer, offset: 0 }
}
#[inline]
pub fn tandem_vk_stream(cmd: VkCommandBuffer) -> tandem_stream {
    tandem_stream { handle: cmd as usize as u64 }
}
#[inline]
pub const fn tandem_vk_buffer(buffer: VkBuffer, offset: u64) -> tandem_buffer {
    tandem_buffer { handle: buffer, offset }
}
#[inline]
pub const fn tandem_vk_address(address: u64) -> tandem_buffer {
    tandem_buffer { handle: 0, offset: address }
}
