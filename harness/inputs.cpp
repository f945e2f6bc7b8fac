// SPDX-License-Identifier: MIT OR Apache-2.0
// The inputs of a case, from its seed: numbers of the size that training has, and kinds of sparsity
// and lengths that kernels treat in different ways.
#include <algorithm>
#include <cmath>
#include <limits>

#include "case_impl.h"
#include "problem/block_lists.h"

namespace tandem::harness {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int32_t>::min(),
                  kHighest = std::numeric_limits<int32_t>::max();

// Zeros and ones, several kinds mixed: blocks as large as a tile (or two) without a key, with every
// key, with half or a tenth of them; and rows without a key.
void fill_keep(uint64_t seed, HostTensor* t) {
  Random r(Random::mix(seed) ^ 0x6b656570);
  const int64_t block = r.chance(50) ? 64 : 32;
  const bool blocks = r.chance(75), rows = r.chance(50);
  const int64_t all_percent = r.pick(std::vector<int64_t>{95, 50, 10});
  const uint64_t start = r.next();
  const auto draw = [&](uint64_t what, int64_t b, int64_t h, int64_t i, int64_t j) {
    uint64_t x = Random::mix(start + what);
    for (int64_t n : {b, h, i, j}) x = Random::mix(x + uint64_t(n));
    return x;
  };
  for (int64_t b = 0; b < t->dims.b; ++b)
    for (int64_t h = 0; h < t->dims.h; ++h)
      for (int64_t i = 0; i < t->dims.s; ++i) {
        const bool dead = rows && draw(1, b, h, i, 0) % 100 < 6;
        for (int64_t j = 0; j < t->dims.d; ++j) {
          int64_t percent = all_percent;
          if (blocks) {
            constexpr int64_t kinds[] = {0, 0, 0, 100, 100, 50, 50, 10};
            percent = kinds[draw(2, b, h, i / block, j / block) % 8];
          }
          const uint64_t x = draw(3, b, h, i, j);
          // Not 0 is true: not only 1.
          const bool on = !dead && int64_t(x % 100) < percent;
          t->set(b, h, i, j, on ? double(1 + (x >> 32) % 255) : 0);
        }
      }
}

// Spans of a head of an entry, as models have them and as no model has them: a tree's (causal, to
// the end of a segment that contains the key), documents' (causal or not), a prefix's, windows';
// any two numbers, some of them far outside; and keys that no row sees, or that all rows see.
void fill_spans(const tandem_problem& p, uint64_t seed, HostTensor* t) {
  const int64_t S = p.seq_q;
  for (int64_t b = 0; b < t->dims.b; ++b)
    for (int64_t h = 0; h < t->dims.h; ++h) {
      Random r(Random::mix(seed + uint64_t(b * t->dims.h + h)) ^ 0x7370616e);
      const int64_t kind = r.below(6), odd = r.chance(40) ? 8 : 0;
      int64_t begin = 0, end = 0;  // of the segment
      const int64_t window = r.between(1, std::max<int64_t>(2, S));
      for (int64_t j = 0; j < t->dims.s; ++j) {
        if (j >= end) begin = j, end = j + r.between(1, std::max<int64_t>(2, S / 2));
        int64_t of[4] = {j, end, 0, 0};                        // causal documents
        if (kind == 1) of[0] = begin;                          // documents
        if (kind == 2) of[1] = r.chance(70) ? S : end;         // a tree
        if (kind == 3) of[0] = j < window ? 0 : j, of[1] = S;  // a prefix
        if (kind == 4) of[1] = j + window;
        if (kind == 5) of[0] = r.below(S + 1), of[1] = r.below(S + 2);
        // The second one: apart from the first, within it or across it.
        if (r.chance(60)) of[2] = r.below(S + 1), of[3] = of[2] + r.below(S / 4 + 2);
        if (kind == 1 && r.chance(50)) std::swap(of[0], of[2]), std::swap(of[1], of[3]);
        if (r.below(100) < odd) {
          const int64_t what = r.below(4);
          for (int64_t n = 0; n < 4; ++n)
            of[n] = what == 0   ? (n % 2 ? S : 0)
                    : what == 1 ? (n % 2 ? 0 : S)
                    : what == 2 ? (n % 2 ? kHighest : kLowest)
                                : (r.chance(50) ? kHighest : kLowest);
        }
        for (int64_t n = 0; n < t->dims.d; ++n) t->set(b, h, j, n, double(of[n]));
      }
    }
}

// Block lists of a head of an entry: of each row of blocks any columns, in any order, and listed
// twice; rows without a block, and with all; counts and columns that lie.
void fill_blocks(const tandem_problem& p, uint64_t seed, HostTensor* t) {
  const int64_t columns = (p.seq_kv + p.block_kv - 1) / p.block_kv, width = p.block_width;
  for (int64_t b = 0; b < t->dims.b; ++b)
    for (int64_t h = 0; h < t->dims.h; ++h) {
      Random r(Random::mix(seed + uint64_t(b * t->dims.h + h)) ^ 0x626c6f636b);
      const int64_t odd = r.chance(30) ? 10 : 0;
      for (int64_t i = 0; i < t->dims.s; ++i) {
        const int64_t most = std::min(width, columns), kind = r.below(4);
        int64_t partial = r.below(most + 1), full = r.below(most - partial + 1);
        if (kind == 0) partial = 0;
        if (kind == 1) full = most - partial;
        if (r.chance(10)) partial = full = 0;
        if (r.below(100) < odd) partial = r.pick(std::vector<int64_t>{-1, width + 1, kHighest});
        if (r.below(100) < odd) full = r.pick(std::vector<int64_t>{-7, width, kHighest, kLowest});
        t->set(b, h, i, 0, double(partial));
        t->set(b, h, i, 1, double(full));
        const int64_t first = columns > 0 ? r.below(columns) : 0;
        for (int64_t n = 0; n < width; ++n) {
          int64_t column = columns > 0 ? (first + n) % columns : 0;
          if (r.chance(10)) column = r.below(columns + 1);
          if (r.below(100) < odd)
            column = r.pick(std::vector<int64_t>{-1, columns, kHighest, kLowest, 1 << 24});
          t->set(b, h, i, 2 + n, double(column));
        }
      }
    }
}

// Bits of the pairs of partial blocks. A word has some, none or all.
void fill_block_bits(uint64_t seed, HostTensor* t) {
  Random r(Random::mix(seed) ^ 0x62697473);
  for (int64_t b = 0; b < t->dims.b; ++b)
    for (int64_t h = 0; h < t->dims.h; ++h)
      for (int64_t i = 0; i < t->dims.s; ++i)
        for (int64_t n = 0; n < t->dims.d; ++n) {
          const int64_t kind = r.below(4);
          t->set(
              b, h, i, n,
              kind == 0 ? 0.
              : kind == 1
                  ? -1.
                  : double(int32_t(uint32_t(Random::mix(seed + uint64_t(i) * 64 + uint64_t(n))))));
        }
}

// Indices as models have them and as no model has them: a window's relative positions, all of a row
// apart; buckets of distances, many of a row alike; any entry for any pair; one entry for all. Some
// are no entry of the table, far outside where their type allows it.
void fill_index(const tandem_problem& p, uint64_t seed, HostTensor* t) {
  const int64_t N = p.bias_table_size;
  const int64_t most = t->layout.dtype == TANDEM_U8    ? 255
                       : t->layout.dtype == TANDEM_U16 ? 65535
                                                       : kHighest;
  for (int64_t b = 0; b < t->dims.b; ++b) {
    Random r(Random::mix(seed + uint64_t(b)) ^ 0x7461626c65);
    const int64_t kind = r.below(4),
                  odd = r.chance(60) ? r.pick(std::vector<int64_t>{2, 8, 50}) : 0;
    const int64_t bucket = r.between(1, 9), one = r.below(N);
    for (int64_t i = 0; i < t->dims.s; ++i)
      for (int64_t j = 0; j < t->dims.d; ++j) {
        const int64_t far = i - j + t->dims.d;
        int64_t n = kind == 0   ? far % N
                    : kind == 1 ? std::min(std::abs(i - j) / bucket, N - 1)
                    : kind == 2 ? r.below(N)
                                : one;
        if (r.below(100) < odd) {
          const int64_t what = r.below(4);
          n = what == 0 ? N : what == 1 ? most : what == 2 ? -1 : N + r.below(9);
          if (what == 2 && r.chance(50)) n = kLowest;
          if (n < 0 && most < kHighest) n = most;
        }
        t->set(b, 0, i, j, double(std::min(n, most)));
      }
  }
}

// lse of a part of the keys: of the size that training has, of rows that see many or large scores,
// and alike in all parts. Some saw no key, in some rows none of the parts did.
void fill_lse(uint64_t seed, uint64_t own, HostTensor* t) {
  Random of_all(Random::mix(seed) ^ 0x6c7365);  // what the parts have in common
  const double far = of_all.chance(25) ? of_all.pick(std::vector<double>{60, -3e3, 4e5, 1e30}) : 0;
  const bool alike = of_all.chance(15);
  const int64_t none = of_all.pick(std::vector<int64_t>{0, 10, 50});
  Random r(own);
  for (int64_t b = 0; b < t->dims.b; ++b)
    for (int64_t h = 0; h < t->dims.h; ++h)
      for (int64_t s = 0; s < t->dims.s; ++s) {
        const double x = r.normal() * 2;
        const bool hidden = r.below(100) < none || (none > 0 && s % 23 == 7);
        t->set(b, h, s, 0,
               hidden  ? -std::numeric_limits<double>::infinity()
               : alike ? 1.5
                       : x + far);
      }
}

// Lengths of B entries within [0, size], in a packed tensor adding up to total.
void fill_lengths(const tandem_problem& p, bool kv, uint64_t seed, HostTensor* t) {
  Random r(Random::mix(seed) ^ (kv ? 0x6b76 : 0x71));
  const int64_t size = kv ? p.seq_kv : p.seq_q, total = kv ? p.total_kv : p.total_q;
  const bool packed = (kv ? p.lengths_kv : p.lengths_q) == TANDEM_LENGTHS_PACKED;
  const auto draw = [&](int64_t low, int64_t high) {
    const int64_t kind = r.below(100);
    return kind < 12 ? low : kind < 40 ? high : r.between(low, high);
  };
  Random of_hostile(Random::mix(seed) ^ 0x686f7374);  // drawn apart, so that seeds keep the rest
  std::vector<int64_t> offsets = {0};
  int64_t sum = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (!packed) {
      const int64_t kind = r.below(100);  // beyond the ends counts as the end
      const int64_t beyond = of_hostile.chance(50) ? kHighest - size : 5;
      t->set(0, 0, 0, b, double(kind < 4 ? -beyond : kind < 8 ? size + beyond : draw(0, size)));
      continue;
    }
    // What the others cannot take, this one must; what is too much even for all of them ends up
    // behind the last sequence and belongs to none.
    const int64_t left = total - sum, others = p.batch - b - 1;
    sum += others == 0 ? left
                       : draw(std::min(size, std::max<int64_t>(0, left - others * size)),
                              std::min(size, left));
    offsets.push_back(sum);
  }
  if (packed && of_hostile.chance(15)) make_hostile(&of_hostile, total, &offsets);
  for (size_t n = 0; packed && n < offsets.size(); ++n)
    t->set(0, 0, 0, int64_t(n), double(offsets[n]));
}

