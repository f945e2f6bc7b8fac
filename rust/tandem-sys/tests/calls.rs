// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls with each kind of argument and result reach the library.
use std::{ffi::CStr, mem::MaybeUninit, ptr::null_mut};
use tandem_sys::*;

fn text(call: impl Fn(*mut std::ffi::c_char, usize) -> usize) -> String {
    let mut bytes = vec![0u8; call(null_mut(), 0)];
    call(bytes.as_mut_ptr().cast(), bytes.len());
    CStr::from_bytes_with_nul(&bytes).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn version_is_that_of_the_declarations() {
    let version = TANDEM_VERSION_MAJOR << 22 | TANDEM_VERSION_MINOR << 12 | TANDEM_VERSION_PATCH;
    assert_eq!(unsafe { tandem_version() }, version);
}

#[test]
fn backward_of_a_line() {
    unsafe {
        let mut device = null_mut();
        let mut options = TANDEM_DEVICE_OPTIONS_INIT;
        options.threads = 2;
        assert_eq!(tandem_cpu_device_create(&options, &mut device), TANDEM_OK);
        let mut p = MaybeUninit::<tandem_problem>::uninit();
        let line = c"bwd f32 b1 hq2 hk1 sq4 sk6 d8 dv8 causal_bottom_right alibi slices";
        assert_eq!(tandem_problem_parse(line.as_ptr(), p.as_mut_ptr()), TANDEM_OK);
        let p = p.assume_init();
        assert_eq!((p.direction, p.heads_kv, p.alibi), (TANDEM_BACKWARD, 1, 1));
        assert_eq!(text(|at, size| tandem_problem_print(&p, at, size)), line.to_str().unwrap());
        let mut plan = null_mut();
        assert_eq!(tandem_plan_create(device, &p, &mut plan), TANDEM_OK);
        let mut info: tandem_plan_info = std::mem::zeroed();
        info.struct_size = size_of::<tandem_plan_info>() as u32;
        assert_eq!(tandem_plan_get_info(plan, &mut info), TANDEM_OK);
        assert!(info.kernel_count > 0 && info.flops > 0.0);
        assert_eq!(CStr::from_ptr(info.backend.as_ptr()), c"cpu");
        let mut slices: tandem_slices = std::mem::zeroed();
        slices.struct_size = size_of::<tandem_slices>() as u32;
        assert_eq!(tandem_plan_get_slices(plan, 1e9, &mut slices), TANDEM_OK);
        assert_eq!(slices.count, 1);

        let [q, d_o, o, lse, k, v] = [64, 64, 64, 8, 48, 48].map(|n| vec![0.5f32; n]);
        let slope = vec![0.25f32; 2];
        let [d_q, d_k, d_v] = [64, 48, 48].map(|n| vec![f32::NAN; n]);
        let mut workspace = vec![0u8; info.workspace_size as usize + 256];
        let aligned = workspace.as_mut_ptr() as u64 + 255 & !255;
        let buffer = |v: &Vec<f32>| tandem_buffer { handle: v.as_ptr() as u64, offset: 0 };
        let mut args = TANDEM_ARGS_INIT;
        (args.q, args.k, args.v, args.o, args.lse) =
            (buffer(&q), buffer(&k), buffer(&v), buffer(&o), buffer(&lse));
        (args.d_o, args.slope, args.d_q) = (buffer(&d_o), buffer(&slope), buffer(&d_q));
        (args.d_k, args.d_v) = (buffer(&d_k), buffer(&d_v));
        args.workspace = tandem_buffer { handle: aligned, offset: 0 };
        args.workspace_size = info.workspace_size;
        assert_eq!(tandem_execute(plan, tandem_stream { handle: 0 }, &args), TANDEM_OK);
        assert!([d_q, d_k, d_v].iter().flatten().all(|x| x.is_finite()));
        args.d_k = tandem_buffer { handle: 0, offset: 0 };
        assert_eq!(tandem_execute(plan, tandem_stream { handle: 0 }, &args), TANDEM_ERROR_INVALID_ARGUMENT);
        let sentence = CStr::from_ptr(tandem_last_message()).to_str().unwrap();
        assert!(sentence.contains("args.d_k"), "{sentence}");
        tandem_plan_destroy(plan);
        tandem_device_destroy(device);
    }
}

#[test]
fn other_backends_are_linked() {
    unsafe {
        let mut device = null_mut();
        assert_ne!(tandem_cuda_device_create(-1, std::ptr::null(), &mut device), TANDEM_OK);
        let desc = TANDEM_VK_DEVICE_DESC_INIT;
        assert_ne!(tandem_vk_device_create(&desc, std::ptr::null(), &mut device), TANDEM_OK);
        assert!(device.is_null());
    }
}
