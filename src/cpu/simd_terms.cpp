// SPDX-License-Identifier: MIT OR Apache-2.0
// The optional inputs of a unit of cpu.simd, as its kernels take them.
#include "simd_program.h"

namespace tandem {

namespace {
// Those that change or hide scores, or drop weights.
constexpr uint32_t kTerms = kHasBias | kHasTable | kHasDistBias | kHasKeep | kHasSpans |
                            kHasSoftcap | kHasAlibi | kHasDropout;
}  // namespace

SimdTerms* SimdProgram::terms_scratch(int64_t count, int64_t steps, int64_t pitch,
                                      Carver& carver) const {
  const Problem& p = plan_.problem;
  if ((p.inputs() & kTerms) == 0) return nullptr;
  auto* terms = reinterpret_cast<SimdTerms*>(carver.take(count, sizeof(SimdTerms) / 4));
  SimdTerms x{};
  if (p.bias || p.table) x.term = carver.take(steps, pitch);
  if (p.blocks || (p.keep && p.keep.rows != 1)) x.hides = carver.take(steps, pitch);
  if (p.softcap > 0 && p.backward) x.bend = carver.take(steps, pitch);
  if (p.dropout > 0) x.drop = carver.take(steps, pitch);
  for (int64_t n = 0; n < count && terms; ++n) terms[n] = x;
  return terms;
}

SimdTerms* SimdProgram::terms_of(const Call& call, int64_t b, int64_t first, int64_t count,
                                 int64_t steps, int64_t pitch, Carver& carver) const {
  const Problem& p = plan_.problem;
  SimdTerms* const terms = terms_scratch(count, steps, pitch, carver);
  if (!terms || p.seq_q * p.seq_kv == 0) return nullptr;
  for (int64_t h = first; h < first + count; ++h) {
    SimdTerms& x = terms[h - first];
    set_masks(call, b, h, &x);
    set_biases(call, b, h, &x);
    x.softcap = p.softcap;
    if (p.dropout == 0) continue;
    x.keeps = 1 / (1 - p.dropout), x.drop_below = dropout_threshold(p.dropout);
    x.seed_low = uint32_t(call.args.dropout_seed);
    x.seed_high = uint32_t(call.args.dropout_seed >> 32);
    x.drop_offset = call.args.dropout_offset, x.head = int(b * p.heads_q + h);
  }
  return terms;
}

void SimdProgram::set_masks(const Call& call, int64_t b, int64_t h, SimdTerms* x) const {
  const Problem& p = plan_.problem;
  if (p.blocks) {
    const int64_t head = p.blocks_head(b, h);
    const auto* bits = address<const uint32_t>(call.args.block_bits);
    x->blocks = address<const int32_t>(call.args.blocks) + head * p.blocks.numbers(p.seq_q);
    x->bits = bits ? bits + head * p.blocks.words(p.seq_q) : nullptr;
    x->block_q = p.blocks.q, x->block_kv = p.blocks.kv;
    x->block_width = p.blocks.width, x->block_bits = p.blocks.bits;
  } else if (p.keep) {
    const Overlay& o = p.keep;
    x->keep = address<const uint8_t>(call.args.keep) + p.entry_of(o, b) * o.strides.b +
              h / (p.heads_q / o.heads) * o.strides.h;
    x->keep_row = o.rows == 1 ? 0 : o.strides.s, x->keep_key = o.strides.d;
  }
  if (p.spans) {
    x->spans =
        address<const int32_t>(call.args.spans) + p.spans_head(b, h) * p.spans.numbers(p.seq_kv);
    x->span_count = p.spans.count;
  }
}

void SimdProgram::set_biases(const Call& call, int64_t b, int64_t h, SimdTerms* x) const {
  const Problem& p = plan_.problem;
  if (p.bias) {
    const Overlay& o = p.bias;
    x->bias = {address<char>(call.args.bias) +
                   (p.entry_of(o, b) * o.strides.b + h / (p.heads_q / o.heads) * o.strides.h) *
                       (o.dtype == TANDEM_F32 ? 4 : 2),
               o.rows == 1 ? 0 : o.strides.s, o.strides.d, o.dtype};
  }
  if (p.table) {
    x->table = address<const float>(call.args.bias_table) + h * p.table.size;
    x->table_size = p.table.size;
    x->index = address<const char>(call.args.bias_index) +
               p.index_entry(b) * p.seq_q * p.seq_kv * p.table.index_bytes();
    x->index_row = p.seq_kv, x->index_dtype = p.table.index;
  }
  if (p.dist_window > 0) {
    x->dist = address<const float>(call.args.dist_bias) + h * p.dist_window;
    x->dist_window = p.dist_window;
  }
  if (p.alibi) {
    x->has_slope = true;
    x->slope = address<const float>(call.args.slope)[p.head_number(p.slopes_batch, b, h)];
  }
}

}  // namespace tandem
