// SPDX-License-Identifier: MIT OR Apache-2.0
// The C border: what a caller can do wrong, one row each. A row says what is done to a good call,
// the status it must get, and words that the sentence must contain. Out-parameters stay untouched.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "api_fixture.h"
#include "tandem/tandem.h"
#include "tandem/tandem_cuda.h"

namespace {

struct ProblemRow {
  const char* what;
  std::function<void(tandem_problem&)> spoil;
  tandem_status status;
  std::vector<const char*> words;  // all in the sentence: the member and its value
};

constexpr tandem_status kArgument = TANDEM_ERROR_INVALID_ARGUMENT;
constexpr tandem_status kStruct = TANDEM_ERROR_INVALID_STRUCT;
constexpr tandem_status kLayout = TANDEM_ERROR_INVALID_LAYOUT;
constexpr tandem_status kUnsupported = TANDEM_ERROR_UNSUPPORTED;
const int64_t kHuge = std::numeric_limits<int64_t>::max();

const std::vector<ProblemRow>& problem_rows() {
  using P = tandem_problem;
  static const std::vector<ProblemRow> rows = {
      {"struct_size 0", [](P& p) { p.struct_size = 0; }, kStruct, {"problem.struct_size", " 0"}},
      {"a short struct", [](P& p) { p.struct_size -= 4; }, kStruct, {"problem.struct_size"}},
      {"next", [](P& p) { p.next = &p; }, kStruct, {"problem.next"}},
      {"splits", [](P& p) { p.splits = 1 << 16; }, kUnsupported, {"splits", "65536"}},
      {"cores", [](P& p) { p.cores = 1 << 16; }, kUnsupported, {"cores", "65536"}},
      {"direction 0", [](P& p) { p.direction = 0; }, kArgument, {"problem.direction", " 0"}},
      {"direction 5", [](P& p) { p.direction = 5; }, kArgument, {"problem.direction", " 5"}},
      {"mask", [](P& p) { p.mask = 9; }, kArgument, {"problem.mask", "9"}},
      {"align", [](P& p) { p.align = 5; }, kArgument, {"problem.align", "5"}},
      {"flags", [](P& p) { p.flags = 0x80; }, kArgument, {"problem.flags", "0x80"}},
      {"TF32 without f32",
       [](P& p) {
         p.flags = TANDEM_FLAG_TF32;
         tandem_problem_contiguous(&p, TANDEM_BF16);
       },
       kArgument,
       {"TANDEM_FLAG_TF32", "bf16"}},
      {"gradients none", [](P& p) { p.gradients = 0; }, kArgument, {"problem.gradients", "0x0"}},
      {"gradients 0x209",
       [](P& p) { p.gradients = 0x209; },
       kArgument,
       {"problem.gradients", "0x209"}},
      {"dtype of q 0", [](P& p) { p.q.dtype = 0; }, kArgument, {"q.dtype", " 0"}},
      {"dtype of v 4", [](P& p) { p.v.dtype = 4; }, kArgument, {"v.dtype", " 4"}},
      {"mixed dtypes",
       [](P& p) { p.k.dtype = TANDEM_F16; },
       kUnsupported,
       {"k.dtype", "f16", "f32"}},
      {"mixed dtypes in the gradients",
       [](P& p) { p.d_v.dtype = TANDEM_BF16; },
       kUnsupported,
       {"d_v.dtype", "bf16"}},
      {"tensor reserved", [](P& p) { p.d_o.reserved = 1; }, kArgument, {"d_o.reserved", " 1"}},
      {"batch < 0", [](P& p) { p.batch = -1; }, kArgument, {"batch", "-1"}},
      {"heads_q < 0", [](P& p) { p.heads_q = -4; }, kArgument, {"heads_q", "-4"}},
      {"heads_kv < 0", [](P& p) { p.heads_kv = -2; }, kArgument, {"heads_kv", "-2"}},
      {"seq_q < 0", [](P& p) { p.seq_q = -5; }, kArgument, {"seq_q", "-5"}},
      {"seq_kv < 0",
       [](P& p) { p.seq_kv = std::numeric_limits<int64_t>::min(); },
       kArgument,
       {"seq_kv", "-9223372036854775808"}},
      {"batch overflows",
       [](P& p) { p.batch = kHuge; },
       kUnsupported,
       {"batch", "9223372036854775807"}},
      {"heads overflow",
       [](P& p) { p.heads_q = int64_t(1) << 31; },
       kUnsupported,
       {"heads_q", "2147483648"}},
      {"seq_q too long", [](P& p) { p.seq_q = 1 << 29; }, kUnsupported, {"seq_q", "536870912"}},
      {"seq_kv too long",
       [](P& p) { p.seq_kv = kHuge; },
       kUnsupported,
       {"seq_kv", "9223372036854775807"}},
      {"rows overflow",
       [](P& p) {
         p.batch = p.heads_q = 1 << 30;
         p.heads_kv = 1;
         p.seq_q = 256;
         p.gradients = TANDEM_GRAD_K;
         for (tandem_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.d_o})
           std::memset(t->stride, 0, sizeof(t->stride));
       },
       kUnsupported,
       {"batch", "heads_q", "seq_q", "256"}},
      {"Hq no multiple of Hk",
       [](P& p) { p.heads_q = 3; },
       kArgument,
       {"heads_q", "3", "heads_kv", "2"}},
      {"no kv heads", [](P& p) { p.heads_kv = 0; }, kArgument, {"heads_q", "heads_kv", " 0"}},
      {"head_dim 0", [](P& p) { p.head_dim = 0; }, kArgument, {"head_dim", " 0"}},
      {"head_dim < 0", [](P& p) { p.head_dim = -8; }, kArgument, {"head_dim", "-8"}},
      {"head_dim 577", [](P& p) { p.head_dim = 577; }, kUnsupported, {"head_dim", "577"}},
      {"head_dim_v 0", [](P& p) { p.head_dim_v = 0; }, kArgument, {"head_dim_v", " 0"}},
      {"head_dim_v 1024", [](P& p) { p.head_dim_v = 1024; }, kUnsupported, {"head_dim_v", "1024"}},
      {"window_left -2", [](P& p) { p.window_left = -2; }, kArgument, {"window_left", "-2"}},
      {"window_right -9", [](P& p) { p.window_right = -9; }, kArgument, {"window_right", "-9"}},
      {"scale infinite",
       [](P& p) { p.scale = std::numeric_limits<float>::infinity(); },
       kArgument,
       {"problem.scale"}},
      {"negative stride", [](P& p) { p.q.stride[2] = -16; }, kLayout, {"q.stride[2]", "-16"}},
      {"negative stride of a size of 1",
       [](P& p) { p.batch = 1, p.k.stride[0] = -1; },
       kLayout,
       {"k.stride[0]", "-1"}},
      {"overflowing stride",
       [](P& p) { p.v.stride[1] = kHuge; },
       kLayout,
       {"v.stride[1]", "9223372036854775807", "overflow"}},
      {"strides that overflow together",
       [](P& p) { p.q.stride[0] = p.q.stride[1] = (int64_t(1) << 60) - 1; },
       kLayout,
       {"q.stride[1]", "overflow"}},
      {"output repeats a row",
       [](P& p) { p.d_q.stride[2] = 0; },
       kLayout,
       {"d_q.stride[2]", "overlap"}},
      {"output rows overlap",
       [](P& p) { p.d_k.stride[2] = p.head_dim - 1; },
       kLayout,
       {"d_k", "overlap"}},
      {"output heads overlap",
       [](P& p) { p.d_v.stride[1] = p.head_dim_v; },
       kLayout,
       {"d_v.stride[", "overlap"}},
      {"forward's output overlaps",
       [](P& p) {
         p.direction = TANDEM_FORWARD;
         p.o.stride[3] = 0;
       },
       kLayout,
       {"o.stride[3]", "overlap"}},
      {"a huge tile",
       [](P& p) { p.tile_cols = 4000000000u; },
       kUnsupported,
       {"tile_cols", "4000000000"}},
  };
  return rows;
}

}  // namespace

