// SPDX-License-Identifier: MIT OR Apache-2.0
// The path cpu.ref through the C border: optional inputs from strided, packed, padded and 16-bit
// tensors against reference(), and nothing touched that is not the result's.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "api_fixture.h"
#include "cpu/element.h"
#include "reference_fixture.h"

namespace {

using namespace tandem;
using tandem_tests::checked;
using tandem_tests::draw;

constexpr unsigned char kFill = 0xa5;

int64_t bytes_of(uint32_t dtype) { return dtype == TANDEM_BOOL8 ? 1 : dtype == TANDEM_F32 ? 4 : 2; }

// A tensor in memory, with room behind it.
struct Memory {
  uint32_t dtype;
  std::vector<unsigned char> bytes;
  std::vector<uint8_t> owned;  // an element each: whether anything was put or looked for there

  Memory(uint32_t dtype, int64_t elements)
      : dtype(dtype),
        bytes(size_t((elements + 16) * bytes_of(dtype)), kFill),
        owned(size_t(elements + 16), 0) {}
  void put(int64_t at, double x) {
    owned[size_t(at)] = 1;
    store_element(bytes.data(), at, tandem_dtype(dtype), x);
  }
  double get(int64_t at) {
    owned[size_t(at)] = 1;
    return load_element(bytes.data(), at, tandem_dtype(dtype));
  }
  // Elements that get() has not asked for still have their fill.
  bool untouched_elsewhere() const {
    const auto size = size_t(bytes_of(dtype));
    for (size_t n = 0; n < bytes.size(); ++n)
      if (!owned[n / size] && bytes[n] != kFill) return false;
    return true;
  }
  tandem_buffer buffer() { return {uint64_t(uintptr_t(bytes.data())), 0}; }
};

class Run {
 public:
  explicit Run(const std::string& line) : line_(line) {
    CAPTURE(line);
    REQUIRE(parse_problem(line.c_str(), &given_).ok());
    p = checked(line);
    in = draw(p, uint32_t(line.size()));
    const auto round = [&](std::vector<double>& x, uint32_t dtype) {
      for (double& e : x) e = round_element(e, tandem_dtype(dtype));
    };
    for (std::vector<double>* x : {&in.q, &in.k, &in.v, &in.d_o}) round(*x, p.dtype);
    round(in.bias, p.bias.dtype);
    for (std::vector<double>* x : {&in.dist_bias, &in.slope, &in.tau, &in.sink})
      round(*x, TANDEM_F32);
    if (p.lengths_q == Lengths::packed) fit(&in.lengths_q, p.total_q);
    if (p.lengths_kv == Lengths::packed) fit(&in.lengths_kv, p.total_kv);
  }

  void check() {
    CAPTURE(line_);
    place();
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.threads = 2;
    options.disable = "cpu.simd";
    tandem_device* device = nullptr;
    REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
    execute(device, TANDEM_FORWARD);
    if (p.backward) execute(device, TANDEM_BACKWARD);
    tandem_device_destroy(device);
    // Its slack covers what storing lse and delta as f32 does.
    truth_ = reference(p, in, Precision::exact, 1, 0x1p-22);
    const double u = p.dtype == TANDEM_F32 ? 0x1p-23 : p.dtype == TANDEM_F16 ? 0x1p-10 : 0x1p-7;
    compare("o", truth_.o, truth_.o_floor, truth_.o_slack, u);
    compare("d_q", truth_.d_q, truth_.d_q_floor, truth_.d_q_slack, u);
    compare("d_k", truth_.d_k, truth_.d_k_floor, truth_.d_k_slack, u);
    compare("d_v", truth_.d_v, truth_.d_v_floor, truth_.d_v_slack, u);
    const double u_bias = p.d_bias_dtype == TANDEM_BF16 ? 0x1p-7 : u;
    compare("d_bias", truth_.d_bias, truth_.d_bias_floor, truth_.d_bias_slack, u_bias);
    compare("d_dist_bias", truth_.d_dist_bias, truth_.d_dist_bias_floor, truth_.d_dist_bias_slack,
            u);
    compare("d_slope", truth_.d_slope, truth_.d_slope_floor, truth_.d_slope_slack, u);
    compare("d_tau", truth_.d_tau, truth_.d_tau_floor, truth_.d_tau_slack, u);
    compare("d_sink", truth_.d_sink, truth_.d_sink_floor, truth_.d_sink_slack, u);
    for (size_t n = 0; n < truth_.lse.size(); ++n)
      CHECK(memory("lse").get(int64_t(n)) == double(float(truth_.lse[n])));
    for (auto& named : memory_) {
      CAPTURE(named.first);
      CHECK(named.second.untouched_elsewhere());
    }
  }

