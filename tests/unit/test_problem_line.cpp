// SPDX-License-Identifier: MIT OR Apache-2.0
// The problem line: parse undoes print for any problem, and a line that is wrong says which word.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>

#include "api_fixture.h"
#include "base/number.h"
#include "decimal_comma.h"

namespace {

std::string print(const tandem_problem& p) {
  return text_of([&](char* out, size_t n) { return tandem_problem_print(&p, out, n); });
}

bool same_tensor(const tandem_tensor& a, const tandem_tensor& b) {
  return std::memcmp(a.stride, b.stride, sizeof(a.stride)) == 0 && a.dtype == b.dtype;
}

bool same_float(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, sizeof a) == 0;
}

// What a line promises to carry. Forward's line says nothing of gradients and their tensors.
void check_same(const tandem_problem& a, const tandem_problem& b) {
  CHECK(a.direction == b.direction);
  CHECK(a.batch == b.batch);
  CHECK(a.heads_q == b.heads_q);
  CHECK(a.heads_kv == b.heads_kv);
  CHECK(a.seq_q == b.seq_q);
  CHECK(a.seq_kv == b.seq_kv);
  CHECK(a.head_dim == b.head_dim);
  CHECK(a.head_dim_v == b.head_dim_v);
  const bool merges = a.direction == TANDEM_MERGE || a.direction == TANDEM_MERGE_BACKWARD;
  if (merges) {
    CHECK(same_tensor(a.part_o, b.part_o));
    CHECK(a.part_stride == b.part_stride);
  } else {
    CHECK(same_tensor(a.q, b.q));
    CHECK(same_tensor(a.k, b.k));
    CHECK(same_tensor(a.v, b.v));
    CHECK(same_float(a.scale, b.scale));
  }
  if (a.direction == TANDEM_MERGE_BACKWARD) {
    CHECK(same_tensor(a.d_o, b.d_o));
    CHECK(same_tensor(a.d_part_o, b.d_part_o));
    CHECK(a.d_part_stride == b.d_part_stride);
  } else {
    CHECK(same_tensor(a.o, b.o));
  }
  if (a.direction == TANDEM_BACKWARD) {
    CHECK(same_tensor(a.d_o, b.d_o));
    CHECK(same_tensor(a.d_q, b.d_q));
    CHECK(same_tensor(a.d_k, b.d_k));
    CHECK(same_tensor(a.d_v, b.d_v));
    CHECK(a.gradients == b.gradients);
  }
  CHECK(a.mask == b.mask);
  CHECK(a.align == b.align);
  CHECK(a.window_left == b.window_left);
  CHECK(a.window_right == b.window_right);
  CHECK(a.flags == b.flags);
  CHECK(a.tile_rows == b.tile_rows);
  CHECK(a.tile_cols == b.tile_cols);
  CHECK(a.splits == b.splits);
  CHECK(a.cores == b.cores);
  CHECK(a.normalizer == b.normalizer);
  CHECK(same_float(a.entmax_alpha, b.entmax_alpha));
  CHECK(same_float(a.softcap, b.softcap));
  CHECK(same_float(a.dropout, b.dropout));
  CHECK(a.alibi == b.alibi);
  CHECK(a.sink == b.sink);
  CHECK(a.dist_window == b.dist_window);
  CHECK(a.bias_batch == b.bias_batch);
  CHECK(a.bias_heads == b.bias_heads);
  CHECK(a.bias_rows == b.bias_rows);
  CHECK(same_tensor(a.bias, b.bias));
  if (a.direction == TANDEM_BACKWARD) CHECK(same_tensor(a.d_bias, b.d_bias));
  CHECK(a.keep_batch == b.keep_batch);
  CHECK(a.keep_heads == b.keep_heads);
  CHECK(a.keep_rows == b.keep_rows);
  CHECK(same_tensor(a.keep, b.keep));
  CHECK(a.spans == b.spans);
  CHECK(a.spans_batch == b.spans_batch);
  CHECK(a.spans_heads == b.spans_heads);
  CHECK(a.block_q == b.block_q);
  CHECK(a.block_kv == b.block_kv);
  CHECK(a.block_width == b.block_width);
  CHECK(a.block_bits == b.block_bits);
  CHECK(a.block_batch == b.block_batch);
  CHECK(a.block_heads == b.block_heads);
  CHECK(a.slopes_batch == b.slopes_batch);
  CHECK(a.sinks_batch == b.sinks_batch);
  CHECK(a.bias_table_size == b.bias_table_size);
  CHECK(a.bias_index_dtype == b.bias_index_dtype);
  CHECK(a.bias_index_batch == b.bias_index_batch);
  CHECK(a.d_lse == b.d_lse);
  CHECK(a.max_logit_batch == b.max_logit_batch);
  CHECK(a.parts == b.parts);
  CHECK(a.merge_into == b.merge_into);
  CHECK(a.lengths_q == b.lengths_q);
  CHECK(a.lengths_kv == b.lengths_kv);
  CHECK(a.total_q == b.total_q);
  CHECK(a.total_kv == b.total_kv);
}

