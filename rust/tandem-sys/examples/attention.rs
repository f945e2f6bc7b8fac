// Causal attention of two heads on the CPU, in f32: softmax(q k' / sqrt(D)) v, row by row.
use std::{ffi::CStr, mem::MaybeUninit, ptr::null};
use tandem_sys::*;

fn check(status: tandem_status) -> Result<(), String> {
    if status == TANDEM_OK {
        return Ok(());
    }
    // The sentence is this thread's, and valid until its next call that fails.
    Err(unsafe { CStr::from_ptr(tandem_last_message()) }.to_string_lossy().into_owned())
}

fn main() -> Result<(), String> {
    let (heads, rows, dim) = (2usize, 5usize, 8usize);
    let x: Vec<f32> = (0..heads * rows * dim).map(|n| (n % 7) as f32 / 7.0).collect();
    let mut o = vec![0f32; x.len()];
    unsafe {
        let mut device = std::ptr::null_mut();
        check(tandem_cpu_device_create(null(), &mut device))?; // or tandem_cuda_device_create(0, ...)
        let mut p = MaybeUninit::<tandem_problem>::uninit();
        tandem_problem_init(p.as_mut_ptr());
        let mut p = p.assume_init();
        (p.batch, p.heads_q, p.heads_kv) = (1, heads as i64, heads as i64);
        (p.seq_q, p.seq_kv) = (rows as i64, rows as i64);
        (p.head_dim, p.head_dim_v) = (dim as i64, dim as i64);
        p.mask = TANDEM_MASK_CAUSAL;
        tandem_problem_contiguous(&mut p, TANDEM_F32); // strides and types of all tensors
        let mut plan = std::ptr::null_mut();
        check(tandem_plan_create(device, &p, &mut plan))?; // keep it: it serves any data
        let buffer = |at: *const f32| tandem_buffer { handle: at as u64, offset: 0 };
        let mut args = TANDEM_ARGS_INIT;
        (args.q, args.k, args.v) = (buffer(x.as_ptr()), buffer(x.as_ptr()), buffer(x.as_ptr()));
        args.o = buffer(o.as_mut_ptr());
        check(tandem_execute(plan, tandem_stream { handle: 0 }, &args))?; // a stream on a GPU
        tandem_plan_destroy(plan); // on a GPU when the stream has gone past it
        tandem_device_destroy(device);
    }
    assert_eq!(o[..dim], x[..dim]); // the first row sees itself alone
    println!("{:?}", &o[dim..2 * dim]);
    Ok(())
}
