// SPDX-License-Identifier: MIT OR Apache-2.0
// Lengths and offsets that no caller should give, on the CPU device, with every tensor in memory of
// exactly its size. Built by scripts/test once more with AddressSanitizer, which is what looks for
// a step outside. Where no two sequences share a row, o is compared with one formed here from the
// rule in tandem.h.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace {

constexpr int64_t kHeads = 2, kWidth = 4;  // of queries, keys and values

struct Axis {
  bool packed = true;
  int64_t longest = 0, total = 0;
  std::vector<int32_t> given;    // [B], or [B+1] offsets
  std::vector<int32_t> offsets;  // [B] of gapped rows, whose `given` are lengths; else none

  int64_t rows() const { return packed ? total : longest; }
  // The rule: an offset counts as the nearest number from 0 to total, a length as that from 0 to
  // longest.
  int64_t first(int64_t b) const {
    if (!offsets.empty()) return std::clamp<int64_t>(offsets[size_t(b)], 0, total);
    return packed ? std::clamp<int64_t>(given[size_t(b)], 0, total) : 0;
  }
  int64_t length(int64_t b) const {
    if (!packed) return std::clamp<int64_t>(given[size_t(b)], 0, longest);
    if (!offsets.empty())
      return std::clamp<int64_t>(given[size_t(b)], 0, std::min(longest, total - first(b)));
    return std::clamp<int64_t>(first(b + 1) - first(b), 0, longest);
  }
  bool shares(int64_t batch) const {
    std::vector<int> owners(size_t(rows()), 0);
    for (int64_t b = 0; packed && b < batch; ++b)
      for (int64_t i = 0; i < length(b); ++i)
        if (owners[size_t(first(b) + i)]++) return true;
    return false;
  }
};

class Tensors {
 public:
  float* add(tandem_buffer* buffer, size_t count, bool filled) {
    all_.emplace_back(
        static_cast<float*>(::operator new[](count * sizeof(float), std::align_val_t(kAlignment))));
    float* x = all_.back().get();
    for (size_t n = 0; n < count; ++n)
      x[n] = filled ? float(int(n * 2654435761u >> 7) % 17 - 8) / 8
                    : std::numeric_limits<float>::quiet_NaN();
    *buffer = {uint64_t(uintptr_t(x)), 0};
    return x;
  }

 private:
  static constexpr size_t kAlignment = 256;  // of a workspace
  struct Delete {
    void operator()(float* x) const { ::operator delete[](x, std::align_val_t(kAlignment)); }
  };
  std::vector<std::unique_ptr<float, Delete>> all_;
};

// o of row i of entry b: the mean of v by softmax. The problem has no mask, and its scale is 1.
std::vector<double> expected(const float* q, const float* k, const float* v, int64_t keys) {
  std::vector<double> scores, o(size_t(kWidth), 0);
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    double s = 0;
    for (int64_t c = 0; c < kWidth; ++c) s += double(q[c]) * double(k[j * kWidth + c]);
    scores.push_back(s);
    top = std::max(top, s);
  }
  for (double& s : scores) sum += s = std::exp(s - top);
  for (int64_t j = 0; j < keys; ++j)
    for (int64_t c = 0; c < kWidth; ++c)
      o[size_t(c)] += scores[size_t(j)] / sum * double(v[j * kWidth + c]);
  return o;
}

struct Run {
  tandem_device* device;
  int64_t batch;
  Axis q, kv;

  std::string line(bool backward) const {
    std::string text = (backward ? "bwd f32 b" : "fwd f32 b") + std::to_string(batch) +
                       " hq2 hk2 sq" + std::to_string(q.longest) + " sk" +
                       std::to_string(kv.longest) + " d4 dv4 scale=1";
    const auto add = [&](const char* name, const Axis& of) {
      text += std::string(" ") + name;
      text += !of.packed ? "_padded" : of.offsets.empty() ? "_packed=" : "_gapped=";
      if (of.packed) text += std::to_string(of.total);
    };
    add("q", q);
    add("kv", kv);
    return text;
  }