// What a problem may have beside the plain ones, before strides are set.
template <typename Pick>
void add_optional(tandem_problem* p, std::mt19937_64& random, Pick pick) {
  const auto chance = [&] { return random() % 3 == 0; };
  p->normalizer = uint32_t(random() % 3);
  if (p->normalizer == TANDEM_ENTMAX)
    p->entmax_alpha = float(double(pick({5, 6, 7, 8})) / 4 + 1e-6 * double(random() % 1000));
  if (chance()) p->softcap = 30.1f;
  if (chance()) p->dropout = 0.1f;
  p->alibi = chance();
  p->sink = chance();
  if (chance()) p->d_lse = uint32_t(pick({0, 1, 7}));
  if (chance()) p->max_logit_batch = pick({1, 2, 3});
  if (chance()) p->slopes_batch = pick({1, 2, 3});
  if (chance()) p->sinks_batch = pick({1, 2, 3});
  if (chance()) p->dist_window = pick({1, 512, 100000});
  if (chance()) {
    p->bias.dtype = uint32_t(pick({TANDEM_F32, TANDEM_F16, TANDEM_BF16, TANDEM_F64}));
    p->bias_batch = pick({1, 3});
    p->bias_heads = pick({1, 2, 6});
    p->bias_rows = pick({1, 17});
    p->d_bias.dtype = uint32_t(pick({TANDEM_F32, TANDEM_F16, TANDEM_BF16, TANDEM_F64}));
  }
  if (chance()) {
    p->keep.dtype = TANDEM_BOOL8;
    p->keep_batch = pick({1, 3});
    p->keep_heads = pick({1, 2});
    p->keep_rows = pick({1, 17});
  }
  if (chance()) {
    p->bias_table_size = pick({0, 1, 169});
    p->bias_index_dtype = uint32_t(pick({0, 1, 5, 6, 7, 9}));
    p->bias_index_batch = pick({0, 1, 3});
  }
  if (chance()) p->spans = pick({0, 1, 2, 7}), p->spans_batch = pick({1, 3}), p->spans_heads = 2;
  if (chance()) {
    p->block_q = pick({0, 64, 7}), p->block_kv = pick({0, 128}), p->block_width = pick({0, 5});
    p->block_bits = pick({0, 4}), p->block_batch = pick({1, 3}), p->block_heads = 2;
  }
  if (chance()) {
    p->lengths_q = uint32_t(random() % 4);
    p->lengths_kv = uint32_t(random() % 4);
    if (p->lengths_q >= TANDEM_LENGTHS_PACKED) p->total_q = pick({0, 5, 1000});
    if (p->lengths_kv >= TANDEM_LENGTHS_PACKED) p->total_kv = pick({0, 7, 2000});
  }
}

}  // namespace

