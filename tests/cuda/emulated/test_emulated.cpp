// SPDX-License-Identifier: MIT OR Apache-2.0
// The CUDA backend without a GPU: planner, parameters, device and kernels are the real sources, on
// top of the emulator in this folder. Every problem is compared with plain loops in double, and
// runs in three thread orders that must give the same bits.
#include <cstdio>
#include <string>

#include "check.h"
#include "include/cuda_runtime.h"
#include "tandem/tandem.h"
#include "tandem/tandem_cuda.h"

namespace {

struct Dims {
  int64_t n[4];
};

// A tensor in its own dtype and strides with a guard around it, and the same values as doubles.
struct Tensor {
  Dims dims{};
  tandem_tensor layout{};
  std::vector<unsigned char> bytes;
  std::vector<double> values;  // dense, in logical order
  size_t base = 0;

  size_t element() const { return layout.dtype == TANDEM_F32 ? 4 : 2; }
  unsigned char* data() { return bytes.data() + base; }
  template <typename Visit>
  void each(const Visit& visit) {
    size_t at = 0;
    for (int64_t b = 0; b < dims.n[0]; ++b)
      for (int64_t h = 0; h < dims.n[1]; ++h)
        for (int64_t s = 0; s < dims.n[2]; ++s)
          for (int64_t d = 0; d < dims.n[3]; ++d)
            visit(at++, data() + element() * size_t(b * layout.stride[0] + h * layout.stride[1] +
                                                    s * layout.stride[2] + d * layout.stride[3]));
  }
  double read(const unsigned char* p) const {
    unsigned u = 0;
    std::memcpy(&u, p, element());
    if (layout.dtype == TANDEM_F32) return __uint_as_float(u);
    if (layout.dtype == TANDEM_F16) return __half2float(__ushort_as_half((unsigned short)u));
    return __uint_as_float(u << 16);
  }
  void write(unsigned char* p, float x) const {
    unsigned u = __float_as_uint(x);
    if (layout.dtype == TANDEM_F16) u = __half_as_ushort(__float2half_rn(x));
    if (layout.dtype == TANDEM_BF16) u = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    std::memcpy(p, &u, element());
  }
  // misalign: elements by which the base is off its 16-byte boundary.
  void make(Dims d, const tandem_tensor& l, int misalign) {
    dims = d, layout = l;
    int64_t last = 0, count = 1;
    for (int i = 0; i < 4; ++i) last += (d.n[i] - 1) * l.stride[i], count *= d.n[i];
    values.assign(size_t(count), 0);
    bytes.assign(count ? size_t(last + 1) * element() + 512 : 512, 0xff);  // NaN in all dtypes
    base = 256 - reinterpret_cast<uintptr_t>(bytes.data()) % 16 + size_t(misalign) * element();
  }
  void fill(std::minstd_rand& random) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    each([&](size_t i, unsigned char* p) {
      write(p, uniform(random));
      values[i] = read(p);
    });
  }
  void fetch() {
    each([&](size_t i, unsigned char* p) { values[i] = read(p); });
  }
  double& at(int64_t b, int64_t h, int64_t s, int64_t d) {
    return values[size_t(((b * dims.n[1] + h) * dims.n[2] + s) * dims.n[3] + d)];
  }
};

// Whatever the kernels had no business to write is still 0xff.
bool only_elements_written(Tensor t) {
  t.each([&](size_t, unsigned char* p) { std::memset(p, 0xff, t.element()); });
  for (unsigned char c : t.bytes)
    if (c != 0xff) return false;
  return true;
}

enum class Layout { as_is, gaps, odd };

struct Run {
  tandem_problem problem;
  Tensor q, k, v, o, d_o, d_q, d_k, d_v;
  std::vector<float> lse;
  std::vector<unsigned char> workspace;
  std::vector<cudaEvent_t> events;  // given: executes are timed by them
  uint32_t kernels = 0;             // of the last timed one

  bool visible(int64_t i, int64_t j) const {
    const tandem_problem& p = problem;
    const int64_t off = p.align == TANDEM_BOTTOM_RIGHT ? p.seq_kv - p.seq_q : 0;
    if (p.mask == TANDEM_MASK_CAUSAL && j > i + off) return false;
    if (p.window_left != TANDEM_UNBOUNDED && j < i + off - p.window_left) return false;
    return p.window_right == TANDEM_UNBOUNDED || j <= i + off + p.window_right;
  }

