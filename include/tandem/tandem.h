/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * tandem.h - attention, forward and backward, on any GPU. C99; includes no GPU header.
 *
 * Objects   tandem_device  one GPU, or the CPU. Borrows your VkDevice or CUDA context.
 *           tandem_plan    immutable: a problem turned into kernels, tiles and a workspace size.
 *                          Destroy plans before their device.
 * Threads   Any function may be called from any thread; destroying an object must not race with its
 *           use. One plan may be executed from many threads at once when each call has its own
 *           stream and its own workspace.
 * Fork      A child of fork() may use and destroy the CPU devices of its parent, and their plans,
 *           whatever other threads were doing with them. Devices and plans of GPUs are refused
 *           there with INVALID_ARGUMENT, as drivers do not survive a fork; destroying them calls no
 *           driver and releases nothing. Callbacks may not fork.
 * Memory    The library never allocates device memory. You own every buffer, the workspace
 *           included, and keep buffers and plan alive until the GPU has finished. Pointers inside
 *           structs are read during the call and not kept. Host memory comes from operator new, or
 *           from you: tandem_device_options.allocate.
 * Structs   struct_size is your sizeof. Members are only added at the end, and 0 in a new one means
 *           what there was before it. Structs from older headers (0.1.0 and later) are accepted:
 *           missing members count as 0, and outputs are truncated to struct_size. Structs from
 *           newer headers are accepted if all members that this library does not know are 0; it
 *           leaves unknown members of outputs as they were. Otherwise: INVALID_STRUCT.
 * Errors    Every fallible function returns a tandem_status and leaves its out-parameters untouched
 *           on failure. tandem_last_message() has a sentence that names the offending value.
 *           TANDEM_VERBOSE in the environment prints errors and more (docs/guide/bug-reports.md).
 * Names     B batch, H heads (Hq of q, Hk of k and v), S sequence length (Sq, Sk), D head_dim of q
 *           and k, Dv head_dim of v and o. Br x Bc is the tile: query rows by key columns.
 *
 * What is computed (docs/guide/semantics.md has it in full, the gradients too):
 *   s_ij = cap(scale <q_i, k_j>) + bias_ij + dist_bias[h,t] - slope[h] |t|,   t = i + off - j
 *   softmax   y_ij = p_ij = exp(s_ij - lse_i),   lse_i = ln (sum_j exp(s_ij) + exp(sink[h]))
 *   elastic   y_ij = max(p_ij + tau[h] / n_i, 0),   n_i = keys that row i sees by position
 *   entmax    y_ij = [(alpha - 1) s_ij - t_i]_+ ^ (1 / (alpha - 1)),   t_i such that they sum to 1
 *   o_i = sum_j drop(y_ij) v_j   over the keys j that are visible to row i
 * Every term beside scale <q_i, k_j> is absent unless the problem asks for it.
 * Query head h reads kv head h / (Hq / Hk); d_k and d_v of a kv head sum over its query heads.
 * A row that sees no key has o = 0, lse = -inf and zero gradients.
 * Merge of parts n:   lse_i = ln sum_n exp(lse_ni),   o_i = sum_n exp(lse_ni - lse_i) o_ni */
#ifndef TANDEM_TANDEM_H
#define TANDEM_TANDEM_H
#include <stddef.h>
#include <stdint.h>

#define TANDEM_VERSION_MAJOR 0 /* the API: major changes break, minor ones add */
#define TANDEM_VERSION_MINOR 1
#define TANDEM_VERSION_PATCH 0

#if defined(_WIN32) && defined(TANDEM_BUILD_SHARED)
#define TANDEM_API __declspec(dllexport)
#elif defined(_WIN32) && defined(TANDEM_SHARED)
#define TANDEM_API __declspec(dllimport)
#elif defined(__GNUC__)
#define TANDEM_API __attribute__((visibility("default")))
#else
#define TANDEM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status -------------------------------------------------------------------------------- */

/* Numbers are pinned; gaps are for additions; compare with TANDEM_OK. */
typedef enum tandem_status {
  TANDEM_OK = 0,
  TANDEM_ERROR_INVALID_ARGUMENT = -1, /* your bug: a documented precondition does not hold */
  TANDEM_ERROR_UNSUPPORTED = -2,      /* our gap: legal, but no kernel here; tandem_explain() */
  TANDEM_ERROR_OUT_OF_MEMORY = -3,    /* a host allocation failed */
  /* struct_size of no version, next not NULL, or a member unknown to this version */
  TANDEM_ERROR_INVALID_STRUCT = -4,
  TANDEM_ERROR_INVALID_LAYOUT = -5,  /* strides negative, overflowing or overlapping */
  TANDEM_ERROR_NO_BACKEND = -6,      /* not in this build, or its driver is not on this machine */
  TANDEM_ERROR_NO_DEVICE = -7,       /* no device with that index */
  TANDEM_ERROR_MISSING_FEATURE = -8, /* the device lacks, or you did not enable, something needed */
  TANDEM_ERROR_WORKSPACE = -10,      /* workspace null, misaligned, too small or overlapping */
  TANDEM_ERROR_CACHE = -11,          /* cache blob foreign, truncated or corrupted; nothing used */
  TANDEM_ERROR_BACKEND = -20,        /* a driver call failed; the message has its code */
  TANDEM_ERROR_DEVICE_LOST = -21,
  TANDEM_ERROR_DEVICE_OUT_OF_MEMORY = -22,
  TANDEM_STATUS_FORCE_INT = 0x7fffffff
} tandem_status;