TEST_CASE("parse undoes print") {
  std::mt19937_64 random(7);
  auto pick = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  for (int n = 0; n < 5000; ++n) {
    tandem_problem p;
    tandem_problem_init(&p);
    p.direction = uint32_t(pick({TANDEM_FORWARD, TANDEM_BACKWARD}));
    p.batch = pick({0, 1, 3});
    p.heads_kv = pick({0, 1, 2, 6});
    p.heads_q = p.heads_kv * pick({1, 1, 4});
    p.seq_q = pick({0, 1, 17, 4096, 536870911});
    p.seq_kv = pick({0, 1, 17, 130});
    p.head_dim = pick({1, 64, 256});
    p.head_dim_v = pick({1, 64, 80});
    if (n % 2) add_optional(&p, random, pick);
    tandem_problem_contiguous(
        &p, tandem_dtype(pick({TANDEM_F32, TANDEM_F16, TANDEM_BF16, TANDEM_F64})));
    if (p.bias.dtype && random() % 3 == 0) p.bias.stride[1] = 0, p.d_bias.stride[2] = 12345;
    if (p.keep.dtype && random() % 3 == 0) p.keep.stride[0] = 999;
    if (random() % 3 == 0)
      for (tandem_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.d_o, &p.d_q, &p.d_k, &p.d_v})
        if (random() % 2)
          for (int64_t& stride : t->stride) stride = pick({0, 1, 64, 12345678901234});
    if (random() % 2) {
      uint32_t bits = uint32_t(random());
      std::memcpy(&p.scale, &bits, 4);
      if (std::isnan(p.scale)) p.scale = -0.0f;
    }
    p.mask = uint32_t(random() % 2);
    p.align = uint32_t(random() % 2);
    p.window_left = pick({-1, 0, 5, int64_t(1) << 40});
    p.window_right = pick({-1, 0, 7});
    if (p.direction == TANDEM_BACKWARD) p.gradients = uint32_t(1 + random() % (n % 2 ? 255 : 7));
    if (!p.bias.dtype) p.gradients &= ~uint32_t(TANDEM_GRAD_BIAS);
    if (p.gradients == 0) p.gradients = TANDEM_GRAD_Q;
    p.flags = uint32_t(random() % 4);
    p.tile_rows = uint32_t(pick({0, 0, 32, 65535}));
    p.tile_cols = uint32_t(pick({0, 0, 64}));
    const std::string line = print(p);
    CAPTURE(line);
    tandem_problem q;
    std::memset(&q, 0xa5, sizeof(q));
    REQUIRE(tandem_problem_parse(line.c_str(), &q) == TANDEM_OK);
    check_same(p, q);
    CHECK(print(q) == line);
  }
}

TEST_CASE("regression: whatever is printed can be parsed, and says the same") {
  std::mt19937_64 random(31);
  constexpr size_t kFirst = offsetof(tandem_problem, batch);
  const uint32_t specials[] = {0,          1,          2,          3,          4,
                               5,          7,          8,          255,        256,
                               65535,      65536,      0x7fffffff, 0x80000000, 0xffffffff,
                               0x7fc00000, 0xffc00001, 0x7f800000, 0xff800000, 0x00000001,
                               0x807fffff, 0x3fc00000};
  for (int n = 0; n < 20000; ++n) {
    tandem_problem p;
    tandem_problem_init(&p);
    p.direction = uint32_t(1 + random() % 2);
    p.batch = 2, p.heads_q = p.heads_kv = 3, p.seq_q = 5, p.seq_kv = 7, p.head_dim = 16;
    p.head_dim_v = 8;
    p.bias.dtype = uint32_t(random() % 4), p.keep.dtype = random() % 2 ? TANDEM_BOOL8 : 0;
    p.bias_batch = p.bias_heads = p.bias_rows = p.bias.dtype != 0;
    p.keep_batch = p.keep_heads = p.keep_rows = p.keep.dtype != 0;
    if (random() % 2) p.d_bias.dtype = TANDEM_F32, p.gradients |= TANDEM_GRAD_BIAS;
    tandem_problem_contiguous(&p, tandem_dtype(1 + random() % 3));
    unsigned char bytes[sizeof(p)];
    std::memcpy(bytes, &p, sizeof(p));
    for (uint64_t spoil = random() % 6; spoil > 0; --spoil) {
      const uint32_t value =
          random() % 4 ? specials[random() % std::size(specials)] : uint32_t(random());
      std::memcpy(bytes + kFirst + random() % ((sizeof(p) - kFirst) / 4) * 4, &value, 4);
    }
    if (n % 16 == 0)
      for (size_t at = kFirst; at < sizeof(p); ++at) bytes[at] = (unsigned char)(random());
    if (random() % 8 == 0) bytes[4 + random() % 4] = (unsigned char)(random());  // direction
    std::memcpy(&p, bytes, sizeof(p));
    const std::string line = print(p);
    CAPTURE(line);
    tandem_problem q;
    REQUIRE_MESSAGE(tandem_problem_parse(line.c_str(), &q) == TANDEM_OK, tandem_last_message());
    check_same(p, q);
    REQUIRE(print(q) == line);
  }
}

