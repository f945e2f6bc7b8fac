// SPDX-License-Identifier: MIT OR Apache-2.0
#include "simd_program.h"

#include <cmath>
#include <limits>

#include "element.h"
#include "problem/far_row.h"

namespace tandem {

static_assert(kSimdMaxFeatures == kMaxHeadDim, "rows of every head fit");
namespace {
constexpr int kDotBlock = 256;  // rows of a bwd_dot unit
}

SimdProgram::SimdProgram(const Plan& plan, Pool& pool, const SimdKernels& kernels)
    : plan_(plan), pool_(pool), kernels_(kernels) {
  size_t bytes = bytes_of_places();
  for (const Launch& launch : plan.launches) bytes = std::max(bytes, bytes_of(launch));
  if (plan.problem.backward && !plan.problem.parts) {
    Launch origin;
    origin.stem = Stem::bwd_origin;
    bytes = std::max(bytes, bytes_of(origin));
  }
  pool_.reserve(bytes);
}

// Of a thread's scratch.
size_t SimdProgram::bytes_of(const Launch& launch) const {
  Carver carver(nullptr);
  switch (launch.stem) {
    case Stem::fwd:
      terms_scratch(1, cols_of(launch), scratch(launch, carver, SimdFwd()).pitch, carver);
      break;
    case Stem::bwd_origin:
      terms_scratch(1, cols_of(launch), scratch(launch, carver, SimdBwdOrigin()).pitch, carver);
      break;
    case Stem::bwd_row_sums:
    case Stem::bwd_dq:
    case Stem::bwd_dbias:
    case Stem::bwd_dist_bias:
    case Stem::reduce_table:
      terms_scratch(1, cols_of(launch), scratch(launch, carver, SimdBwdDq()).pitch, carver);
      bias_sums(rows_of(launch), carver);
      head_sums(carver);
      break;
    case Stem::bwd_dkv:
      terms_scratch(plan_.problem.group(), rows_of(launch),
                    scratch(launch, carver, SimdBwdDkv()).pitch, carver);
      break;
    case Stem::merge:
    case Stem::bwd_merge:
      merge_scratch(carver);
      break;
    default:
      break;
  }
  return carver.used();
}

Status SimdProgram::record(tandem_stream, const tandem_args& args) const {
  const Problem& p = plan_.problem;
  Call call(p, args);
  if (bytes_of_places() > 0)
    pool_.run(1, [&](int64_t, void* memory) {
      auto* places = static_cast<TandemSequence*>(memory);
      if (call.q.are_shared(p.batch, places) || call.kv.are_shared(p.batch, places))
        call.most_threads = 1;
    });
  FarRows far;
  if (p.backward && !p.parts) {
    // In this order, as delta of a far row is not bwd_dot's.
    if (plan_.find(Stem::bwd_dot)) bwd_dot(call);
    bwd_origin(call, &far);
  }
  bool has_parts = !wants_head_sums();  // of d_dist_bias and of the table's gradient
  for (const Launch& launch : plan_.launches) {
    switch (launch.stem) {
      case Stem::fwd:
        fwd(launch, call);
        break;
      case Stem::bwd_row_sums:
        bwd_row_sums(launch, call, far);
        break;
      case Stem::bwd_dkv:
        bwd_dkv(launch, call, far);
        break;
      case Stem::bwd_dq:
        if (!has_parts && !p.wants(TANDEM_GRAD_BIAS)) {
          bwd_head_parts(launch, call, far);
          has_parts = true;
        } else {
          bwd_dq(launch, call, far);
        }
        break;
      case Stem::bwd_dbias:
        bwd_dq(launch, call, far);
        break;
      case Stem::bwd_dist_bias:
      case Stem::reduce_table:
        if (!has_parts) bwd_head_parts(launch, call, far);
        has_parts = true;
        add_parts(call, launch.stem == Stem::reduce_table ? TANDEM_GRAD_BIAS_TABLE
                                                          : TANDEM_GRAD_DIST_BIAS);
        break;
      case Stem::bwd_head_sums:
        if (p.wants(TANDEM_GRAD_SINK)) sink_sums(call, far);
        if (p.wants(TANDEM_GRAD_SLOPE))
          row_part_sums(call, Scratch::slope_rows, p.slopes_batch, -1, args.d_slope);
        if (p.wants(TANDEM_GRAD_TAU)) row_part_sums(call, Scratch::tau_rows, 1, 1, args.d_tau);
        break;
      case Stem::merge:
      case Stem::bwd_merge:
        merge(call);
        break;
      default:  // bwd_dot; no other has a row in the registry
        break;
    }
  }
  return Status();
}

SimdFwd SimdProgram::scratch(const Launch& launch, Carver& carver, SimdFwd t) const {
  const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, bc = cols_of(launch);
  t.pitch = round_up(fwd_rows_of(launch), kSimdMaxLanes);
  t.qt = carver.take(D, t.pitch), t.ot = carver.take(Dv, t.pitch);
  t.s = carver.take(bc, t.pitch);
  t.k_staged = carver.take(bc, D), t.v_staged = carver.take(bc, Dv);
  t.m = carver.take(1, t.pitch), t.l = carver.take(1, t.pitch), t.factor = carver.take(1, t.pitch);
  if (plan_.problem.normalizer != Normalizer::softmax)
    t.scores = carver.take(plan_.problem.seq_kv, t.pitch);
  return t;
}
SimdBwdDq SimdProgram::scratch(const Launch& launch, Carver& carver, SimdBwdDq t) const {
  const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, bc = cols_of(launch);
  t.pitch = round_up(rows_of(launch), kSimdMaxLanes);
  t.qt = carver.take(D, t.pitch), t.d_ot = carver.take(Dv, t.pitch);
  t.d_qt = carver.take(D, t.pitch);
  t.s = carver.take(bc, t.pitch), t.dp = carver.take(bc, t.pitch);
  t.k_staged = carver.take(bc, D), t.v_staged = carver.take(bc, Dv);
  t.lse_lanes = carver.take(1, t.pitch), t.delta_lanes = carver.take(1, t.pitch);
  t.origin_lanes = carver.take(1, t.pitch);
  t.row_sums = carver.take(kSimdRowSums, t.pitch);
  return t;
}
SimdBwdOrigin SimdProgram::scratch(const Launch& launch, Carver& carver, SimdBwdOrigin t) const {
  const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, bc = cols_of(launch);
  t.pitch = round_up(origin_rows_of(launch), kSimdMaxLanes);
  t.qt = carver.take(D, t.pitch), t.d_ot = carver.take(Dv, t.pitch);
  t.s = carver.take(bc, t.pitch), t.dp = carver.take(bc, t.pitch);
  t.k_staged = carver.take(bc, D), t.v_staged = carver.take(bc, Dv);
  t.m = carver.take(1, t.pitch), t.l = carver.take(1, t.pitch);
  t.factor = carver.take(1, t.pitch), t.delta = carver.take(1, t.pitch);
  if (plan_.problem.normalizer == Normalizer::entmax)
    t.scores = carver.take(plan_.problem.seq_kv, t.pitch);
  return t;
}
SimdBwdDkv SimdProgram::scratch(const Launch& launch, Carver& carver, SimdBwdDkv t) const {
  const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, br = rows_of(launch);
  t.pitch = round_up(cols_of(launch), kSimdMaxLanes);
  t.kt = carver.take(D, t.pitch), t.vt = carver.take(Dv, t.pitch);
  t.d_kt = carver.take(D, t.pitch), t.d_vt = carver.take(Dv, t.pitch);
  t.s = carver.take(br, t.pitch), t.dp = carver.take(br, t.pitch);
  t.q_staged = carver.take(br, D), t.d_o_staged = carver.take(br, Dv);
  return t;
}

void SimdProgram::zero_rows(const SimdRows& of, int64_t from, int64_t to, int64_t features) const {
  for (int64_t i = from; i < to; ++i)
    for (int64_t c = 0; c < features; ++c)
      store_element(static_cast<char*>(of.base), i * of.row + c * of.feature, of.dtype, 0);
}

// The order of the tiles does not matter to a maximum; of two zeros the positive one is larger.
void SimdProgram::raise_max_logit(const Call& call, int64_t b, int64_t h, float top) const {
  const Problem& p = plan_.problem;
  const std::lock_guard<std::mutex> lock(call.max_logit_turn);
  float& to = address<float>(call.args.max_logit)[p.head_number(p.max_logit_batch, b, h)];
  if (to < top || (to == top && !std::signbit(top))) to = top;
}

void SimdProgram::fwd(const Launch& launch, const Call& call) const {
  const Problem& p = plan_.problem;
  const int Sq = int(p.seq_q), Br = fwd_rows_of(launch), Bc = std::max(cols_of(launch), 1),
            tiles = (Sq + Br - 1) / Br;
  for_each_tile(call, p.batch, p.heads_q, tiles, true,
                [&](int64_t b, int64_t h, int tile, void* memory) {
                  Carver carver(memory);
                  SimdFwd t = scratch(launch, carver, SimdFwd());
                  const Entry e = entry_of(call, b);
                  const SimdTerms* const terms = terms_of(call, b, h, 1, Bc, t.pitch, carver);
                  set_query_tile(call, e, terms, b, h, tile, Br, Bc, &t);
                  t.o = rows(call.args.o, p.o, call.q, b, h);
                  t.has_sink = p.sink, t.sink = sink_of(call, b, h);
                  float* lse = address<float>(call.args.lse);
                  t.lse = lse ? lse + (b * p.heads_q + h) * Sq + t.row0 : nullptr;
                  float top = -std::numeric_limits<float>::infinity();
                  t.top = p.max_logit_batch > 0 ? &top : nullptr;
                  if (t.rows > 0) (t.scores ? kernels_.fwd_twice : kernels_.fwd)(t);
                  if (t.top) raise_max_logit(call, b, h, top);
                  const int end = std::min(t.row0 + Br, Sq), valid = std::max(t.rows, 0);
                  for (int i = t.row0 + valid; i < end && t.lse; ++i)
                    t.lse[i - t.row0] = -std::numeric_limits<float>::infinity();
                  if (!call.q.packed) zero_rows(t.o, t.row0 + valid, end, p.head_dim_v);
                });
}

void SimdProgram::bwd_dot(const Call& call) const {
  const Problem& p = plan_.problem;
  const int Sq = int(p.seq_q);
  for_each_tile(call, p.batch, p.heads_q, (Sq + kDotBlock - 1) / kDotBlock, false,
                [&](int64_t b, int64_t h, int block, void*) {
                  SimdBwdDot t;
                  t.o = rows(call.args.o, p.o, call.q, b, h);
                  t.d_o = rows(call.args.d_o, p.d_o, call.q, b, h);
                  t.head_dim_v = p.head_dim_v, t.pairs = pairs().v;
                  t.row0 = block * kDotBlock;
                  t.rows = std::min(kDotBlock, entry_of(call, b).seq_q - t.row0);
                  const int64_t row = (b * p.heads_q + h) * Sq + t.row0;
                  t.delta = delta_of(plan_, call.args) + row;
                  t.lse = address<const float>(call.args.lse) + row;
                  t.d_lse = p.d_lse ? address<const float>(call.args.d_lse) + row : nullptr;
                  if (t.rows > 0) kernels_.bwd_dot(t);
                });
}

// delta and the rows' parts of d_slope and d_tau, where delta is not <d_o, o>.
void SimdProgram::bwd_row_sums(const Launch& launch, const Call& call, const FarRows& far) const {
  const Problem& p = plan_.problem;
  const int Sq = int(p.seq_q), Br = std::max(rows_of(launch), 1), Bc = std::max(cols_of(launch), 1);
  for_each_tile(call, p.batch, p.heads_q, (Sq + Br - 1) / Br, true,
                [&](int64_t b, int64_t h, int tile, void* memory) {
                  Carver carver(memory);
                  SimdBwdDq t = scratch(launch, carver, SimdBwdDq());
                  const SimdTerms* const terms = terms_of(call, b, h, 1, Bc, t.pitch, carver);
                  query_gradients(launch, call, far, terms, b, h, tile, Br, Bc, t);
                });
}

// A part of a row's keys, whose own lse is m + l, or whose l is infinite, as it sees none: takes
// the whole row's lse where that tells (far_row.h).
void SimdProgram::take_whole(float lse, float* m, float* l) const {
  const Problem& p = plan_.problem;
  if (std::isinf(*l)) {
    *m = lse, *l = 0;
    return;
  }
  const float slack = tandem_part_slack(int(p.head_dim), p.dtype == TANDEM_F32), whole = lse - *m;
  if (whole > *l + slack * std::fabs(lse)) *l = std::min(whole, std::numeric_limits<float>::max());
}

// Leaves far empty unless a row is far; the delta of far rows is then overwritten as well.
void SimdProgram::bwd_origin(const Call& call, FarRows* far) const {
  const Problem& p = plan_.problem;
  const int64_t count = p.batch * p.heads_q * p.seq_q;
  const float* lse = address<const float>(call.args.lse);
  if (p.heads_kv * p.seq_kv == 0 || std::none_of(lse, lse + count, tandem_is_far)) return;
  far->lse.assign(lse, lse + count);
  far->origin.resize(size_t(count));
  const bool want_delta = plan_.find(Stem::bwd_dot) != nullptr && !p.part_of_keys;
  const Launch launch;
  const int Sq = int(p.seq_q), Br = origin_rows_of(launch), Bc = cols_of(launch);
  for_each_tile(call, p.batch, p.heads_q, (Sq + Br - 1) / Br, true,
                [&](int64_t b, int64_t h, int tile, void* memory) {
                  Carver carver(memory);
                  SimdBwdOrigin t = scratch(launch, carver, SimdBwdOrigin());
                  const SimdTerms* const terms = terms_of(call, b, h, 1, Bc, t.pitch, carver);
                  set_query_tile(call, entry_of(call, b), terms, b, h, tile, Br, Bc, &t);
                  const int64_t row = (b * p.heads_q + h) * Sq + t.row0;
                  if (t.rows <= 0 || std::none_of(lse + row, lse + row + t.rows, tandem_is_far))
                    return;
                  t.d_o = rows(call.args.d_o, p.d_o, call.q, b, h), t.want_delta = want_delta;
                  t.has_sink = p.sink, t.sink = sink_of(call, b, h);
                  kernels_.bwd_origin(t);
                  for (int r = 0; r < t.rows; ++r) {
                    if (!tandem_is_far(lse[row + r])) continue;
                    if (p.part_of_keys) take_whole(lse[row + r], &t.m[r], &t.l[r]);
                    far->origin[size_t(row + r)] = t.m[r];
                    far->lse[size_t(row + r)] = t.l[r];
                    if (!want_delta) continue;
                    // Where no key is visible, although lse says that one is, l is infinite.
                    const bool takes = p.d_lse && std::isfinite(t.l[r]);
                    const float* d_lse = address<const float>(call.args.d_lse);
                    delta_of(plan_, call.args)[row + r] =
                        t.delta[r] - (takes ? d_lse[row + r] : 0.f);
                  }
                });
}

void SimdProgram::bwd_dkv(const Launch& launch, const Call& call, const FarRows& far) const {
  const Problem& p = plan_.problem;
  const int Sq = int(p.seq_q), Sk = int(p.seq_kv), Br = std::max(rows_of(launch), 1),
            Bc = cols_of(launch);
  for_each_tile(
      call, p.batch, p.heads_kv, (Sk + Bc - 1) / Bc, false,
      [&](int64_t b, int64_t h, int tile, void* memory) {
        Carver carver(memory);
        SimdBwdDkv t = scratch(launch, carver, SimdBwdDkv());
        const tandem_args& args = call.args;
        const int64_t first = h * p.group();
        const Entry e = entry_of(call, b);
        t.terms = terms_of(call, b, first, p.group(), Br, t.pitch, carver);
        t.normal = normal_of(call, e, first), t.pairs = pairs();
        t.q = rows(args.q, p.q, call.q, b, first), t.d_o = rows(args.d_o, p.d_o, call.q, b, first);
        t.q_head = p.q.h, t.d_o_head = p.d_o.h, t.group = int(p.group());
        t.k = rows(args.k, p.k, call.kv, b, h), t.v = rows(args.v, p.v, call.kv, b, h);
        t.d_k = rows(args.d_k, p.d_k, call.kv, b, h), t.d_v = rows(args.d_v, p.d_v, call.kv, b, h);
        t.want_k = p.wants(TANDEM_GRAD_K), t.want_v = p.wants(TANDEM_GRAD_V);
        t.col0 = tile * Bc, t.cols = std::min(Bc, e.seq_kv - t.col0);
        const int64_t row = (b * p.heads_q + first) * Sq;
        t.lse = far.lse_of(args, row), t.origin = far.origin_of(row), t.lse_head = Sq;
        t.delta = t.want_k ? delta_of(plan_, args) + row : nullptr;
        t.head_dim = p.head_dim, t.head_dim_v = p.head_dim_v;
        t.scale = p.scale, t.band = e.band, t.seq_q = e.seq_q, t.br = Br;
        t.tiles = tandem_query_tiles(e.band, t.col0, Bc, Br, e.seq_q, e.seq_kv);
        if (t.cols > 0) kernels_.bwd_dkv(t);
        if (call.kv.packed) return;
        const int from = t.col0 + std::max(t.cols, 0), to = std::min(t.col0 + Bc, Sk);
        if (t.want_k) zero_rows(t.d_k, from, to, p.head_dim);
        if (t.want_v) zero_rows(t.d_v, from, to, p.head_dim_v);
      });
}

std::unique_ptr<Program> make_simd_program(const Plan& plan, Pool& pool,
                                           const SimdKernels& kernels) {
  return std::make_unique<SimdProgram>(plan, pool, kernels);
}

}  // namespace tandem
