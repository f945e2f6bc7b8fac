// SPDX-License-Identifier: MIT OR Apache-2.0
// The one place where a plan becomes the numbers that kernels read.
#include "params.h"

namespace tandem {
namespace {

// The members that tile.inc gives to every tiled kernel. rows and cols swap roles in bwd_dkv.
template <typename Spec>
Spec tile_spec(const Plan& plan, const Launch& l) {
  Spec s;
  s.WG = uint32_t(l.tile.invocations());
  s.ROWS = uint32_t(l.tile.br);
  s.COLS = uint32_t(l.tile.bc);
  s.TC = uint32_t(l.tile.tc);
  s.DK = uint32_t(l.tile.dk);
  s.KC = uint32_t(l.tile.kc);
  s.POOL = uint32_t(tile_pool_vec4(l.tile));
  s.PTILE = uint32_t(tile_ptile_vec4(l.tile));
  s.DTYPE = uint32_t(plan.problem.dtype);
  s.BAND = plan.problem.banded();
  s.D_BLOCKS = uint32_t(l.d_blocks);
  s.DV_BLOCKS = uint32_t(l.dv_blocks);
  s.RM = uint32_t(l.tile.br / l.tile.tr);
  s.NT_VEC = uint32_t(l.tile.br * l.tile.dk / 4 / l.tile.invocations());
  s.NN_VEC = uint32_t(l.tile.kc * l.tile.tc / l.tile.invocations());
  return s;
}

template <typename Block>
Block tile_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  Block b{};
  b.q = p.q;
  b.k = p.k;
  b.v = p.v;
  b.seq_q = int(p.seq_q);
  b.seq_kv = int(p.seq_kv);
  b.head_dim = int(p.head_dim);
  b.head_dim_v = int(p.head_dim_v);
  b.heads_q = int(p.heads_q);
  b.group = p.heads_kv ? int(p.group()) : 0;
  // bwd_dkv still zeroes d_k and d_v: as if each kv head had an empty query head
  if (p.heads_q == 0) {
    b.heads_q = int(p.heads_kv);
    b.group = 1;
    b.seq_q = 0;
  }
  b.band_left = p.band.left;
  b.band_right = p.band.right;
  b.band_off = p.band.off;
  b.scale = p.scale;
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

// Whether 4 elements may be read or written at once from every multiple of 4 features. A dimension
// of size 1 has no step, whatever its stride says.
bool is_wide(uint64_t address, const Strides& s, int64_t batch, int64_t heads, int64_t seq,
             int64_t element) {
  return s.d == 1 && (batch == 1 || s.b % 4 == 0) && (heads == 1 || s.h % 4 == 0) &&
         (seq == 1 || s.s % 4 == 0) && address % uint64_t(4 * element) == 0;
}

class Wide {  // builds the `wide` word in the order in which an interface file names its strides
 public:
  explicit Wide(const Problem& p) : p_(p) {}
  Wide& q(uint64_t address, const Strides& s) { return add(address, s, p_.heads_q, p_.seq_q); }
  Wide& kv(uint64_t address, const Strides& s) { return add(address, s, p_.heads_kv, p_.seq_kv); }
  uint32_t bits() const { return bits_; }