TEST_CASE("a spoiled problem: its own status, a sentence with the value, no plan") {
  CpuDevice cpu;
  for (const ProblemRow& row : problem_rows()) {
    CAPTURE(std::string(row.what));
    tandem_problem problem = good_problem();
    row.spoil(problem);
    tandem_plan* plan = untouched<tandem_plan>();
    const tandem_status status = tandem_plan_create(cpu.device, &problem, &plan);
    CHECK(status == row.status);
    CHECK(plan == untouched<tandem_plan>());
    const std::string message = tandem_last_message();
    CAPTURE(message);
    for (const char* word : row.words) CHECK(message.find(word) != std::string::npos);
    // explain says the same instead of failing.
    const std::string words =
        text_of([&](char* out, size_t n) { return tandem_explain(cpu.device, &problem, out, n); });
    for (const char* word : row.words) CHECK(words.find(word) != std::string::npos);
  }
}

TEST_CASE("the good problem is good, so that the rows above fail for their own reason") {
  CpuDevice cpu;
  for (tandem_direction direction : {TANDEM_FORWARD, TANDEM_BACKWARD}) {
    tandem_problem problem = good_problem();
    problem.direction = direction;
    tandem_plan* plan = nullptr;
    CHECK(tandem_plan_create(cpu.device, &problem, &plan) == TANDEM_OK);
    tandem_plan_destroy(plan);
  }
}

