// SPDX-License-Identifier: MIT OR Apache-2.0
// A case on a device: every buffer between guards, outputs full of NaN before, everything that must
// not change compared afterwards.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>

#include "api/handles.h"
#include "case_impl.h"
#include "guard_pages.h"
#include "kernels/kernel_rows.h"

namespace tandem::harness {
namespace {

// One tensor of a run: what the host has, and the device's copy.
struct Placed {
  std::string name;
  const void* host = nullptr;    // what the device must still hold afterwards; null: an output
  const void* before = nullptr;  // what an output holds before each run; null: NaN
  size_t bytes = 0;
  Buffer buffer;
  bool rises = false;  // numbers that begin as minus infinity
};

// The bytes of outputs beside the tensors, by their names.
using Numbers = std::vector<std::pair<const char*, std::vector<uint8_t>*>>;

class Run {
 public:
  Run(Session& session, const CaseOptions& options) : session_(session), options_(options) {}

  tandem_buffer input(const char* name, const void* host, size_t bytes, size_t offset) {
    Placed p{name, host, nullptr, bytes, session_.buffer(bytes, true, name)};
    p.buffer.upload(host, bytes);
    return place(std::move(p), offset);
  }
  tandem_buffer output(const char* name, size_t bytes, size_t offset,
                       const void* before = nullptr) {
    Placed p{name, nullptr, before, bytes, session_.buffer(bytes, true, name)};
    prepare(p, 0xff);
    return place(std::move(p), offset);
  }
  tandem_buffer rising(const char* name, size_t bytes) {
    Placed p{name, nullptr, nullptr, bytes, session_.buffer(bytes, true, name), true};
    begin(&p);
    return place(std::move(p), 0);
  }
  tandem_buffer workspace(size_t bytes) {
    if (bytes == 0) return {0, 0};
    Placed p{"workspace", nullptr, nullptr, bytes,
             session_.buffer(bytes, true, "workspace", kWorkspaceAlignment)};
    p.buffer.fill(options_.workspace_byte);
    return place(std::move(p), 0);
  }
  void fetch(const char* name, void* to) const {
    for (const Placed& p : placed_)
      if (p.name == name) p.buffer.download(to, p.bytes);
  }
  // "" if nothing was written that should not have been.
  std::string damage() const {
    for (const Placed& p : placed_) {
      const std::string guard = p.buffer.broken_guard();
      if (!guard.empty()) return p.name + ": " + guard;
      if (!p.host) continue;
      std::vector<uint8_t> now(p.bytes);
      p.buffer.download(now.data(), p.bytes);
      if (p.bytes && std::memcmp(now.data(), p.host, p.bytes) != 0)
        return p.name + ": this input was written";
    }
    return {};
  }
  void refill() {
    for (Placed& p : placed_)
      if (!p.host) prepare(p, p.name == "workspace" ? uint8_t(~options_.workspace_byte) : 0xff);
  }

