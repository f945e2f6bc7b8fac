// SPDX-License-Identifier: MIT OR Apache-2.0
#include "models.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compare.h"

namespace tandem::harness {

const std::vector<Model>& models() {
  static const std::vector<Model> list = {
#define TANDEM_MODEL(name, line) {name, line},
#include "models.inc"
  };
  return list;
}

std::vector<int64_t> model_lengths(const tandem_problem& p, bool kv) {
  const int64_t size = kv ? p.seq_kv : p.seq_q, total = kv ? p.total_kv : p.total_q;
  const bool packed = is_packed(kv ? p.lengths_kv : p.lengths_q);
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < p.batch; ++b) lengths.push_back(size - b % 8 * size / 16);
  if (!packed) return lengths;
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t(0));
  int64_t before = 0, end = 0;
  for (int64_t& length : lengths) {
    end += length;
    const int64_t offset = total * end / std::max<int64_t>(1, sum);
    length = offset - before;
    before = offset;
  }
  return lengths;
}

std::pair<int64_t, int64_t> model_span(int64_t seq, int64_t j) {
  if ((seq & (seq - 1)) == 0) {  // 16 documents, the last of which is three times the first
    int64_t n = 0;
    const auto begin = [&](int64_t m) { return seq * m * (m + 17) / (16 * 33); };
    while (n < 15 && begin(n + 1) <= j) ++n;
    return {j, begin(n + 1)};
  }
  const int64_t answers = seq >= 3 * kTree / 2 ? 16 : 8, rest = std::min(kTree, seq * 2 / 3),
                prompt = seq - rest;
  if (j < prompt) return {j, seq};
  const int64_t answer = (j - prompt) * answers / rest;
  return {j, prompt + (answer + 1) * rest / answers};
}

bool model_keep(const Dims& keep, int64_t b, int64_t i, int64_t j) {
  if (keep.s == keep.d && keep.s > kTree) {
    const auto span = model_span(keep.s, j);
    return span.first <= i && i < span.second;
  }
  if (keep.s == 1) return j < keep.d - b % 4 * keep.d / 16;
  return b % 4 != 3 || (7 * i >= 4 * keep.s) == (7 * j >= 4 * keep.d);
}

// Block lists with bits: those of the tree of model_span(). Without: as many blocks of each row as
// the list has room for, spread over the keys.
static void fill_model_blocks(const tandem_problem& p, Role role, HostTensor* t) {
  const int64_t columns = (p.seq_kv + p.block_kv - 1) / p.block_kv, width = p.block_width;
  const auto sees = [&](int64_t i, int64_t j) {
    const auto span = model_span(p.seq_q, j);
    return span.first <= i && i < span.second;
  };
  for (int64_t b = 0; b < t->dims.b; ++b)
    for (int64_t h = 0; h < t->dims.h; ++h)
      for (int64_t r = 0; r * p.block_q < p.seq_q; ++r) {
        std::vector<int64_t> partial, full;
        for (int64_t n = 0; n < width && p.block_bits == 0; ++n)
          full.push_back((5 * r + n * columns / width) % columns);
        for (int64_t c = 0; c < columns && p.block_bits > 0; ++c) {
          int64_t shown = 0, pairs = 0;
          for (int64_t i = r * p.block_q; i < std::min((r + 1) * p.block_q, p.seq_q); ++i)
            for (int64_t j = c * p.block_kv; j < std::min((c + 1) * p.block_kv, p.seq_kv); ++j)
              shown += sees(i, j), ++pairs;
          if (shown > 0) (shown == pairs ? full : partial).push_back(c);
        }
        if (role == Role::blocks) {
          t->set(b, h, r, 0, double(partial.size()));
          t->set(b, h, r, 1, double(full.size()));
          partial.insert(partial.end(), full.begin(), full.end());
          for (int64_t n = 0; n < width; ++n)
            t->set(b, h, r, 2 + n, n < int64_t(partial.size()) ? double(partial[size_t(n)]) : 0);
          continue;
        }
        for (int64_t n = 0; n < std::min<int64_t>(p.block_bits, int64_t(partial.size())); ++n)
          for (int64_t i = 0; i < p.block_q; ++i)
            for (int64_t w = 0; w < p.block_kv / 32; ++w) {
              uint32_t word = 0;
              for (int64_t j = 0; j < 32; ++j)
                word |=
                    uint32_t(sees(r * p.block_q + i, partial[size_t(n)] * p.block_kv + 32 * w + j))
                    << j;
              t->set(b, h, (r * p.block_bits + n) * p.block_q + i, w, double(int32_t(word)));
            }
      }
}