TEST_CASE("regression: a merge without parts leaves their layouts alone") {
  tandem_problem p, q;
  REQUIRE(tandem_problem_parse("merge f32 b2 hq4 sq1 dv8 parts=3", &p) == TANDEM_OK);
  p.parts = 0;  // no plan takes it, but the line says it
  const std::string line = print(p);
  CHECK(line == "merge f32 b2 hq4 sq1 dv8 part_o:f32 part_stride=64 part_o=32,8,8,1");
  REQUIRE(tandem_problem_parse(line.c_str(), &q) == TANDEM_OK);
  check_same(p, q);
  CHECK(print(q) == line);
  REQUIRE(tandem_problem_parse("bwd_merge f16 b2 hq4 sq1 dv8", &p) == TANDEM_OK);
  CHECK(print(p) == "bwd_merge f16 b2 hq4 sq1 dv8");
}

TEST_CASE("regression: what a plan refuses, or does not read, is in the line") {
  tandem_problem p;
  REQUIRE(tandem_problem_parse("bwd f32 sq4 d8 bias:f32:1x1x1 grads=qkvb", &p) == TANDEM_OK);
  CHECK(print(p) ==
        "bwd f32 b1 hq1 hk1 sq4 sk4 d8 dv8 bias:f32:1x1x1 grads=qkvb");  // without d_bias
  p.d_bias.stride[1] = 5;
  CHECK(print(p) == "bwd f32 b1 hq1 hk1 sq4 sk4 d8 dv8 bias:f32:1x1x1 grads=qkvb d_bias=0,5,0,0");
  REQUIRE(tandem_problem_parse("fwd f32 sq4 d8", &p) == TANDEM_OK);
  const std::string plain = "fwd f32 b1 hq1 hk1 sq4 sk4 d8 dv8";
  p.dropout = -0.0f;
  CHECK(print(p) == plain + " dropout=-0x0p+0");
  p.dropout = 0;
  p.softcap = -0.0f;
  CHECK(print(p) == plain + " softcap=-0x0p+0");
  p.softcap = 0;
  p.q.dtype = 256;
  CHECK(print(p) == plain + " q:256");
  p.q.dtype = TANDEM_F32;
  // Sizes of -1 are not sizes that are missing.
  for (const char* line :
       {"fwd f32 b1 hq2 hk-1 sq3 sk4 d8 dv7", "fwd f32 b1 hq2 hk2 sq-1 sk4 d8 dv7",
        "fwd f32 b1 hq2 hk2 sq3 sk-1 d8 dv7", "fwd f32 b1 hq2 hk2 sq3 sk4 d-1 dv7",
        "fwd f32 b1 hq2 hk2 sq3 sk4 d8 dv-1"}) {
    CAPTURE(line);
    REQUIRE(tandem_problem_parse(line, &p) == TANDEM_OK);
    CHECK(print(p) == line);
  }
}

TEST_CASE("regression: a problem line under a decimal comma") {
  const char* line =
      "fwd f32 b1 hq1 hk1 sq4 sk4 d8 dv8 scale=0x1.99999ap-4 entmax=0x1.8p+0 softcap=0x1.e8p+4 "
      "dropout=0x1.99999ap-4";
  const auto check = [&] {
    tandem_problem p;
    REQUIRE_MESSAGE(tandem_problem_parse(line, &p) == TANDEM_OK, tandem_last_message());
    CHECK(p.scale == 0.1f);
    CHECK(p.softcap == 30.5f);
    CHECK(p.dropout == 0.1f);
    CHECK(print(p) == line);
    REQUIRE(tandem_problem_parse("fwd f32 sq4 d8 scale=0.125 softcap=1.5e1", &p) == TANDEM_OK);
    CHECK(p.scale == 0.125f);
    CHECK(p.softcap == 15);
    CHECK(tandem_problem_parse("fwd f32 sq4 d8 scale=0,125", &p) != TANDEM_OK);
    // What messages say of numbers.
    CpuDevice cpu(1);
    p.softcap = -1.5f;
    CHECK(text_of([&](char* o, size_t n) {
            return tandem_explain(cpu.device, &p, o, n);
          }).find("softcap is -1.5,") != std::string::npos);
    p.softcap = 0;
    p.dropout = 1.25f;
    tandem_plan* plan = nullptr;
    CHECK(tandem_plan_create(cpu.device, &p, &plan) == TANDEM_ERROR_INVALID_ARGUMENT);
    CHECK(std::string(tandem_last_message()).find("dropout is 1.25,") != std::string::npos);
    p.dropout = 0.1f;
    REQUIRE(tandem_plan_create(cpu.device, &p, &plan) == TANDEM_OK);
    tandem_plan_info info{};
    info.struct_size = sizeof(info);
    CHECK(tandem_plan_get_info(plan, &info) == TANDEM_OK);
    CHECK(std::string(info.name).find("scale=0x1p-3 dropout=0x1.99999ap-4") != std::string::npos);
    tandem_plan_destroy(plan);
  };
  check();
  const DecimalComma comma;
  check();
}

