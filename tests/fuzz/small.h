// SPDX-License-Identifier: MIT OR Apache-2.0
// Small problems with any optional inputs, for targets that compute, and their buffers.
#ifndef TANDEM_TESTS_FUZZ_SMALL_H
#define TANDEM_TESTS_FUZZ_SMALL_H
#include <memory>

#include "fuzz.h"
#include "host.h"

namespace fuzz {

// Problems that the CPU computes in a millisecond; most are legal, and three of four are of f32.
inline tandem_problem draw_small(Bytes& bytes) {
  using namespace tandem::harness;
  const uint32_t on = bytes.value<uint32_t>();
  const auto has = [&](int bit) { return (on >> bit & 1) != 0; };
  const int64_t b = bytes.between(0, 3), hk = bytes.between(1, 2), hq = hk * bytes.between(1, 2);
  const int64_t longest = has(0) ? 200 : 24;
  const int64_t sq = bytes.below(longest), sk = bytes.below(longest);
  const tandem_dtype dtype = !has(25) || !has(26) ? TANDEM_F32
                             : has(27)            ? TANDEM_F16
                             : has(28)            ? TANDEM_BF16
                                                  : TANDEM_F64;
  if (has(1) && has(2)) {
    tandem_problem p =
        make_merge(has(3) ? TANDEM_MERGE : TANDEM_MERGE_BACKWARD, dtype,
                   has(29) || dtype == TANDEM_F64 ? dtype : TANDEM_F32, bytes.between(1, 4), b, hq,
                   sq, bytes.between(1, 9), has(3) && has(4));
    return p;
  }
  // A vector of 16-bit elements has up to 32.
  const int64_t widest = dtype == TANDEM_F32 ? 17 : 70;
  tandem_problem p = make_problem(has(3) ? TANDEM_BACKWARD : TANDEM_FORWARD, dtype, b, hq, hk, sq,
                                  sk, bytes.between(1, widest));
  p.head_dim_v = bytes.between(1, widest);
  tandem_problem_contiguous(&p, dtype);
  if (has(4)) p.mask = TANDEM_MASK_CAUSAL;
  if (has(5)) p.align = TANDEM_BOTTOM_RIGHT;
  if (has(6)) p.window_left = bytes.below(30);
  if (has(7)) p.window_right = bytes.below(30);
  const auto divisor = [&] { return bytes.one_of(2) ? 1 : b; };
  if (has(8)) set_spans(p, bytes.between(1, 2), divisor(), bytes.pick({int64_t(1), hq, hk}));
  if (has(9)) {
    const int64_t width = bytes.below(6);
    set_blocks(p, 64 * bytes.between(1, 2), 64 * bytes.between(1, 3), width, bytes.below(width + 1),
               divisor(), bytes.pick({int64_t(1), hq, hk}));
  } else if (has(10)) {
    set_keep(p, divisor(), bytes.pick({int64_t(1), hq, hk}), bytes.pick({int64_t(1), sq}));
  }
  if (has(11))
    set_lengths(p, tandem_lengths(bytes.byte() % 4), tandem_lengths(bytes.byte() % 4),
                bytes.below(80), bytes.below(80));
  if (p.lengths_q < TANDEM_LENGTHS_PACKED) p.total_q = 0;
  if (p.lengths_kv < TANDEM_LENGTHS_PACKED) p.total_kv = 0;
  if (has(12))
    set_table(p, bytes.between(1, 20), bytes.pick({TANDEM_U8, TANDEM_U16, TANDEM_I32}), divisor());
  else if (has(13))
    set_bias(p, has(29) ? dtype : TANDEM_F32, divisor(), bytes.pick({int64_t(1), hq, hk}),
             bytes.pick({int64_t(1), sq}), TANDEM_F32);
  if (has(14)) p.alibi = 1, p.slopes_batch = divisor();
  if (has(15)) p.dist_window = bytes.between(1, 12);
  if (has(16)) p.softcap = 3;
  if (has(17)) p.dropout = 0.25f;
  if (has(18)) p.normalizer = bytes.pick<uint32_t>({TANDEM_ELASTIC, TANDEM_ENTMAX});
  if (p.normalizer == TANDEM_ENTMAX) p.entmax_alpha = bytes.pick({1.5f, 2.f, 1.25f});
  if (has(19) && p.normalizer != TANDEM_ENTMAX) p.sink = 1, p.sinks_batch = divisor();
  if (p.direction == TANDEM_BACKWARD) {
    if (has(20) && p.normalizer == TANDEM_SOFTMAX) p.d_lse = 1;
    if (has(21)) {
      p.gradients = TANDEM_GRAD_QKV;
      if (p.bias.dtype) p.gradients |= TANDEM_GRAD_BIAS;
      if (p.dist_window) p.gradients |= TANDEM_GRAD_DIST_BIAS;
      if (p.alibi) p.gradients |= TANDEM_GRAD_SLOPE;
      if (p.normalizer == TANDEM_ELASTIC) p.gradients |= TANDEM_GRAD_TAU;
      if (p.sink) p.gradients |= TANDEM_GRAD_SINK;
      if (p.bias_table_size) p.gradients |= TANDEM_GRAD_BIAS_TABLE;
    }
    if (has(22)) p.gradients = uint32_t(bytes.below(512));
  } else if (has(20) && p.normalizer == TANDEM_SOFTMAX) {
    p.max_logit_batch = divisor();
  }
  const int layouts = bytes.byte() % 4;
  if (layouts > 0 && !has(11))
    set_layout(p, layouts == 1 ? Layout::bshd : layouts == 2 ? Layout::gapped : Layout::transposed);
  if (has(23)) p.flags |= uint32_t(bytes.below(64));
  if (has(24)) p.tile_rows = uint32_t(bytes.below(65));
  return p;
}

// A buffer of just the bytes that its tensor reaches, on the heap.
struct Buffer {
  tandem_buffer tandem_args::*arg;
  size_t size;
  bool output;
  tandem::harness::Role role;  // but for lse and max_logit
  bool other;                  // lse or max_logit
};

// All buffers of an execute but for the workspace.
inline std::vector<Buffer> buffers_of(const tandem_problem& p) {
  using namespace tandem::harness;
  std::vector<Buffer> all;
  for (int n = 0; n < kRoleCount; ++n) {
    const Role role = Role(n);
    if (is_into(role) || !is_used(p, role)) continue;
    tandem_args probe = TANDEM_ARGS_INIT;
    const size_t offset =
        size_t(reinterpret_cast<char*>(&buffer_of(probe, role)) - reinterpret_cast<char*>(&probe));
    // The member at this offset.
    tandem_buffer tandem_args::*arg = nullptr;
    using A = tandem_args;
    for (tandem_buffer A::*m : {&A::q,          &A::k,          &A::v,
                                &A::o,          &A::d_o,        &A::d_q,
                                &A::d_k,        &A::d_v,        &A::bias,
                                &A::keep,       &A::dist_bias,  &A::slope,
                                &A::tau,        &A::sink,       &A::lengths_q,
                                &A::lengths_kv, &A::d_bias,     &A::d_dist_bias,
                                &A::d_slope,    &A::d_tau,      &A::d_sink,
                                &A::spans,      &A::blocks,     &A::block_bits,
                                &A::bias_table, &A::bias_index, &A::d_bias_table,
                                &A::d_lse,      &A::offsets_q,  &A::offsets_kv,
                                &A::part_o,     &A::part_lse,   &A::d_part_o,
                                &A::d_part_lse})
      if (size_t(reinterpret_cast<char*>(&(probe.*m)) - reinterpret_cast<char*>(&probe)) == offset)
        arg = m;
    FUZZ_CHECK_OF(arg, role_name(role));
    // Bytes from the first to the last that it reaches.
    const HostTensor tensor(p, role);
    all.push_back({arg, tensor.bytes.size(), is_output(p, role), role, false});
  }
  const size_t rows = size_t(p.batch * p.heads_q * p.seq_q);
  all.push_back({&tandem_args::lse, rows * (main_dtype(p) == TANDEM_F64 ? 8 : 4),
                 p.direction == TANDEM_FORWARD || p.direction == TANDEM_MERGE, Role::q, true});
  if (p.max_logit_batch > 0)
    all.push_back(
        {&tandem_args::max_logit, size_t(p.max_logit_batch * p.heads_q) * 4, true, Role::q, true});
  return all;
}

// Fills an input: numbers of any size where integers are, else small floats, of few tensors large
// ones or any bits. Whether they are small.
inline bool fill_input(Bytes& bytes, const tandem_problem& p, const Buffer& b, uint8_t* to) {
  using namespace tandem::harness;
  const bool integers = !b.other && (b.role == Role::spans || b.role == Role::blocks ||
                                     b.role == Role::lengths_q || b.role == Role::lengths_kv ||
                                     b.role == Role::offsets_q || b.role == Role::offsets_kv);
  const bool raw = !b.other && (b.role == Role::keep || b.role == Role::block_bits ||
                                b.role == Role::bias_index);
  (void)p;
  const uint16_t seed = bytes.value<uint16_t>();
  const bool any = seed >= 0xf000, large = !any && seed >= 0xe000;
  uint64_t state = uint64_t(seed) + 1;
  const auto random = [&] { return state = Random::mix(state + 0x9e37); };
  if (integers) {
    // The first numbers are the input's own; those behind them are drawn.
    for (size_t at = 0; at + 4 <= b.size; at += 4) {
      const uint64_t drawn = random();
      const int64_t n = at < 256 && bytes.left() > 0 ? bytes.awkward()
                        : drawn % 8 == 0             ? int64_t(int32_t(drawn >> 16))
                                                     : int64_t(drawn >> 16) % 80 - 4;
      const auto number = int32_t(n);
      std::memcpy(to + at, &number, 4);
    }
  } else if (raw) {
    for (size_t at = 0; at < b.size; ++at) to[at] = uint8_t(random() % 4 == 0 ? 0 : random() >> 8);
    if (b.role == Role::bias_index && random() % 4)
      for (size_t at = 0; at < b.size; ++at) to[at] = at % 4 == 0 ? uint8_t(random() % 24) : 0;
  } else {
    for (size_t at = 0; at + 4 <= b.size; at += 4) {
      const uint64_t drawn = random();
      const float number = float(int(drawn >> 20) % 33 - 16) * (large ? 4096.f : 0.125f);
      std::memcpy(to + at, &number, 4);
      if (any) std::memcpy(to + at, &drawn, 4);
    }
  }
  return integers || raw || !(any || large);
}

}  // namespace fuzz
#endif