// Lengths or offsets of B entries that lie in any order, with gaps. The seed is the same for both.
void fill_places(const tandem_problem& p, bool kv, bool offsets, uint64_t seed, HostTensor* t) {
  Random r(Random::mix(seed ^ 0x67617073) ^ (kv ? 0x6b76 : 0x71));
  const int64_t size = kv ? p.seq_kv : p.seq_q, total = kv ? p.total_kv : p.total_q;
  std::vector<int64_t> order, start(size_t(p.batch)), length(size_t(p.batch));
  for (int64_t b = 0; b < p.batch; ++b) order.insert(order.begin() + r.below(b + 1), b);
  // Some have no gaps, some begin late.
  const int64_t gaps = r.pick(std::vector<int64_t>{0, 1, 9, 80});
  int64_t end = r.chance(50) ? 0 : r.between(0, std::min(gaps, total));
  for (size_t n = 0; n < order.size(); ++n) {
    const int64_t b = order[n], rest = total - end, others = p.batch - int64_t(n) - 1;
    const int64_t most = std::min(size, rest), fair = std::min(most, rest / (others + 1) + 1);
    length[size_t(b)] = r.chance(12) ? 0 : r.between(0, r.chance(30) ? most : fair);
    start[size_t(b)] = end;
    end += length[size_t(b)];
    if (r.chance(60)) end += r.between(0, std::min(gaps, total - end));
  }
  // What no caller should give, and has no further meaning.
  for (size_t b = 0; b < start.size() && r.chance(20); ++b) {
    if (start[b] + length[b] == total || length[b] == size)
      length[b] = r.between(length[b], kHighest);
    if (start[b] == 0) start[b] = -r.between(0, -kLowest);
    if (length[b] == 0 && r.chance(50))
      start[b] = r.between(kLowest, kHighest);
    else if (length[b] == 0)
      length[b] = -r.between(0, -kLowest);
  }
  for (size_t b = 0; b < start.size(); ++b)
    t->set(0, 0, 0, int64_t(b), double(offsets ? start[b] : length[b]));
}

}  // namespace