TEST_CASE("numbers: text without loss, as printf and strtod have it in the locale C") {
  const auto parse = [](const std::string& s, float* x) {
    return tandem::parse_number(s.data(), s.data() + s.size(), x);
  };
  for (uint64_t step = 0; step < (uint64_t(1) << 32); step += 99991) {
    const auto bits = uint32_t(step);
    float x, y = 0, z = 0;
    std::memcpy(&x, &bits, 4);
    if (std::isnan(x)) continue;
    char text[40];
    std::snprintf(text, sizeof text, "%a", double(x));
    REQUIRE(tandem::hex_text(x).c_str() == std::string(text));
    REQUIRE(parse(text, &y));
    REQUIRE(same_float(x, y));
    REQUIRE(parse(tandem::short_text(x).c_str(), &z));
    REQUIRE(same_float(x, z));
  }
  float x = 7;
  for (const char* text : {"1e-45", "0x1p-149", "0x1.8p-149", "0x1.00000100000001p0", "-0", "+0.5",
                           ".5", "5.", "0X1P3", "inf", "-inf", "infinity", "nan", "1E2", "0x.8"}) {
    CAPTURE(text);
    REQUIRE(parse(text, &x));
    CHECK(same_float(x, std::strtof(text, nullptr)));
  }
  x = 7;
  for (const char* text : {"", "+", "-", "--1", "+-1", "0x", "0x.", "0xinf", "0x-1", "1,5", "1 ",
                           " 1", "1x", "e5", "1e60", "-1e60", "0x1p+128", "1e-60"}) {
    CAPTURE(text);
    CHECK(!parse(text, &x));
    CHECK(x == 7);
  }
  char small[8];
  CHECK(tandem::fixed_text(small, 12.34, 1) == std::string("12.3"));
  CHECK(tandem::fixed_text(small, 1234567.0, 0) == std::string("1234567"));
  CHECK(tandem::fixed_text(small, 12345678.0, 0) == std::string("-"));
  CHECK(tandem::short_text(0.1f) == "0.1");
}

TEST_CASE("defaults of a short line") {
  tandem_problem p;
  REQUIRE(tandem_problem_parse("  bwd bf16\thq8 sq100 d80\r\n", &p) == TANDEM_OK);
  CHECK(p.struct_size == sizeof(p));
  CHECK(p.direction == TANDEM_BACKWARD);
  CHECK(p.batch == 1);
  CHECK(p.heads_kv == 8);
  CHECK(p.seq_kv == 100);
  CHECK(p.head_dim_v == 80);
  CHECK(p.gradients == TANDEM_GRAD_QKV);
  CHECK(p.d_k.dtype == TANDEM_BF16);
  CHECK(p.d_k.stride[1] == 8000);
  CHECK(std::isnan(p.scale));
  CHECK(p.window_left == TANDEM_UNBOUNDED);
  REQUIRE(tandem_problem_parse("fwd f32 hq2 sq3 d4 layout=bshd k=0,0,0,1", &p) == TANDEM_OK);
  CHECK(p.q.stride[2] == 8);
  CHECK(p.k.stride[2] == 0);
}

