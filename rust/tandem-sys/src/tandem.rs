// SPDX-License-Identifier: MIT OR Apache-2.0
// Made by scripts/rust-headers of include/tandem/tandem.h. Do not edit.
use super::*;

pub const TANDEM_VERSION_MAJOR: u32 = 0;
pub const TANDEM_VERSION_MINOR: u32 = 1;
pub const TANDEM_VERSION_PATCH: u32 = 0;
pub const TANDEM_UNBOUNDED: i64 = -1;
pub const TANDEM_GRAD_Q: u32 = 0x1;
pub const TANDEM_GRAD_K: u32 = 0x2;
pub const TANDEM_GRAD_V: u32 = 0x4;
pub const TANDEM_GRAD_QKV: u32 = 0x7;
pub const TANDEM_GRAD_BIAS: u32 = 0x8;
pub const TANDEM_GRAD_DIST_BIAS: u32 = 0x10;
pub const TANDEM_GRAD_SLOPE: u32 = 0x20;
pub const TANDEM_GRAD_TAU: u32 = 0x40;
pub const TANDEM_GRAD_SINK: u32 = 0x80;
pub const TANDEM_GRAD_BIAS_TABLE: u32 = 0x100;
pub const TANDEM_FLAG_DETERMINISTIC: u32 = 0x1;
pub const TANDEM_FLAG_VISIT_ALL: u32 = 0x2;
pub const TANDEM_FLAG_TF32: u32 = 0x4;
pub const TANDEM_FLAG_PART_OF_KEYS: u32 = 0x8;
pub const TANDEM_FLAG_BATCH_INVARIANT: u32 = 0x10;
pub const TANDEM_FLAG_SLICES: u32 = 0x20;
pub const TANDEM_MAX_KERNELS: usize = 8;

pub type tandem_status = c_int;
pub const TANDEM_OK: tandem_status = 0;
pub const TANDEM_ERROR_INVALID_ARGUMENT: tandem_status = -1;
pub const TANDEM_ERROR_UNSUPPORTED: tandem_status = -2;
pub const TANDEM_ERROR_OUT_OF_MEMORY: tandem_status = -3;
pub const TANDEM_ERROR_INVALID_STRUCT: tandem_status = -4;
pub const TANDEM_ERROR_INVALID_LAYOUT: tandem_status = -5;
pub const TANDEM_ERROR_NO_BACKEND: tandem_status = -6;
pub const TANDEM_ERROR_NO_DEVICE: tandem_status = -7;
pub const TANDEM_ERROR_MISSING_FEATURE: tandem_status = -8;
pub const TANDEM_ERROR_WORKSPACE: tandem_status = -10;
pub const TANDEM_ERROR_CACHE: tandem_status = -11;
pub const TANDEM_ERROR_BACKEND: tandem_status = -20;
pub const TANDEM_ERROR_DEVICE_LOST: tandem_status = -21;
pub const TANDEM_ERROR_DEVICE_OUT_OF_MEMORY: tandem_status = -22;
pub const TANDEM_STATUS_FORCE_INT: tandem_status = 0x7fffffff;

pub type tandem_log_level = c_uint;
pub const TANDEM_LOG_ERROR: tandem_log_level = 0;
pub const TANDEM_LOG_WARN: tandem_log_level = 1;
pub const TANDEM_LOG_INFO: tandem_log_level = 2;
pub const TANDEM_LOG_DEBUG: tandem_log_level = 3;

pub type tandem_dtype = c_uint;
pub const TANDEM_F32: tandem_dtype = 1;
pub const TANDEM_F16: tandem_dtype = 2;
pub const TANDEM_BF16: tandem_dtype = 3;
pub const TANDEM_BOOL8: tandem_dtype = 4;
pub const TANDEM_U8: tandem_dtype = 5;
pub const TANDEM_U16: tandem_dtype = 6;
pub const TANDEM_I32: tandem_dtype = 7;
pub const TANDEM_F64: tandem_dtype = 8;

pub type tandem_direction = c_uint;
pub const TANDEM_FORWARD: tandem_direction = 1;
pub const TANDEM_BACKWARD: tandem_direction = 2;
pub const TANDEM_MERGE: tandem_direction = 3;
pub const TANDEM_MERGE_BACKWARD: tandem_direction = 4;

pub type tandem_mask = c_uint;
pub const TANDEM_MASK_NONE: tandem_mask = 0;
pub const TANDEM_MASK_CAUSAL: tandem_mask = 1;

pub type tandem_align = c_uint;
pub const TANDEM_TOP_LEFT: tandem_align = 0;
pub const TANDEM_BOTTOM_RIGHT: tandem_align = 1;

pub type tandem_normalizer = c_uint;
pub const TANDEM_SOFTMAX: tandem_normalizer = 0;
pub const TANDEM_ELASTIC: tandem_normalizer = 1;
pub const TANDEM_ENTMAX: tandem_normalizer = 2;