int64_t model_index(const tandem_problem& p, int64_t i, int64_t j) {
  const int64_t N = p.bias_table_size;
  const auto window = int64_t(std::lround(std::sqrt(double(p.seq_q))));
  if (p.seq_q == p.seq_kv && window * window == p.seq_q && N == (2 * window - 1) * (2 * window - 1))
    return (i / window - j / window + window - 1) * (2 * window - 1) + i % window - j % window +
           window - 1;
  if (N > 64) return int64_t(Random::mix(uint64_t(i * p.seq_kv + j)) % uint64_t(N));
  const int64_t half = N / 2, exact = half / 2, far = std::abs(j - i);  // T5's buckets
  if (exact == 0) return far % N;
  const double beyond = std::log(double(std::max(far, exact)) / double(exact)) / std::log(16.0);
  const int64_t bucket =
      far < exact ? far : std::min(half - 1, exact + int64_t(beyond * double(half - exact)));
  return (j > i ? half : 0) + bucket;
}

void fill_model_input(const tandem_problem& p, Role role, uint64_t seed, HostTensor* t) {
  if (role == Role::spans) {
    for (int64_t b = 0; b < t->dims.b; ++b)
      for (int64_t h = 0; h < t->dims.h; ++h)
        for (int64_t j = 0; j < t->dims.s; ++j) {
          const auto span = model_span(p.seq_q, j);
          t->set(b, h, j, 0, double(span.first));
          t->set(b, h, j, 1, double(span.second));
          if (t->dims.d == 4) t->set(b, h, j, 2, 0), t->set(b, h, j, 3, 0);
        }
    return;
  }
  if (role == Role::blocks || role == Role::block_bits) return fill_model_blocks(p, role, t);
  if (role == Role::bias_index) {
    for (int64_t b = 0; b < t->dims.b; ++b)
      for (int64_t i = 0; i < t->dims.s; ++i)
        for (int64_t j = 0; j < t->dims.d; ++j) t->set(b, 0, i, j, double(model_index(p, i, j)));
    return;
  }
  if (role == Role::keep) {
    for (int64_t b = 0; b < t->dims.b; ++b)
      for (int64_t h = 0; h < t->dims.h; ++h)
        for (int64_t i = 0; i < t->dims.s; ++i)
          for (int64_t j = 0; j < t->dims.d; ++j)
            t->set(b, h, i, j, model_keep(t->dims, b, i, j) ? 1 : 0);
    return;
  }
  const bool kv = role == Role::lengths_kv;
  if ((!kv && role != Role::lengths_q) ||
      (kv ? p.lengths_kv : p.lengths_q) == TANDEM_LENGTHS_GAPPED)
    return fill_input(p, role, seed, 1, t);
  const bool packed = (kv ? p.lengths_kv : p.lengths_q) == TANDEM_LENGTHS_PACKED;
  const std::vector<int64_t> lengths = model_lengths(p, kv);
  int64_t offset = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    if (packed) t->set(0, 0, 0, int64_t(b), double(offset));
    offset += lengths[b];
    t->set(0, 0, 0, int64_t(b) + (packed ? 1 : 0), double(packed ? offset : lengths[b]));
  }
}

