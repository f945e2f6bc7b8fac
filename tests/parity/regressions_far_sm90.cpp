// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows whose lse is far from 0 (src/problem/far_row.h), in the backward of cuda.sm90: o and lse
// come from the reference, so that nothing depends on the forward. With v = d_o = 1 the sum of d_v
// is the sum of the weights of all rows.
#include <cmath>
#include <functional>
#include <limits>

#include "parity.h"

using namespace parity;

namespace {

using Fill = std::function<void(Case&)>;

void set_all(Case& test, Role role, double value) {
  HostTensor& t = test.input(role);
  t.set_dense(std::vector<double>(size_t(t.dims.count()), value));
}
void set_each(Case& test, Role role,
              const std::function<double(int64_t h, int64_t i, int64_t d)>& value) {
  HostTensor& t = test.input(role);
  for (int64_t b = 0; b < t.dims.b; ++b)
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t i = 0; i < t.dims.s; ++i)
        for (int64_t d = 0; d < t.dims.d; ++d) t.set(b, h, i, d, value(h, i, d));
}
// Every score x: the first feature of q and k, in each number's own type.
void set_scores(Case& test, double x) {
  const double scale = test.problem().scale == test.problem().scale
                           ? double(test.problem().scale)
                           : 1 / std::sqrt(double(test.problem().head_dim));
  const double size = std::sqrt(std::fabs(x) / scale);
  set_each(test, Role::q, [&](int64_t, int64_t, int64_t d) { return d == 0 ? size : 0; });
  set_each(test, Role::k,
           [&](int64_t, int64_t, int64_t d) { return d == 0 ? std::copysign(size, x) : 0; });
}

// Runs the backward of a target with o and lse of the reference. False: refused, or it failed.
bool backward(Target& target, Case& test, Outputs* outputs) {
  static const std::unique_ptr<Session> reference = Session::open("cpu/ref");
  Outputs given;
  const CaseResult forward = test.run(target.recorded ? *target.session : *reference, &given);
  const std::string where = target.name + ": " + repro(test.problem(), test.seed());
  REQUIRE_MESSAGE(forward.ok, where << "\n  " << forward.message);
  const tandem_problem& p = test.problem();
  Session& session = *target.session;
  try {
    const Plan plan(session, p);
    tandem_args args = TANDEM_ARGS_INIT;
    std::vector<Buffer> buffers;
    const auto add = [&](const void* bytes, size_t size) {
      buffers.push_back(session.buffer(size));
      if (bytes)
        buffers.back().upload(bytes, size);
      else
        buffers.back().fill(0xff);
      return buffers.back().handle();
    };
    for (Role role : kInputs)
      if (is_input(p, role))
        buffer_of(args, role) = add(test.input(role).bytes.data(), test.input(role).bytes.size());
    args.dropout_seed = test.dropout_seed, args.dropout_offset = test.dropout_offset;
    args.o = add(given.o.bytes.data(), given.o.bytes.size());
    args.lse = add(given.lse.data(), given.lse.size() * sizeof(float));
    *outputs = Outputs();
    outputs->o = given.o, outputs->lse = given.lse;
    std::vector<std::pair<Role, size_t>> written;
    for (Role role : kOutputs) {
      if (!is_output(p, role)) continue;
      outputs->tensor(role) = HostTensor(p, role);
      written.emplace_back(role, buffers.size());
      buffer_of(args, role) = add(nullptr, outputs->tensor(role).bytes.size());
    }
    args.workspace_size = plan.info().workspace_size;
    if (args.workspace_size > 0) args.workspace = add(nullptr, size_t(args.workspace_size));
    session.run(plan, args);
    for (const auto& output : written) {
      const Role role = output.first;
      HostTensor& t = outputs->tensor(role);
      buffers[output.second].download(t.bytes.data(), t.bytes.size());
      int bad = 0;
      for (double x : t.dense()) bad += !std::isfinite(x);
      CHECK_MESSAGE(bad == 0, where << "\n  " << role_name(role) << ": not finite: " << bad);
    }
    for (const Buffer& b : buffers) CHECK_MESSAGE(b.broken_guard().empty(), where);
    const tandem_plan_info& info = plan.info();
    count(std::vector<uint32_t>(info.kernels, info.kernels + info.kernel_count));
  } catch (const Error& e) {
    CHECK_MESSAGE(e.code() == TANDEM_ERROR_UNSUPPORTED, where << "\n  " << e.what());
    return false;
  }
  return true;
}