void make_hostile(Random* r, int64_t total, std::vector<int64_t>* offsets) {
  const auto up_to = [&](int64_t most) {
    return r->chance(30) ? most : r->between(0, r->chance(50) ? std::min<int64_t>(most, 9) : most);
  };
  std::vector<int64_t>& at = *offsets;
  for (size_t n = 0; n < at.size() && at[n] == 0; ++n) at[n] = -up_to(-kLowest);
  for (size_t n = at.size(); n > 0 && at[n - 1] == total; --n)
    at[n - 1] = total + up_to(kHighest - total);
  if (r->chance(20))
    for (size_t n = size_t(r->below(int64_t(at.size()))) + 1; n < at.size(); ++n)
      at[n] = at[n - 1] - up_to(at[n - 1] - kLowest);
}

void fill_input(const tandem_problem& p, Role role, uint64_t seed, double scale, HostTensor* t) {
  if (role <= Role::d_v) return t->fill_normal(seed * 8 + uint64_t(role), scale);
  const uint64_t own = Random::mix(seed + 0x9e3779b97f4a7c15u * uint64_t(role));
  Random r(own);
  const auto each_head = [&](auto value) {
    for (int64_t b = 0; b < t->dims.b; ++b)
      for (int64_t h = 0; h < t->dims.h; ++h) t->set(b, h, 0, 0, value(h));
  };
  switch (role) {
    case Role::bias:
    case Role::bias_table:
    case Role::dist_bias:
      return t->fill_normal(own, 1);
    case Role::bias_index:
      return fill_index(p, own, t);
    case Role::sink:
      return t->fill_normal(own, 2);
    case Role::d_lse:
    case Role::part_o:
    case Role::into_o:
      return t->fill_normal(own, scale);
    case Role::part_lse:
    case Role::into_lse:
      return fill_lse(seed, own, t);
    case Role::slope:  // powers of two, as they are usually set, some a little off
      return each_head([&](int64_t h) {
        return std::ldexp(r.chance(70) ? 1.0 : r.uniform() + 0.5, -1 - int(h % 8));
      });
    case Role::tau:  // -1, where training starts, puts a row with a single key on the kink
      return each_head([&](int64_t) {
        return r.chance(30) ? -1.0 : r.chance(10) ? 0.0 : 2 * r.uniform() - 1;
      });
    case Role::keep:
      return fill_keep(own, t);
    case Role::spans:
      return fill_spans(p, own, t);
    case Role::blocks:
      return fill_blocks(p, own, t);
    case Role::block_bits:
      return fill_block_bits(own, t);
    case Role::offsets_q:
    case Role::offsets_kv:
      return fill_places(p, role == Role::offsets_kv, true, seed, t);
    default:
      if ((role == Role::lengths_kv ? p.lengths_kv : p.lengths_q) == TANDEM_LENGTHS_GAPPED)
        return fill_places(p, role == Role::lengths_kv, false, seed, t);
      return fill_lengths(p, role == Role::lengths_kv, own, t);
  }
}

