// SPDX-License-Identifier: MIT OR Apache-2.0
// What a caller can do wrong with the optional inputs, as test_api.cpp has it for the others.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "api_fixture.h"
#include "problem/problem.h"

namespace {

constexpr tandem_status kArgument = TANDEM_ERROR_INVALID_ARGUMENT;
constexpr tandem_status kLayout = TANDEM_ERROR_INVALID_LAYOUT;
constexpr tandem_status kUnsupported = TANDEM_ERROR_UNSUPPORTED;

void add_bias(tandem_problem& p, uint32_t dtype = TANDEM_F16) {
  p.bias.dtype = dtype;
  p.d_bias.dtype = TANDEM_F32;
  p.bias_batch = 1;
  p.bias_heads = p.heads_q;
  p.bias_rows = p.seq_q;
  p.gradients |= TANDEM_GRAD_BIAS;
  tandem_problem_contiguous(&p, TANDEM_F32);
}

void add_keep(tandem_problem& p) {
  p.keep.dtype = TANDEM_BOOL8;
  p.keep_batch = p.batch;
  p.keep_heads = p.heads_kv;
  p.keep_rows = 1;
  tandem_problem_contiguous(&p, TANDEM_F32);
}

void add_blocks(tandem_problem& p) {
  p.block_q = p.block_kv = 64;
  p.block_width = 4, p.block_bits = 2;
  p.block_batch = p.block_heads = 1;
}

void set_table(tandem_problem& p, int64_t size, tandem_dtype index, int64_t batch) {
  p.bias_table_size = size;
  p.bias_index_dtype = uint32_t(index);
  p.bias_index_batch = batch;
}

void pack(tandem_problem& p) {
  p.lengths_q = p.lengths_kv = TANDEM_LENGTHS_PACKED;
  p.total_q = 9;
  p.total_kv = 11;
  tandem_problem_contiguous(&p, TANDEM_F32);
}

struct Row {
  const char* what;
  std::function<void(tandem_problem&)> spoil;
  tandem_status status;
  std::vector<const char*> words;
};

const std::vector<Row>& rows() {
  using P = tandem_problem;
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  static const std::vector<Row> list = {
      {"normalizer", [](P& p) { p.normalizer = 3; }, kArgument, {"problem.normalizer", "3"}},
      {"entmax without alpha",
       [](P& p) { p.normalizer = TANDEM_ENTMAX; },
       kArgument,
       {"entmax_alpha", " 0"}},
      {"alpha 1",
       [](P& p) { p.normalizer = TANDEM_ENTMAX, p.entmax_alpha = 1; },
       kArgument,
       {"entmax_alpha", "softmax"}},
      {"alpha beyond 2",
       [](P& p) { p.normalizer = TANDEM_ENTMAX, p.entmax_alpha = 2.5f; },
       kArgument,
       {"entmax_alpha", "2.5"}},
      {"alpha NaN",
       [=](P& p) { p.normalizer = TANDEM_ENTMAX, p.entmax_alpha = kNan; },
       kArgument,
       {"entmax_alpha"}},
      {"alpha of softmax",
       [](P& p) { p.entmax_alpha = 1.5f; },
       kArgument,
       {"entmax_alpha", "TANDEM_ENTMAX"}},
      {"softcap < 0", [](P& p) { p.softcap = -1; }, kArgument, {"softcap", "-1"}},
      {"softcap NaN", [=](P& p) { p.softcap = kNan; }, kArgument, {"softcap"}},
      {"softcap infinite",
       [](P& p) { p.softcap = std::numeric_limits<float>::infinity(); },
       kArgument,
       {"softcap"}},
      {"dropout 1", [](P& p) { p.dropout = 1; }, kArgument, {"dropout", " 1"}},
      {"dropout < 0", [](P& p) { p.dropout = -0.5f; }, kArgument, {"dropout", "-0.5"}},
      {"dropout NaN", [=](P& p) { p.dropout = kNan; }, kArgument, {"dropout"}},
      {"alibi 2", [](P& p) { p.alibi = 2; }, kArgument, {"alibi", "2"}},
      {"sink 7", [](P& p) { p.sink = 7; }, kArgument, {"sink", "7"}},
      {"sink with entmax",
       [](P& p) { p.sink = 1, p.normalizer = TANDEM_ENTMAX, p.entmax_alpha = 2; },
       kArgument,
       {"sink", "TANDEM_ENTMAX"}},
      {"dist_window < 0", [](P& p) { p.dist_window = -4; }, kArgument, {"dist_window", "-4"}},
      {"dist_window too long",
       [](P& p) { p.dist_window = 1 << 29; },
       kUnsupported,
       {"dist_window", "536870912"}},

      {"bias of bytes",
       [](P& p) { add_bias(p), p.bias.dtype = TANDEM_BOOL8; },
       kArgument,
       {"bias.dtype", "4"}},
      {"bias of an unknown dtype",
       [](P& p) { add_bias(p), p.bias.dtype = 77; },
       kArgument,
       {"bias.dtype", "77"}},
      {"sizes of a bias that is off",
       [](P& p) { p.bias_rows = 1; },
       kArgument,
       {"bias.dtype is 0", "1"}},
      {"bias_batch",
       [](P& p) { add_bias(p), p.bias_batch = 3; },
       kArgument,
       {"bias_batch", "3", "divide"}},
      {"bias_heads", [](P& p) { add_bias(p), p.bias_heads = 3; }, kArgument, {"bias_heads", "3"}},
      {"bias_rows", [](P& p) { add_bias(p), p.bias_rows = 4; }, kArgument, {"bias_rows", "4"}},
      {"bias_batch 0",
       [](P& p) { add_bias(p), p.bias_batch = 0; },
       kArgument,
       {"bias_batch", " 0"}},
      {"bias stride < 0",
       [](P& p) { add_bias(p), p.bias.stride[2] = -7; },
       kLayout,
       {"bias.stride[2]", "-7"}},
      {"bias stride overflows",
       [](P& p) { add_bias(p), p.bias.stride[1] = int64_t(1) << 62; },
       kLayout,
       {"bias.stride[1]", "overflow"}},
      {"bias reserved",
       [](P& p) { add_bias(p), p.bias.reserved = 1; },
       kArgument,
       {"bias.reserved"}},
      {"d_bias of another dtype",
       [](P& p) { add_bias(p), p.d_bias.dtype = TANDEM_BF16; },
       kArgument,
       {"d_bias.dtype", "3", "f16"}},
      {"d_bias overlaps",
       [](P& p) { add_bias(p), p.d_bias.stride[1] = 0; },
       kLayout,
       {"d_bias.stride[1]", "overlap"}},
      {"keep of floats",
       [](P& p) { add_keep(p), p.keep.dtype = TANDEM_F32; },
       kArgument,
       {"keep.dtype", "1", "BOOL8"}},
      {"sizes of a keep that is off",
       [](P& p) { p.keep_heads = 2; },
       kArgument,
       {"keep.dtype is 0", "2"}},
      {"keep_batch",
       [](P& p) { add_keep(p), p.keep_batch = 5; },
       kArgument,
       {"keep_batch", "5", "divide"}},
      {"keep_heads", [](P& p) { add_keep(p), p.keep_heads = 8; }, kArgument, {"keep_heads", "8"}},
      {"keep_rows", [](P& p) { add_keep(p), p.keep_rows = 2; }, kArgument, {"keep_rows", "2"}},
      {"slopes_batch",
       [](P& p) { p.alibi = 1, p.slopes_batch = p.batch + 1; },
       kArgument,
       {"slopes_batch", "divide"}},
      {"slopes_batch < 0",
       [](P& p) { p.alibi = 1, p.slopes_batch = -1; },
       kArgument,
       {"slopes_batch", "-1"}},
      {"slopes_batch without slopes",
       [](P& p) { p.slopes_batch = 1; },
       kArgument,
       {"alibi is 0", "slopes_batch", "1"}},
      {"sinks_batch",
       [](P& p) { p.sink = 1, p.sinks_batch = p.batch + 1; },
       kArgument,
       {"sinks_batch", "divide"}},
      {"sinks_batch without sinks",
       [](P& p) { p.sinks_batch = 2; },
       kArgument,
       {"sink is 0", "sinks_batch", "2"}},
      {"spans",
       [](P& p) { p.spans = 3, p.spans_batch = p.spans_heads = 1; },
       kArgument,
       {"spans", "3"}},
      {"spans < 0", [](P& p) { p.spans = -1; }, kArgument, {"spans", "-1"}},
      {"sizes of spans that are off",
       [](P& p) { p.spans_batch = 2; },
       kArgument,
       {"spans is 0", "2"}},
      {"spans_batch",
       [](P& p) { p.spans = 1, p.spans_batch = p.batch + 1, p.spans_heads = 1; },
       kArgument,
       {"spans_batch", "divide"}},
      {"spans_batch of 0",
       [](P& p) { p.spans = 1, p.spans_heads = 1; },
       kArgument,
       {"spans_batch", "0"}},
      {"spans_heads",
       [](P& p) { p.spans = 1, p.spans_batch = 1, p.spans_heads = p.heads_q + 1; },
       kArgument,
       {"spans_heads"}},
      {"spans of more numbers than can be counted",
       [](P& p) {
         p.batch = 1 << 27, p.heads_q = 1 << 20, p.heads_kv = 1;
         p.seq_q = p.head_dim = p.head_dim_v = 1, p.seq_kv = (1 << 29) - 1;
         p.spans = 2, p.spans_batch = p.batch, p.spans_heads = p.heads_q;
         tandem_problem_contiguous(&p, TANDEM_F32);
       },
       TANDEM_ERROR_UNSUPPORTED,
       {"spans", "134217728 x 1048576", "2^58"}},
      {"block lists of more bits than can be counted",
       [](P& p) {
         p.seq_q = (1 << 29) - 1;
         add_blocks(p), p.block_kv = (1 << 29) - 64;
         p.block_width = p.block_bits = (1 << 29) - 1;
         tandem_problem_contiguous(&p, TANDEM_F32);
       },
       TANDEM_ERROR_UNSUPPORTED,
       {"block lists", "block_bits 536870911", "2^58"}},
      {"block_q", [](P& p) { add_blocks(p), p.block_q = 96; }, kArgument, {"block_q", "96", "64"}},
      {"block_kv", [](P& p) { add_blocks(p), p.block_kv = 0; }, kArgument, {"block_kv", "0", "64"}},
      {"block_width", [](P& p) { add_blocks(p), p.block_width = -1; }, kArgument, {"block_width"}},
      {"block_bits", [](P& p) { add_blocks(p), p.block_bits = 9; }, kArgument, {"block_bits", "9"}},
      {"block_batch",
       [](P& p) { add_blocks(p), p.block_batch = p.batch + 1; },
       kArgument,
       {"block_batch", "divide"}},
      {"block_heads",
       [](P& p) { add_blocks(p), p.block_heads = p.heads_q + 1; },
       kArgument,
       {"block_heads"}},
      {"sizes of block lists that are off",
       [](P& p) { p.block_width = 3; },
       kArgument,
       {"block_q is 0", "3"}},
      {"block lists and keep",
       [](P& p) { add_keep(p), add_blocks(p); },
       TANDEM_ERROR_UNSUPPORTED,
       {"keep", "block lists"}},
      {"bias_table_size < 0", [](P& p) { p.bias_table_size = -1; }, kArgument, {"size", "-1"}},
      {"sizes of a table that is off",
       [](P& p) { p.bias_index_batch = 2; },
       kArgument,
       {"bias_table_size is 0", "2"}},
      {"bias_index_dtype",
       [](P& p) { p.bias_table_size = 9, p.bias_index_batch = 1, p.bias_index_dtype = TANDEM_F16; },
       kArgument,
       {"bias_index_dtype", "2", "TANDEM_U8"}},
      {"bias_index_batch",
       [](P& p) { set_table(p, 9, TANDEM_U8, p.batch + 1); },
       kArgument,
       {"bias_index_batch", "divide"}},
      {"bias_index_batch of 0",
       [](P& p) { set_table(p, 9, TANDEM_U8, 0); },
       kArgument,
       {"bias_index_batch", "0"}},
      {"table and bias",
       [](P& p) { add_bias(p), set_table(p, 9, TANDEM_U8, 1); },
       TANDEM_ERROR_UNSUPPORTED,
       {"bias and bias_table"}},
      {"gradient of a table that is off",
       [](P& p) { p.gradients |= TANDEM_GRAD_BIAS_TABLE; },
       kArgument,
       {"TANDEM_GRAD_BIAS_TABLE", "bias_table"}},
      {"problem.reserved3", [](P& p) { p.reserved3 = 3; }, kArgument, {"reserved3", "3"}},
      {"max_logit of a backward",
       [](P& p) { p.max_logit_batch = 1; },
       kArgument,
       {"max_logit_batch", "backward"}},
      {"max_logit_batch",
       [](P& p) { p.direction = TANDEM_FORWARD, p.max_logit_batch = 5; },
       kArgument,
       {"max_logit_batch", "5", "divide"}},
      {"max_logit of entmax",
       [](P& p) {
         p.direction = TANDEM_FORWARD, p.normalizer = TANDEM_ENTMAX, p.entmax_alpha = 1.5f;
         p.max_logit_batch = 1;
       },
       kUnsupported,
       {"max_logit_batch", "TANDEM_SOFTMAX"}},
      {"max_logit of f64",
       [](P& p) {
         p.direction = TANDEM_FORWARD;
         tandem_problem_contiguous(&p, TANDEM_F64);
         p.max_logit_batch = 1;
       },
       kUnsupported,
       {"max_logit_batch", "f64"}},
      {"d_lse", [](P& p) { p.d_lse = 2; }, kArgument, {"problem.d_lse", "2"}},
      {"d_lse of a forward",
       [](P& p) { p.direction = TANDEM_FORWARD, p.d_lse = 1; },
       kArgument,
       {"d_lse", "forward"}},
      {"d_lse of entmax",
       [](P& p) { p.normalizer = TANDEM_ENTMAX, p.entmax_alpha = 1.5f, p.d_lse = 1; },
       kUnsupported,
       {"d_lse", "TANDEM_ENTMAX", "threshold"}},
      {"d_lse of elastic softmax",
       [](P& p) { p.normalizer = TANDEM_ELASTIC, p.d_lse = 1; },
       kUnsupported,
       {"d_lse", "TANDEM_ELASTIC"}},
      {"a forward of a part of the keys",
       [](P& p) { p.direction = TANDEM_FORWARD, p.flags = TANDEM_FLAG_PART_OF_KEYS; },
       kArgument,
       {"TANDEM_FLAG_PART_OF_KEYS", "backward"}},
      {"a part of the keys of elastic softmax",
       [](P& p) { p.normalizer = TANDEM_ELASTIC, p.flags = TANDEM_FLAG_PART_OF_KEYS; },
       kUnsupported,
       {"TANDEM_FLAG_PART_OF_KEYS", "TANDEM_SOFTMAX"}},
      {"a part of the keys with d_slope",
       [](P& p) {
         p.alibi = 1, p.gradients |= TANDEM_GRAD_SLOPE;
         p.flags = TANDEM_FLAG_PART_OF_KEYS;
       },
       kUnsupported,
       {"TANDEM_GRAD_SLOPE", "TANDEM_FLAG_PART_OF_KEYS"}},
      {"a batch-invariant problem with keep",
       [](P& p) { add_keep(p), p.flags = TANDEM_FLAG_BATCH_INVARIANT; },
       kUnsupported,
       {"TANDEM_FLAG_BATCH_INVARIANT", "this problem has keep"}},
      {"a batch-invariant problem of elastic softmax",
       [](P& p) { p.normalizer = TANDEM_ELASTIC, p.flags = TANDEM_FLAG_BATCH_INVARIANT; },
       kUnsupported,
       {"TANDEM_FLAG_BATCH_INVARIANT", "elastic"}},
      {"a batch-invariant problem with splits",
       [](P& p) {
         p.direction = TANDEM_FORWARD, p.splits = 3, p.flags = TANDEM_FLAG_BATCH_INVARIANT;
       },
       kArgument,
       {"problem.splits is 3", "TANDEM_FLAG_BATCH_INVARIANT"}},
      {"a batch-invariant problem with a tile",
       [](P& p) { p.tile_rows = 64, p.flags = TANDEM_FLAG_BATCH_INVARIANT; },
       kArgument,
       {"tile_rows", "64", "TANDEM_FLAG_BATCH_INVARIANT"}},
      {"problem.reserved2", [](P& p) { p.reserved2 = 3; }, kArgument, {"reserved2", "3"}},
      {"keep stride < 0",
       [](P& p) { add_keep(p), p.keep.stride[3] = -1; },
       kLayout,
       {"keep.stride[3]", "-1"}},

      {"gradient of no bias",
       [](P& p) { p.gradients |= TANDEM_GRAD_BIAS; },
       kArgument,
       {"TANDEM_GRAD_BIAS", "no bias"}},
      {"gradient of no dist_bias",
       [](P& p) { p.gradients |= TANDEM_GRAD_DIST_BIAS; },
       kArgument,
       {"TANDEM_GRAD_DIST_BIAS"}},
      {"gradient of no slope",
       [](P& p) { p.gradients |= TANDEM_GRAD_SLOPE; },
       kArgument,
       {"TANDEM_GRAD_SLOPE"}},
      {"gradient of no tau",
       [](P& p) { p.gradients |= TANDEM_GRAD_TAU; },
       kArgument,
       {"TANDEM_GRAD_TAU"}},
      {"gradient of no sink",
       [](P& p) { p.gradients |= TANDEM_GRAD_SINK; },
       kArgument,
       {"TANDEM_GRAD_SINK"}},

      {"lengths_q", [](P& p) { p.lengths_q = 4; }, kArgument, {"lengths_q", "4"}},
      {"lengths_kv", [](P& p) { p.lengths_kv = 9; }, kArgument, {"lengths_kv", "9"}},
      {"a total without packing",
       [](P& p) { p.total_q = 4; },
       kArgument,
       {"total_q", "4", "packed"}},
      {"a total of padded ones",
       [](P& p) { p.lengths_kv = TANDEM_LENGTHS_PADDED, p.total_kv = 4; },
       kArgument,
       {"total_kv", "4"}},
      {"total < 0", [](P& p) { pack(p), p.total_q = -1; }, kArgument, {"total_q", "-1"}},
      {"total too large",
       [](P& p) { pack(p), p.total_kv = int64_t(1) << 31; },
       kUnsupported,
       {"total_kv", "2147483648"}},
      {"packed with a batch stride",
       [](P& p) { pack(p), p.k.stride[0] = 64; },
       kLayout,
       {"k.stride[0]", "64", "packed"}},
      {"a packed gradient with a batch stride",
       [](P& p) { pack(p), p.d_q.stride[0] = 8; },
       kLayout,
       {"d_q.stride[0]", "8"}},
      {"packed rows overlap",
       [](P& p) { pack(p), p.d_v.stride[2] = 0; },
       kLayout,
       {"d_v.stride[2]", "overlap"}},
  };
  return list;
}

}  // namespace