/* A short name such as "TANDEM_ERROR_UNSUPPORTED". Static storage, never NULL. */
TANDEM_API const char* tandem_status_string(tandem_status status);

/* The sentence of this thread's most recent failure, "" before any. Valid until the thread's next
 * failing call. */
TANDEM_API const char* tandem_last_message(void);

/* Version of the loaded library: major << 22 | minor << 12 | patch. */
TANDEM_API uint32_t tandem_version(void);

/* ---- device -------------------------------------------------------------------------------- */

typedef struct tandem_device tandem_device;
typedef struct tandem_plan tandem_plan;

typedef enum tandem_log_level {
  TANDEM_LOG_ERROR = 0,
  TANDEM_LOG_WARN = 1,
  TANDEM_LOG_INFO = 2,
  TANDEM_LOG_DEBUG = 3
} tandem_log_level;

/* NULL, or start from TANDEM_DEVICE_OPTIONS_INIT. */
typedef struct tandem_device_options {
  uint32_t struct_size;
  /* CPU device: threads of an execute, the calling one included; 0 means as many as may run at
   * once, by affinity and container quota when the device is made. Vulkan: threads that make the
   * pipelines of a plan, the calling one included; 0 means the same number, but at most 8, and 1 if
   * you set callbacks for memory. */
  uint32_t threads;
  const void* next; /* must be NULL in this version */
  void* user;       /* given back to log */
  /* Called from any thread that calls the library; copy the text. NULL: silent. WARN has a plan
   * that takes more than twice as long as a nearby problem, with the reason, once for each device
   * and reason, on devices whose times are known. */
  void (*log)(void* user, tandem_log_level level, const char* message);
  /* Comma-separated paths and tiles to do without, as "cpu.simd,t64k32"; NULL: none. Added to what
   * the environment variable TANDEM_DISABLE names. An unknown name is INVALID_ARGUMENT. */
  const char* disable;
  /* Host memory, both or none; NULL, both: operator new and delete. allocate returns size bytes
   * (more than 0) at a multiple of alignment (a power of two), or NULL, and the call that needed
   * them ends in OUT_OF_MEMORY. release gets what allocate gave.
   * All that this library allocates for the device, its plans and the calls on both comes from
   * here. It goes back when device and plans are destroyed at the latest; a device keeps what its
   * last plans shared. tandem_execute() allocates on the CPU alone: on the path ref, and on simd
   * where an lse that a backward reads is beyond 4096, two numbers a row. What has no device
   * (problem lines, what to enable for Vulkan) uses operator new. Drivers and the C++ runtime
   * allocate by themselves.
   * Called from every thread that calls the library and from the threads of the device, several at
   * once. They must not call the library, nor throw. */
  void* (*allocate)(void* memory_user, size_t size, size_t alignment);
  void (*release)(void* memory_user, void* memory);
  void* memory_user; /* given back to both */
} tandem_device_options;
#define TANDEM_DEVICE_OPTIONS_INIT \
  { (uint32_t)sizeof(tandem_device_options), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* The CPU device always exists. Vulkan and CUDA devices: tandem_vulkan.h, tandem_cuda.h. */
TANDEM_API tandem_status tandem_cpu_device_create(const tandem_device_options* options,
                                                  tandem_device** device);
TANDEM_API void tandem_device_destroy(tandem_device* device); /* NULL is allowed */

typedef struct tandem_device_info {
  uint32_t struct_size;  /* in: sizeof(tandem_device_info) */
  uint32_t shared_bytes; /* workgroup memory that a kernel may use; 0 on the CPU */
  char backend[16];      /* "cpu", "vulkan", "cuda" */
  char name[128];        /* as the driver says it */
  char driver[128];      /* driver name and version */
} tandem_device_info;
TANDEM_API tandem_status tandem_device_get_info(const tandem_device* device,
                                                tandem_device_info* info);

/* Every capability that planning looks at, one "name value" a line: the bug-report form. Writes at
 * most capacity bytes with a final NUL and returns the size needed with it, as snprintf plus one; 0
 * on failure. */
TANDEM_API size_t tandem_device_describe(const tandem_device* device, char* text, size_t capacity);

/* Compiled pipelines, for you to store on disk. get: call with data = NULL for the size. set:
 * refuses with TANDEM_ERROR_CACHE a blob of another library build, device or driver, and one that
 * was changed. */
TANDEM_API tandem_status tandem_device_get_cache(tandem_device* device, size_t* size, void* data);
TANDEM_API tandem_status tandem_device_set_cache(tandem_device* device, size_t size,
                                                 const void* data);

/* ---- problem ------------------------------------------------------------------------------- */

typedef enum tandem_dtype {
  TANDEM_F32 = 1,
  TANDEM_F16 = 2,
  TANDEM_BF16 = 3,
  TANDEM_BOOL8 = 4, /* a byte, 0 or not 0; for keep alone */
  TANDEM_U8 = 5,    /* indices, for bias_index alone, as the two below */
  TANDEM_U16 = 6,
  TANDEM_I32 = 7,
  /* The CPU device alone, where all is computed in double: for torch.autograd.gradcheck and the
   * like. With tensors of f64, each array of tandem_args that is f32 otherwise is f64: lse, d_lse,
   * bias_table, dist_bias, slope, tau, sink and their gradients. bias may be f64, too. */
  TANDEM_F64 = 8
} tandem_dtype;

typedef struct tandem_tensor { /* logical order is always batch, head, sequence, feature */
  int64_t stride[4]; /* in elements, >= 0. Inputs: 0 repeats a dimension. Outputs may not overlap */
  uint32_t dtype;    /* tandem_dtype; the same for q k v o and their gradients, but in merges */
  uint32_t reserved; /* must be 0 */
} tandem_tensor;

typedef enum tandem_direction {
  TANDEM_FORWARD = 1,
  TANDEM_BACKWARD = 2,
  /* o and lse of disjoint parts of the keys become those of all of them. Of a
   * problem it reads batch, heads_q, seq_q, head_dim_v, o, and the members from parts on; d_o and
   * d_lse are the backward's. It ignores q, k, v, d_bias, their sizes and gradients, gradients,
   * scale, cores and workspace_limit, and in forward d_o and d_part_o. Of the flags it takes
   * TANDEM_FLAG_DETERMINISTIC. All else is refused by name unless it is as tandem_problem_init()
   * leaves it. */
  TANDEM_MERGE = 3,
  TANDEM_MERGE_BACKWARD = 4 /* needs the parts; neither the merged o nor its lse */
} tandem_direction;
typedef enum tandem_mask { TANDEM_MASK_NONE = 0, TANDEM_MASK_CAUSAL = 1 } tandem_mask;

/* Where the diagonal lies when Sq != Sk: off = 0, or off = Sk - Sq. Causal: j <= i + off. */
typedef enum tandem_align { TANDEM_TOP_LEFT = 0, TANDEM_BOTTOM_RIGHT = 1 } tandem_align;

typedef enum tandem_normalizer {
  TANDEM_SOFTMAX = 0,
  TANDEM_ELASTIC = 1, /* Lazy Attention: relu(softmax + tau / n), not renormalised */
  TANDEM_ENTMAX = 2   /* alpha-entmax; alpha 2 is sparsemax */
} tandem_normalizer;

/* How long the sequences of a batch are. */
typedef enum tandem_lengths {
  TANDEM_LENGTHS_FULL = 0,   /* all S long */
  TANDEM_LENGTHS_PADDED = 1, /* int32 [B] says; rows behind are written as zeros */
  /* one after the other without batch dimension: int32 [B+1], cumulative */
  TANDEM_LENGTHS_PACKED = 2,
  /* likewise, but in any order and with gaps: int32 [B] says how long, another one where */
  TANDEM_LENGTHS_GAPPED = 3
} tandem_lengths;

#define TANDEM_UNBOUNDED (-1)
#define TANDEM_GRAD_Q 0x1u
#define TANDEM_GRAD_K 0x2u
#define TANDEM_GRAD_V 0x4u
#define TANDEM_GRAD_QKV 0x7u
#define TANDEM_GRAD_BIAS 0x8u
#define TANDEM_GRAD_DIST_BIAS 0x10u
#define TANDEM_GRAD_SLOPE 0x20u
#define TANDEM_GRAD_TAU 0x40u
#define TANDEM_GRAD_SINK 0x80u
#define TANDEM_GRAD_BIAS_TABLE 0x100u
/* Same library build, device, driver, plan and inputs: same bits. */
#define TANDEM_FLAG_DETERMINISTIC 0x1u
/* For tests and tuning: visit every tile that the positions allow, also those that keep or the
 * support of entmax empties. The results have the same bits. */
#define TANDEM_FLAG_VISIT_ALL 0x2u
/* For f32 tensors alone: products may round their operands to TF32 (10 bits of fraction). Without
 * the flag they have the accuracy of f32. Paths without TF32 products keep it with the flag. */
#define TANDEM_FLAG_TF32 0x4u
/* Backward of softmax: k and v are a part of the keys of which o and lse are. The gradients are
 * this part's: d_q of the parts add up to that of all keys. Not with TANDEM_GRAD_SLOPE. */
#define TANDEM_FLAG_PART_OF_KEYS 0x8u
/* The bits of a row of o and lse depend on its own query and on the keys that it sees alone, those
 * of d_q likewise, and those of d_k and d_v on the rows of their sequence: not on B, on the other
 * entries, on padding, packing, how many heads a call has, or where a prefill is cut. Includes
 * TANDEM_FLAG_DETERMINISTIC. For TANDEM_SOFTMAX with masks by position, softcap, alibi, sinks and
 * lengths. docs/guide/features/batch_invariant.md says what it costs. */
#define TANDEM_FLAG_BATCH_INVARIANT 0x10u
/* An execute may be recorded in slices: tandem_execute_slice(). */
#define TANDEM_FLAG_SLICES 0x20u

/* Start from tandem_problem_init(); members are only added at the end. */
typedef struct tandem_problem {
  uint32_t struct_size;
  uint32_t direction;               /* tandem_direction */
  const void* next;                 /* must be NULL in this version */
  int64_t batch;                    /* B; it and the four below may be 0 */
  int64_t heads_q;                  /* Hq, a multiple of Hk */
  int64_t heads_kv;                 /* Hk */
  int64_t seq_q;                    /* Sq, up to 2^29 - 1 */
  int64_t seq_kv;                   /* Sk, up to 2^29 - 1 */
  int64_t head_dim;                 /* D, 1 to 576 */
  int64_t head_dim_v;               /* Dv, 1 to 576 */
  tandem_tensor q, k, v, o;         /* [B,Hq,Sq,D] [B,Hk,Sk,D] [B,Hk,Sk,Dv] [B,Hq,Sq,Dv] */
  tandem_tensor d_o, d_q, d_k, d_v; /* shapes of o q k v, strides of their own; backward only */
  /* NaN (the default) means 1 / sqrt(D). With f64 the f32 nearest to 1 / sqrt(D) means it, too */
  float scale;
  uint32_t mask;  /* tandem_mask */
  uint32_t align; /* tandem_align, for the causal mask and the window */
  /* TANDEM_GRAD_*: what backward writes, TANDEM_GRAD_QKV by default; the others are not computed.
   * The gradient of an absent input is an error */
  uint32_t gradients;
  int64_t window_left;  /* keys j >= i + off - left are visible; TANDEM_UNBOUNDED */
  int64_t window_right; /* keys j <= i + off + right are visible; TANDEM_UNBOUNDED */
  uint32_t flags;       /* TANDEM_FLAG_* */
  uint32_t tile_rows;   /* Br, for tests and tuning: only tiles of this size; 0: planner's choice */
  uint32_t tile_cols;   /* Bc, likewise */
  /* Forward with softmax, for tests and tuning: the number of workgroups that share a row's keys.
   * 0: planner's choice, which is more than 1 where few queries would leave most of a GPU idle. The
   * CPU has 1. */
  uint32_t splits;

  /* From here on everything is off when it is 0, as tandem_problem_init() leaves it. */
  uint32_t normalizer; /* tandem_normalizer; elastic reads args.tau */
  float entmax_alpha;  /* 1 < alpha <= 2, with TANDEM_ENTMAX alone */
  float softcap;       /* c > 0: c tanh(scale <q, k> / c) in place of scale <q, k> */
  float dropout;       /* 0 <= p < 1: each weight is 0 with probability p, else divided by 1 - p */
  uint32_t alibi;      /* 1: - slope[h] |t|, slope in args.slope */
  uint32_t sink; /* 1: exp(sink[h]) joins the sum of every row that sees a key; not with entmax */
  /* W: + dist_bias[h,t] for 0 <= t < W; a key that is farther keeps its score */
  int64_t dist_window;
  /* Added to the score, not scaled: [bias_batch, bias_heads, bias_rows, Sk], on when bias.dtype is
   * not 0. bias_batch divides B: entry b reads entry b / (B / bias_batch). The other sizes are Hq,
   * Hk or 1; Sq or 1. bias may be f32, f16 or bf16 whatever q is, and f64 where q is. d_bias has
   * bias's sizes, its dtype or f32 (f64 where q is f64), and sums over what bias repeats. */
  int64_t bias_batch, bias_heads, bias_rows;
  tandem_tensor bias, d_bias;
  /* A key is visible where keep is not 0: [keep_batch, keep_heads, keep_rows, Sk], TANDEM_BOOL8;
   * sizes as bias's; on when keep.dtype is not 0. Tiles without a kept key are skipped. */
  int64_t keep_batch, keep_heads, keep_rows;
  tandem_tensor keep;
  /* With lengths, i, j and off count within a sequence; Sq and Sk are the longest that may occur. A
   * packed tensor has stride[0] = 0 and total rows; rows of an output that belong to no sequence,
   * as those in a gap or behind the last one, are not written. lse stays [B,Hq,Sq]. */
  uint32_t lengths_q;        /* tandem_lengths of q o d_o d_q; args.lengths_q, offsets_q */
  uint32_t lengths_kv;       /* tandem_lengths of k v d_k d_v; args.lengths_kv, offsets_kv */
  int64_t total_q, total_kv; /* rows of the packed tensors, all sequences together */
  /* GPUs, for tests and tuning: plan as for a GPU of at most so many SMs (compute units, Xe cores).
   * Persistent kernels then have as few workgroups, each with more work; other kernels run on all
   * SMs. 0: all that it has. */
  uint32_t cores;
  uint32_t reserved; /* must be 0 */
  /* Intervals of query rows that see a key, for each key: 0 (off), 1 or 2. args.spans has them for
   * spans_batch entries and spans_heads heads. spans_batch divides B: entry b reads entry
   * b / (B / spans_batch). spans_heads is Hq, Hk or 1. Tiles that no row sees are skipped. */
  int64_t spans, spans_batch, spans_heads;
  /* Block lists: which blocks of block_q query rows and block_kv keys are visible. Both are
   * multiples of 64, or 0 (off). args.blocks lists the blocks of each row of blocks, for
   * block_batch entries, which divide B, and block_heads heads: Hq, Hk or 1. block_width is the
   * room for a row's list. Of the first block_bits blocks of a row args.block_bits says what each
   * pair shows; 0: they are shown whole. The workspace has a byte or a bit for each pair of a head
   * of the lists. Lists and keep exclude each other; all other masks join. */
  int64_t block_q, block_kv, block_width, block_bits, block_batch, block_heads;
  /* Batch entries of args.slope and of args.sink, with alibi and sink: 0 and 1 mean [Hq] for the
   * whole batch, another divisor of B [slopes_batch, Hq]: entry b reads entry
   * b / (B / slopes_batch). d_slope and d_sink have the same shape, and sum over a group. */
  int64_t slopes_batch, sinks_batch;
  /* + bias_table[h, bias_index[b, i, j]], not scaled: a table of bias_table_size entries a head, 0
   * for off, and for each pair the entry that it reads, of bias_index_dtype (TANDEM_U8, TANDEM_U16
   * or TANDEM_I32). bias_index_batch divides B: entry b reads b / (B / bias_index_batch). A pair
   * whose index is no entry has no bias, and adds to no gradient. Not together with bias. GPUs keep
   * the bias of each head and pair in the workspace. */
  int64_t bias_table_size, bias_index_batch;
  uint32_t bias_index_dtype; /* tandem_dtype */
  uint32_t reserved2;        /* must be 0 */
  /* Backward of softmax: 1: the loss depends on lse, too, and args.d_lse has its gradient with
   * respect to lse. Gradients that do not need it (d_v) ignore it. */
  uint32_t d_lse;
  uint32_t reserved3; /* must be 0 */
  /* Forward of softmax: batch entries of args.max_logit, the largest logit of each head: 0 for off,
   * or a divisor of B. Batch entry b raises entry b / (B / max_logit_batch). */
  int64_t max_logit_batch;
  /* The most bytes that the plan's workspace may have; 0: the planner's choice. The plan does
   * without what else it would keep there, or another path computes it; where no plan has so few,
   * the status is WORKSPACE and the message says how many the smallest has
   * (tandem_least_workspace()). Another plan has other bits. */
  uint64_t workspace_limit;
  /* Merge, and its backward: how many parts args.part_o and args.part_lse hold, 1 to 65535; 0 with
   * the other directions. part_o is the layout of one part, [B,Hq,Sq,Dv], in a dtype of its own;
   * part_stride elements behind it comes the next one. d_part_o and d_part_stride are those of the
   * gradient, in part_o's dtype. d_o has a dtype of its own, too. */
  int64_t parts, part_stride, d_part_stride;
  tandem_tensor part_o, d_part_o;
  /* Merge: 1: o and lse hold a part when the call begins, which counts as the one before others:
   * a running result that takes in the next part. It has no backward. */
  uint32_t merge_into;
  uint32_t reserved4; /* must be 0 */
} tandem_problem;

/* Fills in problem (struct_size and all defaults): direction forward, sizes and strides 0, f32,
 * scale 1/sqrt(D), no mask, the gradients of q, k and v. A function, because a C99 initialiser
 * cannot spell NaN portably. struct_size tells the library how long your tandem_problem is; if no
 * version has that size, nothing is filled in. The symbol tandem_problem_init, for programs of
 * version 0.1.0, fills in the members of that version. */
TANDEM_API void tandem_problem_init_sized(tandem_problem* problem, uint32_t struct_size);
TANDEM_API void tandem_problem_init(tandem_problem* problem);
#define tandem_problem_init(problem) \
  tandem_problem_init_sized((problem), (uint32_t)sizeof(tandem_problem))

/* Sets the strides of all tensors to the contiguous [B,H,S,D] order ("bhsd") for the sizes that
 * problem holds (packed: [H,total,D]), and the dtype of q k v o and their gradients. Call it when
 * the sizes and lengths are set, those of bias and keep too: an input with stride 0 is repeated. */
TANDEM_API void tandem_problem_contiguous(tandem_problem* problem, tandem_dtype dtype);

/* One line that says the whole problem, as "bwd bf16 b2 hq8 hk2 sq128 sk130 d64 dv64
 * causal_bottom_right ..."; docs/guide/problem-line.md has the grammar. print returns sizes as
 * tandem_device_describe() does. parse restores what print wrote, bit for bit, also of problems
 * that no plan takes. A line has neither next and reserved nor what the direction does not use: a
 * forward line has no gradients. Numbers do not follow the process's locale. struct_size and the
 * symbol without it are as with init; a line that needs a longer problem is INVALID_STRUCT. */
TANDEM_API size_t tandem_problem_print(const tandem_problem* problem, char* text, size_t capacity);
TANDEM_API tandem_status tandem_problem_parse_sized(const char* text, tandem_problem* problem,
                                                    uint32_t struct_size);
TANDEM_API tandem_status tandem_problem_parse(const char* text, tandem_problem* problem);
#define tandem_problem_parse(text, problem) \
  tandem_problem_parse_sized((text), (problem), (uint32_t)sizeof(tandem_problem))

/* ---- plan ---------------------------------------------------------------------------------- */

/* Chooses kernels and tiles and makes the pipelines ready. The problem is copied. Waits on no
 * queue. A device keeps the kernels of its last 64 problems, also when their plans are destroyed:
 * planning one of them again takes a microsecond.
 * The plan of a problem with a size of 0 is legal and writes only what is a sum over nothing:
 * gradients of 0, and with Sk = 0 o of 0 and lse of minus infinity. */
TANDEM_API tandem_status tandem_plan_create(tandem_device* device, const tandem_problem* problem,
                                            tandem_plan** plan);
TANDEM_API void tandem_plan_destroy(tandem_plan* plan); /* NULL is allowed; the GPU must be done */

#define TANDEM_MAX_KERNELS 8
typedef struct tandem_plan_info {
  uint32_t struct_size; /* in: sizeof(tandem_plan_info) */
  /* kernels that one tandem_execute() records, but at most TANDEM_MAX_KERNELS: of more, which many
   * optional inputs together need, the first ones */
  uint32_t kernel_count;
  /* their registry indices, in order: tandem_kernel_get(). Where the addresses of an execute decide
   * between two kernels, the one for addresses that are multiples of 16 bytes */
  uint32_t kernels[TANDEM_MAX_KERNELS];
  /* bytes, exact; 0 means none needed. A forward needs some where its keys are split, where two
   * workgroups share a tile (cuda.sm90 with a dense bias), or on a GPU with gaps */
  uint64_t workspace_size;
  uint64_t workspace_alignment; /* bytes */
  /* 2 (D + Dv) for each visible (i, j) of every head; backward 2.5 times that. Merge: 2 Dv for each
   * row and part; its backward twice that */
  double flops;
  uint32_t tile_rows, tile_cols; /* Br, Bc; 0 where the path has no tiles */
  char backend[16];
  char path[16];  /* "ref", "simd", "scalar", "sm90", ... */
  char name[512]; /* backend, path, tile and problem line: the key in logs and benches */
  /* TANDEM_GRAD_* whose sums this plan adds in any order: their last bits may differ from one
   * execute to the next. 0 with TANDEM_FLAG_DETERMINISTIC */
  uint32_t unordered;
  uint32_t reserved; /* 0 */
  /* ms of one execute, estimated from times of a GPU of the same kind; 0 where there are no times
   * of this path and of a problem like this one */
  double estimated_ms;
} tandem_plan_info;
TANDEM_API tandem_status tandem_plan_get_info(const tandem_plan* plan, tandem_plan_info* info);

/* The smallest workspace that a plan of problem can have on this device, in bytes, whatever its
 * workspace_limit is: with this limit it has a plan, with one byte less it has none. 0: it has a
 * plan without a workspace, by a limit of 1. The status is what tandem_plan_create() would return,
 * but makes no pipelines. */
TANDEM_API tandem_status tandem_least_workspace(const tandem_device* device,
                                                const tandem_problem* problem, uint64_t* bytes);

/* Every candidate path, one a line, with its tiles or the reason for its refusal, and with an
 * estimate of its time where times of the device are known. Sizes as tandem_device_describe(). An
 * invalid problem gives its message. */
TANDEM_API size_t tandem_explain(const tandem_device* device, const tandem_problem* problem,
                                 char* text, size_t capacity);

/* The registry: a kernel that is not listed here does not exist. */
typedef struct tandem_kernel_info {
  uint32_t struct_size; /* in: sizeof(tandem_kernel_info) */
  uint32_t built;       /* 1: this build holds it; 0: its backend was left out, or not found */
  char stem[16];        /* "fwd", "bwd_dot", "bwd_dkv", "bwd_dq", ... (docs/kernels/overview.md) */
  char backend[16];
  char path[16];
  /* which of the kernels of a stem and a path, as "decoupled"; "" where there is one.
   * TANDEM_DISABLE takes "backend.path.stem.variant" */
  char variant[24];
} tandem_kernel_info;
TANDEM_API uint32_t tandem_kernel_count(void);
TANDEM_API tandem_status tandem_kernel_get(uint32_t index, tandem_kernel_info* info);

/* ---- execution ----------------------------------------------------------------------------- */

/* CPU: the address in handle. CUDA: the device pointer in handle, offset bytes behind it. Vulkan:
 * see tandem_vulkan.h. {0, 0} is "not given". Tensors are aligned to their element size at least;
 * 16-byte alignment of base, strides and head_dim in bytes takes the fast loads. */
typedef struct tandem_buffer {
  uint64_t handle, offset;
} tandem_buffer;
typedef struct tandem_stream { /* VkCommandBuffer or cudaStream_t; 0 on the CPU */
  uint64_t handle;
} tandem_stream;

/* Start from TANDEM_ARGS_INIT. With tensors of f64, f64 stands where f32 is said.
 * Neither an output nor the workspace may share an element with another buffer that the plan uses.
 * As far as addresses show it, an output that does is INVALID_ARGUMENT, a workspace WORKSPACE.
 * Outputs may lie in gaps between others' elements, as gradients in a fused qkv buffer do; inputs
 * may share anything. */
typedef struct tandem_args {
  uint32_t struct_size;
  uint32_t reserved;        /* must be 0 */
  tandem_buffer q, k, v, o; /* o is read by backward */
  /* f32 [B,Hq,Sq] contiguous: written by forward (may be absent there), read by backward. Entmax:
   * its threshold t */
  tandem_buffer lse;
  tandem_buffer d_o, d_q, d_k, d_v; /* backward only; a gradient not asked for stays {0, 0} */
  tandem_buffer workspace;          /* contents need no initialisation and are garbage afterwards */
  uint64_t workspace_size;          /* bytes that may be used; at least the plan's */
  /* What the problem switches on; the rest stays {0, 0}. What a plan does not use, a workspace of
   * size 0 too, is not looked at. All but bias, d_bias and keep are contiguous. */
  tandem_buffer bias, keep;
  tandem_buffer dist_bias;        /* f32 [Hq,W] */
  tandem_buffer slope, tau, sink; /* f32 [Hq]; slope and sink by batch entries, if there are more */
  /* int32 [B], or cumulative from 0 [B+1]. Offsets count as the nearest number from 0 to the total,
   * then lengths as the nearest one from 0 to Sq or Sk. Where offsets go down, later sequences may
   * share rows: what outputs hold is then not specified, but nothing outside the tensors is read or
   * written */
  tandem_buffer lengths_q, lengths_kv;
  tandem_buffer d_bias;                 /* gradients, where asked for */
  tandem_buffer d_dist_bias;            /* f32 [Hq,W] */
  tandem_buffer d_slope, d_tau, d_sink; /* f32, as slope, tau and sink */
  /* Philox4x32-10: the same seed and offset drop the same weights, forward and backward, on every
   * backend, whatever the tiles. Count the offset up from step to step. */
  uint64_t dropout_seed;
  uint32_t dropout_offset;
  uint32_t reserved2; /* must be 0 */
  /* int32 [spans_batch, spans_heads, Sk, 2 spans]: of each key begin and end, or two pairs of them.
   * Query row i, counted within its sequence, sees the key where begin <= i < end in one of its
   * intervals, and where mask, window, lengths and keep show it, too. Any numbers are legal:
   * begin >= end is an empty interval, and what lies outside of the sequence has no effect. */
  tandem_buffer spans;
  /* int32 [block_batch, block_heads, ceil(Sq / block_q), 2 + block_width]: of each row of blocks
   * how many are partial and how many full, then the numbers of their columns, the partial ones
   * first. A row without blocks sees nothing. If a column is listed more than once, the last one
   * holds. Any numbers are legal: counts are clamped to 0 and to the room, the partial ones first
   * and with block_bits > 0 to block_bits, and a column that does not exist shows nothing. */
  tandem_buffer blocks;
  /* uint32 [block_batch, block_heads, ceil(Sq / block_q), block_bits, block_q, block_kv / 32]: of
   * the partial blocks, in the order of the list; bit n of a word says that the pair of its row and
   * the word's key n is visible. */
  tandem_buffer block_bits;
  tandem_buffer bias_table;   /* f32 [Hq, bias_table_size] */
  tandem_buffer bias_index;   /* [bias_index_batch, Sq, Sk]; i and j count within a sequence */
  tandem_buffer d_bias_table; /* f32 [Hq, bias_table_size]; summed in a fixed order */
  /* f32 [B,Hq,Sq] contiguous, read by backward. What stands in rows that see no key, with lse of
   * minus infinity, and behind a length has no effect, and may be NaN. */
  tandem_buffer d_lse;
  /* f32 [max_logit_batch, Hq], raised by forward: to the largest score s_ij of a visible key,
   * before any sink, if that is larger than what stands there. Fill it with minus infinity before
   * the first call; further calls, as of the parts of a batch, may go on raising it. */
  tandem_buffer max_logit;
  /* With TANDEM_LENGTHS_GAPPED, int32 [B]: entry b has the rows from offsets[b] to offsets[b] +
   * lengths[b]. What lies in a gap has no effect, may be NaN, and keeps its bytes. Offsets count as
   * the nearest number from 0 to the total, then lengths as the nearest one from 0 to Sq or Sk and
   * to the rows behind the offset. Entries may share rows of inputs. Where they share rows of an
   * output, what these hold is not specified. */
  tandem_buffer offsets_q, offsets_kv;
  /* Merge: o of the parts, and their lse, f32 [parts,B,Hq,Sq] contiguous. A part that saw no key of
   * a row has lse of minus infinity there; its o has no effect, and may be NaN. */
  tandem_buffer part_o, part_lse;
  tandem_buffer d_part_o, d_part_lse; /* its backward writes these; d_part_lse as part_lse */
} tandem_args;
#define TANDEM_ARGS_INIT                                                                           \
  {                                                                                                \
    (uint32_t)sizeof(tandem_args), 0, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0},      \
        {0, 0}, {0, 0}, {0, 0}, 0, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, \
        {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, 0, 0, 0, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0},   \
        {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {                          \
      0, 0                                                                                         \
    }                                                                                              \
  }

/* Records the plan into the stream and returns: no allocation on the device, no wait, no submit. On
 * the CPU the work is done when it returns. Vulkan: barriers between the plan's own dispatches are
 * recorded; those before and after are yours (tandem_vulkan.h). */
TANDEM_API tandem_status tandem_execute(const tandem_plan* plan, tandem_stream stream,
                                        const tandem_args* args);

/* An execute in slices, for drivers that end jobs of a second or more, and for those who need the
 * GPU in between. operations says how much work a slice has at most: those of products of whole
 * tiles, as if all sequences were as long as can be, and 64 for each number that a kernel without
 * products moves. A timed execute says how many a second a device does: whole / seconds
 * (docs/guide/slices.md). */
typedef struct tandem_slices {
  uint32_t struct_size; /* in: sizeof(tandem_slices) */
  uint32_t count;       /* slices of an execute; 0: there is nothing to do */
  double operations;    /* as asked for */
  /* of the largest slice: more than asked for where a workgroup, or what is not cut, has more.
   * Vulkan and CUDA cut between any two workgroups, but forwards of the path sm90 between heads or
   * batch entries. The CPU does not cut. Rows that a matrix path of Vulkan computes
   * again, as their scores are far from 0, are not counted */
  double largest;
  double whole; /* of all slices together */
} tandem_slices;

/* How an execute of plan is cut into slices of at most so many operations, more than 0. The plan's
 * problem has TANDEM_FLAG_SLICES. */
TANDEM_API tandem_status tandem_plan_get_slices(const tandem_plan* plan, double operations,
                                                tandem_slices* slices);

/* tandem_execute() of slice `index` alone: slices is what tandem_plan_get_slices() returned. Each
 * slice may go into another stream or command buffer, and be submitted by itself. All slices, run
 * in order, with the same args and the workspace left alone in between, give the bits of one
 * tandem_execute() of this plan. A slice waits for those before it on the same queue or stream;
 * across queues the order is yours, with the memory dependencies that two executes would need.
 * UNSUPPORTED for inputs at addresses that make other kernels run than the plan names (CUDA). */
TANDEM_API tandem_status tandem_execute_slice(const tandem_plan* plan, tandem_stream stream,
                                              const tandem_args* args, const tandem_slices* slices,
                                              uint32_t index);

#ifdef __cplusplus
}
#endif
#endif