TEST_CASE("legal and unusual: not refused") {
  CpuDevice cpu;
  const struct {
    const char* what;
    std::function<void(tandem_problem&)> change;
  } rows[] = {
      {"inputs of stride 0",
       [](tandem_problem& p) { std::memset(p.d_o.stride, 0, sizeof p.d_o.stride); }},
      {"any stride in a size of 1", [](tandem_problem& p) { p.batch = 1, p.d_q.stride[0] = 3; }},
      {"an unwanted gradient's layout",
       [](tandem_problem& p) { p.gradients = TANDEM_GRAD_V, p.d_q.stride[3] = 0; }},
      {"gradients that forward does not have",
       [](tandem_problem& p) { p.direction = TANDEM_FORWARD, p.gradients = 0; }},
      {"windows beyond every key", [](tandem_problem& p) { p.window_left = kHuge; }},
      {"TF32", [](tandem_problem& p) { p.flags = TANDEM_FLAG_TF32; }},
      {"scale 0", [](tandem_problem& p) { p.scale = 0; }},
      {"a negative scale", [](tandem_problem& p) { p.scale = -1; }},
      {"an output laid out in another order",
       [](tandem_problem& p) {
         p.d_q.stride[3] = p.seq_q;
         p.d_q.stride[2] = 1;
       }},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.what));
    tandem_problem problem = good_problem();
    row.change(problem);
    tandem_plan* plan = nullptr;
    const tandem_status status = tandem_plan_create(cpu.device, &problem, &plan);
    INFO(std::string(tandem_last_message()));
    CHECK(status == TANDEM_OK);
    tandem_plan_destroy(plan);
  }
}

// A caller's struct of another version: so many bytes, with guards behind them.
template <typename Struct>
struct Sized {
  static constexpr unsigned char kGuard = 0xa5;
  std::vector<unsigned char> bytes;
  size_t size;
  Sized(const Struct& from, size_t size) : bytes(size + 64, kGuard), size(size) {
    std::fill(bytes.begin(), bytes.end() - 64, 0);
    std::memcpy(bytes.data(), &from, std::min(size, sizeof from));
    get()->struct_size = uint32_t(size);
  }
  Struct* get() { return reinterpret_cast<Struct*>(bytes.data()); }
  bool guarded() const {
    return std::all_of(bytes.begin() + ptrdiff_t(size), bytes.end(),
                       [](unsigned char b) { return b == kGuard; });
  }
};