pub type tandem_lengths = c_uint;
pub const TANDEM_LENGTHS_FULL: tandem_lengths = 0;
pub const TANDEM_LENGTHS_PADDED: tandem_lengths = 1;
pub const TANDEM_LENGTHS_PACKED: tandem_lengths = 2;
pub const TANDEM_LENGTHS_GAPPED: tandem_lengths = 3;

#[repr(C)]
pub struct tandem_device {
    _opaque: [u8; 0],
    _thread: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct tandem_plan {
    _opaque: [u8; 0],
    _thread: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_device_options {
    pub struct_size: u32,
    pub threads: u32,
    pub next: *const c_void,
    pub user: *mut c_void,
    pub log: Option<unsafe extern "C" fn(user: *mut c_void, level: tandem_log_level, message: *const c_char)>,
    pub disable: *const c_char,
    pub allocate: Option<unsafe extern "C" fn(memory_user: *mut c_void, size: usize, alignment: usize) -> *mut c_void>,
    pub release: Option<unsafe extern "C" fn(memory_user: *mut c_void, memory: *mut c_void)>,
    pub memory_user: *mut c_void,
}
/// What to start from, as in C.
pub const TANDEM_DEVICE_OPTIONS_INIT: tandem_device_options = tandem_device_options {
    struct_size: size_of::<tandem_device_options>() as u32,
    // SAFETY: all members may be zeros.
    ..unsafe { zeroed() }
};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_device_info {
    pub struct_size: u32,
    pub shared_bytes: u32,
    pub backend: [c_char; 16],
    pub name: [c_char; 128],
    pub driver: [c_char; 128],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_tensor {
    pub stride: [i64; 4],
    pub dtype: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_problem {
    pub struct_size: u32,
    pub direction: u32,
    pub next: *const c_void,
    pub batch: i64,
    pub heads_q: i64,
    pub heads_kv: i64,
    pub seq_q: i64,
    pub seq_kv: i64,
    pub head_dim: i64,
    pub head_dim_v: i64,
    pub q: tandem_tensor,
    pub k: tandem_tensor,
    pub v: tandem_tensor,
    pub o: tandem_tensor,
    pub d_o: tandem_tensor,
    pub d_q: tandem_tensor,
    pub d_k: tandem_tensor,
    pub d_v: tandem_tensor,
    pub scale: f32,
    pub mask: u32,
    pub align: u32,
    pub gradients: u32,
    pub window_left: i64,
    pub window_right: i64,
    pub flags: u32,
    pub tile_rows: u32,
    pub tile_cols: u32,
    pub splits: u32,
    pub normalizer: u32,
    pub entmax_alpha: f32,
    pub softcap: f32,
    pub dropout: f32,
    pub alibi: u32,
    pub sink: u32,
    pub dist_window: i64,
    pub bias_batch: i64,
    pub bias_heads: i64,
    pub bias_rows: i64,
    pub bias: tandem_tensor,
    pub d_bias: tandem_tensor,
    pub keep_batch: i64,
    pub keep_heads: i64,
    pub keep_rows: i64,
    pub keep: tandem_tensor,
    pub lengths_q: u32,
    pub lengths_kv: u32,
    pub total_q: i64,
    pub total_kv: i64,
    pub cores: u32,
    pub reserved: u32,
    pub spans: i64,
    pub spans_batch: i64,
    pub spans_heads: i64,
    pub block_q: i64,
    pub block_kv: i64,
    pub block_width: i64,
    pub block_bits: i64,
    pub block_batch: i64,
    pub block_heads: i64,
    pub slopes_batch: i64,
    pub sinks_batch: i64,
    pub bias_table_size: i64,
    pub bias_index_batch: i64,
    pub bias_index_dtype: u32,
    pub reserved2: u32,
    pub d_lse: u32,
    pub reserved3: u32,
    pub max_logit_batch: i64,
    pub workspace_limit: u64,
    pub parts: i64,
    pub part_stride: i64,
    pub d_part_stride: i64,
    pub part_o: tandem_tensor,
    pub d_part_o: tandem_tensor,
    pub merge_into: u32,
    pub reserved4: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_plan_info {
    pub struct_size: u32,
    pub kernel_count: u32,
    pub kernels: [u32; TANDEM_MAX_KERNELS],
    pub workspace_size: u64,
    pub workspace_alignment: u64,
    pub flops: f64,
    pub tile_rows: u32,
    pub tile_cols: u32,
    pub backend: [c_char; 16],
    pub path: [c_char; 16],
    pub name: [c_char; 512],
    pub unordered: u32,
    pub reserved: u32,
    pub estimated_ms: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_kernel_info {
    pub struct_size: u32,
    pub built: u32,
    pub stem: [c_char; 16],
    pub backend: [c_char; 16],
    pub path: [c_char; 16],
    pub variant: [c_char; 24],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_buffer {
    pub handle: u64,
    pub offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_stream {
    pub handle: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_args {
    pub struct_size: u32,
    pub reserved: u32,
    pub q: tandem_buffer,
    pub k: tandem_buffer,
    pub v: tandem_buffer,
    pub o: tandem_buffer,
    pub lse: tandem_buffer,
    pub d_o: tandem_buffer,
    pub d_q: tandem_buffer,
    pub d_k: tandem_buffer,
    pub d_v: tandem_buffer,
    pub workspace: tandem_buffer,
    pub workspace_size: u64,
    pub bias: tandem_buffer,
    pub keep: tandem_buffer,
    pub dist_bias: tandem_buffer,
    pub slope: tandem_buffer,
    pub tau: tandem_buffer,
    pub sink: tandem_buffer,
    pub lengths_q: tandem_buffer,
    pub lengths_kv: tandem_buffer,
    pub d_bias: tandem_buffer,
    pub d_dist_bias: tandem_buffer,
    pub d_slope: tandem_buffer,
    pub d_tau: tandem_buffer,
    pub d_sink: tandem_buffer,
    pub dropout_seed: u64,
    pub dropout_offset: u32,
    pub reserved2: u32,
    pub spans: tandem_buffer,
    pub blocks: tandem_buffer,
    pub block_bits: tandem_buffer,
    pub bias_table: tandem_buffer,
    pub bias_index: tandem_buffer,
    pub d_bias_table: tandem_buffer,
    pub d_lse: tandem_buffer,
    pub max_logit: tandem_buffer,
    pub offsets_q: tandem_buffer,
    pub offsets_kv: tandem_buffer,
    pub part_o: tandem_buffer,
    pub part_lse: tandem_buffer,
    pub d_part_o: tandem_buffer,
    pub d_part_lse: tandem_buffer,
}
/// What to start from, as in C.
pub const TANDEM_ARGS_INIT: tandem_args = tandem_args {
    struct_size: size_of::<tandem_args>() as u32,
    // SAFETY: all members may be zeros.
    ..unsafe { zeroed() }
};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tandem_slices {
    pub struct_size: u32,
    pub count: u32,
    pub operations: f64,
    pub largest: f64,
    pub whole: f64,
}

extern "C" {
    pub fn tandem_status_string(status: tandem_status) -> *const c_char;
    pub fn tandem_last_message() -> *const c_char;
    pub fn tandem_version() -> u32;
    pub fn tandem_cpu_device_create(options: *const tandem_device_options, device: *mut *mut tandem_device) -> tandem_status;
    pub fn tandem_device_destroy(device: *mut tandem_device);
    pub fn tandem_device_get_info(device: *const tandem_device, info: *mut tandem_device_info) -> tandem_status;
    pub fn tandem_device_describe(device: *const tandem_device, text: *mut c_char, capacity: usize) -> usize;
    pub fn tandem_device_get_cache(device: *mut tandem_device, size: *mut usize, data: *mut c_void) -> tandem_status;
    pub fn tandem_device_set_cache(device: *mut tandem_device, size: usize, data: *const c_void) -> tandem_status;
    pub fn tandem_problem_init_sized(problem: *mut tandem_problem, struct_size: u32);
    pub fn tandem_problem_contiguous(problem: *mut tandem_problem, dtype: tandem_dtype);
    pub fn tandem_problem_print(problem: *const tandem_problem, text: *mut c_char, capacity: usize) -> usize;
    pub fn tandem_problem_parse_sized(text: *const c_char, problem: *mut tandem_problem, struct_size: u32) -> tandem_status;
    pub fn tandem_plan_create(device: *mut tandem_device, problem: *const tandem_problem, plan: *mut *mut tandem_plan) -> tandem_status;
    pub fn tandem_plan_destroy(plan: *mut tandem_plan);
    pub fn tandem_plan_get_info(plan: *const tandem_plan, info: *mut tandem_plan_info) -> tandem_status;
    pub fn tandem_least_workspace(device: *const tandem_device, problem: *const tandem_problem, bytes: *mut u64) -> tandem_status;
    pub fn tandem_explain(device: *const tandem_device, problem: *const tandem_problem, text: *mut c_char, capacity: usize) -> usize;
    pub fn tandem_kernel_count() -> u32;
    pub fn tandem_kernel_get(index: u32, info: *mut tandem_kernel_info) -> tandem_status;
    pub fn tandem_execute(plan: *const tandem_plan, stream: tandem_stream, args: *const tandem_args) -> tandem_status;
    pub fn tandem_plan_get_slices(plan: *const tandem_plan, operations: f64, slices: *mut tandem_slices) -> tandem_status;
    pub fn tandem_execute_slice(plan: *const tandem_plan, stream: tandem_stream, args: *const tandem_args, slices: *const tandem_slices, index: u32) -> tandem_status;
}