  Problem p;
  RefInputs in;

 private:
  // Lengths that a packed tensor has the rows for, with a few to spare.
  static void fit(std::vector<int64_t>* lengths, int64_t total) {
    int64_t sum = 0;
    for (int64_t& x : *lengths) sum += x;
    REQUIRE(sum <= total);
  }
  Memory& memory(const std::string& name) { return memory_.at(name); }

  struct Tensor {
    const tandem_tensor* t;
    int64_t heads, size, features;
    bool kv;
  };
  Tensor tensor(const std::string& name) const {
    const tandem_problem& g = given_;
    const std::map<std::string, Tensor> all = {
        {"q", {&g.q, g.heads_q, g.seq_q, g.head_dim, false}},
        {"k", {&g.k, g.heads_kv, g.seq_kv, g.head_dim, true}},
        {"v", {&g.v, g.heads_kv, g.seq_kv, g.head_dim_v, true}},
        {"o", {&g.o, g.heads_q, g.seq_q, g.head_dim_v, false}},
        {"d_o", {&g.d_o, g.heads_q, g.seq_q, g.head_dim_v, false}},
        {"d_q", {&g.d_q, g.heads_q, g.seq_q, g.head_dim, false}},
        {"d_k", {&g.d_k, g.heads_kv, g.seq_kv, g.head_dim, true}},
        {"d_v", {&g.d_v, g.heads_kv, g.seq_kv, g.head_dim_v, true}}};
    return all.at(name);
  }
  // each(place, index in [B,H,S,features], whether the row is within its length); rows that a
  // packed tensor does not have are left out.
  template <typename Each>
  void each_of(const Tensor& x, Each&& each) const {
    const uint32_t mode = x.kv ? given_.lengths_kv : given_.lengths_q;
    const std::vector<int64_t>& lengths = x.kv ? in.lengths_kv : in.lengths_q;
    int64_t start = 0, n = 0;
    for (int64_t b = 0; b < given_.batch; ++b) {
      const int64_t length =
          lengths.empty() ? x.size : std::clamp<int64_t>(lengths[size_t(b)], 0, x.size);
      for (int64_t h = 0; h < x.heads; ++h)
        for (int64_t i = 0; i < x.size; ++i)
          for (int64_t c = 0; c < x.features; ++c, ++n) {
            if (mode == TANDEM_LENGTHS_PACKED && i >= length) continue;
            each(b * x.t->stride[0] + h * x.t->stride[1] + (start + i) * x.t->stride[2] +
                     c * x.t->stride[3],
                 n, i < length);
          }
      if (mode == TANDEM_LENGTHS_PACKED) start += lengths[size_t(b)];
    }
  }
  int64_t extent(const Tensor& x) const {
    int64_t last = 0;
    const int64_t total = x.kv ? given_.total_kv : given_.total_q;
    const int64_t rows = total ? total : x.size;
    last = (given_.batch - 1) * x.t->stride[0] + (x.heads - 1) * x.t->stride[1] +
           (rows - 1) * x.t->stride[2] + (x.features - 1) * x.t->stride[3];
    return last + 1;
  }
  void add(const std::string& name, uint32_t dtype, int64_t elements, tandem_buffer* arg) {
    *arg = memory_.emplace(name, Memory(dtype, elements)).first->second.buffer();
  }
  void add_floats(const std::string& name, const std::vector<double>& values, tandem_buffer* arg) {
    if (values.empty()) return;
    add(name, TANDEM_F32, int64_t(values.size()), arg);
    for (size_t n = 0; n < values.size(); ++n) memory(name).put(int64_t(n), values[n]);
  }
  void add_lengths(const std::vector<int64_t>& lengths, bool packed, std::vector<int32_t>* to,
                   tandem_buffer* arg) {
    if (lengths.empty()) return;
    if (packed) to->push_back(0);
    for (int64_t x : lengths) to->push_back(int32_t(x + (packed ? to->back() : 0)));
    *arg = {uint64_t(uintptr_t(to->data())), 0};
  }