TEST_CASE("structs of callers with another version's header") {
  // What 0.1.0 had; these numbers never change.
  const size_t options_0 = 40, problem_0 = 440, info_0 = 616, args_0 = 176;
  struct Sizes {
    size_t options, problem, info, args;
    tandem_status status;
  };
  const Sizes now = {sizeof(tandem_device_options), sizeof(tandem_problem),
                     sizeof(tandem_plan_info), sizeof(tandem_args), TANDEM_OK};
  Sizes rows[] = {now, {options_0, problem_0, info_0, args_0, TANDEM_OK}, now};
  rows[2].options += 48, rows[2].problem += 48, rows[2].info += 48, rows[2].args += 48;
  const std::vector<float> ones(2 * 4 * 8, 1.0f);
  for (const Sizes& row : rows) {
    CAPTURE(row.problem);
    Sized<tandem_device_options> options(TANDEM_DEVICE_OPTIONS_INIT, row.options);
    tandem_device* device = nullptr;
    REQUIRE(tandem_cpu_device_create(options.get(), &device) == TANDEM_OK);
    Sized<tandem_problem> problem(tandem_problem{}, row.problem);
    REQUIRE(tandem_problem_parse_sized("fwd f32 hq2 sq4 d8", problem.get(),
                                       uint32_t(row.problem)) == TANDEM_OK);
    CHECK(problem.get()->struct_size == row.problem);
    CHECK(problem.guarded());
    tandem_problem_init_sized(problem.get(), uint32_t(row.problem));
    CHECK(problem.get()->struct_size == row.problem);
    tandem_problem& p = *problem.get();
    p.batch = 1, p.heads_q = p.heads_kv = 2, p.seq_q = p.seq_kv = 4, p.head_dim = p.head_dim_v = 8;
    tandem_problem_contiguous(&p, TANDEM_F32);
    CHECK(p.q.stride[1] == 32);
    CHECK(problem.guarded());
    CHECK(text_of([&](char* out, size_t n) { return tandem_problem_print(&p, out, n); }) ==
          "fwd f32 b1 hq2 hk2 sq4 sk4 d8 dv8");
    tandem_plan* plan = nullptr;
    REQUIRE(tandem_plan_create(device, &p, &plan) == TANDEM_OK);
    Sized<tandem_plan_info> info(tandem_plan_info{}, row.info);
    std::memset(info.bytes.data() + info_0, 0x77, row.info - info_0);
    REQUIRE(tandem_plan_get_info(plan, info.get()) == TANDEM_OK);
    CHECK(std::string(info.get()->backend) == "cpu");
    CHECK(info.get()->kernel_count == 1);
    CHECK(info.get()->struct_size == row.info);
    CHECK(info.guarded());
    for (size_t i = info_0; i < row.info; ++i)
      CHECK(info.bytes[i] == (i < sizeof(tandem_plan_info) ? 0 : 0x77));
    std::vector<float> o(2 * 4 * 8, -1.0f);
    Sized<tandem_args> args(TANDEM_ARGS_INIT, row.args);
    for (tandem_buffer tandem_args::*b : {&tandem_args::q, &tandem_args::k, &tandem_args::v})
      (args.get()->*b).handle = uint64_t(uintptr_t(ones.data()));
    args.get()->o.handle = uint64_t(uintptr_t(o.data()));
    CHECK(tandem_execute(plan, {0}, args.get()) == TANDEM_OK);
    CHECK(o == ones);
    tandem_plan_destroy(plan);
    tandem_device_destroy(device);
  }

  // Sizes of no version, and members that only a later one knows.
  CpuDevice cpu;
  const tandem_problem good = good_problem();
  tandem_plan* plan = untouched<tandem_plan>();
  const auto refused = [&](size_t size, size_t set, const char* word) {
    Sized<tandem_problem> problem(good, size);
    if (set) problem.bytes[set] = 1;
    CHECK(tandem_plan_create(cpu.device, problem.get(), &plan) == kStruct);
    CHECK(plan == untouched<tandem_plan>());
    const std::string message = tandem_last_message();
    CAPTURE(message);
    CHECK(message.find(word) != std::string::npos);
  };
  refused(problem_0 - 8, 0, "at least 440");
  refused(problem_0 + 4, 0, "problem.struct_size is 444");
  refused(sizeof good + 16, sizeof good + 3, "is not 0");
  refused(5000, 0, "problem.struct_size is 5000");

  // The symbols that programs of 0.1.0 call.
  Sized<tandem_problem> old(tandem_problem{}, problem_0);
  (tandem_problem_init)(old.get());
  CHECK(old.get()->struct_size == problem_0);
  CHECK(old.guarded());
  CHECK((tandem_problem_parse)("bwd f32 sq4 d8 deterministic", old.get()) == TANDEM_OK);
  CHECK(old.get()->flags == TANDEM_FLAG_DETERMINISTIC);
  CHECK(old.guarded());
  const std::vector<unsigned char> before = old.bytes;
  CHECK((tandem_problem_parse)("fwd f32 sq4 d8 alibi", old.get()) == kStruct);
  CHECK(old.bytes == before);
  tandem_problem_init_sized(old.get(), 8);
  CHECK(old.bytes == before);
  CHECK(tandem_problem_parse_sized("fwd f32 sq4 d8", old.get(), 8) == kStruct);
  old.get()->struct_size = 8;
  tandem_problem_contiguous(old.get(), TANDEM_F16);
  CHECK(old.get()->q.dtype == TANDEM_F32);
}

