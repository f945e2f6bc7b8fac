// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq, and the gradients that are sums over query rows.
#include <cmath>

#include "element.h"
#include "simd_program.h"

namespace tandem {

SimdProgram::BiasSums SimdProgram::bias_sums(int64_t rows, Carver& carver) const {
  const Problem& p = plan_.problem;
  BiasSums sums;
  if (!p.wants(TANDEM_GRAD_BIAS)) return sums;
  if (p.bias.rows == 1)
    sums.of_one = carver.take_doubles(p.seq_kv);
  else
    sums.of_rows = carver.take(p.seq_kv, round_up(rows, kSimdMaxLanes));
  return sums;
}

SimdProgram::HeadSums SimdProgram::head_sums(Carver& carver) const {
  const Problem& p = plan_.problem;
  HeadSums sums;
  if (p.wants(TANDEM_GRAD_DIST_BIAS)) sums.dist = carver.take_doubles(p.dist_window);
  if (p.wants(TANDEM_GRAD_BIAS_TABLE))
    sums.table = carver.take_doubles(table_copies() * p.table.size);
  return sums;
}

// bwd_dq, and d_bias with it; or d_bias alone. A unit is a tile of rows of a query head; with
// d_bias of all query heads and entries that read a head of the bias, in order, and all tiles
// where the bias has one row.
void SimdProgram::bwd_dq(const Launch& launch, const Call& call, const FarRows& far) const {
  const Problem& p = plan_.problem;
  // Without queries there is still the gradient of a bias with one row.
  const int Sq = int(p.seq_q), Br = std::max(rows_of(launch), 1), Bc = std::max(cols_of(launch), 1),
            tiles = (Sq + Br - 1) / Br;
  const bool with_bias = p.wants(TANDEM_GRAD_BIAS), one_row = with_bias && p.bias.rows == 1;
  const int64_t batch = with_bias ? p.bias.batch : p.batch,
                heads = with_bias ? p.bias.heads : p.heads_q;
  const int64_t entries = p.batch / std::max<int64_t>(batch, 1),
                readers = p.heads_q / std::max<int64_t>(heads, 1);
  for_each_tile(call, batch, heads, one_row ? 1 : tiles, true,
                [&](int64_t b0, int64_t h0, int tile0, void* memory) {
                  Carver carver(memory);
                  SimdBwdDq base = scratch(launch, carver, SimdBwdDq());
                  const BiasSums sums = bias_sums(Br, carver);
                  if (sums.of_rows) std::fill_n(sums.of_rows, p.seq_kv * base.pitch, 0.f);
                  if (sums.of_one) std::fill_n(sums.of_one, p.seq_kv, 0.);
                  for (int tile = tile0; tile < (one_row ? tiles : tile0 + 1); ++tile)
                    for (int64_t b = b0 * entries; b < (b0 + 1) * entries; ++b)
                      for (int64_t h = h0 * readers; h < (h0 + 1) * readers; ++h) {
                        Carver more = carver;
                        SimdBwdDq t = base;
                        const SimdTerms* const terms = terms_of(call, b, h, 1, Bc, t.pitch, more);
                        t.bias_sums = sums.of_rows, t.bias_row_sums = sums.of_one;
                        query_gradients(launch, call, far, terms, b, h, tile, Br, Bc, t);
                      }
                  store_d_bias(call, sums, base.pitch, b0, h0, tile0 * Br,
                               std::min(Br, Sq - tile0 * Br));
                });
}
// One tile of a query head: d_q where the launch stores it, what `t` sums, or delta.
void SimdProgram::query_gradients(const Launch& launch, const Call& call, const FarRows& far,
                                  const SimdTerms* terms, int64_t b, int64_t h, int tile, int Br,
                                  int Bc, SimdBwdDq t) const {
  const Problem& p = plan_.problem;
  const int Sq = int(p.seq_q);
  const bool sums = launch.stem == Stem::bwd_row_sums;
  set_query_tile(call, entry_of(call, b), terms, b, h, tile, Br, Bc, &t);
  t.d_o = rows(call.args.d_o, p.d_o, call.q, b, h);
  t.d_q = launch.stem == Stem::bwd_dq ? rows(call.args.d_q, p.d_q, call.q, b, h) : SimdRows{};
  const int64_t row = (b * p.heads_q + h) * Sq + t.row0;
  t.lse = far.lse_of(call.args, row), t.origin = far.origin_of(row);
  float* const delta = delta_of(plan_, call.args) + row;
  t.delta = delta, t.new_delta = sums ? delta : nullptr;
  t.d_lse = p.d_lse ? address<const float>(call.args.d_lse) + row : nullptr;
  if (sums && p.wants(TANDEM_GRAD_SLOPE)) t.slope_rows = row_parts(call, Scratch::slope_rows) + row;
  if (sums && p.wants(TANDEM_GRAD_TAU)) t.tau_rows = row_parts(call, Scratch::tau_rows) + row;
  if (t.rows > 0 && sums) kernels_.bwd_row_sums(t);
  if (t.rows > 0 && !sums) kernels_.bwd_dq(t);
  if (t.d_q.base && !call.q.packed)
    zero_rows(t.d_q, t.row0 + std::max(t.rows, 0), std::min(t.row0 + Br, Sq), p.head_dim);
}

void SimdProgram::store_d_bias(const Call& call, const BiasSums& sums, int64_t pitch, int64_t b,
                               int64_t h, int row0, int rows) const {
  const Problem& p = plan_.problem;
  char* const to = address<char>(call.args.d_bias);
  const int64_t at = b * p.d_bias.b + h * p.d_bias.h;
  for (int64_t j = 0; j < p.seq_kv && sums.of_one; ++j)
    store_element(to, at + j * p.d_bias.d, p.d_bias_dtype, sums.of_one[j]);
  for (int64_t i = 0; i < rows && sums.of_rows; ++i)
    for (int64_t j = 0; j < p.seq_kv; ++j)
      store_element(to, at + (row0 + i) * p.d_bias.s + j * p.d_bias.d, p.d_bias_dtype,
                    double(sums.of_rows[j * pitch + i]));
}

// The parts of the sums of a head: each has every parts-th tile of rows of all entries. bwd_dq may
// form them, or a launch without d_q.
void SimdProgram::bwd_head_parts(const Launch& launch, const Call& call, const FarRows& far) const {
  const Problem& p = plan_.problem;
  const int Sq = int(p.seq_q), Br = std::max(rows_of(launch), 1), Bc = std::max(cols_of(launch), 1),
            tiles = (Sq + Br - 1) / Br;
  const int64_t parts = sum_parts(p), copies = table_copies();
  for_each_tile(call, 1, p.heads_q, int(parts), true,
                [&](int64_t, int64_t h, int part, void* memory) {
                  Carver carver(memory);
                  const SimdBwdDq base = scratch(launch, carver, SimdBwdDq());
                  const HeadSums sums = head_sums(carver);
                  if (sums.dist) std::fill_n(sums.dist, p.dist_window, 0.);
                  if (sums.table) std::fill_n(sums.table, copies * p.table.size, 0.);
                  for (int64_t n = part; n < p.batch * tiles; n += parts) {
                    Carver more = carver;
                    SimdBwdDq t = base;
                    const int64_t b = n / tiles;
                    const SimdTerms* const terms = terms_of(call, b, h, 1, Bc, t.pitch, more);
                    t.dist_sums = sums.dist, t.table_sums = sums.table;
                    query_gradients(launch, call, far, terms, b, h, int(n % tiles), Br, Bc, t);
                  }
                  float* const dist = part_of(call, TANDEM_GRAD_DIST_BIAS, part, h);
                  float* const table = part_of(call, TANDEM_GRAD_BIAS_TABLE, part, h);
                  for (int64_t n = 0; sums.dist && n < p.dist_window; ++n)
                    dist[n] = float(sums.dist[n]);
                  for (int64_t n = 0; sums.table && n < p.table.size; ++n) {
                    double sum = 0;
                    for (int64_t c = 0; c < copies; ++c) sum += sums.table[c * p.table.size + n];
                    table[n] = float(sum);
                  }
                });
}

float* SimdProgram::part_of(const Call& call, uint32_t gradient, int64_t part, int64_t h) const {
  const Problem& p = plan_.problem;
  const bool dist = gradient == TANDEM_GRAD_DIST_BIAS;
  const int64_t size = dist ? p.dist_window : p.table.size;
  if (!p.wants(gradient)) return nullptr;
  if (sum_parts(p) == 1)
    return address<float>(dist ? call.args.d_dist_bias : call.args.d_bias_table) + h * size;
  const Scratch parts = dist ? Scratch::dist_parts : Scratch::table_parts;
  return reinterpret_cast<float*>(address<char>(call.args.workspace) +
                                  plan_.scratch[parts].offset) +
         (part * p.heads_q + h) * size;
}

// Adds the parts of a gradient, in order.
void SimdProgram::add_parts(const Call& call, uint32_t gradient) const {
  const Problem& p = plan_.problem;
  const int64_t parts = sum_parts(p), count = gradient_elements(p, gradient);
  if (parts == 1) return;
  float* const to = address<float>(gradient == TANDEM_GRAD_DIST_BIAS ? call.args.d_dist_bias
                                                                     : call.args.d_bias_table);
  const float* const from = part_of(call, gradient, 0, 0);
  for (int64_t n = 0; n < count; ++n) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += from[part * count + n];
    to[n] = float(sum);
  }
}