enum Judge { kFinite = 0, kSums = 1, kReference = 2 };

// weights: what those of a row sum to; judge: by sums of d_v, or by the reference, or both.
void check_far(const std::string& line, const Fill& fill, int judge, double weights = -1) {
  const tandem_problem p = parse(line);
  if (!mine(p)) return;
  for (Target& target : targets()) {
    if (target.path != "sm90") continue;
    Case test(p, seed_of(line.c_str()));
    if (judge & kSums) set_all(test, Role::v, 1), set_all(test, Role::d_o, 1);
    fill(test);
    Outputs outputs;
    if (!backward(target, test, &outputs)) continue;
    const std::string where = target.name + ": " + repro(p, test.seed());
    if (judge & kSums) {
      double sum = 0, rows = 0;
      for (double x : outputs.d_v.dense()) sum += x / double(p.head_dim_v);
      for (int64_t i = 0; i < p.seq_q; ++i) rows += visible(p, i).empty() ? 0 : 1;
      rows *= double(p.batch * p.heads_q) * (weights < 0 ? 1 : weights);
      CHECK_MESSAGE(std::fabs(sum - rows) <= 0.006 * rows,
                    where << "\n  sum of d_v " << sum << ", right is " << rows);
    }
    if (judge & kReference) {
      CaseResult result;
      result.ok = true;
      test.judge(outputs, &result);
      std::string what = result.message;
      for (const Judgement& j : result.judgements)
        if (!j.ok) what += "\n    " + j.tensor + ": " + j.where;
      CHECK_MESSAGE(result.ok, where << what);
    }
  }
}

constexpr double kLowestBf16 = -3.3895313892515355e38;
const double kFarBiases[] = {-1e4, -1e6, -1e7, -1e8, -1e9, -1e10, -1e20, kLowestBf16, 1e6, 1e10};

}  // namespace

TEST_CASE(
    "regression: far rows of a dense bias of one key (NaN, or weights that do not sum to 1)") {
  for (double bias : kFarBiases)
    for (const char* grads : {"qkv", "v"})
      check_far(
          "bwd bf16 b1 hq1 hk1 sq1 sk1 d64 dv64 bias:bf16:1x1x1 grads=" + std::string(grads),
          [&](Case& test) {
            set_all(test, Role::q, 0), set_all(test, Role::k, 0);
            set_all(test, Role::bias, bias);
          },
          kSums);
}

TEST_CASE("regression: far rows of a dense bias, all keys of some rows, in a head with others") {
  for (double bias : kFarBiases)
    for (const char* sizes : {"d64 dv64", "d96 dv96", "d128 dv128"})
      for (int zero : {0, 1}) {
        const auto rows = [&](Case& test) {
          set_each(test, Role::bias,
                   [&](int64_t, int64_t i, int64_t) { return i < 20 ? bias : double(i % 3); });
          if (zero)
            set_each(test, Role::d_o, [&](int64_t, int64_t i, int64_t d) {
              return i < 20 ? 0 : double((i + d) % 5) - 2;
            });
        };
        check_far("bwd bf16 b1 hq1 hk1 sq48 sk48 " + std::string(sizes) +
                      " causal_top_left bias:bf16:1x1x48 grads=qkvb d_bias:bf16",
                  rows, zero ? kFinite : kSums);
        if (sizes[1] == '9') continue;
        // Several tiles, and query heads of one head of keys.
        check_far("bwd bf16 b2 hq4 hk2 sq200 sk264 " + std::string(sizes) +
                      " causal_top_left bias:bf16:1x4x200 grads=qkvb d_bias:bf16",
                  rows, zero ? kFinite : kSums);
      }
  // Keys of minus infinity stay hidden among those of the lowest number.
  check_far(
      "bwd bf16 b1 hq2 hk2 sq40 sk80 d64 dv64 bias:bf16:1x2x40",
      [](Case& test) {
        set_each(test, Role::bias, [](int64_t, int64_t i, int64_t j) {
          return j % 3 == 1 ? -std::numeric_limits<double>::infinity()
                 : i % 2    ? kLowestBf16
                            : -1e10;
        });
      },
      kSums);
}