  void place() {
    // What lies behind a length must not be read.
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto input = [&](const char* name, const std::vector<double>& values,
                           tandem_buffer* arg) {
      const Tensor x = tensor(name);
      add(name, x.t->dtype, extent(x), arg);
      each_of(x, [&](int64_t at, int64_t n, bool inside) {
        memory(name).put(at, inside ? values[size_t(n)] : nan);
      });
    };
    const auto output = [&](const char* name, bool wanted, tandem_buffer* arg) {
      if (wanted) add(name, tensor(name).t->dtype, extent(tensor(name)), arg);
    };
    input("q", in.q, &args_.q);
    input("k", in.k, &args_.k);
    input("v", in.v, &args_.v);
    if (p.backward) input("d_o", in.d_o, &args_.d_o);
    output("o", true, &args_.o);
    output("d_q", p.wants(TANDEM_GRAD_Q), &args_.d_q);
    output("d_k", p.wants(TANDEM_GRAD_K), &args_.d_k);
    output("d_v", p.wants(TANDEM_GRAD_V), &args_.d_v);
    add("lse", TANDEM_F32, p.batch * p.heads_q * p.seq_q, &args_.lse);
    add_floats("dist_bias", in.dist_bias, &args_.dist_bias);
    add_floats("slope", in.slope, &args_.slope);
    add_floats("tau", in.tau, &args_.tau);
    add_floats("sink", in.sink, &args_.sink);
    if (p.bias) {
      add("bias", p.bias.dtype, overlay_extent(p.bias, given_.bias), &args_.bias);
      each_of(p.bias, given_.bias,
              [&](int64_t at, size_t n) { memory("bias").put(at, in.bias[n]); });
    }
    if (p.keep) {
      keep_.assign(size_t(overlay_extent(p.keep, given_.keep)), 1);
      each_of(p.keep, given_.keep, [&](int64_t at, size_t n) { keep_[size_t(at)] = in.keep[n]; });
      args_.keep = {uint64_t(uintptr_t(keep_.data())), 0};
    }
    if (p.wants(TANDEM_GRAD_BIAS))
      add("d_bias", p.d_bias_dtype, overlay_extent(p.bias, given_.d_bias), &args_.d_bias);
    const auto sum = [&](const char* name, uint32_t bit, int64_t count, tandem_buffer* arg) {
      if (p.wants(bit)) add(name, TANDEM_F32, count, arg);
    };
    sum("d_dist_bias", TANDEM_GRAD_DIST_BIAS, p.heads_q * p.dist_window, &args_.d_dist_bias);
    sum("d_slope", TANDEM_GRAD_SLOPE, p.heads_q, &args_.d_slope);
    sum("d_tau", TANDEM_GRAD_TAU, p.heads_q, &args_.d_tau);
    sum("d_sink", TANDEM_GRAD_SINK, p.heads_q, &args_.d_sink);
    add_lengths(in.lengths_q, p.lengths_q == Lengths::packed, &lengths_q_, &args_.lengths_q);
    add_lengths(in.lengths_kv, p.lengths_kv == Lengths::packed, &lengths_kv_, &args_.lengths_kv);
    args_.dropout_seed = in.dropout_seed;
    args_.dropout_offset = in.dropout_offset;
  }