  void make(Layout l) {
    tandem_problem& p = problem;
    std::minstd_rand random(7);
    struct Row {
      Tensor* tensor;
      tandem_tensor tandem_problem::*layout;
      bool kv, value, input;
    };
    const Row rows[] = {{&q, &tandem_problem::q, false, false, true},
                        {&k, &tandem_problem::k, true, false, true},
                        {&v, &tandem_problem::v, true, true, true},
                        {&o, &tandem_problem::o, false, true, false},
                        {&d_o, &tandem_problem::d_o, false, true, true},
                        {&d_q, &tandem_problem::d_q, false, false, false},
                        {&d_k, &tandem_problem::d_k, true, false, false},
                        {&d_v, &tandem_problem::d_v, true, true, false}};
    for (const Row& row : rows) {
      const Dims dims = {{p.batch, row.kv ? p.heads_kv : p.heads_q, row.kv ? p.seq_kv : p.seq_q,
                          row.value ? p.head_dim_v : p.head_dim}};
      tandem_tensor& t = p.*row.layout;
      if (l != Layout::as_is) {
        // gaps keeps 4-element accesses possible; odd allows none.
        const int64_t d = l == Layout::odd ? 2 : 1, gap = l == Layout::odd ? 3 : 4;
        t.stride[3] = d;
        t.stride[2] = (dims.n[3] * d + 3) / 4 * 4 + gap;
        t.stride[1] = dims.n[2] * t.stride[2] + gap;
        t.stride[0] = dims.n[1] * t.stride[1] + gap;
      }
      row.tensor->make(dims, t, l == Layout::odd ? 1 : 0);
      if (row.input) row.tensor->fill(random);
    }
    lse.assign(size_t(p.batch * p.heads_q * p.seq_q) + 1, std::nanf(""));
  }

  // Runs one direction; false: the library refused.
  bool execute(tandem_device* device, tandem_direction direction) {
    tandem_problem p = problem;
    p.direction = direction;
    tandem_plan* plan = nullptr;
    if (tandem_plan_create(device, &p, &plan) != TANDEM_OK) return false;
    tandem_plan_info info = {};
    info.struct_size = sizeof(info);
    if (tandem_plan_get_info(plan, &info) != TANDEM_OK) return false;
    tandem_args args = TANDEM_ARGS_INIT;
    args.q = tandem_cuda_buffer(q.data());
    args.k = tandem_cuda_buffer(k.data());
    args.v = tandem_cuda_buffer(v.data());
    args.o = tandem_cuda_buffer(o.data());
    args.lse = tandem_cuda_buffer(lse.data());
    if (direction == TANDEM_BACKWARD) {
      args.d_o = tandem_cuda_buffer(d_o.data());
      if (p.gradients & TANDEM_GRAD_Q) args.d_q = tandem_cuda_buffer(d_q.data());
      if (p.gradients & TANDEM_GRAD_K) args.d_k = tandem_cuda_buffer(d_k.data());
      if (p.gradients & TANDEM_GRAD_V) args.d_v = tandem_cuda_buffer(d_v.data());
    }
    workspace.assign(size_t(info.workspace_size) + 512, 0xff);
    unsigned char* aligned =
        workspace.data() + 256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256;
    args.workspace = tandem_cuda_buffer(aligned);
    args.workspace_size = info.workspace_size;
    tandem_status status = TANDEM_OK;
    if (events.empty()) {
      status = tandem_execute(plan, tandem_cuda_stream(nullptr), &args);
    } else {
      kernels = info.kernel_count;
      status =
          tandem_cuda_execute_timed(plan, nullptr, &args, events.data(), uint32_t(events.size()));
    }
    tandem_plan_destroy(plan);
    for (Tensor* t : {&o, &d_q, &d_k, &d_v}) t->fetch();
    return status == TANDEM_OK;
  }

