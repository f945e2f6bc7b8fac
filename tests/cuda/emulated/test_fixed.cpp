// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels with trait::fixed against those that know every optional input by run-time
// values, and both against the reference. What is formed by the same operations in the same order
// must have the same bits: all but d_q and d_dist_bias, which the fused kernels sum differently.
#include <cstdio>
#include <string>

#include "check.h"
#include "include/cuda_runtime.h"
#include "tandem/tandem.h"
#include "tandem/tandem_cuda.h"

namespace {

struct Array {
  const char* name;
  tandem_dtype dtype;
  size_t count;
  tandem_buffer tandem_args::*at;
  std::vector<unsigned char> bytes;

  size_t element() const { return dtype == TANDEM_F32 ? 4 : 2; }
  float get(size_t i) const {
    unsigned u = 0;
    std::memcpy(&u, bytes.data() + i * element(), element());
    if (dtype == TANDEM_F32) return __uint_as_float(u);
    if (dtype == TANDEM_F16) return __half2float(__ushort_as_half((unsigned short)u));
    return __uint_as_float(u << 16);
  }
  void set(size_t i, float x) {
    unsigned u = __float_as_uint(x);
    if (dtype == TANDEM_F16) u = __half_as_ushort(__float2half_rn(x));
    if (dtype == TANDEM_BF16) u = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    std::memcpy(bytes.data() + i * element(), &u, element());
  }
};

struct Result {
  std::vector<Array> outputs;
  std::string plan;
};

// Forward and backward of the problem on a device. The inputs are the same every time.
Result run(tandem_device* device, tandem_problem problem, bool misaligned) {
  tandem_problem& p = problem;
  std::minstd_rand random(11);
  const auto rows_q = size_t(p.lengths_q == TANDEM_LENGTHS_PACKED ? p.total_q : p.batch * p.seq_q),
             rows_kv =
                 size_t(p.lengths_kv == TANDEM_LENGTHS_PACKED ? p.total_kv : p.batch * p.seq_kv);
  const auto hq = size_t(p.heads_q), hk = size_t(p.heads_kv), d = size_t(p.head_dim),
             dv = size_t(p.head_dim_v), rows = size_t(p.batch * p.seq_q) * hq,
             window = size_t(p.dist_window);
  const tandem_dtype type = tandem_dtype(p.q.dtype), f32 = TANDEM_F32;
  std::vector<Array> inputs = {{"q", type, rows_q * hq * d, &tandem_args::q, {}},
                               {"k", type, rows_kv * hk * d, &tandem_args::k, {}},
                               {"v", type, rows_kv * hk * dv, &tandem_args::v, {}},
                               {"d_o", type, rows_q * hq * dv, &tandem_args::d_o, {}},
                               {"dist_bias", f32, hq * window, &tandem_args::dist_bias, {}},
                               {"tau", f32, hq, &tandem_args::tau, {}},
                               {"sink", f32, hq, &tandem_args::sink, {}}};
  std::vector<Array> outputs = {{"o", type, rows_q * hq * dv, &tandem_args::o, {}},
                                {"lse", f32, rows, &tandem_args::lse, {}},
                                {"d_q", type, rows_q * hq * d, &tandem_args::d_q, {}},
                                {"d_k", type, rows_kv * hk * d, &tandem_args::d_k, {}},
                                {"d_v", type, rows_kv * hk * dv, &tandem_args::d_v, {}},
                                {"d_dist_bias", f32, hq * window, &tandem_args::d_dist_bias, {}},
                                {"d_tau", f32, hq, &tandem_args::d_tau, {}}};
  tandem_args args = TANDEM_ARGS_INIT;
  // 16-byte aligned, or by one element off.
  const auto give = [&](Array& a) {
    a.bytes.assign(a.count * a.element() + 64, 0xff);
    const size_t skip = (16 - reinterpret_cast<uintptr_t>(a.bytes.data()) % 16) % 16 +
                        (misaligned ? a.element() : 0);
    args.*a.at = {uint64_t(reinterpret_cast<uintptr_t>(a.bytes.data() + skip)), 0};
    return skip;
  };
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (Array& a : inputs) {
    const size_t skip = give(a) / a.element();
    const bool tau = a.at == &tandem_args::tau;
    for (size_t i = 0; i < a.count; ++i)
      a.set(skip + i, tau ? -0.9f + 0.5f * float(i) : uniform(random));
  }
  std::vector<size_t> skips;
  for (Array& a : outputs) skips.push_back(give(a));
  std::vector<int> lengths_q, lengths_kv;
  const auto lengths = [&](uint32_t kind, int64_t total, std::vector<int>* list) {
    for (int64_t b = 0; b <= p.batch; ++b)
      list->push_back(int(kind == TANDEM_LENGTHS_PACKED ? total * b / p.batch : 20 + 31 * b));
    return tandem_buffer{uint64_t(reinterpret_cast<uintptr_t>(list->data())), 0};
  };
  if (p.lengths_q) args.lengths_q = lengths(p.lengths_q, p.total_q, &lengths_q);
  if (p.lengths_kv) args.lengths_kv = lengths(p.lengths_kv, p.total_kv, &lengths_kv);
  if (window == 0) args.dist_bias = args.d_dist_bias = {0, 0};
  if (!p.sink) args.sink = {0, 0};

  Result result;
  const uint32_t gradients = p.gradients;
  for (tandem_direction direction : {TANDEM_FORWARD, TANDEM_BACKWARD}) {
    p.direction = direction;
    p.gradients = direction == TANDEM_BACKWARD ? gradients : 0;
    tandem_plan* plan = nullptr;
    CHECK(tandem_plan_create(device, &p, &plan) == TANDEM_OK, "plan");
    if (!plan) return result;
    std::string text(size_t(8192), '\0');
    tandem_explain(device, &p, &text[0], text.size());
    result.plan += text.c_str();
    tandem_plan_info info = {};
    info.struct_size = sizeof(info);
    CHECK(tandem_plan_get_info(plan, &info) == TANDEM_OK, "info");
    std::vector<unsigned char> workspace(size_t(info.workspace_size) + 512, 0xff);
    const size_t skip = 256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256;
    args.workspace = {uint64_t(reinterpret_cast<uintptr_t>(workspace.data() + skip)), 0};
    args.workspace_size = info.workspace_size;
    CHECK(tandem_execute(plan, {0}, &args) == TANDEM_OK, "execute");
    for (size_t n = skip + size_t(info.workspace_size); n < workspace.size(); ++n)
      CHECK(workspace[n] == 0xff, "a write behind the workspace");
    tandem_plan_destroy(plan);
  }
  for (size_t n = 0; n < outputs.size(); ++n) {
    Array& a = outputs[n];
    a.bytes.erase(a.bytes.begin(), a.bytes.begin() + std::ptrdiff_t(skips[n]));
    for (size_t i = a.count * a.element(); i < a.bytes.size(); ++i)
      CHECK(a.bytes[i] == 0xff, "a write behind %s", a.name);
  }
  result.outputs = std::move(outputs);
  return result;
}

// The largest difference relative to the largest number; NaN as infinity.
double distance(const Array& x, const Array& truth) {
  double scale = 1e-3, error = 0;
  for (size_t i = 0; i < x.count; ++i) {
    const double a = double(x.get(i)), t = double(truth.get(i));
    if (a == t || (a != a && t != t)) continue;
    scale = std::max(scale, std::fabs(t));
    const double e = std::fabs(a - t);
    error = e <= error ? error : (e == e ? e : INFINITY);
  }
  return error / scale;
}

struct Case {
  const char* line;
  bool misaligned;
  const char* runs;  // stems of the backward that must be among those of the plan
};
constexpr Case kCases[] = {
    {"bwd f32 b1 hq2 hk2 sq200 sk200 d64 dv64 causal_top_left elastic dist=100 grads=qkvdt", false,
     "bwd_row_sums_dq bwd_dkv_dist bwd_sum_splits bwd_head_sums"},
    {"bwd bf16 b2 hq2 hk1 sq130 sk150 d64 dv64 causal_bottom_right elastic dist=70 grads=qkvdt",
     false, "bwd_row_sums_dq bwd_dkv_dist bwd_sum_splits bwd_head_sums"},
    {"bwd f16 b1 hq2 hk1 sq140 sk130 d128 dv96 elastic dist=300 grads=qkvdt", false,
     "bwd_row_sums_dq bwd_dkv_dist bwd_sum_splits bwd_head_sums"},
    {"bwd f32 b1 hq2 hk1 sq70 sk130 d60 dv64 left=40 right=20 elastic dist=9 grads=qkvdt", true,
     "bwd_row_sums_dq bwd_dkv_dist bwd_sum_splits bwd_head_sums"},
    {"bwd f16 b1 hq1 hk1 sq70 sk65 d256 dv200 causal_top_left elastic dist=33 grads=qkvdt", false,
     "bwd_row_sums_dq bwd_dkv_dist bwd_sum_splits bwd_head_sums"},
    {"bwd bf16 b1 hq4 hk2 sq64 sk64 d64 dv64 tile=64x64 elastic dist=64 sink grads=qkvdt", false,
     "bwd_row_sums_dq bwd_dkv_dist bwd_head_sums"},
    {"bwd bf16 b3 hq2 hk1 sq100 sk90 d64 dv64 causal_bottom_right q_padded kv_padded elastic "
     "dist=40 grads=qkvdt",
     false, "bwd_row_sums_dq bwd_dkv_dist bwd_sum_splits bwd_head_sums"},
    {"bwd f32 b3 hq2 hk1 sq100 sk90 d64 dv64 causal_top_left q_packed=210 kv_packed=180 elastic "
     "dist=40 grads=qkvdt",
     false, "bwd_row_sums_dq bwd_dkv_dist bwd_sum_splits bwd_head_sums"},
    // Without a distance bias, with too long a one, and some gradients only.
    {"bwd f32 b1 hq2 hk1 sq130 sk130 d64 dv64 causal_top_left elastic grads=qkvt", false,
     "bwd_row_sums_dq bwd_dkv_dist bwd_head_sums"},
    {"bwd bf16 b1 hq1 hk1 sq130 sk130 d64 dv64 causal_top_left elastic dist=1025 grads=qkvdt",
     false, "bwd_row_sums_dq bwd_dkv_dist bwd_dist_bias bwd_head_sums"},
    {"bwd f32 b1 hq1 hk1 sq130 sk140 d64 dv64 elastic dist=70 grads=kd", false,
     "bwd_row_sums bwd_dkv_dist bwd_sum_splits"},
    {"bwd f32 b1 hq1 hk1 sq130 sk140 d64 dv64 elastic dist=70 grads=qvd", false,
     "bwd_row_sums_dq bwd_dkv bwd_dist_bias"},
};

void check(tandem_device* fixed, tandem_device* general, tandem_device* cpu, const Case& c) {
  tandem_problem problem;
  CHECK(tandem_problem_parse(c.line, &problem) == TANDEM_OK, "%s", c.line);
  Result first;
  for (simt::Order order : {simt::Order::forward, simt::Order::shuffled}) {
    simt::settings().order = order;
    Result mine = run(fixed, problem, c.misaligned);
    if (order == simt::Order::forward) {
      first = std::move(mine);
      continue;
    }
    for (size_t n = 0; n < first.outputs.size(); ++n)
      CHECK(mine.outputs[n].bytes == first.outputs[n].bytes, "%s: %s in another order", c.line,
            first.outputs[n].name);
  }
  simt::settings().order = simt::Order::forward;
  CHECK(first.plan.find(", of cuda.simt.elastic") != std::string::npos, "%s", c.line);
  std::string runs = c.runs;
  while (!runs.empty()) {
    const size_t n = runs.find(' ');
    const std::string stem = "\n  " + runs.substr(0, n) + " ";
    CHECK(first.plan.find(stem) != std::string::npos, "%s: no%s in\n%s", c.line, stem.c_str(),
          first.plan.c_str());
    runs.erase(0, n == std::string::npos ? n : n + 1);
  }
  const Result second = run(general, problem, c.misaligned), truth = run(cpu, problem, false);
  CHECK(second.plan.find(", of cuda.simt.elastic") == std::string::npos, "%s", c.line);
  if (first.outputs.empty() || second.outputs.empty() || truth.outputs.empty()) return;
  for (size_t n = 0; n < first.outputs.size(); ++n) {
    const Array &a = first.outputs[n], &b = second.outputs[n], &t = truth.outputs[n];
    const double limit = a.dtype == TANDEM_F32 ? 1e-5 : a.dtype == TANDEM_F16 ? 3e-3 : 2e-2;
    const bool summed = a.at == &tandem_args::d_q || a.at == &tandem_args::d_dist_bias;
    if (!summed)
      CHECK(a.bytes == b.bytes, "%s: %s is not the same, %g", c.line, a.name, distance(a, b));
    CHECK(distance(a, b) < limit, "%s: %s, %g", c.line, a.name, distance(a, b));
    CHECK(distance(a, t) < limit, "%s: %s of the reference, %g", c.line, a.name, distance(a, t));
  }
}

}  // namespace

int main() {
  tandem_device *fixed = nullptr, *general = nullptr, *cpu = nullptr;
  tandem_device_options with = TANDEM_DEVICE_OPTIONS_INIT, without = TANDEM_DEVICE_OPTIONS_INIT;
  with.disable = "cuda.sm80";
  without.disable = "cuda.sm80,cuda.simt.elastic";
  CHECK(tandem_cuda_device_create(0, &with, &fixed) == TANDEM_OK, "cuda");
  CHECK(tandem_cuda_device_create(0, &without, &general) == TANDEM_OK, "cuda without");
  CHECK(tandem_cpu_device_create(nullptr, &cpu) == TANDEM_OK, "cpu");
  if (!fixed || !general || !cpu) return 1;
  for (const Case& c : kCases) check(fixed, general, cpu, c);
  for (tandem_device* d : {fixed, general, cpu}) tandem_device_destroy(d);
  std::printf("%d failures, %llu emulated blocks\n", failures, simt::settings().blocks_run);
  return failures || simt::settings().blocks_run == 0;
}