TEST_CASE("optional inputs of a line") {
  tandem_problem p;
  REQUIRE(tandem_problem_parse(
              "bwd f16 b2 hq4 hk2 sq3 sk5 d8 entmax=1.5 softcap=20 bias:f32:1x2x1 "
              "dist=4 alibi slopes=2 keep:2x1x3 spans=2:1x4 table=169:u16:2 dropout=0.25 q_padded "
              "kv_packed=9 blocks=64x128:3+1:1x2 "
              "grads=qbdai d_bias:f32 visit_all tf32 bias=0,5,0,1",
              &p) == TANDEM_OK);
  CHECK(p.normalizer == TANDEM_ENTMAX);
  CHECK(p.entmax_alpha == 1.5f);
  CHECK(p.softcap == 20);
  CHECK(p.bias.dtype == TANDEM_F32);
  CHECK(p.bias_batch == 1);
  CHECK(p.bias_heads == 2);
  CHECK(p.bias_rows == 1);
  CHECK(p.bias.stride[0] == 0);
  CHECK(p.d_bias.stride[0] == 10);
  CHECK(p.dist_window == 4);
  CHECK(p.alibi == 1);
  CHECK(p.slopes_batch == 2);
  CHECK(p.block_q == 64);
  CHECK(p.block_kv == 128);
  CHECK(p.block_width == 3);
  CHECK(p.block_bits == 1);
  CHECK(p.block_batch == 1);
  CHECK(p.block_heads == 2);
  CHECK(p.sinks_batch == 0);
  CHECK(p.keep.dtype == TANDEM_BOOL8);
  CHECK(p.keep.stride[0] == 15);
  CHECK(p.spans == 2);
  CHECK(p.spans_batch == 1);
  CHECK(p.spans_heads == 4);
  CHECK(p.bias_table_size == 169);
  CHECK(p.bias_index_dtype == TANDEM_U16);
  CHECK(p.bias_index_batch == 2);
  CHECK(p.lengths_q == TANDEM_LENGTHS_PADDED);
  CHECK(p.lengths_kv == TANDEM_LENGTHS_PACKED);
  CHECK(p.total_kv == 9);
  CHECK(p.k.stride[0] == 0);
  CHECK(p.k.stride[1] == 72);
  CHECK(p.gradients == (TANDEM_GRAD_Q | TANDEM_GRAD_BIAS | TANDEM_GRAD_DIST_BIAS |
                        TANDEM_GRAD_SLOPE | TANDEM_GRAD_BIAS_TABLE));
  CHECK(p.flags == (TANDEM_FLAG_VISIT_ALL | TANDEM_FLAG_TF32));
  REQUIRE(tandem_problem_parse("bwd f32 sq3 d8 d_lse part_of_keys grads=k", &p) == TANDEM_OK);
  CHECK(p.d_lse == 1);
  CHECK(p.flags == TANDEM_FLAG_PART_OF_KEYS);
  REQUIRE(tandem_problem_parse("fwd f32 sq3 d8 batch_invariant", &p) == TANDEM_OK);
  CHECK(p.flags == TANDEM_FLAG_BATCH_INVARIANT);
  REQUIRE(tandem_problem_parse("fwd f32 sq3 d8 elastic sink", &p) == TANDEM_OK);
  CHECK(p.normalizer == TANDEM_ELASTIC);
  CHECK(p.sink == 1);
}

