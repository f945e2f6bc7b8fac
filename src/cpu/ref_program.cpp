// SPDX-License-Identifier: MIT OR Apache-2.0
// Path cpu.ref: the reference on the tensors of an execute, one head (or group) a unit.
#include "element.h"
#include "program.h"
#include "reference.h"

namespace tandem {
namespace {

// The rows of one batch and of heads [first, first + heads) as contiguous doubles.
std::vector<double> gather_heads(const tandem_buffer& buffer, const Problem& p, const Strides& t,
                                 int64_t b, int64_t first, int64_t heads, int64_t rows,
                                 int64_t features) {
  if (heads * rows * features == 0) return {};
  const char* base = address<const char>(buffer) + (b * t.b + first * t.h) * p.element_size();
  return gather(base, p.dtype, t, 1, heads, rows, features);
}

void scatter_head(const std::vector<double>& from, const tandem_buffer& buffer, const Problem& p,
                  const Strides& t, int64_t b, int64_t h, int64_t rows, int64_t features) {
  char* base = address<char>(buffer) + (b * t.b + h * t.h) * p.element_size();
  scatter(from, base, p.dtype, t, 1, 1, rows, features);
}

class RefProgram final : public Program {
 public:
  RefProgram(const Plan& plan, Pool& pool) : plan_(plan), pool_(pool) {}

  Status record(tandem_stream, const tandem_args& args) const override {
    const Problem& p = plan_.problem;
    for (const Launch& launch : plan_.launches) {
      const int64_t heads = launch.stem == Stem::bwd_dkv ? p.heads_kv : p.heads_q;
      pool_.run(p.batch * heads, [&](int64_t unit, void*) {
        const int64_t b = unit / heads, h = unit % heads;
        if (launch.stem == Stem::bwd_dkv)
          group(args, b, h);
        else
          head(launch.stem, args, b, h);
      });
    }
    return Status();
  }

 private:
  struct Arrays {
    std::vector<double> q, k, v, o, d_o, lse, delta;
    RefHead view() const {
      RefHead x;
      x.q = q.data(), x.k = k.data(), x.v = v.data(), x.o = o.data(), x.d_o = d_o.data();
      x.lse = lse.data(), x.delta = delta.data();
      x.stored_lse = x.stored_delta = true;
      return x;
    }
  };

  // Query heads [first, first + heads) with their kv head; only what the stem reads.
  Arrays load(Stem stem, const tandem_args& args, int64_t b, int64_t first, int64_t heads) const {
    const Problem& p = plan_.problem;
    const int64_t Sq = p.seq_q, Sk = p.seq_kv, D = p.head_dim, Dv = p.head_dim_v;
    const int64_t kv = stem == Stem::bwd_dkv && heads == 0 ? 0 : first / p.group();
    Arrays a;
    if (stem != Stem::bwd_dot) {
      a.q = gather_heads(args.q, p, p.q, b, first, heads, Sq, D);
      a.k = gather_heads(args.k, p, p.k, b, kv, 1, Sk, D);
      a.v = gather_heads(args.v, p, p.v, b, kv, 1, Sk, Dv);
    }
    if (stem == Stem::bwd_dot) a.o = gather_heads(args.o, p, p.o, b, first, heads, Sq, Dv);
    if (stem != Stem::fwd) a.d_o = gather_heads(args.d_o, p, p.d_o, b, first, heads, Sq, Dv);
    if (stem == Stem::bwd_dq || stem == Stem::bwd_dkv) {
      const int64_t row = (b * p.heads_q + first) * Sq, rows = heads * Sq;
      const float* lse = address<const float>(args.lse) + row;
      a.lse.assign(lse, lse + rows);
      if (p.needs_delta()) {
        const float* delta = delta_of(plan_, args) + row;
        a.delta.assign(delta, delta + rows);
      }
    }
    return a;
  }

  void head(Stem stem, const tandem_args& args, int64_t b, int64_t h) const {
    const Problem& p = plan_.problem;
    const int64_t row = (b * p.heads_q + h) * p.seq_q;
    const Arrays a = load(stem, args, b, h, 1);
    std::vector<double> per_row(static_cast<size_t>(p.seq_q));
    if (stem == Stem::fwd) {
      std::vector<double> o(size_t(p.seq_q * p.head_dim_v));
      fwd_ref(p, Precision::exact, a.view(), o.data(), per_row.data(), nullptr);
      scatter_head(o, args.o, p, p.o, b, h, p.seq_q, p.head_dim_v);
      float* lse = address<float>(args.lse);
      for (int64_t i = 0; lse && i < p.seq_q; ++i) lse[row + i] = float(per_row[size_t(i)]);
    } else if (stem == Stem::bwd_dot) {
      bwd_dot_ref(p, Precision::exact, a.view(), per_row.data());
      float* delta = delta_of(plan_, args);
      for (int64_t i = 0; i < p.seq_q; ++i) delta[row + i] = float(per_row[size_t(i)]);
    } else {
      std::vector<double> d_q(size_t(p.seq_q * p.head_dim));
      bwd_dq_ref(p, Precision::exact, a.view(), d_q.data(), nullptr);
      scatter_head(d_q, args.d_q, p, p.d_q, b, h, p.seq_q, p.head_dim);
    }
  }

  void group(const tandem_args& args, int64_t b, int64_t h) const {
    const Problem& p = plan_.problem;
    const Arrays a = load(Stem::bwd_dkv, args, b, h * p.group(), p.group());
    std::vector<double> d_k(size_t(p.wants(TANDEM_GRAD_K) ? p.seq_kv * p.head_dim : 0));
    std::vector<double> d_v(size_t(p.wants(TANDEM_GRAD_V) ? p.seq_kv * p.head_dim_v : 0));
    bwd_dkv_ref(p, Precision::exact, a.view(), d_k.empty() ? nullptr : d_k.data(),
                d_v.empty() ? nullptr : d_v.data(), nullptr, nullptr);
    if (!d_k.empty()) scatter_head(d_k, args.d_k, p, p.d_k, b, h, p.seq_kv, p.head_dim);
    if (!d_v.empty()) scatter_head(d_v, args.d_v, p, p.d_v, b, h, p.seq_kv, p.head_dim_v);
  }

  const Plan plan_;
  Pool& pool_;
};

}  // namespace

std::unique_ptr<Program> make_ref_program(const Plan& plan, Pool& pool) {
  return std::make_unique<RefProgram>(plan, pool);
}

}  // namespace tandem
