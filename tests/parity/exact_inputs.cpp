// SPDX-License-Identifier: MIT OR Apache-2.0
#include "exact_inputs.h"

#include <algorithm>
#include <cmath>

namespace parity {
namespace {

constexpr int64_t kDigitKeys = 120;

enum class Code { signs, digits, ramp };
Code code_of(int64_t d) { return d >= 24 ? Code::signs : d >= 5 ? Code::digits : Code::ramp; }

class ExactInputs {
 public:
  ExactInputs(Case& test, Fill fill, bool shifted, uint64_t seed)
      : test_(test),
        p_(test.problem()),
        fill_(fill),
        shifted_(shifted),
        random_(seed),
        code_(code_of(p_.head_dim)),
        d_(size_t(p_.head_dim)) {}

  Hits make() {
    Hits hits;
    hits.rows.resize(size_t(p_.batch * p_.heads_q * p_.seq_q));
    write_values();
    keys_.resize(size_t(p_.seq_kv) * d_);
    for (int64_t b = 0; b < p_.batch; ++b)
      for (int64_t hk = 0; hk < p_.heads_kv; ++hk) {
        write_keys(b, hk);
        const int64_t group = p_.heads_q / p_.heads_kv;
        for (int64_t h = hk * group; h < (hk + 1) * group; ++h)
          for (int64_t i = 0; i < p_.seq_q; ++i)
            hits.rows[size_t((b * p_.heads_q + h) * p_.seq_q + i)] = write_row(b, h, i, &hits);
      }
    REQUIRE_MESSAGE(unrepresentable_ == 0, "the exact inputs do not fit their dtype");
    REQUIRE_MESSAGE(failed_ == 0, "rows without exact weights: " << failed_);
    // Rows that could not have the fill's pair or decoy got a single key; most must not have.
    REQUIRE_MESSAGE(hits.got * 10 >= hits.wanted * 7,
                    fill_name(fill_) << ": " << hits.got << " of " << hits.wanted << " rows");
    return hits;
  }

 private:
  void set(Role role, int64_t b, int64_t h, int64_t s, int64_t d, double value) {
    HostTensor& t = test_.input(role);
    unrepresentable_ += round_to(value, t.layout.dtype) != value;
    t.set(b, h, s, d, value);
  }

  void write_values() {
    // Not 0, where a residue of 1e-20 would survive and show; for pairs positive, so that no mean
    // is 0.
    for (int64_t b = 0; b < p_.batch; ++b)
      for (int64_t h = 0; h < p_.heads_kv; ++h)
        for (int64_t j = 0; j < p_.seq_kv; ++j)
          for (int64_t c = 0; c < p_.head_dim_v; ++c)
            set(Role::v, b, h, j, c,
                fill_ == Fill::pair ? double(1 + random_.below(8)) / 4
                                    : double(2 * random_.below(8) - 7) / 4);
    if (p_.direction != TANDEM_BACKWARD) return;
    for (int64_t b = 0; b < p_.batch; ++b)
      for (int64_t h = 0; h < p_.heads_q; ++h)
        for (int64_t i = 0; i < p_.seq_q; ++i) {
          for (int64_t c = 0; c < p_.head_dim_v; ++c) set(Role::d_o, b, h, i, c, 0);
          for (int n = 0; n < 4; ++n)
            set(Role::d_o, b, h, i, random_.below(p_.head_dim_v), random_.chance(50) ? 1 : -1);
        }
  }

  void write_keys(int64_t b, int64_t h) {
    for (int64_t j = 0; j < p_.seq_kv; ++j) {
      double* key = &keys_[size_t(j) * d_];
      for (size_t c = 0; c < d_; ++c) key[c] = random_.chance(50) ? 1 : -1;
      if (code_ == Code::signs) {
        key[d_ - 1] = 64;
      } else if (code_ == Code::ramp) {
        key[0] = double(8 * j);
      } else {
        const int64_t square = j * j;
        const int64_t features[] = {8 * j, 8 * (square >> 8), 8 * (square & 255), 1024, 8};
        for (size_t c = 0; c < 5; ++c) key[c] = double(features[c]);
      }
      for (size_t c = 0; c < d_; ++c) set(Role::k, b, h, j, int64_t(c), key[c]);
    }
  }