  template <typename Each>
  void each_of(const Overlay& o, const tandem_tensor& t, Each&& each) const {
    size_t n = 0;
    for (int64_t b = 0; b < o.batch; ++b)
      for (int64_t h = 0; h < o.heads; ++h)
        for (int64_t i = 0; i < o.rows; ++i)
          for (int64_t j = 0; j < p.seq_kv; ++j)
            each(b * t.stride[0] + h * t.stride[1] + i * t.stride[2] + j * t.stride[3], n++);
  }
  int64_t overlay_extent(const Overlay& o, const tandem_tensor& t) const {
    return (o.batch - 1) * t.stride[0] + (o.heads - 1) * t.stride[1] + (o.rows - 1) * t.stride[2] +
           (p.seq_kv - 1) * t.stride[3] + 1;
  }

  void execute(tandem_device* device, tandem_direction direction) {
    tandem_problem g = given_;
    g.direction = direction;
    tandem_plan* plan = nullptr;
    REQUIRE_MESSAGE(tandem_plan_create(device, &g, &plan) == TANDEM_OK, tandem_last_message());
    tandem_plan_info info;
    info.struct_size = sizeof info;
    REQUIRE(tandem_plan_get_info(plan, &info) == TANDEM_OK);
    CHECK(std::string(info.path) == "ref");
    std::vector<unsigned char> workspace(info.workspace_size + 256, kFill);
    uint64_t base = uint64_t(uintptr_t(workspace.data()));
    base = (base + 255) / 256 * 256;
    if (info.workspace_size) args_.workspace = {base, 0};
    args_.workspace_size = info.workspace_size;
    REQUIRE_MESSAGE(tandem_execute(plan, {0}, &args_) == TANDEM_OK, tandem_last_message());
    tandem_plan_destroy(plan);
  }

  void compare(const std::string& name, const std::vector<double>& want,
               const std::vector<double>& floor, const std::vector<double>& slack, double u) {
    if (want.empty()) return;
    CAPTURE(name);
    size_t nonzero = 0;
    const auto check = [&](int64_t at, size_t n, bool inside) {
      CAPTURE(n);
      const double got = memory(name).get(at);
      nonzero += got != 0;
      if (!inside) CHECK(got == 0);
      CHECK(std::fabs(got - want[n]) <= 4 * u * floor[n] + slack[n]);
    };
    if (name == "d_bias")
      each_of(p.bias, given_.d_bias, [&](int64_t at, size_t n) { check(at, n, true); });
    else if (name == "o" || name == "d_q" || name == "d_k" || name == "d_v")
      each_of(tensor(name),
              [&](int64_t at, int64_t n, bool inside) { check(at, size_t(n), inside); });
    else
      for (size_t n = 0; n < want.size(); ++n) check(int64_t(n), n, true);
    CHECK(nonzero > 0);
  }

  const std::string line_;
  tandem_problem given_;
  tandem_args args_ = TANDEM_ARGS_INIT;
  std::map<std::string, Memory> memory_;
  std::vector<uint8_t> keep_;
  std::vector<int32_t> lengths_q_, lengths_kv_;
  Reference truth_;
};

}  // namespace