  // |x - truth| relative to the largest truth, NaN as infinity.
  static double distance(const std::vector<double>& x, const std::vector<double>& truth) {
    double scale = 1e-3, error = 0;
    for (double t : truth) scale = std::max(scale, std::fabs(t));
    for (size_t i = 0; i < x.size(); ++i) {
      const double e = x[i] == truth[i] ? 0 : std::fabs(x[i] - truth[i]);
      error = e <= error ? error : (e == e ? e : INFINITY);
    }
    return error / scale;
  }

  void compare(const std::string& name) {
    const tandem_problem& p = problem;
    const double scale = p.scale == p.scale ? p.scale : 1 / std::sqrt(double(p.head_dim));
    const int64_t group = p.heads_kv ? p.heads_q / p.heads_kv : 1;
    std::vector<double> lses(lse.begin(), lse.end() - 1), true_lse(lses.size());
    Tensor to = o, tq = d_q, tk = d_k, tv = d_v;
    for (Tensor* t : {&to, &tq, &tk, &tv}) std::fill(t->values.begin(), t->values.end(), 0.0);
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.heads_q; ++h)
        for (int64_t i = 0; i < p.seq_q; ++i) {
          const int64_t hk = h / group;
          std::vector<double> s(size_t(p.seq_kv), -INFINITY), ds(size_t(p.seq_kv), 0);
          double top = -INFINITY, sum = 0, delta = 0;
          for (int64_t j = 0; j < p.seq_kv; ++j) {
            if (!visible(i, j)) continue;
            double dot = 0;
            for (int64_t d = 0; d < p.head_dim; ++d) dot += q.at(b, h, i, d) * k.at(b, hk, j, d);
            s[size_t(j)] = dot * scale;
            top = std::max(top, s[size_t(j)]);
          }
          if (top > -INFINITY)
            for (double x : s) sum += std::exp(x - top);
          const double l = top + std::log(sum);
          true_lse[size_t((b * p.heads_q + h) * p.seq_q + i)] = sum > 0 ? l : -INFINITY;
          if (sum == 0) continue;
          for (int64_t j = 0; j < p.seq_kv; ++j)
            for (int64_t d = 0; d < p.head_dim_v; ++d)
              to.at(b, h, i, d) += std::exp(s[size_t(j)] - l) * v.at(b, hk, j, d);
          for (int64_t d = 0; d < p.head_dim_v; ++d)
            delta += to.at(b, h, i, d) * d_o.at(b, h, i, d);
          for (int64_t j = 0; j < p.seq_kv; ++j) {
            const double weight = std::exp(s[size_t(j)] - l);
            double dp = 0;
            for (int64_t d = 0; d < p.head_dim_v; ++d) {
              dp += d_o.at(b, h, i, d) * v.at(b, hk, j, d);
              tv.at(b, hk, j, d) += weight * d_o.at(b, h, i, d);
            }
            const double dss = weight * (dp - delta) * scale;
            for (int64_t d = 0; d < p.head_dim; ++d) {
              tq.at(b, h, i, d) += dss * k.at(b, hk, j, d);
              tk.at(b, hk, j, d) += dss * q.at(b, h, i, d);
            }
          }
        }
    // Indices are what is tested here, so rounding gets room.
    const double limit = p.q.dtype == TANDEM_F32 ? 1e-5 : p.q.dtype == TANDEM_F16 ? 3e-3 : 2e-2;
    CHECK(distance(lses, true_lse) < 1e-5, "%s: lse %g", name.c_str(), distance(lses, true_lse));
    CHECK(lse.back() != lse.back(), "%s: a write behind lse", name.c_str());
    struct Row {
      const char* name;
      Tensor *mine, *truth;
      bool wanted;
    };
    const bool bwd = p.direction == TANDEM_BACKWARD;
    for (const Row& r :
         {Row{"o", &o, &to, true}, Row{"d_q", &d_q, &tq, bwd && p.gradients & TANDEM_GRAD_Q},
          Row{"d_k", &d_k, &tk, bwd && p.gradients & TANDEM_GRAD_K},
          Row{"d_v", &d_v, &tv, bwd && p.gradients & TANDEM_GRAD_V}}) {
      CHECK(only_elements_written(*r.mine), "%s: %s", name.c_str(), r.name);
      if (!r.wanted) {
        for (double x : r.mine->values) CHECK(x != x, "%s: %s not asked for", name.c_str(), r.name);
        continue;
      }
      const double error = distance(r.mine->values, r.truth->values);
      CHECK(error < limit, "%s: %s off by %g", name.c_str(), r.name, error);
    }
  }

  bool same_bits(const Run& other) const {
    return o.values.size() == other.o.values.size() && equal(o, other.o) && equal(d_q, other.d_q) &&
           equal(d_k, other.d_k) && equal(d_v, other.d_v) &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * 4) == 0;
  }
  static bool equal(const Tensor& a,
                    const Tensor& b) {  // by value and NaN by NaN; bases may differ
    for (size_t i = 0; i < a.values.size(); ++i)
      if (!(a.values[i] == b.values[i] ||
            (a.values[i] != a.values[i] && b.values[i] != b.values[i])))
        return false;
    return true;
  }
};