 private:
  static void prepare(Placed& p, uint8_t filling) {
    if (p.before)
      p.buffer.upload(p.before, p.bytes);
    else if (p.rises)
      begin(&p);
    else
      p.buffer.fill(filling);
  }
  static void begin(Placed* p) {
    const std::vector<float> none(p->bytes / sizeof(float),
                                  -std::numeric_limits<float>::infinity());
    p->buffer.upload(none.data(), p->bytes);
  }
  tandem_buffer place(Placed p, size_t offset) {
    placed_.push_back(std::move(p));
    const Buffer& b = placed_.back().buffer;
    return options_.addresses ? b.address(offset) : b.handle(offset);
  }
  Session& session_;
  const CaseOptions& options_;
  std::vector<Placed> placed_;
};

void note_plan(const Plan& plan, CaseResult* result) {
  const tandem_plan_info& info = plan.info();
  result->plan = info.name;
  result->path = info.path;
  result->tile_rows = info.tile_rows;
  result->tile_cols = info.tile_cols;
}

// Keeps d_q of a further run for the judges unless they have one with its bits. The terms of two
// sums in any order may cancel, so their size does not say how far apart they may be. So each sum
// is judged as the first is.
void keep_again(const HostTensor& first, int run, std::vector<uint8_t> bytes,
                std::vector<Outputs::Again>* again) {
  bool known = bytes == first.bytes;
  for (const Outputs::Again& one : *again) known = known || bytes == one.d_q.bytes;
  if (known) return;
  again->push_back({run, first});
  again->back().d_q.bytes = std::move(bytes);
}

// Executes, as often as options say, and compares the bits where the plan promises equal ones. ""
// or what went wrong.
std::string execute(Session& session, const Plan& plan, const tandem_args& args, Run* run,
                    const CaseOptions& options,
                    const std::vector<std::pair<Role, HostTensor*>>& outputs,
                    const Numbers& numbers, std::vector<Outputs::Again>* again) {
  const int whole = std::max(1, options.repeats);
  for (int time = 0; time < whole + options.sliced; ++time) {
    if (time > 0) run->refill();
    if (time < whole)
      session.run(plan, args);
    else
      session.run_in_slices(plan, args, std::pow(3.0, time - whole + 1));
    for (const auto& [role, tensor] : outputs) {
      const char* name = role_name(role);
      std::vector<uint8_t> bytes(tensor->bytes.size());
      run->fetch(name, bytes.data());
      if (time > 0 && role == Role::d_q && (plan.info().unordered & TANDEM_GRAD_Q)) {
        keep_again(*tensor, time + 1, std::move(bytes), again);
        continue;
      }
      if (time > 0 && bytes != tensor->bytes)
        return std::string(name) + ": other bits in run " + std::to_string(time + 1);
      tensor->bytes = std::move(bytes);
    }
    for (const auto& [name, of] : numbers) {
      std::vector<uint8_t> bytes(of->size());
      run->fetch(name, bytes.data());
      if (time > 0 && bytes != *of)
        return std::string(name) + ": other bits in run " + std::to_string(time + 1);
      *of = std::move(bytes);
    }
    const std::string damage = run->damage();
    if (!damage.empty()) return damage;
  }
  return {};
}

}  // namespace

std::vector<bool> dead_rows(const HostTensor& tensor, const Sequences& s) {
  std::vector<bool> dead(size_t(tensor.dims.s), true);
  for (size_t b = 0; b < s.length.size(); ++b)
    for (int64_t i = 0; i < s.length[b]; ++i) dead[size_t(s.start[b] + i)] = false;
  return dead;
}

CaseResult Case::run(Session& given, Outputs* outputs) {
  Impl& c = *impl_;
  CaseResult result;
  bool aligned = !c.options.any_address && c.options.lead == 0 && c.options.parts.empty();
  for (Role role : kInputs)
    if (is_input(c.problem, role)) aligned &= input(role).byte_offset() % 16 == 0;
  if (const GuardPages pages = guard_pages(); pages != GuardPages::off) {
    aligned &= pages == GuardPages::first;
    name_case_of_faults(repro(c.problem, c.seed));
  }
  Session& session = given.for_addresses(aligned);
  const size_t rows = size_t(c.problem.batch * c.problem.heads_q * c.problem.seq_q);
  const auto offset = [](const HostTensor& t) { return t.byte_offset(); };
  const auto add_inputs = [&](Run* run, tandem_args* args, const tandem_problem& p) {
    for (Role role : kInputs) {
      if (!is_input(p, role) || is_into(role)) continue;
      const HostTensor& t = input(role);
      buffer_of(*args, role) =
          run->input(role_name(role), t.bytes.data(), t.bytes.size(), offset(t));
    }
    args->dropout_seed = dropout_seed;
    args->dropout_offset = dropout_offset;
  };
  // Runs the plan with all outputs of p.
  const auto go = [&](Session& on, const Plan& plan, const tandem_problem& p, Run* run,
                      tandem_args args, const Numbers& numbers) {
    std::vector<std::pair<Role, HostTensor*>> written;
    for (Role role : kOutputs) {
      if (!is_output(p, role)) continue;
      HostTensor& t = outputs->tensor(role);
      t = HostTensor(p, role, c.options.lead);
      const bool into = role == Role::o && is_input(p, Role::into_o);
      buffer_of(args, role) = run->output(role_name(role), t.bytes.size(), offset(t),
                                          into ? input(Role::into_o).bytes.data() : nullptr);
      written.emplace_back(role, &t);
    }
    args.workspace = run->workspace(size_t(plan.info().workspace_size));
    args.workspace_size = plan.info().workspace_size;
    if (&on == &session)
      for (int row : kernels_at(*static_cast<const tandem_plan*>(plan)->plan, args))
        result.kernels.push_back(uint32_t(row));
    std::string wrong =
        execute(on, plan, args, run, c.options, written, numbers, &outputs->d_q_again);
    for (const auto& [role, tensor] : written) {
      if (!wrong.empty()) break;
      const bool kv = role == Role::d_k || role == Role::d_v;
      const std::vector<bool> dead =
          is_packed(p, role) ? dead_rows(*tensor, sequences(kv)) : std::vector<bool>();
      for (const auto& [each, which] : outputs->written(role)) {
        const std::string gap = each->broken_gap(dead);
        if (!gap.empty() && wrong.empty())
          wrong = std::string(role_name(role)) + ": " + which + gap;
      }
    }
    return wrong;
  };
  // Runs the backward over one part of the keys after the other, on the same tensors.
  const auto go_by_parts = [&](Run* run, tandem_args args) {
    for (Role role : kOutputs) {
      if (!is_output(c.problem, role)) continue;
      HostTensor& t = outputs->tensor(role);
      t = HostTensor(c.problem, role, c.options.lead);
      buffer_of(args, role) = run->output(role_name(role), t.bytes.size(), offset(t));
    }
    std::vector<double> d_q(size_t(logical_dims(c.problem, Role::d_q).count()));
    std::list<std::vector<int32_t>> lengths;  // Run compares them in the end
    int64_t first = 0;
    for (int64_t size : c.options.parts) {
      tandem_problem p = c.problem;
      p.seq_kv = size;
      p.flags |= TANDEM_FLAG_PART_OF_KEYS;
      tandem_args own = args;
      const auto shift = [&](Role role, int dim) {
        if (!is_used(p, role)) return;
        const tandem_tensor& t = tensor_of(p, role);
        buffer_of(own, role).offset += uint64_t(first * t.stride[dim]) * element_size(t.dtype);
      };
      for (Role role : {Role::k, Role::v, Role::d_k, Role::d_v}) shift(role, 2);
      for (Role role : {Role::bias, Role::d_bias, Role::keep}) shift(role, 3);
      if (p.lengths_kv == TANDEM_LENGTHS_PADDED) {
        lengths.emplace_back();
        for (int64_t n : sequences(true).length)
          lengths.back().push_back(int32_t(std::clamp<int64_t>(n - first, 0, size)));
        own.lengths_kv = run->input("lengths_kv of a part", lengths.back().data(),
                                    lengths.back().size() * sizeof(int32_t), 0);
      }
      const Plan plan(session, p);
      note_plan(plan, &result);
      own.workspace = run->workspace(size_t(plan.info().workspace_size));
      own.workspace_size = plan.info().workspace_size;
      for (int row : kernels_at(*static_cast<const tandem_plan*>(plan)->plan, own))
        result.kernels.push_back(uint32_t(row));
      session.run(plan, own);
      if (is_output(p, Role::d_q)) {
        run->fetch(role_name(Role::d_q), outputs->d_q.bytes.data());
        const std::vector<double> of_part = logical(Role::d_q, outputs->d_q);
        for (size_t n = 0; n < d_q.size(); ++n) d_q[n] += of_part[n];
      }
      first += size;
    }
    for (Role role : kOutputs)
      if (is_output(c.problem, role) && role != Role::d_q)
        run->fetch(role_name(role), outputs->tensor(role).bytes.data());
    if (is_output(c.problem, Role::d_q)) outputs->d_q.set_dense(d_q);
    return run->damage();
  };
  *outputs = Outputs();
  const bool f64 = main_dtype(c.problem) == TANDEM_F64;
  const bool into = is_input(c.problem, Role::into_lse),
             want_lse = (!c.options.no_lse || c.backward() || into) &&
                        c.problem.direction != TANDEM_MERGE_BACKWARD;
  std::vector<uint8_t> lse(want_lse ? rows * (f64 ? sizeof(double) : sizeof(float)) : 0, 0xff);
  try {
    {
      const tandem_problem p = is_merge(c.problem) ? c.problem : forward_of(c.problem);
      Session& first =
          c.backward() && c.options.forward ? c.options.forward->for_addresses(aligned) : session;
      const Plan plan(first, p);
      if (&first == &session) note_plan(plan, &result);
      Run run(first, c.options);
      tandem_args args = TANDEM_ARGS_INIT;
      add_inputs(&run, &args, p);
      if (want_lse)
        args.lse =
            run.output("lse", lse.size(), 0, into ? input(Role::into_lse).bytes.data() : nullptr);
      Numbers numbers;
      if (want_lse) numbers.emplace_back("lse", &lse);
      outputs->max_logit.resize(size_t(p.max_logit_batch * p.heads_q));
      std::vector<uint8_t> max_logit(outputs->max_logit.size() * sizeof(float));
      if (!max_logit.empty()) {
        args.max_logit = run.rising("max_logit", max_logit.size());
        numbers.emplace_back("max_logit", &max_logit);
      }
      result.message = go(first, plan, p, &run, args, numbers);
      if (!max_logit.empty())
        std::memcpy(outputs->max_logit.data(), max_logit.data(), max_logit.size());
      outputs->lse.resize(f64 ? 0 : lse.size() / sizeof(float));
      outputs->lse_f64.resize(f64 ? lse.size() / sizeof(double) : 0);
      if (!lse.empty())
        std::memcpy(f64 ? static_cast<void*>(outputs->lse_f64.data()) : outputs->lse.data(),
                    lse.data(), lse.size());
      if (!result.message.empty()) return result;
    }
    if (c.backward()) {
      Run run(session, c.options);
      tandem_args args = TANDEM_ARGS_INIT;
      add_inputs(&run, &args, c.problem);
      const HostTensor& o = outputs->o;
      args.o = run.input("o", o.bytes.data(), o.bytes.size(), offset(o));
      args.lse = run.input("lse", lse.data(), lse.size(), 0);
      if (c.options.parts.empty()) {
        const Plan plan(session, c.problem);
        note_plan(plan, &result);
        result.message = go(session, plan, c.problem, &run, args, {});
      } else {
        result.message = go_by_parts(&run, args);
      }
      if (!result.message.empty()) return result;
    }
    result.ok = true;
  } catch (const Error& e) {
    result.refused = e.code() == TANDEM_ERROR_UNSUPPORTED;
    result.message = e.what();
  }
  return result;
}

}  // namespace tandem::harness