// d_sink: the weight of a row's sink times the row's delta, negated, over rows and entries.
void SimdProgram::sink_sums(const Call& call, const FarRows& far) const {
  const Problem& p = plan_.problem;
  const int64_t of_each = p.batch / std::max<int64_t>(p.sinks_batch, 1);
  const float* delta = delta_of(plan_, call.args);
  for (int64_t n = 0; n < p.sinks_batch; ++n)
    for (int64_t h = 0; h < p.heads_q; ++h) {
      double sum = 0;
      for (int64_t b = n * of_each; b < (n + 1) * of_each; ++b) {
        const int64_t row = (b * p.heads_q + h) * p.seq_q;
        for (int64_t i = row; i < row + entry_of(call, b).seq_q; ++i) {
          // Without rows the caller need not give it.
          const double sink = address<const float>(call.args.sink)[n * p.heads_q + h];
          const double lse = far.lse_of(call.args, i)[0];
          const float* origin = far.origin_of(i);
          if (!std::isinf(lse)) sum -= std::exp((sink - (origin ? *origin : 0)) - lse) * delta[i];
        }
      }
      address<float>(call.args.d_sink)[n * p.heads_q + h] = float(sum);
    }
}

void SimdProgram::row_part_sums(const Call& call, Scratch rows, int64_t groups, float factor,
                                const tandem_buffer& to) const {
  const Problem& p = plan_.problem;
  const int64_t of_each = p.batch / std::max<int64_t>(groups, 1);
  for (int64_t n = 0; n < groups; ++n)
    for (int64_t h = 0; h < p.heads_q; ++h) {
      double sum = 0;
      for (int64_t b = n * of_each; b < (n + 1) * of_each; ++b) {
        const float* of_rows = row_parts(call, rows) + (b * p.heads_q + h) * p.seq_q;
        for (int64_t i = 0; i < entry_of(call, b).seq_q; ++i) sum += of_rows[i];
      }
      address<float>(to)[n * p.heads_q + h] = factor * float(sum);
    }
}

}  // namespace tandem