TEST_CASE("regression: sizes of no version do nothing") {
  const size_t first = 440, now = sizeof(tandem_problem);
  const auto known = [&](size_t size) {
    return size == first || size == now || (size > now && size <= 4096 && size % 8 == 0);
  };
  std::vector<unsigned char> room(1 << 20), before;
  auto* problem = reinterpret_cast<tandem_problem*>(room.data());
  const auto untouched = [&](size_t from) {
    return std::equal(room.begin() + ptrdiff_t(from), room.end(), before.begin() + ptrdiff_t(from));
  };
  std::vector<size_t> sizes = {663, 5000, 65536, 1000000, 0x7fffffff, 0xffffffff};
  for (size_t size = 0; size < now + 64; ++size) sizes.push_back(size);
  for (size_t size = 4090; size < 4104; ++size) sizes.push_back(size);
  CpuDevice cpu;
  for (size_t size : sizes) {
    CAPTURE(size);
    std::fill(room.begin(), room.end(), (unsigned char)(0xa5));
    before = room;
    tandem_problem_init_sized(problem, uint32_t(size));
    CHECK((room != before) == known(size));
    CHECK(untouched(known(size) ? size : 0));
    before = room;
    CHECK(tandem_problem_parse_sized("fwd f32 sq4 d8", problem, uint32_t(size)) ==
          (known(size) ? TANDEM_OK : kStruct));
    CHECK(untouched(known(size) ? size : 0));

    // As struct_size, where a struct is read or written.
    std::fill(room.begin(), room.end(), (unsigned char)(0));
    problem->struct_size = uint32_t(size);
    before = room;
    tandem_problem_contiguous(problem, TANDEM_F16);
    CHECK((room != before) == known(size));
    before = room;
    CHECK((tandem_problem_print(problem, nullptr, 0) > 0) == known(size));
    tandem_plan* plan = nullptr;
    CHECK((tandem_plan_create(cpu.device, problem, &plan) == kStruct) == !known(size));
    auto* kernel = reinterpret_cast<tandem_kernel_info*>(room.data());
    CHECK((tandem_kernel_get(0, kernel) == TANDEM_OK) ==
          (size >= sizeof(tandem_kernel_info) && size <= 4096 && size % 4 == 0));
    std::copy(before.begin(), before.end(), room.begin());
    auto* info = reinterpret_cast<tandem_device_info*>(room.data());
    CHECK((tandem_device_get_info(cpu.device, info) == TANDEM_OK) ==
          (size >= sizeof(tandem_device_info) && size <= 4096 && size % 4 == 0));
  }
}