std::vector<uint8_t> expanded_blocks(const tandem_problem& problem, const HostTensor& lists,
                                     const HostTensor& bits) {
  Problem p;
  if (!make_problem(&problem, &p).ok()) return {};
  std::vector<int32_t> numbers;
  for (double x : lists.dense()) numbers.push_back(int32_t(x));
  std::vector<uint32_t> words;
  if (p.blocks.bits > 0)
    for (double x : bits.dense()) words.push_back(uint32_t(int32_t(x)));
  const int64_t heads = p.blocks.batch * p.blocks.heads, size = p.seq_q * p.seq_kv;
  std::vector<uint8_t> keep(size_t(heads * size));
  for (int64_t n = 0; n < heads && size > 0; ++n)
    expand_blocks(p, &numbers[size_t(n * p.blocks.numbers(p.seq_q))],
                  p.blocks.bits > 0 ? &words[size_t(n * p.blocks.words(p.seq_q))] : nullptr,
                  &keep[size_t(n * size)]);
  return keep;
}

DropoutSeed dropout_seed_of(uint64_t seed) {
  Random r(Random::mix(seed) ^ 0x64726f70);
  DropoutSeed s;
  s.seed = r.next();
  s.offset = uint32_t(r.next());
  return s;
}

std::vector<std::string> feature_words(const tandem_problem& p) {
  std::vector<std::string> words;
  const auto add = [&](bool present, const char* word) {
    if (present) words.push_back(word);
  };
  add(main_dtype(p) == TANDEM_F64, "f64");
  add(p.normalizer == TANDEM_ELASTIC, "elastic");
  add(p.normalizer == TANDEM_ENTMAX, "entmax");
  add(p.softcap > 0, "softcap");
  add(p.bias.dtype != 0, "bias");
  add(p.dist_window > 0, "dist_bias");
  add(p.alibi != 0, "alibi");
  add(p.keep.dtype != 0, "keep");
  add(p.spans != 0, "spans");
  add(p.block_q != 0, "blocks");
  add(p.bias_table_size != 0, "bias_table");
  add(p.sink != 0, "sink");
  add(p.d_lse != 0, "d_lse");
  add(p.max_logit_batch != 0, "max_logit");
  add(p.dropout > 0, "dropout");
  add((p.flags & TANDEM_FLAG_BATCH_INVARIANT) != 0, "batch_invariant");
  add(is_merge(p), "merge");
  add(p.lengths_q == TANDEM_LENGTHS_PADDED || p.lengths_kv == TANDEM_LENGTHS_PADDED, "padded");
  add(p.lengths_q == TANDEM_LENGTHS_PACKED || p.lengths_kv == TANDEM_LENGTHS_PACKED, "packed");
  add(p.lengths_q == TANDEM_LENGTHS_GAPPED || p.lengths_kv == TANDEM_LENGTHS_GAPPED, "gapped");
  if (words.empty()) words.push_back("plain");
  return words;
}

}  // namespace tandem::harness