TEST_CASE("regression: far rows of a dense bias beside a mask") {
  for (double bias : {-1e10, kLowestBf16})
    for (const char* keep : {"keep:2x1x1", "keep:2x1x150"})
      for (const char* sizes : {"d32 dv32", "d128 dv128"})
        check_far(
            "bwd bf16 b2 hq2 hk1 sq150 sk200 " + std::string(sizes) +
                " bias:bf16:1x2x150 grads=qkvb d_bias:bf16 " + keep,
            [&](Case& test) {
              set_each(test, Role::keep,
                       [](int64_t, int64_t i, int64_t j) { return (i + j) % 3 != 1; });
              set_each(test, Role::bias, [&](int64_t, int64_t i, int64_t j) {
                return i < 40 || j % 2 ? bias : double(i % 3);
              });
            },
            kSums);
}

TEST_CASE("regression: far rows of left padding by finite numbers") {
  for (double bias : {-1e10, kLowestBf16})
    for (int d : {64, 128})
      check_far(
          "bwd bf16 b2 hq4 hk4 sq200 sk200 d" + std::to_string(d) + " dv" + std::to_string(d) +
              " bias:bf16:2x1x200 layout=bshd",
          [&](Case& test) {
            set_each(test, Role::bias,
                     [&](int64_t, int64_t i, int64_t j) { return j > i || j < 37 ? bias : 0; });
          },
          kSums);
}

TEST_CASE("regression: the lowest number in some rows, o and lse by another device") {
  check_far(
      "bwd bf16 b1 hq1 hk1 sq16 sk32 d64 dv64 bias:bf16:1x1x16",
      [](Case& test) {
        set_each(test, Role::bias,
                 [](int64_t, int64_t i, int64_t) { return i < 4 ? kLowestBf16 : 0; });
      },
      kSums);
}

TEST_CASE("regression: one key far above all others") {
  for (const char* dtype : {"bf16", "f16"})
    for (double score : {1e4, 1e6, 1e7, 1e8})
      for (const char* more :
           {"d128 dv128", "d64 dv64", "d96 dv96", "d192 dv128", "d256 dv256", "d128 dv128 grads=v",
            "d64 dv64 grads=q", "d64 dv64 causal_bottom_right kv_padded", "d128 dv128 q_padded"}) {
        const Fill fill = [&](Case& test) {
          const tandem_problem& p = test.problem();
          const double a = std::sqrt(score / std::sqrt(double(p.head_dim)));
          const auto sign = [](int64_t d) { return d * 7 % 3 == 1 ? 1.0 : -1.0; };
          set_each(test, Role::q, [&](int64_t, int64_t i, int64_t d) {
            return (1 + 0.37 * double(i % 12) / 12) * a * sign(d);
          });
          HostTensor& k = test.input(Role::k);
          for (int64_t h = 0; h < p.heads_kv; ++h)
            for (int64_t j = 0; j < p.seq_kv; ++j)
              for (int64_t d = 0; d < p.head_dim; ++d)
                k.set(0, h, j, d, j == 7 ? a * sign(d) : 0.1 * k.get(0, h, j, d));
          for (Role role : {Role::lengths_q, Role::lengths_kv})
            if (is_input(p, role))
              set_lengths_of(test, role == Role::lengths_kv, {role == Role::lengths_kv ? 40 : 12});
        };
        // f16 has no dS of these keys: what is left of dP - delta is rounded, times k.
        check_far("bwd " + std::string(dtype) + " b1 hq1 hk1 sq12 sk40 " + more, fill,
                  std::string(more).find("grads=q") != std::string::npos ? kFinite : kSums);
        if (std::string(more) == "d128 dv128")
          check_far("bwd " + std::string(dtype) + " b1 hq4 hk2 sq150 sk300 " + more, fill, kSums);
      }
}