  // The query that hits key a and, if b is not a, key b: digits only neighbours, ramp only ends.
  void write_query(int64_t a, int64_t b, std::vector<double>* q) const {
    q->assign(d_, 0);
    const double* ka = &keys_[size_t(a) * d_];
    const double* kb = &keys_[size_t(b) * d_];
    if (code_ == Code::signs) {
      double n = 0;
      for (size_t c = 0; c + 1 < d_; ++c) {
        (*q)[c] = 16 * (a == b ? ka[c] : ka[c] + kb[c]);
        n += a == b ? 1 : 1 + ka[c] * kb[c];
      }
      if (shifted_) (*q)[d_ - 1] = -n / 4;
    } else if (code_ == Code::digits) {
      const int64_t m = a + b, n = m * a - a * a;
      (*q)[0] = double(8 * m);
      (*q)[1] = -8 * 256;
      (*q)[2] = -8;
      if (shifted_) {
        (*q)[3] = double(-8 * (n >> 7));
        (*q)[4] = double(-8 * (n & 127));
      }
    }
  }

  // Draws what a row is to hit: a, and b, which is a for a single key, hidden for a decoy.
  // Whether the row got what the fill is about.
  bool draw(const Span& span, int attempt, int64_t* a, int64_t* b) {
    const int64_t size = span.last - span.first + 1;
    *a = *b = attempt > 8 ? span.first + random_.below(size) : span.last;
    if (fill_ == Fill::last) return true;
    if (fill_ == Fill::random) {
      *a = *b = span.first + random_.below(size);
      return true;
    }
    if (attempt > 6) return false;
    if (fill_ == Fill::decoy) {
      const bool right = span.last + 1 < p_.seq_kv, left = span.first > 0;
      if (right && (!left || random_.chance(50))) {
        *b = span.last + 1;
      } else if (left) {
        *a = span.first;
        *b = span.first - 1;
      }
      return *a != *b;
    }
    if (size < 2) return false;
    *a = span.first + random_.below(size - 1);
    *b = code_ == Code::signs ? *a + 1 + random_.below(span.last - *a) : *a + 1;
    return true;
  }

  Hit write_row(int64_t b, int64_t h, int64_t i, Hits* hits) {
    Hit hit;
    Span span = visible(p_, i);
    span.first = std::max<int64_t>(span.first, 0);
    span.last = std::min(span.last, p_.seq_kv - 1);
    std::vector<double> q;
    if (span.empty()) {  // anything: it must not matter
      write_query(0, 0, &q);
    } else {
      const bool could = fill_ == Fill::pair    ? span.last > span.first
                         : fill_ == Fill::decoy ? span.last + 1 < p_.seq_kv || span.first > 0
                                                : true;
      hits->wanted += could;
      for (int attempt = 0; attempt < 40 && hit.count == 0; ++attempt) {
        int64_t a = 0, other = 0;
        const bool meant = draw(span, attempt, &a, &other);
        if (code_ == Code::ramp) {
          const bool up =
              fill_ == Fill::last || (fill_ == Fill::decoy ? other >= a : random_.chance(50));
          q.assign(d_, 0);
          q[0] = up ? 16 : -16;
          hit = weigh(q, span, up ? span.last : span.first, up ? span.last : span.first);
        } else {
          write_query(a, other, &q);
          const bool hidden = other < span.first || other > span.last;
          hit = weigh(q, span, a, hidden ? a : other);
        }
        hits->got += hit.count > 0 && meant && could;
      }
      failed_ += hit.count == 0;
    }
    for (size_t c = 0; c < d_; ++c) set(Role::q, b, h, i, int64_t(c), q[c]);
    return hit;
  }

  // The softmax of the row in double: a hit if a and b have all the weight, equally.
  Hit weigh(const std::vector<double>& q, const Span& span, int64_t a, int64_t b) const {
    auto score = [&](int64_t j) {
      double s = 0;
      for (size_t c = 0; c < d_; ++c) s += q[c] * keys_[size_t(j) * d_ + c];
      return s * double(kExactScale);
    };
    Hit hit;
    hit.score = score(a);
    hit.key[0] = a;
    hit.key[1] = b;
    if (score(b) != hit.score) return {};
    for (int64_t j = span.first; j <= span.last; ++j)
      if (j != a && j != b && score(j) - hit.score > -31) return {};
    hit.count = a == b ? 1 : 2;
    return hit;
  }