constexpr struct {
  const char* line;
  Layout layout;
} kProblems[] = {
    // Each tile, whole and ragged, and each accumulator width.
    {"bwd f32 b1 hq1 hk1 sq64 sk64 d64 dv64 tile=64x64", Layout::as_is},
    {"bwd f32 b1 hq1 hk1 sq130 sk197 d64 dv64", Layout::as_is},
    {"bwd f32 b2 hq2 hk1 sq70 sk65 d40 dv56", Layout::as_is},
    {"bwd f32 b1 hq1 hk1 sq65 sk129 d128 dv96", Layout::as_is},
    {"bwd f32 b1 hq1 hk1 sq65 sk70 d30 dv65", Layout::gaps},
    {"bwd f32 b1 hq1 hk1 sq33 sk40 d64 dv64 tile=32x32", Layout::as_is},
    {"bwd f32 b1 hq1 hk1 sq33 sk40 d100 dv128 tile=32x32", Layout::gaps},
    {"bwd f32 b1 hq1 hk1 sq35 sk65 d256 dv256", Layout::as_is},
    {"bwd f32 b1 hq1 hk1 sq35 sk65 d8 dv200", Layout::as_is},
    {"bwd f32 b1 hq1 hk1 sq35 sk65 d160 dv1", Layout::as_is},
    {"bwd f32 b1 hq1 hk1 sq1 sk1 d1 dv1", Layout::as_is},
    // Masks.
    {"bwd f32 b1 hq1 hk1 sq130 sk130 d64 dv64 causal_top_left", Layout::as_is},
    {"bwd f32 b1 hq2 hk1 sq70 sk150 d32 dv32 causal_bottom_right", Layout::as_is},
    {"bwd f32 b1 hq1 hk1 sq150 sk70 d32 dv32 causal_bottom_right", Layout::as_is},
    {"bwd f32 b1 hq1 hk1 sq150 sk140 d32 dv32 left=40 right=20", Layout::as_is},
    {"bwd f32 b1 hq3 hk3 sq150 sk40 d24 dv16 left=9 right=0 tile=32x32", Layout::gaps},
    // Element by element, and the other dtypes.
    {"bwd f32 b2 hq2 hk1 sq70 sk67 d36 dv20 causal_top_left", Layout::odd},
    {"bwd f16 b1 hq4 hk2 sq70 sk67 d64 dv64 causal_top_left", Layout::as_is},
    {"bwd f16 b1 hq2 hk2 sq66 sk35 d21 dv130", Layout::odd},
    {"bwd bf16 b1 hq2 hk1 sq70 sk67 d64 dv128 left=30", Layout::gaps},
    {"bwd bf16 b1 hq2 hk2 sq40 sk35 d9 dv7", Layout::odd},
    // Some gradients only.
    {"bwd f32 b1 hq2 hk1 sq130 sk70 d64 dv64 causal_top_left grads=q", Layout::as_is},
    {"bwd f32 b1 hq2 hk1 sq130 sk70 d64 dv64 causal_top_left grads=k", Layout::as_is},
    {"bwd f32 b1 hq2 hk1 sq130 sk70 d64 dv64 causal_top_left grads=v", Layout::as_is},
    {"bwd f32 b1 hq2 hk1 sq130 sk70 d64 dv64 grads=qv", Layout::as_is},
    // Keys that several workgroups share.
    {"bwd f32 b2 hq4 hk2 sq5 sk200 d64 dv40 causal_bottom_right splits=3", Layout::as_is},
    {"bwd f16 b1 hq2 hk1 sq70 sk130 d32 dv33 splits=9", Layout::odd},
    {"bwd f32 b1 hq2 hk1 sq40 sk20 d16 dv16 causal_bottom_right splits=2", Layout::gaps},
    // Nothing to see, nothing there.
    {"bwd f32 b1 hq2 hk1 sq130 sk0 d16 dv16", Layout::as_is},
    {"bwd f32 b1 hq2 hk1 sq0 sk70 d16 dv16", Layout::as_is},
    {"bwd f32 b1 hq0 hk2 sq5 sk70 d16 dv16", Layout::as_is},
};

