// SPDX-License-Identifier: MIT OR Apache-2.0
// Made by scripts/rust-headers of include/tandem/tandem_cuda.h. Do not edit.
use super::*;


#[repr(C)]
pub struct CUctx_st {
    _opaque: [u8; 0],
    _thread: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct CUstream_st {
    _opaque: [u8; 0],
    _thread: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct CUevent_st {
    _opaque: [u8; 0],
    _thread: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_cuda_device_desc {
    pub struct_size: u32,
    pub ordinal: i32,
    pub next: *const c_void,
    pub context: *mut CUctx_st,
}
/// What to start from, as in C.
pub const TANDEM_CUDA_DEVICE_DESC_INIT: tandem_cuda_device_desc = tandem_cuda_device_desc {
    struct_size: size_of::<tandem_cuda_device_desc>() as u32,
    ordinal: -1,
    // SAFETY: all members may be zeros.
    ..unsafe { zeroed() }
};

extern "C" {
    pub fn tandem_cuda_device_create(ordinal: c_int, options: *const tandem_device_options, device: *mut *mut tandem_device) -> tandem_status;
    pub fn tandem_cuda_device_create_with(desc: *const tandem_cuda_device_desc, options: *const tandem_device_options, device: *mut *mut tandem_device) -> tandem_status;
    pub fn tandem_cuda_execute_timed(plan: *const tandem_plan, stream: *mut CUstream_st, args: *const tandem_args, events: *const *mut CUevent_st, count: u32) -> tandem_status;
}