  Case& test_;
  const tandem_problem& p_;
  const Fill fill_;
  const bool shifted_;
  Random random_;
  const Code code_;
  const size_t d_;
  std::vector<double> keys_;  // of the current kv head
  int64_t failed_ = 0, unrepresentable_ = 0;
};

void resize(Exact* e, const Dims& dims) {
  e->value.assign(size_t(dims.count()), 0);
  e->magnitude.assign(size_t(dims.count()), 0);
}

}  // namespace

const char* fill_name(Fill fill) {
  switch (fill) {
    case Fill::last:
      return "last";
    case Fill::decoy:
      return "decoy";
    case Fill::random:
      return "random";
    default:
      return "pair";
  }
}

bool exact_possible(const tandem_problem& p, Fill fill) {
  const Code code = code_of(p.head_dim);
  if (code == Code::ramp && fill == Fill::pair) return false;
  return code == Code::signs || p.seq_kv <= kDigitKeys;
}

Hits make_exact(Case& test, Fill fill, bool shifted, uint64_t seed) {
  REQUIRE(test.problem().scale == kExactScale);
  REQUIRE(exact_possible(test.problem(), fill));
  return ExactInputs(test, fill, shifted, seed).make();
}

Exact exact_o(Case& test, const Hits& hits) {
  const tandem_problem& p = test.problem();
  const Dims dims = dims_of(p, Role::o);
  const int64_t group = p.heads_q / p.heads_kv;
  Exact o;
  resize(&o, dims);
  size_t row = 0, at = 0;
  for (int64_t b = 0; b < dims.b; ++b)
    for (int64_t h = 0; h < dims.h; ++h)
      for (int64_t i = 0; i < dims.s; ++i, ++row)
        for (int64_t c = 0; c < dims.d; ++c, ++at)
          for (int n = 0; n < hits.rows[row].count; ++n)
            o.value[at] += test.input(Role::v).get(b, h / group, hits.rows[row].key[n], c) /
                           hits.rows[row].count;
  return o;
}

void exact_gradients(Case& test, const Hits& hits, Exact* d_q, Exact* d_k, Exact* d_v) {
  const tandem_problem& p = test.problem();
  const Dims q = dims_of(p, Role::q), k = dims_of(p, Role::k), v = dims_of(p, Role::v);
  const int64_t group = p.heads_q / p.heads_kv;
  HostTensor &tq = test.input(Role::q), &tk = test.input(Role::k), &tv = test.input(Role::v),
             &td = test.input(Role::d_o);
  resize(d_q, q);
  resize(d_k, k);
  resize(d_v, v);
  auto add = [](Exact* e, size_t at, double value, double magnitude) {
    e->value[at] += value;
    e->magnitude[at] += std::fabs(magnitude);
  };
  size_t row = 0;
  for (int64_t b = 0; b < q.b; ++b)
    for (int64_t h = 0; h < q.h; ++h)
      for (int64_t i = 0; i < q.s; ++i, ++row) {
        const Hit& hit = hits.rows[row];
        const int64_t hk = h / group;
        double dp[2] = {0, 0}, size[2] = {0, 0}, delta = 0;
        for (int n = 0; n < hit.count; ++n) {
          for (int64_t c = 0; c < v.d; ++c) {
            const double term = td.get(b, h, i, c) * tv.get(b, hk, hit.key[n], c);
            dp[n] += term;
            size[n] += std::fabs(term);
          }
          delta += dp[n] / hit.count;
        }
        for (int n = 0; n < hit.count; ++n) {
          const double weight = 1.0 / hit.count, ds = weight * (dp[n] - delta);
          const double ds_size = weight * (size[0] + size[1]), scale = double(p.scale);
          const size_t key = size_t((b * k.h + hk) * k.s + hit.key[n]);
          for (int64_t c = 0; c < q.d; ++c) {
            const double kc = tk.get(b, hk, hit.key[n], c), qc = tq.get(b, h, i, c);
            add(d_q, row * size_t(q.d) + size_t(c), scale * ds * kc, scale * ds_size * kc);
            add(d_k, key * size_t(k.d) + size_t(c), scale * ds * qc, scale * ds_size * qc);
          }
          for (int64_t c = 0; c < v.d; ++c) {
            const double term = weight * td.get(b, h, i, c);
            add(d_v, key * size_t(v.d) + size_t(c), term, term);
          }
        }
      }
}

}  // namespace parity