TEST_CASE("null and short pointers at every entry point") {
  CpuDevice cpu;
  tandem_problem problem = good_problem();
  tandem_plan* made = nullptr;
  REQUIRE(tandem_plan_create(cpu.device, &problem, &made) == TANDEM_OK);
  tandem_device* device = untouched<tandem_device>();
  tandem_plan* plan = untouched<tandem_plan>();
  size_t size = 77;
  tandem_device_info device_info = {sizeof(tandem_device_info) - 4, 9, "x", "y", "z"};
  tandem_plan_info plan_info{};
  plan_info.struct_size = 8;
  plan_info.kernel_count = 1234;
  tandem_kernel_info kernel_info = {4, 9, "x", "y", "z", "v"};
  tandem_args args = TANDEM_ARGS_INIT;
  args.struct_size = 16;
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.struct_size = 4;
  tandem_device_options chained = TANDEM_DEVICE_OPTIONS_INIT;
  chained.next = &chained;
  tandem_device_options crowd = TANDEM_DEVICE_OPTIONS_INIT;
  crowd.threads = 4000000000u;
  tandem_device_options typo = TANDEM_DEVICE_OPTIONS_INIT;
  typo.disable = "cpu.simd,vulkan.scaler";
  tandem_device_options taker = TANDEM_DEVICE_OPTIONS_INIT;
  taker.allocate = [](void*, size_t, size_t) -> void* { return nullptr; };
  tandem_device_options giver = TANDEM_DEVICE_OPTIONS_INIT;
  giver.release = [](void*, void*) {};
  tandem_device_options bare = TANDEM_DEVICE_OPTIONS_INIT;
  bare.disable = "simd";
  char blob[256] = {};
  uint64_t bytes = 77;
  tandem_slices slices{};
  slices.struct_size = 4;
  slices.count = 77;

  const struct {
    const char* what;
    std::function<tandem_status()> call;
    tandem_status status;
    const char* word;
  } rows[] = {
      {"cpu_device_create device", [&] { return tandem_cpu_device_create(nullptr, nullptr); },
       kArgument, "device"},
      {"options short", [&] { return tandem_cpu_device_create(&options, &device); }, kStruct,
       "options.struct_size"},
      {"options next", [&] { return tandem_cpu_device_create(&chained, &device); }, kStruct,
       "options.next"},
      {"options threads", [&] { return tandem_cpu_device_create(&crowd, &device); }, kArgument,
       "4000000000"},
      {"allocate alone", [&] { return tandem_cpu_device_create(&taker, &device); }, kArgument,
       "options.release is NULL"},
      {"release alone", [&] { return tandem_cpu_device_create(&giver, &device); }, kArgument,
       "options.allocate is NULL"},
      {"unknown path to disable", [&] { return tandem_cpu_device_create(&typo, &device); },
       kArgument, "vulkan.scaler"},
      {"path to disable without backend", [&] { return tandem_cpu_device_create(&bare, &device); },
       kArgument, "simd"},
      {"get_info device", [&] { return tandem_device_get_info(nullptr, &device_info); }, kArgument,
       "device"},
      {"get_info info", [&] { return tandem_device_get_info(cpu.device, nullptr); }, kArgument,
       "info"},
      {"get_info short", [&] { return tandem_device_get_info(cpu.device, &device_info); }, kStruct,
       "info.struct_size"},
      {"get_cache device", [&] { return tandem_device_get_cache(nullptr, &size, nullptr); },
       kArgument, "device"},
      {"get_cache size", [&] { return tandem_device_get_cache(cpu.device, nullptr, nullptr); },
       kArgument, "size"},
      {"set_cache device", [&] { return tandem_device_set_cache(nullptr, 9, blob); }, kArgument,
       "device"},
      {"set_cache data", [&] { return tandem_device_set_cache(cpu.device, 9, nullptr); }, kArgument,
       "data"},
      {"plan_create device", [&] { return tandem_plan_create(nullptr, &problem, &plan); },
       kArgument, "device"},
      {"plan_create problem", [&] { return tandem_plan_create(cpu.device, nullptr, &plan); },
       kArgument, "problem"},
      {"plan_create plan", [&] { return tandem_plan_create(cpu.device, &problem, nullptr); },
       kArgument, "plan"},
      {"plan_get_info plan", [&] { return tandem_plan_get_info(nullptr, &plan_info); }, kArgument,
       "plan"},
      {"plan_get_info info", [&] { return tandem_plan_get_info(made, nullptr); }, kArgument,
       "info"},
      {"plan_get_info short", [&] { return tandem_plan_get_info(made, &plan_info); }, kStruct, "8"},
      {"least_workspace device", [&] { return tandem_least_workspace(nullptr, &problem, &bytes); },
       kArgument, "device"},
      {"least_workspace bytes",
       [&] { return tandem_least_workspace(cpu.device, &problem, nullptr); }, kArgument, "bytes"},
      {"kernel_get info", [&] { return tandem_kernel_get(0, nullptr); }, kArgument, "info"},
      {"kernel_get short", [&] { return tandem_kernel_get(0, &kernel_info); }, kStruct, "4"},
      {"get_slices plan", [&] { return tandem_plan_get_slices(nullptr, 1, &slices); }, kArgument,
       "plan"},
      {"get_slices short", [&] { return tandem_plan_get_slices(made, 1, &slices); }, kStruct,
       "slices.struct_size"},
      {"execute_slice plan", [&] { return tandem_execute_slice(nullptr, {0}, &args, &slices, 0); },
       kArgument, "plan"},
      {"execute plan", [&] { return tandem_execute(nullptr, {0}, &args); }, kArgument, "plan"},
      {"execute args", [&] { return tandem_execute(made, {0}, nullptr); }, kArgument, "args"},
      {"execute short", [&] { return tandem_execute(made, {0}, &args); }, kStruct,
       "args.struct_size"},
      {"parse problem", [&] { return tandem_problem_parse("fwd f32 sq1 d1", nullptr); }, kArgument,
       "problem"},
      {"parse line", [&] { return tandem_problem_parse(nullptr, &problem); }, kArgument, "NULL"},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.what));
    CHECK(row.call() == row.status);
    const std::string message = tandem_last_message();
    CAPTURE(message);
    CHECK(message.find(row.word) != std::string::npos);
  }
  CHECK(device == untouched<tandem_device>());
  CHECK(plan == untouched<tandem_plan>());
  CHECK(size == 77);
  CHECK(bytes == 77);
  CHECK(slices.count == 77);
  CHECK(device_info.shared_bytes == 9);
  CHECK(device_info.name[0] == 'y');
  CHECK(plan_info.kernel_count == 1234);
  CHECK(kernel_info.built == 9);
  tandem_kernel_info beyond{};
  beyond.struct_size = sizeof(beyond);
  CHECK(tandem_kernel_get(tandem_kernel_count(), &beyond) == kArgument);
  CHECK(std::string(tandem_last_message()).find(std::to_string(tandem_kernel_count())) !=
        std::string::npos);

  // Functions that return nothing do nothing.
  tandem_plan_destroy(nullptr);
  tandem_device_destroy(nullptr);
  tandem_problem_init(nullptr);
  tandem_problem_contiguous(nullptr, TANDEM_F32);
  CHECK(tandem_device_describe(nullptr, blob, sizeof(blob)) == 0);
  CHECK(tandem_explain(nullptr, &problem, blob, sizeof(blob)) == 0);
  CHECK(tandem_problem_print(nullptr, blob, sizeof(blob)) == 0);
  tandem_plan_destroy(made);
}