 private:
  Wide& add(uint64_t address, const Strides& s, int64_t heads, int64_t seq) {
    if (is_wide(address, s, p_.batch, heads, seq, p_.element_size())) bits_ |= 1u << next_;
    ++next_;
    return *this;
  }
  const Problem& p_;
  uint32_t bits_ = 0, next_ = 0;
};

}  // namespace

std::string narrow_inputs(const Problem& p) {
  const struct {
    const char* name;
    const Strides& strides;
    int64_t heads, seq;
    bool read;
  } inputs[] = {{"q", p.q, p.heads_q, p.seq_q, true},
                {"k", p.k, p.heads_kv, p.seq_kv, true},
                {"v", p.v, p.heads_kv, p.seq_kv, true},
                {"d_o", p.d_o, p.heads_q, p.seq_q, p.backward}};
  std::string names;
  for (const auto& in :
       inputs)  // an address of 0 is as aligned as can be: what remains are the strides
    if (in.read && !is_wide(0, in.strides, p.batch, in.heads, in.seq, p.element_size()))
      names += text("%s%s", names.empty() ? "" : ", ", in.name);
  if (p.head_dim % 4 != 0) names += text("%shead_dim", names.empty() ? "" : ", ");
  if (p.head_dim_v % 4 != 0) names += text("%shead_dim_v", names.empty() ? "" : ", ");
  return names;
}

FwdSpec fwd_spec(const Plan& plan, const Launch& l) { return tile_spec<FwdSpec>(plan, l); }

FwdBlock fwd_block(const Plan& plan, const Launch& l) {
  FwdBlock b = tile_block<FwdBlock>(plan, l);
  b.o = plan.problem.o;
  return b;
}

FwdPush fwd_push(const Plan& plan, const Addresses& a) {
  const Problem& p = plan.problem;
  FwdPush push{};
  push.q = a.q;
  push.k = a.k;
  push.v = a.v;
  push.o = a.o;
  push.lse = a.lse;
  push.wide = Wide(p).q(a.q, p.q).kv(a.k, p.k).kv(a.v, p.v).q(a.o, p.o).bits();
  return push;
}

BwdDotSpec bwd_dot_spec(const Plan& plan, const Launch&) {
  BwdDotSpec s;
  s.WG = kDotRows * kDotLanes;
  s.ROWS = kDotRows;
  s.LANES = kDotLanes;
  s.DTYPE = uint32_t(plan.problem.dtype);
  return s;
}

BwdDotBlock bwd_dot_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdDotBlock b{};
  b.o = p.o;
  b.d_o = p.d_o;
  b.seq_q = int(p.seq_q);
  b.head_dim_v = int(p.head_dim_v);
  b.heads_q = int(p.heads_q);
  b.tiles = l.tiles;
  b.total = l.total;
  return b;
}

BwdDotPush bwd_dot_push(const Plan& plan, const Addresses& a) {
  const Problem& p = plan.problem;
  BwdDotPush push{};
  push.o = a.o;
  push.d_o = a.d_o;
  push.delta = a.delta;
  push.wide = Wide(p).q(a.o, p.o).q(a.d_o, p.d_o).bits();
  return push;
}

BwdDkvSpec bwd_dkv_spec(const Plan& plan, const Launch& l) {
  BwdDkvSpec s = tile_spec<BwdDkvSpec>(plan, l);
  s.ROWS = uint32_t(l.tile.bc);
  s.COLS = uint32_t(l.tile.br);
  s.GRAD_K = plan.problem.wants(TANDEM_GRAD_K);
  s.GRAD_V = plan.problem.wants(TANDEM_GRAD_V);
  return s;
}

BwdDkvBlock bwd_dkv_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdDkvBlock b = tile_block<BwdDkvBlock>(plan, l);
  b.d_o = p.d_o;
  b.d_k = p.d_k;
  b.d_v = p.d_v;
  return b;
}

BwdDkvPush bwd_dkv_push(const Plan& plan, const Addresses& a) {
  const Problem& p = plan.problem;
  BwdDkvPush push{};
  push.q = a.q;
  push.k = a.k;
  push.v = a.v;
  push.d_o = a.d_o;
  push.d_k = a.d_k;
  push.d_v = a.d_v;
  push.lse = a.lse;
  push.delta = a.delta;
  push.wide = Wide(p)
                  .q(a.q, p.q)
                  .kv(a.k, p.k)
                  .kv(a.v, p.v)
                  .q(a.d_o, p.d_o)
                  .kv(a.d_k, p.d_k)
                  .kv(a.d_v, p.d_v)
                  .bits();
  return push;
}

BwdDqSpec bwd_dq_spec(const Plan& plan, const Launch& l) { return tile_spec<BwdDqSpec>(plan, l); }

BwdDqBlock bwd_dq_block(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  BwdDqBlock b = tile_block<BwdDqBlock>(plan, l);
  b.d_o = p.d_o;
  b.d_q = p.d_q;
  return b;
}

BwdDqPush bwd_dq_push(const Plan& plan, const Addresses& a) {
  const Problem& p = plan.problem;
  BwdDqPush push{};
  push.q = a.q;
  push.k = a.k;
  push.v = a.v;
  push.d_o = a.d_o;
  push.d_q = a.d_q;
  push.lse = a.lse;
  push.delta = a.delta;
  push.wide = Wide(p).q(a.q, p.q).kv(a.k, p.k).kv(a.v, p.v).q(a.d_o, p.d_o).q(a.d_q, p.d_q).bits();
  return push;
}

}  // namespace tandem
