// SPDX-License-Identifier: MIT OR Apache-2.0
#include "device_attention.h"

#include <algorithm>
#include <chrono>

namespace char_lm {
namespace {

constexpr size_t kFloat = sizeof(float);

// q, k and v are views into one buffer [batch, context, 3 width], and so are their gradients: a
// head is head_dim features further, a token 3 width. o and d_o are [batch, context, width].
tandem_problem attention_problem(const Config& c, int batch, tandem_direction direction,
                                 int slices) {
  tandem_problem p = tandem::make_problem();
  p.direction = uint32_t(direction);
  p.batch = batch;
  p.heads_q = p.heads_kv = c.heads;
  p.seq_q = p.seq_kv = c.context;
  p.head_dim = p.head_dim_v = c.width / c.heads;
  p.mask = TANDEM_MASK_CAUSAL;
  if (slices > 0) p.flags |= TANDEM_FLAG_SLICES;
  auto view = [&](int64_t features) {
    tandem_tensor t{};
    t.dtype = TANDEM_F32;
    t.stride[0] = c.context * features;
    t.stride[1] = p.head_dim;
    t.stride[2] = features;
    t.stride[3] = 1;
    return t;
  };
  p.q = p.k = p.v = p.d_q = p.d_k = p.d_v = view(3 * int64_t(c.width));
  p.o = p.d_o = view(c.width);
  return p;
}

// As plan_info.name, but the strides of views make a problem line that is longer than that holds.
std::string plan_name(const tandem_plan_info& info, const tandem_problem& problem) {
  std::string name = std::string(info.backend) + "." + info.path;
  if (info.tile_rows > 0)
    name += " " + std::to_string(info.tile_rows) + "x" + std::to_string(info.tile_cols);
  return name + " | " + tandem::print(problem);
}

class Stopwatch {
 public:
  explicit Stopwatch(double* total) : total_(total), start_(Clock::now()) {}
  ~Stopwatch() { *total_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double* total_;
  Clock::time_point start_;
};

}  // namespace

DeviceAttention::DeviceAttention(tandem::harness::Session& session, const Config& config, int batch,
                                 Use use, int slices)
    : session_(session),
      rows_(long(batch) * config.context),
      width_(config.width),
      slices_(slices) {
  const size_t bytes = size_t(rows_) * size_t(width_) * kFloat;
  const tandem_problem forward = attention_problem(config, batch, TANDEM_FORWARD, slices);
  forward_ = tandem::Plan(session.device(), forward);
  const tandem_plan_info info = forward_.info();
  forward_name_ = plan_name(info, forward);
  path_ = std::string(info.backend) + "." + info.path;
  workspace_size_ = info.workspace_size;
  for (int i = 0; i < config.layers; ++i) {
    Slot slot;
    slot.qkv = session.buffer(3 * bytes);
    slot.o = session.buffer(bytes);
    slot.lse = session.buffer(size_t(rows_) * size_t(config.heads) * kFloat);
    slots_.push_back(std::move(slot));
  }
  if (use == Use::training) {
    const tandem_problem backward = attention_problem(config, batch, TANDEM_BACKWARD, slices);
    backward_ = tandem::Plan(session.device(), backward);
    const tandem_plan_info backward_info = backward_.info();
    backward_name_ = plan_name(backward_info, backward);
    workspace_size_ = std::max(workspace_size_, backward_info.workspace_size);
    d_o_ = session.buffer(bytes);
    d_qkv_ = session.buffer(3 * bytes);
  }
  if (workspace_size_ > 0) workspace_ = session.buffer(size_t(workspace_size_));
}

tandem_args DeviceAttention::arguments(const Slot& slot) const {
  const size_t part = size_t(width_) * kFloat;  // q, k and v of a token, one behind the other
  tandem_args args = tandem::make_args();
  args.q = slot.qkv.handle();
  args.k = slot.qkv.handle(part);
  args.v = slot.qkv.handle(2 * part);
  args.o = slot.o.handle();
  args.lse = slot.lse.handle();
  if (d_o_) {
    args.d_o = d_o_.handle();
    args.d_q = d_qkv_.handle();
    args.d_k = d_qkv_.handle(part);
    args.d_v = d_qkv_.handle(2 * part);
  }
  args.workspace = workspace_.handle();
  args.workspace_size = workspace_size_;
  return args;
}

// In slices others may have the device in between, and no job of the driver takes long.
void DeviceAttention::run(const tandem::Plan& plan, const tandem_args& args) {
  if (slices_ == 0)
    session_.run(plan.get(), args);
  else
    session_.run_in_slices(plan.get(), args, slices_);
}

void DeviceAttention::forward(int layer, const Matrix<float>& qkv, Matrix<float>* o) {
  const Stopwatch watch(&seconds_);
  Slot& slot = slots_[size_t(layer)];
  slot.qkv.upload(qkv.data(), size_t(qkv.size()) * kFloat);
  run(forward_, arguments(slot));
  o->resize(rows_, width_);
  slot.o.download(o->data(), size_t(o->size()) * kFloat);
}

void DeviceAttention::backward(int layer, const Matrix<float>& d_o, Matrix<float>* d_qkv) {
  const Stopwatch watch(&seconds_);
  d_o_.upload(d_o.data(), size_t(d_o.size()) * kFloat);
  run(backward_, arguments(slots_[size_t(layer)]));
  d_qkv->resize(rows_, 3 * width_);
  d_qkv_.download(d_qkv->data(), size_t(d_qkv->size()) * kFloat);
}

}  // namespace char_lm