TEST_CASE("cache blobs: foreign, cut, changed") {
  CpuDevice cpu;
  size_t size = 0;
  REQUIRE(tandem_device_get_cache(cpu.device, &size, nullptr) == TANDEM_OK);
  REQUIRE(size > 0);
  std::vector<unsigned char> blob(size + 8, 0xcd);
  size_t given = size - 1;
  CHECK(tandem_device_get_cache(cpu.device, &given, blob.data()) == kArgument);
  CHECK(given == size - 1);
  for (unsigned char byte : blob) CHECK(byte == 0xcd);
  given = blob.size();
  REQUIRE(tandem_device_get_cache(cpu.device, &given, blob.data()) == TANDEM_OK);
  CHECK(given == size);
  for (size_t i = size; i < blob.size(); ++i) CHECK(blob[i] == 0xcd);
  blob.resize(size);
  CHECK(tandem_device_set_cache(cpu.device, blob.size(), blob.data()) == TANDEM_OK);

  for (size_t n = 0; n < size; ++n) {
    CAPTURE(n);
    const std::vector<unsigned char> cut(blob.begin(), blob.begin() + long(n));
    const unsigned char none = 0;
    CHECK(tandem_device_set_cache(cpu.device, n, n ? cut.data() : &none) == TANDEM_ERROR_CACHE);
    CHECK(std::strlen(tandem_last_message()) > 0);
  }
  std::vector<unsigned char> longer = blob;
  longer.push_back(0);
  CHECK(tandem_device_set_cache(cpu.device, longer.size(), longer.data()) == TANDEM_ERROR_CACHE);
}