TEST_CASE("a wrong line names its word") {
  const struct {
    const char* line;
    const char* word;
  } rows[] = {
      {"fwd f32 sq4 d8 caussal", "caussal"},
      {"fwd f32 sq4 d8 x9", "x9"},
      {"fwd f32 sq4 d8 sqx", "sqx"},
      {"fwd f32 sq4 d8 hq", "hq"},
      {"fwd f32 sq4 d8 b1.5", "b1.5"},
      {"fwd f32 sq4 d8 sk99999999999999999999", "sk9999"},
      {"fwd f8 sq4 d8", "f8"},
      {"sq4 d8 f32", "fwd"},
      {"fwd sq4 d8", "f32"},
      {"fwd f32 d8", "sq"},
      {"fwd f32 sq4", "'d'"},
      {"", "fwd"},
      {"fwd f32 sq4 d8 left=", "left="},
      {"fwd f32 sq4 d8 right=two", "right=two"},
      {"fwd f32 sq4 d8 scale=", "scale="},
      {"fwd f32 sq4 d8 scale=1x", "scale=1x"},
      {"bwd f32 sq4 d8 grads=", "grads="},
      {"bwd f32 sq4 d8 grads=qx", "grads=qx"},
      {"fwd f32 sq4 d8 tile=64", "tile=64"},
      {"fwd f32 sq4 d8 tile=-1x2", "tile=-1x2"},
      {"fwd f32 sq4 d8 tile=4294967296x1", "tile=4294967296x1"},
      {"fwd f32 sq4 d8 splits=4294967296", "splits=4294967296"},
      {"fwd f32 sq4 d8 splits=-1", "splits=-1"},
      {"fwd f32 sq4 d8 cores=-1", "cores=-1"},
      {"fwd f32 sq4 d8 cores=few", "cores=few"},
      {"fwd f32 sq4 d8 workspace=-1", "workspace=-1"},
      {"fwd f32 sq4 d8 workspace=18446744073709551616", "workspace=18446744073709551616"},
      {"fwd f32 sq4 d8 scale=0,125", "scale=0,125"},
      {"fwd f32 sq4 d8 scale=0x1,8p+4", "scale=0x1,8p+4"},
      {"fwd f32 sq4 d8 scale=1e60", "scale=1e60"},
      {"fwd f32 sq4 d8 scale=--1", "scale=--1"},
      {"fwd f32 sq4 d8 scale=0x", "scale=0x"},
      {"fwd f32 sq4 d8 left=+-1", "left=+-1"},
      {"fwd f32 sq4 d8 mask=-1", "mask=-1"},
      {"fwd f32 sq4 d8 mask=", "mask="},
      {"fwd f32 sq4 d8 mask", "mask"},
      {"fwd f32 sq4 d8 flags=4294967296", "flags=4294967296"},
      {"fwd f32 sq4 d8 alpha=", "alpha="},
      {"fwd f32 sq4 d8 total_q=x", "total_q=x"},
      {"fwd f32 sq4 d8 k:", "k:"},
      {"fwd f32 sq4 d8 k:f8", "k:f8"},
      {"fwd f32 sq4 d8 w:f32", "w:f32"},
      {"fwd 1 sq4 d8", "1"},
      {"fwd f32 sq4 d8 splits=two", "splits=two"},
      {"fwd f32 sq4 d8 q=1,2,3", "q=1,2,3"},
      {"fwd f32 sq4 d8 q=1,2,3,4,5", "q=1,2,3,4,5"},
      {"fwd f32 sq4 d8 w=1,2,3,4", "w=1,2,3,4"},
      {"fwd f32 sq4 d8 layout=dsbh", "layout=dsbh"},
      {"fwd f32 sq4 d8 =", "="},
      {"fwd f32 sq4 d8 FWD", "FWD"},
      {"fwd f32 sq4 d8 entmax=", "entmax="},
      {"fwd f32 sq4 d8 entmax=x", "entmax=x"},
      {"fwd f32 sq4 d8 entmax", "entmax"},
      {"fwd f32 sq4 d8 softcap=soft", "softcap=soft"},
      {"fwd f32 sq4 d8 dropout=", "dropout="},
      {"fwd f32 sq4 d8 dist=1.5", "dist=1.5"},
      {"fwd f32 sq4 d8 bias:1x1x1", "bias:1x1x1"},
      {"fwd f32 sq4 d8 bias:f8:1x1x1", "bias:f8:1x1x1"},
      {"fwd f32 sq4 d8 bias:f32:1x1", "bias:f32:1x1"},
      {"fwd f32 sq4 d8 bias:f32:1x1x1x1", "bias:f32:1x1x1x1"},
      {"fwd f32 sq4 d8 bias=1,2,3", "bias=1,2,3"},
      {"fwd f32 sq4 d8 keep:f32:1x1x1", "keep:f32:1x1x1"},
      {"fwd f32 sq4 d8 keep:1x1", "keep:1x1"},
      {"fwd f32 sq4 d8 spans=1", "spans=1"},
      {"fwd f32 sq4 d8 spans=1:2", "spans=1:2"},
      {"fwd f32 sq4 d8 blocks=64x64:4", "blocks=64x64:4"},
      {"fwd f32 sq4 d8 table=9", "table=9"},
      {"fwd f32 sq4 d8 table=9:f16:1", "table=9:f16:1"},
      {"fwd f32 sq4 d8 table=9:u8", "table=9:u8"},
      {"bwd f32 sq4 d8 d_bias:", "d_bias:"},
      {"bwd f32 sq4 d8 d_bias:bool8", "d_bias:bool8"},
      {"fwd f32 sq4 d8 q_packed=", "q_packed="},
      {"fwd f32 sq4 d8 q_packed", "q_packed"},
      {"fwd f32 sq4 d8 kv_padded=3", "kv_padded=3"},
      {"bwd f32 sq4 d8 grads=qz", "grads=qz"},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.line));
    tandem_problem p, before;
    std::memset(&p, 0xa5, sizeof(p));
    before = p;
    CHECK(tandem_problem_parse(row.line, &p) == TANDEM_ERROR_INVALID_ARGUMENT);
    CHECK(std::memcmp(&p, &before, sizeof(p)) == 0);
    const std::string message = tandem_last_message();
    CAPTURE(message);
    CHECK(message.find(row.word) != std::string::npos);
  }
}