TEST_CASE("spoiled optional inputs: their own status, a sentence with the value, no plan") {
  CpuDevice cpu;
  for (const Row& row : rows()) {
    CAPTURE(std::string(row.what));
    tandem_problem problem = good_problem();
    row.spoil(problem);
    tandem_plan* plan = untouched<tandem_plan>();
    CHECK(tandem_plan_create(cpu.device, &problem, &plan) == row.status);
    CHECK(plan == untouched<tandem_plan>());
    const std::string message = tandem_last_message();
    CAPTURE(message);
    for (const char* word : row.words) CHECK(message.find(word) != std::string::npos);
  }
}

TEST_CASE("optional inputs that are legal and unusual are problems") {
  using P = tandem_problem;
  const struct {
    const char* what;
    std::function<void(P&)> change;
  } legal[] = {
      {"bias", [](P& p) { add_bias(p); }},
      {"bias alone", [](P& p) { add_bias(p), p.gradients = TANDEM_GRAD_BIAS; }},
      {"bias of kv heads", [](P& p) { add_bias(p), p.bias_heads = p.heads_kv; }},
      {"bias of repeated keys", [](P& p) { add_bias(p), p.bias.stride[3] = 0; }},
      {"d_bias in the bias's dtype", [](P& p) { add_bias(p), p.d_bias.dtype = TANDEM_F16; }},
      {"d_bias unread by forward",
       [](P& p) { add_bias(p), p.direction = TANDEM_FORWARD, p.d_bias.dtype = 99; }},
      {"keep", [](P& p) { add_keep(p); }},
      {"slopes and sinks of groups of entries",
       [](P& p) { p.batch = 6, p.alibi = p.sink = 1, p.slopes_batch = 3, p.sinks_batch = 6; }},
      {"bias and keep of groups of entries",
       [](P& p) { p.batch = 12, add_bias(p), add_keep(p), p.bias_batch = 4, p.keep_batch = 3; }},
      {"spans of a group of entries",
       [](P& p) { p.batch = 6, p.spans = 2, p.spans_batch = 3, p.spans_heads = 1; }},
      {"block lists", [](P& p) { add_blocks(p); }},
      {"block lists without room", [](P& p) { add_blocks(p), p.block_width = p.block_bits = 0; }},
      {"d_lse that no gradient needs", [](P& p) { p.d_lse = 1, p.gradients = TANDEM_GRAD_V; }},
      {"a table of each entry", [](P& p) { set_table(p, 9, TANDEM_I32, p.batch); }},
      {"spans of query heads",
       [](P& p) { p.spans = 1, p.spans_batch = 1, p.spans_heads = p.heads_q; }},
      {"packed", [](P& p) { pack(p); }},
      {"packed, nothing in it", [](P& p) { pack(p), p.total_q = p.total_kv = 0; }},
      {"more packed rows than sequences have",
       [](P& p) {
         pack(p);
         p.total_q = 1000;
         tandem_problem_contiguous(&p, TANDEM_F32);
       }},
      {"padded queries alone", [](P& p) { p.lengths_q = TANDEM_LENGTHS_PADDED; }},
      {"a window beyond every distance", [](P& p) { p.dist_window = 100000; }},
      {"sparsemax", [](P& p) { p.normalizer = TANDEM_ENTMAX, p.entmax_alpha = 2; }},
      {"sink of elastic softmax", [](P& p) { p.normalizer = TANDEM_ELASTIC, p.sink = 1; }},
      {"nearly everything dropped", [](P& p) { p.dropout = 1 - 0x1p-24f; }},
  };
  for (const auto& row : legal) {
    CAPTURE(std::string(row.what));
    tandem_problem given = good_problem();
    row.change(given);
    tandem::Problem problem;
    const tandem::Status status = tandem::make_problem(&given, &problem);
    CHECK_MESSAGE(status.ok(), status.message());
  }
}