void parity(tandem_device* device) {
  for (const auto& row : kProblems) {
    std::vector<Run> runs;
    for (simt::Order order : {simt::Order::forward, simt::Order::backward, simt::Order::shuffled}) {
      simt::settings().order = order;
      runs.emplace_back();
      Run& run = runs.back();
      const tandem_status parsed = tandem_problem_parse(row.line, &run.problem);
      CHECK(parsed == TANDEM_OK, "%s", row.line);
      if (parsed != TANDEM_OK) return;
      run.make(row.layout);
      CHECK(run.execute(device, TANDEM_FORWARD), "%s", row.line);
      CHECK(run.execute(device, TANDEM_BACKWARD), "%s", row.line);
      if (runs.size() == 1) run.compare(row.line);
      CHECK(run.same_bits(runs[0]), "%s: the order of threads matters", row.line);
    }
  }
}

// The caller's context and the runtime's last error are as they were, also after a failure.
void manners(tandem_device* device) {
  Run run;
  CHECK(tandem_problem_parse("fwd f32 b1 hq1 hk1 sq5 sk5 d8 dv8", &run.problem) == TANDEM_OK, "-");
  run.make(Layout::as_is);
  const CUcontext foreign = reinterpret_cast<CUcontext>(uintptr_t(42));
  simt::contexts() = {foreign};
  CHECK(run.execute(device, TANDEM_FORWARD), "with a foreign context current");
  CHECK(simt::contexts() == simt::Contexts{foreign}, "the context stack changed");
  const struct {
    cudaError_t error;
    tandem_status status;
  } rows[] = {{cudaErrorIllegalAddress, TANDEM_ERROR_DEVICE_LOST},
              {cudaErrorMemoryAllocation, TANDEM_ERROR_DEVICE_OUT_OF_MEMORY},
              {cudaErrorInvalidDeviceFunction, TANDEM_ERROR_BACKEND},
              {cudaErrorInvalidResourceHandle, TANDEM_ERROR_INVALID_ARGUMENT}};
  for (const auto& row : rows) {
    tandem_plan* plan = nullptr;
    CHECK(tandem_plan_create(device, &run.problem, &plan) == TANDEM_OK, "-");
    tandem_args args = TANDEM_ARGS_INIT;
    args.q = args.k = args.v = tandem_cuda_buffer(run.q.data());
    args.o = tandem_cuda_buffer(run.o.data());
    simt::next_launch() = row.error;
    CHECK(tandem_execute(plan, tandem_cuda_stream(nullptr), &args) == row.status, "error %d",
          int(row.error));
    CHECK(simt::last_error() == cudaSuccess, "an error was left behind");
    CHECK(simt::contexts() == simt::Contexts{foreign}, "the context stack changed");
    tandem_plan_destroy(plan);
  }
  simt::contexts().clear();
}