TEST_CASE("random words never do worse than fail") {
  std::mt19937_64 random(11);
  const char* words[] = {"fwd",
                         "bwd",
                         "f32",
                         "bf16",
                         "sq",
                         "sq5",
                         "d4",
                         "hq2",
                         "hk1",
                         "=",
                         "q=",
                         "q=1,1,1,1",
                         "left=-5",
                         "scale=nan",
                         "scale=inf",
                         "tile=32x32",
                         "splits=3",
                         "cores=2",
                         "slices",
                         "workspace=4096",
                         "grads=kv",
                         "b-3",
                         "dv9223372036854775807",
                         "d9223372036854775807",
                         "causal_top_left",
                         "layout=bshd",
                         "\xff\xfe",
                         "d_v=9,9",
                         "elastic",
                         "entmax=1.5",
                         "bias:f16:1x1x1",
                         "bias:f16:1x",
                         "keep:9x9x9",
                         "spans=2:1x1",
                         "spans=2:",
                         "blocks=64x64:2+1:1x1",
                         "blocks=64x64:2",
                         "table=9:u8:1",
                         "table=9:u8",
                         "d_lse",
                         "max_logit=2",
                         "q_packed=7",
                         "kv_padded",
                         "grads=bdats",
                         "dropout=nan",
                         "sk0"};
  CpuDevice cpu(1);
  int parsed = 0;
  for (int n = 0; n < 20000; ++n) {
    std::string line = random() % 2 ? "bwd f32 sq3 d2 " : "";
    for (uint64_t k = random() % 8; k > 0; --k)
      line += std::string(words[random() % (sizeof(words) / sizeof(*words))]) + " ";
    if (random() % 4 == 0 && !line.empty()) line[random() % line.size()] = char(1 + random() % 255);
    tandem_problem p;
    const tandem_status status = tandem_problem_parse(line.c_str(), &p);
    if (status == TANDEM_OK) {
      ++parsed;
      // What parses may still be no problem, and says so.
      char text[64];
      CHECK(tandem_problem_print(&p, text, sizeof(text)) > 1);
      CHECK(tandem_explain(cpu.device, &p, text, sizeof(text)) > 1);
    } else {
      CHECK(status == TANDEM_ERROR_INVALID_ARGUMENT);
    }
  }
  CHECK(parsed > 500);
}

TEST_CASE("texts are cut to the capacity and their size is returned") {
  tandem_problem p = good_problem();
  const size_t size = tandem_problem_print(&p, nullptr, 0);
  const std::string whole = print(p);
  CHECK(size == whole.size() + 1);
  char text[16];
  std::memset(text, '#', sizeof(text));
  CHECK(tandem_problem_print(&p, text, 8) == size);
  CHECK(std::string(text) == whole.substr(0, 7));
  CHECK(text[8] == '#');
  CHECK(tandem_problem_print(&p, text, 0) == size);
  CHECK(text[0] == whole[0]);
  CpuDevice cpu;
  CHECK(
      tandem_device_describe(cpu.device, nullptr, 0) ==
      text_of([&](char* o, size_t n) { return tandem_device_describe(cpu.device, o, n); }).size() +
          1);
}

TEST_CASE("status names, version, registry") {
  for (int code : {0, -1, -2, -3, -4, -5, -6, -7, -8, -10, -11, -20, -21, -22}) {
    const std::string name = tandem_status_string(tandem_status(code));
    CAPTURE(code);
    CHECK(name.rfind("TANDEM_", 0) == 0);
    for (int other : {0, -1, -2, -3, -4, -5, -6, -7, -8, -10, -11, -20, -21, -22})
      if (other != code) CHECK(name != tandem_status_string(tandem_status(other)));
  }
  CHECK(std::string(tandem_status_string(tandem_status(-9))).rfind("TANDEM_", 0) != 0);
  CHECK(tandem_version() ==
        (uint32_t(TANDEM_VERSION_MAJOR) << 22 | uint32_t(TANDEM_VERSION_MINOR) << 12 |
         uint32_t(TANDEM_VERSION_PATCH)));
  CHECK(tandem_kernel_count() > 0);
  int cpu_rows = 0;
  for (uint32_t i = 0; i < tandem_kernel_count(); ++i) {
    tandem_kernel_info kernel{};
    kernel.struct_size = sizeof(kernel);
    REQUIRE(tandem_kernel_get(i, &kernel) == TANDEM_OK);
    cpu_rows += std::string(kernel.backend) == "cpu" && kernel.built == 1;
  }
  CHECK(cpu_rows == 22);
}