TEST_CASE("regression: all scores far from 0 and equal") {
  for (double score : {-1e5, -1e7, -1e8, 1e5, 1e8})
    for (const char* line :
         {"bwd bf16 b1 hq2 hk1 sq70 sk150 d64 dv64", "bwd f16 b1 hq2 hk1 sq70 sk150 d128 dv128",
          "bwd bf16 b1 hq2 hk1 sq70 sk150 d256 dv256 causal_bottom_right",
          "bwd bf16 b1 hq2 hk1 sq70 sk150 d192 dv128",
          "bwd bf16 b1 hq2 hk1 sq70 sk150 d256 dv256 causal_bottom_right softcap=1e6",
          "bwd bf16 b1 hq2 hk1 sq70 sk150 d192 dv128 softcap=1e9",
          "bwd bf16 b1 hq2 hk2 sq70 sk150 d64 dv64 entmax=1.5 causal_bottom_right",
          "bwd bf16 b1 hq2 hk2 sq70 sk150 d128 dv128 entmax=1.5",
          "bwd f16 b1 hq2 hk2 sq70 sk150 d128 dv128 entmax=1.75",
          "bwd bf16 b1 hq2 hk1 sq70 sk150 d64 dv64 q_padded kv_padded",
          "bwd bf16 b1 hq2 hk1 sq70 sk150 d96 dv96 kv_padded softcap=1e6",
          "bwd bf16 b1 hq2 hk1 sq70 sk150 d128 dv128 kv_padded softcap=1e9 alibi",
          "bwd bf16 b1 hq2 hk1 sq70 sk150 d128 dv128 keep:1x1x70",
          "bwd bf16 b1 hq2 hk1 sq70 sk150 d64 dv64 keep:1x1x70 softcap=1e7 alibi dist=40"})
      check_far(
          line,
          [&](Case& test) {
            set_scores(test, score);
            const tandem_problem& p = test.problem();
            if (is_input(p, Role::lengths_q)) set_lengths_of(test, false, {p.seq_q});
            if (is_input(p, Role::lengths_kv)) set_lengths_of(test, true, {p.seq_kv});
            if (is_input(p, Role::keep))
              set_each(test, Role::keep,
                       [](int64_t, int64_t i, int64_t j) { return (i + j) % 3 ? 1 : 0; });
          },
          kSums);
}

TEST_CASE("regression: far rows by ALiBi and by a distance bias") {
  for (double size : {1e4, 1e6, 1e9}) {
    check_far(
        "bwd bf16 b1 hq2 hk2 sq90 sk40 d64 dv64 alibi grads=qkva",
        [&](Case& test) { set_all(test, Role::slope, size); }, kSums);
    check_far(
        "bwd bf16 b1 hq2 hk2 sq90 sk40 d64 dv64 alibi keep:1x1x90",
        [&](Case& test) {
          set_all(test, Role::slope, size);
          set_all(test, Role::keep, 1);
        },
        kSums);
    check_far(
        "bwd bf16 b1 hq2 hk2 sq90 sk90 d64 dv64 causal_top_left dist=90",
        [&](Case& test) { set_all(test, Role::dist_bias, -size); }, kSums);
  }
}

TEST_CASE("regression: far rows of elastic softmax") {
  for (double size : {1e4, 1e6, 1e9})
    for (const char* d : {"d64 dv64", "d128 dv128"})
      for (const char* dist : {"", " dist=90"}) {
        const std::string line =
            "bwd bf16 b1 hq2 hk2 sq90 sk90 " + std::string(d) + " causal_top_left elastic" + dist;
        check_far(
            line + " grads=qkvt",
            [&](Case& test) {
              set_all(test, Role::tau, 0.25);
              if (*dist)
                set_all(test, Role::dist_bias, -size);
              else
                set_scores(test, -size);
            },
            kSums, 1.25);
      }
}

TEST_CASE("regression: sinks far from 0, and their gradient") {
  for (const char* d : {"d64 dv64", "d128 dv128", "d256 dv256"})
    for (double sink : {2.4e38, 3e38, -3e38, 1e6}) {
      const std::string line = "bwd bf16 b1 hq2 hk1 sq20 sk33 " + std::string(d) + " sink";
      // Far above all scores, whose weights are then 0, or far below.
      check_far(
          line + " grads=qkvs", [&](Case& test) { set_all(test, Role::sink, sink); }, kSums,
          sink > 0 ? 0 : 1);
    }
  // A score that is the sink's number: half of the weight each.
  for (double score : {65536.0, -65536.0, 1048576.0})
    for (const char* d : {"d64 dv64", "d256 dv256"})
      check_far(
          "bwd bf16 b1 hq2 hk2 sq20 sk1 scale=1 " + std::string(d) + " sink grads=qkvs",
          [&](Case& test) {
            set_scores(test, score);
            set_all(test, Role::sink, score);
          },
          kSums, 0.5);
}