TEST_CASE("regression: a cache blob with any bit changed is refused") {
  CpuDevice cpu;
  size_t size = 0;
  REQUIRE(tandem_device_get_cache(cpu.device, &size, nullptr) == TANDEM_OK);
  std::vector<unsigned char> blob(size);
  REQUIRE(tandem_device_get_cache(cpu.device, &size, blob.data()) == TANDEM_OK);
  const auto give = [&] { return tandem_device_set_cache(cpu.device, size, blob.data()); };
  for (size_t bit = 0; bit < 8 * size; ++bit) {
    CAPTURE(bit);
    blob[bit / 8] ^= (unsigned char)(1 << bit % 8);
    CHECK(give() == TANDEM_ERROR_CACHE);
    blob[bit / 8] ^= (unsigned char)(1 << bit % 8);
  }
  CHECK(give() == TANDEM_OK);
  // Bytes 12 to 15, reserved, also under the sum that they would have.
  blob[13] = 1;
  uint64_t sum = 0xcbf29ce484222325u;
  for (size_t n = 0; n < 32; ++n) sum = (sum ^ blob[n]) * 0x100000001b3u;
  std::memcpy(&blob[32], &sum, sizeof sum);
  CHECK(give() == TANDEM_ERROR_CACHE);
  CHECK(std::string(tandem_last_message()).find("12 to 15") != std::string::npos);
}

TEST_CASE("a build without CUDA, or a machine without it, says so") {
  tandem_device* device = untouched<tandem_device>();
  const tandem_status status = tandem_cuda_device_create(1000000, nullptr, &device);
  CHECK((status == TANDEM_ERROR_NO_BACKEND || status == TANDEM_ERROR_NO_DEVICE));
  CHECK(device == untouched<tandem_device>());
  CHECK(std::strlen(tandem_last_message()) > 10);
  tandem_cuda_device_desc desc = TANDEM_CUDA_DEVICE_DESC_INIT;
  desc.ordinal = 1000000;
  CHECK(tandem_cuda_device_create_with(&desc, nullptr, &device) == status);
  CHECK(device == untouched<tandem_device>());
  device = untouched<tandem_device>();
  CHECK(tandem_cuda_device_create(-1, nullptr, &device) != TANDEM_OK);
  CHECK(device == untouched<tandem_device>());
}

#if !TANDEM_WITH_VULKAN
// Without Vulkan's own header; on the C border all these pointers are alike.
extern "C" tandem_status tandem_vk_device_create(const void*, const tandem_device_options*,
                                                 tandem_device**);
TEST_CASE("a build without Vulkan says so") {
  tandem_device* device = untouched<tandem_device>();
  CHECK(tandem_vk_device_create(nullptr, nullptr, &device) == TANDEM_ERROR_NO_BACKEND);
  CHECK(device == untouched<tandem_device>());
  CHECK(std::string(tandem_last_message()).find("without Vulkan") != std::string::npos);
}
#endif

TEST_CASE("the last message belongs to its thread") {
  CHECK(tandem_cpu_device_create(nullptr, nullptr) == kArgument);
  const std::string mine = tandem_last_message();
  CHECK(!mine.empty());
  std::string before = "unset", after;
  std::thread([&] {
    before = tandem_last_message();
    (void)tandem_plan_create(nullptr, nullptr, nullptr);
    after = tandem_last_message();
  }).join();
  CHECK(before.empty());
  CHECK(!after.empty());
  CHECK(std::string(tandem_last_message()) == mine);
}

extern "C" int tandem_c99_header_check(void);

TEST_CASE("the header works from C99") { CHECK(tandem_c99_header_check() == 0); }