TEST_CASE("cpu.ref: optional inputs through the C border") {
  for (const char* line : {
           // Strides: heads side by side; bias with gaps, as f16 and bf16; d_bias in its dtype or
           // f32.
           "bwd f32 b2 hq4 hk2 sq5 sk6 d8 dv4 layout=bshd bias:f16:2x4x5 d_bias:f32 grads=qkvb",
           "bwd bf16 b2 hq4 hk2 sq5 sk6 d8 causal_bottom_right bias:bf16:1x2x5 d_bias:bf16 "
           "grads=qkvb "
           "bias=0,100,13,2 d_bias=0,61,9,1",
           "bwd f16 b2 hq4 hk2 sq5 sk6 d8 bias:f32:2x1x1 d_bias:f32 keep:2x4x5 keep=300,60,11,2 "
           "softcap=2 grads=b",
           "bwd f32 b2 hq4 hk2 sq5 sk6 d8 elastic dist=4 alibi dropout=0.25 causal_top_left "
           "grads=qkvdat layout=bshd",
           "bwd bf16 b2 hq4 hk2 sq5 sk6 d8 elastic sink grads=ts",
           "bwd f32 hq2 sq5 sk6 d8 entmax=1.5 alibi bottom_right grads=qkva",
           "bwd f16 hq2 sq5 sk6 d8 entmax=1.25 dist=5 grads=qkd",
           "bwd f32 hq4 hk2 sq5 sk6 d8 sink dropout=0.5 grads=qkvs",
           // Padded, as 16-bit too.
           "bwd f32 b4 hq4 hk2 sq6 sk5 d8 dv3 q_padded kv_padded causal_bottom_right",
           "bwd bf16 b4 hq4 hk2 sq6 sk5 d8 q_padded alibi elastic layout=bshd grads=qkvat",
           "bwd f32 b4 hq4 hk2 sq6 sk5 d8 kv_padded bias:f32:1x1x6 d_bias:f32 entmax=2 grads=qkvb",
           // Packed: rows to spare at the end stay as they are.
           "bwd f32 b4 hq4 hk2 sq6 sk5 d8 dv3 q_packed=21 kv_packed=17 causal_bottom_right",
           "bwd f16 b3 hq4 hk2 sq6 sk5 d8 q_packed=20 kv_padded bias:f16:3x2x6 d_bias:f16 "
           "layout=bshd "
           "grads=qkvb",
           "bwd f32 b4 hq4 hk2 sq6 sk6 d8 q_packed=23 kv_packed=19 elastic dist=6 left=3 right=0 "
           "bottom_right dropout=0.25 grads=qkvdt",
           "bwd f32 b4 hq4 hk1 sq6 sk6 d8 q_packed=23 kv_packed=19 entmax=1.5 keep:4x1x1 alibi "
           "grads=qkva",
           "fwd f32 b4 hq4 hk2 sq6 sk5 d8 dv3 q_packed=21 kv_packed=17 sink softcap=5",
       })
    Run(line).check();
}

TEST_CASE("cpu.ref: lengths beyond the tensors are clamped") {
  Run run("bwd f32 b3 hq2 sq4 sk5 d8 q_padded kv_padded causal_bottom_right");
  run.in.lengths_q = {7, 3, -4};
  run.in.lengths_kv = {-1, 99, 2};
  run.check();
}

TEST_CASE("cpu.simd takes every optional input, and leaves tensors of f64 to cpu.ref") {
  CpuDevice cpu;
  const auto explained = [&](const char* line) {
    tandem_problem p;
    REQUIRE(parse_problem(line, &p).ok());
    return text_of([&](char* to, size_t size) { return tandem_explain(cpu.device, &p, to, size); });
  };
  for (const char* line :
       {"bwd f32 b2 hq2 sq4 d8 elastic dist=3 q_padded softcap=20 sink grads=qkvdts",
        "bwd bf16 sq70 d8 entmax=1.25 table=9:u8:1 alibi blocks=64x64:2+1:1x1 grads=qkvai",
        "bwd f16 sq70 d8 dropout=0.5 bias:f16:1x1x1 spans=2:1x1 keep:1x1x70 grads=b d_bias:f32"})
    CHECK(explained(line).find("cpu.simd") < explained(line).find("cpu.ref"));
  const std::string text = explained("fwd f64 sq4 d8");
  CHECK(text.find("it has no kernel for tensors of f64") != std::string::npos);
  CHECK(text.find("cpu.ref") != std::string::npos);
}
