// SPDX-License-Identifier: MIT OR Apache-2.0
// Random problems within the features of this version, with a bias towards edges: sizes around tile
// boundaries, lengths of 0 and 1, masks that hide everything; few optional inputs at a time, now
// and then all. Many have a batch of short sequences that few workgroups share, as those of real
// models are.
//
// What decides which kernels a problem needs (Kernels) is drawn from seed / kSameKernels, the rest
// from the seed: where pipelines take a second to compile, many problems share them.
#include <algorithm>

#include "compare.h"
#include "plan/tiles.h"

namespace tandem::harness {
namespace {

constexpr int64_t kBatched = 6;  // entries of a batched problem, at least

// Whether the tensors of a case begin at odd addresses: they take other kernels.
bool misaligns(uint64_t seed) {
  return Random(Random::mix(seed / kSameKernels) ^ 0x6c656164).chance(20);
}

constexpr uint32_t kOptionalGradients[] = {TANDEM_GRAD_BIAS,  TANDEM_GRAD_DIST_BIAS,
                                           TANDEM_GRAD_SLOPE, TANDEM_GRAD_TAU,
                                           TANDEM_GRAD_SINK,  TANDEM_GRAD_BIAS_TABLE};

struct Kernels {
  bool backward = false, wide = false, short_rows = false, banded = false;
  tandem_dtype dtype = TANDEM_F32;
  bool f64 = false;  // in place of dtype, and of f32 where a bias has it
  int64_t d = 0, dv = 0;
  uint32_t normalizer = TANDEM_SOFTMAX;
  float alpha = 0;
  bool softcap = false, bias = false, dist = false, alibi = false, keep = false, sink = false,
       dropout = false, one_row = false, visit_all = false, small_tile = false, tidy = false;
  int64_t spans = 0, table = 0;  // of the table: entries
  bool blocks = false, d_lse = false, max_logit = false;
  tandem_dtype index_dtype = TANDEM_U8;
  uint32_t cores = 0;  // of the problem
  // Many entries of short sequences, whose masks, lengths and biases differ from or share those of
  // others: what a workgroup keeps from one entry to the next shows there.
  bool batched = false;
  bool windows = false;  // batched, as Swin's windows: 16 bits, one bias, a mask of each entry
  tandem_dtype bias_dtype = TANDEM_F32, d_bias_dtype = TANDEM_F32;
  tandem_lengths lengths_q = TANDEM_LENGTHS_FULL, lengths_kv = TANDEM_LENGTHS_FULL;
  uint32_t gradients = TANDEM_GRAD_QKV;
};

Kernels random_kernels(uint64_t group, const RandomLimits& limits) {
  static const std::vector<int64_t> head_dims = {1,  2,  3,  5,  8,  16, 24,  32,  33,  40,  48,
                                                 63, 64, 64, 72, 80, 96, 100, 128, 160, 192, 256};
  static const std::vector<tandem_dtype> dtypes = {TANDEM_F32, TANDEM_F32, TANDEM_F16, TANDEM_BF16};
  Random r(Random::mix(group) ^ 0x6b65726e);
  Kernels k;
  k.backward = limits.backward_only || r.chance(65);
  k.dtype = r.pick(dtypes);
  k.d = r.pick(head_dims);
  k.dv = r.chance(65) ? k.d : r.pick(head_dims);
  k.wide = k.d % 4 == 0 && k.dv % 4 == 0 && r.chance(60);
  k.short_rows = r.chance(20);
  k.banded = r.chance(70);
  // The last tile of the table fits every device and problem, and is seldom the planner's choice.
  k.small_tile = r.chance(15);
  // Drawn apart, so that every seed keeps the problem that it has without them.
  Random of_tidy(Random::mix(group) ^ 0x74696479);
  k.tidy = of_tidy.chance(limits.tidy);
  if (k.tidy) {
    static const std::vector<int64_t> dims = {8,  16, 24, 32,  40,  48,  64,  64,
                                              72, 80, 96, 128, 128, 160, 192, 256};
    k.dtype = of_tidy.chance(50) ? TANDEM_F16 : TANDEM_BF16;
    k.d = of_tidy.pick(dims);
    k.dv = of_tidy.chance(85) ? k.d : of_tidy.pick(dims);
    k.wide = true, k.small_tile = false;
  }
  // Drawn apart for the same reason: heads over 256, of k, of v, or of both.
  Random of_wide_heads(Random::mix(group) ^ 0x77696465);
  if (of_wide_heads.chance(6)) {
    static const std::vector<int64_t> dims = {264, 320, 384, 512, 512, 576, 576};
    const bool odd = !k.wide && of_wide_heads.chance(30);
    const int64_t d = odd ? of_wide_heads.between(257, 576) : of_wide_heads.pick(dims);
    if (of_wide_heads.chance(80)) k.d = d;
    if (k.d != d || of_wide_heads.chance(70)) k.dv = of_wide_heads.chance(70) ? d : 512;
  }

  // Which optional inputs: the normaliser, and of the others mostly up to three, sometimes all.
  const int64_t normalizer = r.below(100);
  k.normalizer = normalizer < 55   ? TANDEM_SOFTMAX
                 : normalizer < 77 ? TANDEM_ELASTIC
                                   : TANDEM_ENTMAX;
  static const std::vector<float> alphas = {1.5f, 1.5f, 2.0f, 1.25f, 1.75f};
  if (k.normalizer == TANDEM_ENTMAX) k.alpha = r.pick(alphas);
  bool lengths = false;
  bool* const features[] = {&k.softcap, &k.bias, &k.dist,    &k.alibi,
                            &k.keep,    &k.sink, &k.dropout, &lengths};
  const int64_t kind = r.below(100);
  int64_t wanted = kind < 12 ? 0 : kind < 45 ? 1 : kind < 72 ? 2 : kind < 93 ? 3 : 8;
  if (k.tidy) wanted = std::min<int64_t>(wanted, 2);
  for (int64_t n = 0; n < wanted; ++n) *features[wanted == 8 ? n : r.below(8)] = true;
  if (k.normalizer == TANDEM_ENTMAX) k.sink = false;
  k.bias_dtype = r.pick(dtypes);
  k.d_bias_dtype = r.chance(50) ? TANDEM_F32 : k.bias_dtype;
  k.one_row = r.chance(30);
  k.visit_all = (k.keep || k.normalizer == TANDEM_ENTMAX) && r.chance(25);
  if (lengths) {
    k.lengths_q = tandem_lengths(r.below(3));
    k.lengths_kv = tandem_lengths(r.below(3));
    if (k.lengths_q == TANDEM_LENGTHS_FULL && k.lengths_kv == TANDEM_LENGTHS_FULL)
      k.lengths_q = k.lengths_kv = r.chance(50) ? TANDEM_LENGTHS_PADDED : TANDEM_LENGTHS_PACKED;
    Random of_gaps(Random::mix(group) ^ 0x67617073);
    for (tandem_lengths* side : {&k.lengths_q, &k.lengths_kv})
      if (*side == TANDEM_LENGTHS_PACKED && of_gaps.chance(45)) *side = TANDEM_LENGTHS_GAPPED;
  }

  // Drawn apart, too.
  Random of_batch(Random::mix(group) ^ 0x62617463);
  static const std::vector<uint32_t> few = {1, 1, 2, 3};
  if (of_batch.chance(40)) k.cores = of_batch.pick(few);
  k.batched = of_batch.chance(k.cores ? 60 : 5);
  if (k.batched && of_batch.chance(60)) {
    k.bias = true;
    (of_batch.chance(75) ? k.keep : k.alibi) = true;
  }
  Random of_spans(Random::mix(group) ^ 0x7370616e);
  if (of_spans.chance(20)) k.spans = of_spans.between(1, 2);
  if (k.spans && of_spans.chance(25)) k.visit_all = true;
  k.blocks = !k.keep && of_spans.chance(15);
  // A table where there is no bias, as a problem has one of them.
  Random of_table(Random::mix(group) ^ 0x7461626c65);
  if (!k.bias && of_table.chance(15)) {
    static const std::vector<int64_t> sizes = {1,   2,   7,   31,  32,  64,  65,
                                               128, 129, 169, 300, 961, 2500};
    static const std::vector<tandem_dtype> indices = {TANDEM_U8, TANDEM_U16, TANDEM_I32};
    k.table = of_table.pick(sizes);
    k.index_dtype = of_table.pick(indices);
  }
  Random of_d_lse(Random::mix(group) ^ 0x645f6c7365);
  k.d_lse = k.backward && k.normalizer == TANDEM_SOFTMAX && of_d_lse.chance(20);
  Random of_max_logit(Random::mix(group) ^ 0x6d61786c6f67);
  k.max_logit = !k.backward && k.normalizer == TANDEM_SOFTMAX && of_max_logit.chance(20);
  // Every run has some: few of the problems above are for kernels that hold whole heads.
  k.windows = group % 8 == 3;
  if (k.windows) {
    Kernels plain;
    plain.backward = k.backward, plain.d_lse = k.d_lse, plain.max_logit = k.max_logit;
    plain.short_rows = k.short_rows, plain.windows = true;
    plain.batched = plain.wide = plain.bias = plain.keep = true;
    plain.dtype = of_batch.chance(50) ? TANDEM_F16 : TANDEM_BF16;
    plain.d = plain.dv = 8 * of_batch.between(1, 8);
    plain.cores = of_batch.pick(few);
    plain.bias_dtype = of_batch.chance(75) ? plain.dtype : TANDEM_F32;
    plain.d_bias_dtype = of_batch.chance(50) ? TANDEM_F32 : plain.bias_dtype;
    k = plain;
  }
  Random of_f64(Random::mix(group) ^ 0x663634);
  k.f64 = of_f64.chance(limits.f64);

  const bool present[] = {k.bias, k.dist,     k.alibi, k.normalizer == TANDEM_ELASTIC,
                          k.sink, k.table > 0};
  uint32_t possible = TANDEM_GRAD_QKV;
  for (int n = 0; n < 6; ++n)
    if (present[n]) possible |= kOptionalGradients[n];
  const int64_t set = r.below(100);
  k.gradients = possible;
  if (set >= 50 && set < 60) k.gradients = TANDEM_GRAD_QKV;
  if (set >= 60) {
    // Any subset, or a single one.
    k.gradients = uint32_t(r.next()) & possible;
    while (set >= 85 && (k.gradients & (k.gradients - 1)) != 0) k.gradients &= k.gradients - 1;
    if (k.gradients == 0) k.gradients = possible & ~uint32_t(TANDEM_GRAD_QKV);
    if (k.gradients == 0) k.gradients = TANDEM_GRAD_V;
  }
  return k;
}

int64_t random_length(Random& r, int64_t limit) {
  static const std::vector<int64_t> edges = {1,  2,  3,  7,  8,  15, 16,  17,  31,  32,  33,
                                             47, 63, 64, 65, 95, 96, 127, 128, 129, 191, 255};
  const int64_t n = r.chance(55) ? r.pick(edges) : r.between(1, limit);
  return r.chance(2) ? 0 : std::min(n, limit);
}

void random_mask(Random& r, const Kernels& k, tandem_problem* p) {
  const int64_t reach = std::max<int64_t>(p->seq_q, p->seq_kv) + 2;
  if (r.chance(50)) p->align = TANDEM_BOTTOM_RIGHT;
  if (!k.banded) return;
  if (r.chance(70)) p->mask = TANDEM_MASK_CAUSAL;
  const bool causal = p->mask == TANDEM_MASK_CAUSAL;
  if (r.chance(causal ? 30 : 60)) p->window_left = r.chance(20) ? 0 : r.below(reach);
  if (r.chance(causal ? 5 : 40) || (!causal && p->window_left == TANDEM_UNBOUNDED))
    p->window_right = r.chance(20) ? 0 : r.below(reach);
}

void random_layout(Random& r, const Kernels& k, tandem_problem* p) {
  static const std::vector<Layout> any = {Layout::bhsd,   Layout::bhsd,    Layout::bshd,
                                          Layout::gapped, Layout::gapped4, Layout::transposed};
  static const std::vector<Layout> fast = {Layout::bhsd, Layout::bshd, Layout::gapped4};
  if (k.tidy || r.chance(40)) {
    set_layout(*p, r.chance(60) ? Layout::bhsd : Layout::bshd);
    if (k.tidy) return;
  } else {
    for (Role role : kRoles) set_layout(*p, role, r.pick(k.wide ? fast : any));
  }
  // Inputs that repeat a dimension: the d_o of a sum, keys shared by a batch.
  if (!k.wide && r.chance(15)) std::fill(p->d_o.stride, p->d_o.stride + 4, 0);
  for (Role role : {Role::q, Role::k, Role::v, Role::d_o})
    if (r.chance(6)) tensor_of(*p, role).stride[r.below(k.wide ? 3 : 4)] = 0;
  for (Role role : {Role::bias, Role::d_bias, Role::keep}) {
    tandem_tensor& t = tensor_of(*p, role);
    if (t.dtype == 0 || r.chance(60)) continue;
    set_layout(*p, role, r.pick(any));
    if (role != Role::d_bias && r.chance(15)) t.stride[r.below(4)] = 0;
  }
}

}  // namespace

tandem_problem random_problem(uint64_t seed, const RandomLimits& limits) {
  static const std::vector<int64_t> groups = {1, 1, 1, 2, 3, 4, 8};
  const Kernels k = random_kernels(seed / kSameKernels, limits);
  Random r(Random::mix(seed) ^ 0x7461646d);
  const bool lengths = k.lengths_q != TANDEM_LENGTHS_FULL || k.lengths_kv != TANDEM_LENGTHS_FULL;
  int64_t b = r.chance(lengths ? 15 : 60) ? 1 : r.between(2, lengths ? 5 : 3);
  int64_t hk = r.chance(60) ? 1 : r.between(2, 3);
  int64_t group = r.pick(groups);
  // Short rows have a tile of their own.
  int64_t sq = random_length(r, k.short_rows ? 32 : limits.max_seq);
  if (!k.short_rows && sq > 0 && sq <= 32) sq += 32;
  int64_t sk = r.chance(35) ? sq : random_length(r, limits.max_seq);
  // Forward's keys in parts, of decoding steps too; drawn apart, so that every seed keeps the rest
  // of its problem.
  Random of_group(Random::mix(seed / kSameKernels) ^ 0x73706c69), own(Random::mix(seed) ^ 0x7473);
  const bool split = k.normalizer == TANDEM_SOFTMAX && of_group.chance(30) && !k.windows;
  if (split && k.short_rows && own.chance(60)) sq = own.between(1, 4), sk = own.between(200, 1500);
  if (k.batched) {
    b = own.between(kBatched, 24);
    sq = random_length(own, own.chance(75) ? 49 : 144);
    sk = own.chance(60) ? sq : random_length(own, 144);
  }
  if (k.windows) group = 1;
  // Too much work: first fewer heads, then shorter sequences. Entmax visits the keys several times.
  const auto work = [&] {
    return b * hk * group * sq * sk * (k.d + k.dv) * (k.normalizer == TANDEM_ENTMAX ? 3 : 1);
  };
  while (work() > limits.max_work) {
    if (group > 2)
      group = 2;
    else if (k.batched && sq * sk > 16 * 16)
      (sq > sk ? sq : sk) = std::max(sq, sk) * 2 / 3;
    else if (k.batched && hk * group > 1)
      hk = group = 1;
    else if (k.batched && b > kBatched)
      b = std::max(kBatched, b * 2 / 3);
    else if (!k.batched && b * hk > 2)
      (b > 1 ? b : hk) = 1;
    else
      (sq > sk ? sq : sk) = std::max(sq, sk) * 2 / 3;
  }
  if (r.chance(1)) b = 0;

  tandem_problem p = make_problem(k.backward ? TANDEM_BACKWARD : TANDEM_FORWARD, k.dtype, b,
                                  hk * group, hk, sq, sk, k.d);
  p.head_dim_v = k.dv;
  p.normalizer = k.normalizer;
  p.entmax_alpha = k.alpha;
  if (k.softcap) p.softcap = r.pick(std::vector<float>{1, 5, 30});
  if (k.dropout) p.dropout = r.pick(std::vector<float>{0.1f, 0.25f, 0.5f, 0.9f});
  p.alibi = k.alibi;
  p.sink = k.sink;
  p.d_lse = k.d_lse;
  if (k.max_logit && p.batch > 0) p.max_logit_batch = seed % 2 ? 1 : p.batch;
  if (k.dist)
    p.dist_window = r.chance(30)   ? std::max<int64_t>(1, sk)
                    : r.chance(10) ? sk + 70
                                   : r.between(1, std::max<int64_t>(2, sk));
  const auto size = [&](int64_t whole, int batched) {
    return r.chance(k.batched ? batched : 50) ? whole : 1;
  };
  const auto heads = [&] {
    return r.pick(std::vector<int64_t>{1, p.heads_kv, p.heads_q, p.heads_q});
  };
  std::vector<int64_t> divisors;
  for (int64_t n = 1; n <= std::max<int64_t>(b, 1); ++n)
    if (b % n == 0) divisors.push_back(n);
  // Their draws are their own, so that problems of older seeds stay what they were.
  Random of_groups(Random::mix(seed) ^ 0x67726f7570);
  const auto grouped = [&](int64_t batch) {
    return of_groups.chance(k.windows ? 15 : 40) ? of_groups.pick(divisors) : batch;
  };
  if (p.alibi && of_groups.chance(25)) p.slopes_batch = of_groups.pick(divisors);
  if (p.sink && of_groups.chance(25)) p.sinks_batch = of_groups.pick(divisors);
  if (k.bias) {
    const int64_t bias_batch = grouped(size(b, k.windows ? 0 : 30)),
                  bias_heads = k.windows ? p.heads_q : heads();
    set_bias(p, k.bias_dtype, bias_batch, bias_heads, k.one_row ? 1 : sq, k.d_bias_dtype);
  }
  if (k.keep) {
    const int64_t keep_batch = grouped(size(b, k.windows ? 100 : 80)), keep_heads = heads();
    set_keep(p, keep_batch, keep_heads, r.chance(30) ? 1 : sq);
  }
  if (k.spans) {
    Random of_spans(Random::mix(seed) ^ 0x7370616e);
    set_spans(p, k.spans, of_spans.pick(divisors),
              of_spans.pick(std::vector<int64_t>{1, 1, p.heads_kv, p.heads_q}));
  }
  if (k.blocks) {
    Random of_blocks(Random::mix(seed) ^ 0x626c6f636b);
    const std::vector<int64_t> sizes{64, 64, 128, 192, 256};
    const int64_t rows = of_blocks.pick(sizes), keys = of_blocks.pick(sizes),
                  columns = (p.seq_kv + keys - 1) / keys,
                  width = of_blocks.between(0, std::min<int64_t>(columns + 1, 12));
    set_blocks(p, rows, keys, width, of_blocks.chance(70) ? of_blocks.between(0, width) : 0,
               of_blocks.pick(divisors),
               of_blocks.pick(std::vector<int64_t>{1, 1, p.heads_kv, p.heads_q}));
  }
  if (k.table) {
    Random of_table(Random::mix(seed) ^ 0x7461626c65);
    set_table(p, k.table, k.index_dtype, of_table.chance(70) ? 1 : of_table.pick(divisors));
  }
  const auto total = [&](tandem_lengths kind, int64_t seq) {
    // Seldom more rows than the sequences can have.
    return !is_packed(uint32_t(kind)) ? 0
           : r.chance(5)              ? b * seq + r.between(1, 9)
                                      : r.between(0, b * seq);
  };
  const int64_t total_q = total(k.lengths_q, sq), total_kv = total(k.lengths_kv, sk);
  set_lengths(p, k.lengths_q, k.lengths_kv, total_q, total_kv);
  random_mask(r, k, &p);
  random_layout(r, k, &p);
  if (r.chance(20)) p.scale = float(r.between(1, 64)) / 128.0f;
  if (k.backward) p.gradients = k.gradients;
  if (r.chance(30)) p.flags = TANDEM_FLAG_DETERMINISTIC;
  if (k.visit_all) p.flags |= TANDEM_FLAG_VISIT_ALL;
  p.cores = k.cores;
  if (split) p.splits = own.pick(std::vector<uint32_t>{2, 3, 5, 16});
  if (k.dtype == TANDEM_F32 && own.chance(10)) p.flags |= TANDEM_FLAG_TF32;
  if (k.small_tile) {
    p.tile_rows = uint32_t(kTiles[kTileCount - 1].br);
    p.tile_cols = uint32_t(kTiles[kTileCount - 1].bc);
  }
  if (k.f64) {
    p.max_logit_batch = 0;  // which has f32 alone
    set_dtype(p, TANDEM_F64);
    if (p.bias.dtype == TANDEM_F32) p.bias.dtype = TANDEM_F64;
    if (p.d_bias.dtype == TANDEM_F32) p.d_bias.dtype = TANDEM_F64;
    p.flags &= ~TANDEM_FLAG_TF32;
  }
  // Misaligned inputs of a batch-invariant problem are an error on cuda.sm90.
  const bool may_be = p.normalizer == TANDEM_SOFTMAX && !p.bias.dtype && !p.keep.dtype &&
                      !p.dist_window && !p.spans && !p.block_q && !p.bias_table_size &&
                      !(p.dropout > 0) && !p.splits && !p.tile_rows && !misaligns(seed);
  if (may_be && Random(Random::mix(seed / kSameKernels) ^ 0x626174636831).chance(20))
    p.flags |= TANDEM_FLAG_BATCH_INVARIANT;
  return p;
}

CaseOptions random_options(uint64_t seed) {
  Random r(Random::mix(seed) ^ 0x6f7074);
  CaseOptions o;
  if (misaligns(seed)) o.lead = r.between(1, 4);
  o.addresses = r.chance(25);
  o.no_lse = r.chance(20);
  o.workspace_byte = r.chance(50) ? 0xff : 0x7f;
  o.repeats = r.chance(20) ? 2 : 1;
  return o;
}

tandem_problem random_merge(uint64_t seed) {
  static const std::vector<tandem_dtype> dtypes = {TANDEM_F32, TANDEM_F16, TANDEM_BF16};
  static const std::vector<int64_t> head_dims = {1, 3, 4, 8, 17, 33, 64, 100, 128, 132, 192, 256};
  static const std::vector<Layout> layouts = {Layout::bhsd,   Layout::bhsd,    Layout::bshd,
                                              Layout::gapped, Layout::gapped4, Layout::transposed};
  Random r(Random::mix(seed) ^ 0x6d65726765);
  const bool backward = r.chance(50), into = !backward && r.chance(40);
  tandem_problem p =
      make_merge(backward ? TANDEM_MERGE_BACKWARD : TANDEM_MERGE, r.pick(dtypes), r.pick(dtypes),
                 r.chance(10) ? r.between(5, 70) : r.between(1, 4), r.between(1, 3),
                 r.between(1, 4), r.between(1, 70), r.pick(head_dims), into);
  for (Role role : {Role::o, Role::d_o, Role::part_o, Role::d_part_o})
    set_layout(p, role, r.pick(layouts));
  if (r.chance(10)) p.part_stride = 0;  // all parts are one
  if (r.chance(10)) p.part_o.stride[1] = p.d_o.stride[1] = 0;
  p.d_lse = backward && r.chance(60);
  if (r.chance(20)) p.flags |= TANDEM_FLAG_DETERMINISTIC;
  return p;
}

}  // namespace tandem::harness
