// SPDX-License-Identifier: MIT OR Apache-2.0
// What kernels get with every execute: addresses, and whether these allow accesses of several
// elements at once.
#include <algorithm>

#include "params.h"

namespace tandem {

bool is_chunked(const Problem& p, const Strides& s) {
  return s.d == 1 && p.seq_kv % 8 == 0 && s.b % 8 == 0 && s.h % 8 == 0 && s.s % 8 == 0 &&
         s.s < int64_t(1) << 22;  // rows of a tile have 32-bit indices
}

namespace {

// Calls each(slot member of Features, address member of Addresses) for the optional inputs of a
// problem, in the order of their slots.
template <typename Each>
void for_each_extra(const Problem& p, Each&& each) {
  if (p.bias) each(&Features::AT_BIAS, &Addresses::bias);
  if (p.dist_window > 0) each(&Features::AT_DIST, &Addresses::dist_bias);
  if (p.alibi) each(&Features::AT_SLOPE, &Addresses::slope);
  if (p.normalizer == Normalizer::elastic) each(&Features::AT_TAU, &Addresses::tau);
  if (p.keep) each(&Features::AT_KEEP, &Addresses::keep);
  if (p.spans) each(&Features::AT_SPANS, &Addresses::spans);
  if (has_mask_map(p)) each(&Features::AT_MASK_MAP, &Addresses::mask_map);
  if (p.lengths_q != Lengths::full) each(&Features::AT_LENGTHS_Q, &Addresses::lengths_q);
  if (p.lengths_kv != Lengths::full) each(&Features::AT_LENGTHS_KV, &Addresses::lengths_kv);
  if (p.dropout > 0) each(&Features::AT_SEED, &Addresses::dropout_seed);
  if (p.d_lse && !p.delta_is_dot()) each(&Features::AT_D_LSE, &Addresses::d_lse);
}

// Tensors of the interface files' TANDEM_STRIDES, whose elements may be accessed several at once.
struct Tensor {
  const char* name = nullptr;
  Strides Problem::*strides = nullptr;
  uint64_t Addresses::*address = nullptr;
  bool kv = false;
  int64_t Parts::*step = nullptr;  // of a tensor of parts: from one to the next
};
namespace tensors {
#define TANDEM_TENSOR(name, kv) \
  constexpr Tensor name{#name, &Problem::name, &Addresses::name, kv, nullptr};
TANDEM_TENSOR(q, false)
TANDEM_TENSOR(k, true)
TANDEM_TENSOR(v, true)
TANDEM_TENSOR(o, false)
TANDEM_TENSOR(d_o, false)
TANDEM_TENSOR(d_q, false)
TANDEM_TENSOR(d_k, true)
TANDEM_TENSOR(d_v, true)
#undef TANDEM_TENSOR
constexpr Tensor part_o{"part_o", &Problem::part_o, &Addresses::part_o, false, &Parts::stride};
constexpr Tensor d_part_o{"d_part_o", &Problem::d_part_o, &Addresses::d_part_o, false,
                          &Parts::d_stride};
// Always the same, or no tensors, so without an entry.
constexpr Tensor bias, d_bias, keep, to, o_parts, part_step, d_part_step;
}  // namespace tensors

// Whether n elements may be read or written at once at every multiple of n features. A dimension of
// size 1 has no step, whatever its stride says. Kernels with matrices index all rows of a tile with
// 32 bits.
constexpr int64_t kMostRowBytes = (1 << 24) - 1;
bool is_wide(const Problem& p, const Tensor& t, uint64_t address, int n) {
  const Strides& s = p.*t.strides;
  const int64_t size = t.step ? p.parts.element_size() : p.element_size();
  if (t.step && p.parts.*t.step % n != 0) return false;
  const bool packed = is_packed(t.kv ? p.lengths_kv : p.lengths_q);
  const int64_t heads = t.kv ? p.heads_kv : p.heads_q;
  const int64_t rows = packed ? (t.kv ? p.total_kv : p.total_q) : t.kv ? p.seq_kv : p.seq_q;
  return s.d == 1 && (p.batch == 1 || s.b % n == 0) && (heads == 1 || s.h % n == 0) &&
         (rows == 1 || (s.s % n == 0 && s.s <= kMostRowBytes / size)) &&
         address % uint64_t(n * size) == 0;
}

// Whether a launch accesses a tensor of its interface at all. bwd_dkv may form one gradient alone.
bool is_accessed(const Problem& p, Stem stem, const Tensor& t) {
  if (stem != Stem::bwd_dkv) return true;
  if (t.strides == &Problem::v || t.strides == &Problem::d_k) return p.wants(TANDEM_GRAD_K);
  return t.strides != &Problem::d_v || p.wants(TANDEM_GRAD_V);
}

// Values of the members of push blocks, by their names in the interface files.
struct PushValues : Addresses {
  PushValues(const Plan& plan, const Launch& l, const Addresses& a)
      : Addresses(a), drop_offset(a.dropout_offset), plan_(plan), launch_(l) {
    const bool bias_sum = l.gradient == TANDEM_GRAD_BIAS, split = l.splits > 1;
    parts = bias_sum ? a.bias_parts : a.dist_parts;
    to = bias_sum ? a.d_bias : a.d_dist_bias;
    if (l.gradient == TANDEM_GRAD_BIAS_TABLE) parts = a.table_parts, to = a.d_bias_table;
    table_sums = split ? a.table_parts : a.d_bias_table;
    if (l.gradient == TANDEM_GRAD_K) parts = a.d_k_parts, to = a.d_k;
    if (l.gradient == TANDEM_GRAD_V) parts = a.d_v_parts, to = a.d_v;
    d_dist = split ? a.dist_parts : a.d_dist_bias;
    if (l.stem == Stem::bwd_dkv_dist && l.members == 0) d_dist = 0;
    if (split) d_bias = a.bias_parts;
    if (leaves_parts()) o = a.o_parts, lse = a.lse_parts;
    if (l.stem == Stem::fwd && lse == 0) lse = a.own_lse;
    // Kernels behind place_entries read what it wrote in place of offsets.
    if (l.stem != Stem::place_entries) lengths_q = places_or_lengths_q(a);
    if (l.stem != Stem::place_entries && a.places_kv) lengths_kv = a.places_kv;
    int slot = 0;
    for_each_extra(plan.problem, [&](auto, auto address) { extra[slot++] = this->*address; });
  }
  // Called for each tensor, in the order of the interface file.
  void add_tensor(const Tensor& t) {
    if (!t.strides) return;
    const bool fits = (leaves_parts() && t.strides == &Problem::o) ||
                      is_wide(plan_.problem, t, this->*t.address, launch_.wide_elements());
    wide |= uint32_t(fits) << count_;
    accessed_ |= uint32_t(is_accessed(plan_.problem, launch_.stem, t)) << count_++;
  }
  // Whether all tensors that are accessed are wide, so that nothing is accessed by element.
  bool all_wide() const {
    const Problem& p = plan_.problem;
    const int n = launch_.wide_elements();
    return p.head_dim % n == 0 && p.head_dim_v % n == 0 && (~wide & accessed_) == 0;
  }
  uint64_t parts, to, d_dist, table_sums, extra[TANDEM_EXTRA_ADDRESSES] = {};
  uint32_t wide = 0, drop_offset;