// A context of the caller's own, by a desc.
void own_context(tandem_device* primary) {
  const CUcontext own = reinterpret_cast<CUcontext>(uintptr_t(43));
  tandem_device* device = nullptr;
  tandem_cuda_device_desc desc = TANDEM_CUDA_DEVICE_DESC_INIT;
  const auto status = [&] { return tandem_cuda_device_create_with(&desc, nullptr, &device); };
  CHECK(tandem_cuda_device_create_with(nullptr, nullptr, &device) == TANDEM_ERROR_INVALID_ARGUMENT,
        "no desc");
  CHECK(status() == TANDEM_ERROR_INVALID_ARGUMENT, "neither ordinal nor context");
  desc.context = reinterpret_cast<CUcontext>(uintptr_t(1000));
  desc.ordinal = 0;
  CHECK(status() == TANDEM_ERROR_INVALID_ARGUMENT, "a context of another GPU");
  desc.ordinal = 7;
  CHECK(status() == TANDEM_ERROR_NO_DEVICE, "ordinal 7");
  desc.context = own;
  desc.struct_size = 8;
  CHECK(status() == TANDEM_ERROR_INVALID_STRUCT, "struct_size");
  desc.struct_size = sizeof(desc);
  desc.ordinal = -1;
  desc.next = &desc;
  CHECK(status() == TANDEM_ERROR_INVALID_STRUCT, "next");
  desc.next = nullptr;
  CHECK(device == nullptr && simt::contexts().empty(), "after failures");
  CHECK(status() == TANDEM_OK, "%s", tandem_last_message());
  CHECK(simt::contexts().empty() && simt::retained() == 1, "the primary context was retained");

  Run run;
  const char* line = "bwd f32 b1 hq1 hk1 sq5 sk5 d8 dv8";
  CHECK(tandem_problem_parse(line, &run.problem) == TANDEM_OK, "-");
  run.make(Layout::as_is);
  simt::launches_in() = own;
  CHECK(run.execute(device, TANDEM_FORWARD), "in the caller's context");
  CHECK(run.execute(device, TANDEM_BACKWARD), "in the caller's context");
  run.compare(line);
  CHECK(!run.execute(primary, TANDEM_FORWARD), "a launch in the primary context was not noticed");
  CHECK(simt::contexts().empty(), "the context stack changed");
  tandem_device_destroy(device);
  simt::launches_in() = nullptr;
}

// An event before the first kernel and one behind each.
void timed(tandem_device* device) {
  Run run;
  CHECK(tandem_problem_parse("bwd f32 b1 hq2 hk1 sq40 sk40 d8 dv8", &run.problem) == TANDEM_OK,
        "-");
  run.make(Layout::as_is);
  CHECK(run.execute(device, TANDEM_FORWARD), "-");
  const auto never = std::chrono::steady_clock::time_point();
  std::vector<CUevent_st> events(8, CUevent_st{never});
  for (CUevent_st& e : events) run.events.push_back(&e);
  CHECK(run.execute(device, TANDEM_BACKWARD), "timed: %s", tandem_last_message());
  run.compare("timed");
  CHECK(run.kernels > 1 && run.kernels + 1 < events.size(), "%u kernels", run.kernels);
  for (uint32_t i = 0; i < events.size(); ++i)
    if (i > run.kernels)
      CHECK(events[i].at == never, "event %u was recorded", i);
    else
      CHECK(events[i].at > (i == 0 ? never : events[i - 1].at), "event %u", i);
  run.events.resize(run.kernels);
  CHECK(!run.execute(device, TANDEM_BACKWARD), "one event too few");
  run.events.push_back(nullptr);
  CHECK(!run.execute(device, TANDEM_BACKWARD), "no event");

  tandem_device* cpu = nullptr;
  CHECK(tandem_cpu_device_create(nullptr, &cpu) == TANDEM_OK, "-");
  run.events.assign(8, &events[0]);
  CHECK(!run.execute(cpu, TANDEM_FORWARD), "a plan of the CPU");
  CHECK(std::strstr(tandem_last_message(), "cpu"), "%s", tandem_last_message());
  tandem_device_destroy(cpu);
}

}  // namespace

int main() {
  tandem_device* device = nullptr;
  CHECK(tandem_cuda_device_create(1, nullptr, &device) == TANDEM_ERROR_NO_DEVICE, "ordinal 1");
  CHECK(tandem_cuda_device_create(-1, nullptr, &device) == TANDEM_ERROR_NO_DEVICE, "ordinal -1");
  CHECK(tandem_cuda_device_create(0, nullptr, &device) == TANDEM_OK, "ordinal 0");
  if (!device) return 1;
  CHECK(simt::contexts().empty() && simt::retained() == 1, "after opening");
  parity(device);
  manners(device);
  own_context(device);
  timed(device);
  tandem_device_destroy(device);
  CHECK(simt::retained() == 0, "the primary context was not released");
  std::printf("%d failures, %llu emulated blocks\n", failures, simt::settings().blocks_run);
  return failures || simt::settings().blocks_run == 0;
}