namespace {

// Which model a group of seeds has. Neighbours come from different fields; every model occurs.
const Model& model_of(uint64_t group) {
  const auto count = uint64_t(models().size());
  uint64_t step = count * 5 / 13;
  while (std::gcd(step, count) != 1) ++step;
  return models()[size_t(group * step % count)];
}

// The overlays and lengths of `whole` once more, for the sizes that `p` has.
void fit_overlays(const tandem_problem& whole, Layout layout, tandem_problem* p) {
  const auto share = [](int64_t total, int64_t all, int64_t now) { return total * now / all; };
  set_lengths(*p, tandem_lengths(whole.lengths_q), tandem_lengths(whole.lengths_kv),
              share(whole.total_q, whole.batch * whole.seq_q, p->batch * p->seq_q),
              share(whole.total_kv, whole.batch * whole.seq_kv, p->batch * p->seq_kv));
  set_layout(*p, layout);
  const auto size = [](int64_t given, int64_t of, int64_t now) {
    return given == of ? now : given;
  };
  const auto batch = [&](int64_t given) {
    return given == whole.batch ? p->batch : std::gcd(given, p->batch);
  };
  if (whole.bias.dtype) {
    set_bias(*p, tandem_dtype(whole.bias.dtype), batch(whole.bias_batch),
             size(whole.bias_heads, whole.heads_q, p->heads_q),
             size(whole.bias_rows, whole.seq_q, p->seq_q), whole.d_bias.dtype);
    if (!whole.d_bias.dtype) p->d_bias = whole.d_bias;
  }
  p->bias_index_batch = size(whole.bias_index_batch, whole.batch, p->batch);
  if (whole.keep.dtype)
    set_keep(*p, batch(whole.keep_batch), size(whole.keep_heads, whole.heads_q, p->heads_q),
             size(whole.keep_rows, whole.seq_q, p->seq_q));
}

}  // namespace

tandem_problem random_model_problem(uint64_t seed, int64_t max_work) {
  const tandem_problem whole = parse(model_of(seed / kSameKernels).line);
  Random r(Random::mix(seed) ^ 0x6d6f64656c);
  tandem_problem p = whole;
  const auto jitter = [&](int64_t n, int64_t percent) {
    return std::max<int64_t>(1, std::llround(double(n * (100 + percent)) / 100));
  };
  const int64_t percent = r.between(-4, 4);
  p.batch = jitter(whole.batch, r.between(-4, 4));
  p.seq_q = jitter(whole.seq_q, percent);
  p.seq_kv = jitter(whole.seq_kv, whole.seq_kv == whole.seq_q ? percent : r.between(-4, 4));

  // Too much work: first fewer entries, then fewer heads, at last shorter sequences.
  int64_t group = whole.heads_q / whole.heads_kv;
  const auto work = [&] {
    return p.batch * p.heads_kv * group * p.seq_q * p.seq_kv * (p.head_dim + p.head_dim_v);
  };
  const auto lower = [&](int64_t* n, int64_t least) {
    *n = std::max(std::min(*n, least), std::min(*n, max_work / std::max<int64_t>(1, work() / *n)));
  };
  lower(&p.batch, r.between(1, 2));
  lower(&p.heads_kv, r.between(1, 2));
  lower(&group, r.between(2, 4));
  p.heads_q = p.heads_kv * group;
  while (work() > max_work && (p.seq_q > 1 || p.seq_kv > 1)) {
    const int64_t longer = std::max(p.seq_q, p.seq_kv);
    for (int64_t* n : {&p.seq_q, &p.seq_kv})
      if (*n == longer) *n = longer * 15 / 16;
  }
  const auto window = [&](int64_t n) {
    return n < 0 ? n : std::max<int64_t>(1, n * p.seq_kv / whole.seq_kv);
  };
  p.window_left = window(whole.window_left);
  p.window_right = window(whole.window_right);
  fit_overlays(whole, r.chance(50) ? Layout::bhsd : Layout::bshd, &p);
  // A batch this small has a workgroup for each head. With few cores workgroups are reused as they
  // are in the model's own batch.
  Random of_cores(Random::mix(seed) ^ 0x636f726573);
  if (of_cores.chance(50)) p.cores = uint32_t(of_cores.between(1, 2));
  return p;
}

}  // namespace tandem::harness