  void operator()() const {
    Tensors tensors;
    tandem_args args = TANDEM_ARGS_INIT;
    const auto count = [&](const Axis& of) {
      return size_t((of.packed ? 1 : batch) * kHeads * of.rows() * kWidth);
    };
    const float* x = tensors.add(&args.q, count(q), true);
    const float* y = tensors.add(&args.k, count(kv), true);
    const float* z = tensors.add(&args.v, count(kv), true);
    tensors.add(&args.d_o, count(q), true);
    const float* o = tensors.add(&args.o, count(q), false);
    const float* lse = tensors.add(&args.lse, size_t(batch * kHeads * q.longest), false);
    tensors.add(&args.d_q, count(q), false);
    tensors.add(&args.d_k, count(kv), false);
    tensors.add(&args.d_v, count(kv), false);
    const std::vector<int32_t> given_q = q.given, given_kv = kv.given;
    const std::vector<int32_t> offsets_q = q.offsets, offsets_kv = kv.offsets;
    args.offsets_q = {uint64_t(uintptr_t(offsets_q.data())), 0};
    args.offsets_kv = {uint64_t(uintptr_t(offsets_kv.data())), 0};
    args.lengths_q = {uint64_t(uintptr_t(given_q.data())), 0};
    args.lengths_kv = {uint64_t(uintptr_t(given_kv.data())), 0};
    for (bool backward : {false, true}) {
      tandem_problem problem;
      REQUIRE(tandem_problem_parse(line(backward).c_str(), &problem) == TANDEM_OK);
      tandem_plan* plan = nullptr;
      REQUIRE(tandem_plan_create(device, &problem, &plan) == TANDEM_OK);
      tandem_plan_info info;
      info.struct_size = sizeof(info);
      REQUIRE(tandem_plan_get_info(plan, &info) == TANDEM_OK);
      tensors.add(&args.workspace, size_t(info.workspace_size / 4), false);
      args.workspace_size = info.workspace_size;
      if (info.workspace_size == 0) args.workspace = {0, 0};
      CHECK_MESSAGE(tandem_execute(plan, {0}, &args) == TANDEM_OK, line(backward));
      tandem_plan_destroy(plan);
    }
    if (q.shares(batch) || kv.shares(batch)) return;

    std::vector<bool> written(count(q));
    int64_t wrong = 0;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t i = 0; i < q.longest; ++i) {
          const auto row = [&](const Axis& of, int64_t n) {
            return (((of.packed ? 0 : b) * kHeads + h) * of.rows() + of.first(b) + n) * kWidth;
          };
          const bool sees = i < q.length(b) && kv.length(b) > 0;
          wrong += std::isinf(lse[(b * kHeads + h) * q.longest + i]) == sees;
          if (q.packed && i >= q.length(b)) continue;
          std::vector<double> want(size_t(kWidth), 0);
          if (sees) want = expected(x + row(q, i), y + row(kv, 0), z + row(kv, 0), kv.length(b));
          for (int64_t c = 0; c < kWidth; ++c) {
            wrong += !(std::fabs(double(o[row(q, i) + c]) - want[size_t(c)]) < 1e-5);
            written[size_t(row(q, i) + c)] = true;
          }
        }
    // What belongs to no sequence is as it was.
    for (size_t n = 0; n < written.size(); ++n) wrong += !written[n] && !std::isnan(o[n]);
    CHECK_MESSAGE(wrong == 0, line(false));
  }
};

struct Device {
  tandem_device* device = nullptr;
  Device() {
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    options.threads = 4;
    REQUIRE(tandem_cpu_device_create(&options, &device) == TANDEM_OK);
  }
  ~Device() { tandem_device_destroy(device); }
};

}  // namespace

TEST_CASE("offsets beyond the total") {
  Device cpu;
  Run{cpu.device, 2, {true, 4, 6, {0, 3, 1000}, {}}, {true, 4, 6, {0, 3, 1000}, {}}}();
  Run{cpu.device, 2, {true, 4, 6, {-3, 3, 6}, {}}, {true, 4, 6, {0, 6, 3}, {}}}();
}

TEST_CASE("gapped entries of any order, and beyond the total") {
  Device cpu;
  Run{cpu.device, 3, {true, 4, 12, {2, 4, 1}, {9, 3, 0}}, {true, 5, 11, {3, 0, 5}, {8, 4, 0}}}();
  Run{cpu.device,
      3,
      {true, 4, 9, {1000, -3, 2}, {7, 1000, -1}},
      {true, 4, 9, {4, 4, 4}, {0, 4, 8}}}();
}

TEST_CASE("any numbers") {
  Device cpu;
  constexpr int32_t kLowest = std::numeric_limits<int32_t>::min(),
                    kHighest = std::numeric_limits<int32_t>::max();
  std::mt19937 random(31);
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  int apart = 0;
  for (int n = 0; n < 2000; ++n) {
    const int64_t batch = 1 + below(4);
    const bool ascends = below(2);
    Axis axes[2];
    for (Axis& of : axes) {
      of.packed = below(4) > 0;
      of.longest = below(7);
      of.total = of.packed ? below(batch * 6 + 3) : 0;
      const int32_t rows = int32_t(of.rows());
      const int32_t wild[] = {kLowest, kLowest + 1, -1000,        -1,      0,
                              rows,    rows + 1,    kHighest - 5, kHighest};
      const bool gapped = of.packed && below(2);
      const auto any = [&] { return below(2) ? wild[below(9)] : int32_t(below(rows + 1)); };
      for (int64_t b = 0; b < batch + (of.packed && !gapped); ++b) of.given.push_back(any());
      for (int64_t b = 0; gapped && b < batch; ++b) of.offsets.push_back(any());
      if (ascends && !gapped) std::sort(of.given.begin(), of.given.end());
    }
    apart += !axes[0].shares(batch) && !axes[1].shares(batch);
    Run{cpu.device, batch, axes[0], axes[1]}();
  }
  CHECK(apart > 700);
}