 private:
  // Whether o and lse are partial outputs, whose part_strides() are of whole chunks.
  bool leaves_parts() const { return launch_.stem == Stem::fwd && launch_.splits > 1; }
  const Plan& plan_;
  const Launch& launch_;
  uint32_t accessed_ = 0, count_ = 0;
};

#define TANDEM_INTERFACE(Name) constexpr auto fill_##Name = [](PushValues& from, Name##Push& push) {
#define TANDEM_STRIDES(name) from.add_tensor(tensors::name);
#define TANDEM_ADDRESS(name) push.name = from.name;
#define TANDEM_ADDRESSES(name, count) std::copy_n(from.name, count, push.name);
#define TANDEM_PUSH(type, name) push.name = from.name;
#include "kernels/abi/all.inc"

}  // namespace

bool takes_chunks(const Plan& plan, const Launch& l, const Addresses& a) {
  const Problem& p = plan.problem;
  return !l.as<MatrixLaunch>() ||
         ((!is_chunked(p, p.bias.strides) || a.bias % 16 == 0) &&
          ((l.stem != Stem::bwd_dbias && !l.stores_d_bias) || l.splits > 1 ||
           !is_chunked(p, p.d_bias) || a.d_bias % 16 == 0));
}

#define TANDEM_STEM(Name, name)                                                          \
  Name##Push name##_push_and_wide(const Plan& plan, const Launch& l, const Addresses& a, \
                                  bool* wide) {                                          \
    PushValues from(plan, l, a);                                                         \
    Name##Push push{};                                                                   \
    fill_##Name(from, push);                                                             \
    *wide = from.all_wide() && takes_chunks(plan, l, a);                                 \
    return push;                                                                         \
  }                                                                                      \
  Name##Push name##_push(const Plan& plan, const Launch& l, const Addresses& a) {        \
    PushValues from(plan, l, a);                                                         \
    Name##Push push{};                                                                   \
    fill_##Name(from, push);                                                             \
    return push;                                                                         \
  }
#include "stems.inc"

String narrow_inputs(const Problem& p, int elements) {
  String names;
  const auto add = [&](bool narrow, const char* name) {
    if (narrow) names += text("%s%s", names.empty() ? "" : ", ", name);
  };
  // An address of 0 has every alignment, so only the strides matter.
  if (p.parts) {
    for (const Tensor& t : {tensors::o, tensors::d_o, tensors::part_o, tensors::d_part_o})
      add((t.strides == &Problem::part_o || p.backward == (t.strides != &Problem::o)) &&
              !is_wide(p, t, 0, elements),
          t.name);
    add(p.head_dim_v % elements != 0, "head_dim_v");
    return names;
  }
  for (const Tensor& t : {tensors::q, tensors::k, tensors::v, tensors::d_o})
    add((p.backward || t.strides != &Problem::d_o) && !is_wide(p, t, 0, elements), t.name);
  add(p.head_dim % elements != 0, "head_dim");
  add(p.head_dim_v % elements != 0, "head_dim_v");
  return names;
}

int extra_addresses(const Problem& p) {
  int count = 0;
  for_each_extra(p, [&](auto, auto) { ++count; });
  return count;
}

Features features_of(const Problem& p) {
  Features f;
  f.NORM = uint32_t(p.normalizer);
  f.ALPHA = p.normalizer != Normalizer::entmax ? 0 : p.alpha == 1.5f ? 1 : p.alpha == 2.f ? 2 : 3;
  f.SOFTCAP = p.softcap > 0;
  f.BIAS = uint32_t(p.bias.dtype);
  f.DIST = p.dist_window > 0;
  f.ALIBI = p.alibi;
  f.KEEP = bool(p.keep);
  f.SPANS = uint32_t(p.spans.count);
  f.GROUPED = uint32_t(p.is_grouped(p.bias)) | uint32_t(p.is_grouped(p.keep)) << 1 |
              uint32_t(p.slopes_batch > 1) << 2;
  f.DROPOUT = p.dropout > 0;
  f.LENGTHS_Q = uint32_t(p.lengths_q);
  f.LENGTHS_KV = uint32_t(p.lengths_kv);
  f.D_LSE = p.d_lse;
  f.SKIP = !p.visit_all && (p.keep || p.spans || p.normalizer == Normalizer::entmax);
  uint32_t slot = 0;
  for_each_extra(p, [&](auto at, auto) { f.*at = slot++; });
  return f;
}

}  // namespace tandem
