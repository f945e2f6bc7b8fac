// SPDX-License-Identifier: MIT OR Apache-2.0
// Whether a problem would be much faster with other strides, another type of bias or a wider head.
#include <algorithm>
#include <cstring>

#include "base/number.h"
#include "cost.h"
#include "kernels/params.h"
#include "plan/planner.h"

namespace tandem {
namespace {

constexpr int64_t kChunk = 16;  // bytes that the fast paths load at once

// Strides and sizes beyond this stay as they are, so that nothing overflows.
constexpr int64_t kMost = int64_t(1) << 60;

int64_t round_up(int64_t n, int64_t step) { return n < kMost ? ceil_div(n, step) * step : n; }

void round_up(Strides* s, int64_t step) {
  s->d = 1;
  for (int64_t* stride : {&s->b, &s->h, &s->s}) *stride = round_up(*stride, step);
}

bool is_round(const Strides& s, int64_t step) {
  return s.d == 1 && s.b % step == 0 && s.h % step == 0 && s.s % step == 0;
}

int64_t size_of(tandem_dtype dtype) { return dtype == TANDEM_F32 ? 4 : 2; }

String odd_words(const char* name, const Strides& s, const char* unit, int64_t step) {
  if (s.d != 1) return text("the %ss of a row of %s are %lld apart", unit, name, (long long)s.d);
  const bool rows = s.s % step != 0, heads = s.h % step != 0;
  return text("%s %s are %lld %ss apart; multiples of %lld take the fast path", name,
              rows    ? "rows"
              : heads ? "heads"
                      : "batch entries",
              (long long)(rows    ? s.s
                          : heads ? s.h
                                  : s.b),
              unit, (long long)step);
}

// A property of a problem that may be in the way. Returns the words for it, "" if the problem does
// not have it, and takes it away from `near`.
using Relax = String (*)(const Problem& p, Problem* near);

String relax_bias_type(const Problem& p, Problem* near) {
  if (!p.bias || p.expands_table() || p.bias.dtype == p.dtype) return "";
  near->bias.dtype = p.dtype;
  if (p.wants(TANDEM_GRAD_BIAS)) near->d_bias_dtype = p.dtype;
  return text("bias is %s; one of the tensors' type, %s, takes the fast path",
              dtype_name(p.bias.dtype), dtype_name(p.dtype));
}

String relax_bias_strides(const Problem& p, Problem* near) {
  if (!p.bias || p.expands_table()) return "";
  const int64_t step = kChunk / size_of(p.bias.dtype);
  if (is_round(p.bias.strides, step)) return "";
  round_up(&near->bias.strides, kChunk / 2);
  if (p.wants(TANDEM_GRAD_BIAS)) round_up(&near->d_bias, kChunk / 2);
  return odd_words("bias", p.bias.strides, "element", step);
}

// d_bias that is summed over rows, over heads, or over some of the batch entries.
String relax_bias_sums(const Problem& p, Problem* near) {
  if (!p.wants(TANDEM_GRAD_BIAS) || p.expands_table() || p.heads_q == 0 || p.seq_q == 0) return "";
  const Overlay& b = p.bias;
  const bool rows = b.rows != p.seq_q, heads = b.heads != p.heads_q,
             some = b.batch != 1 && b.batch != p.batch;
  if (!rows && !heads && !some) return "";
  if (double(p.seq_kv + kChunk) * double(p.seq_q) * double(p.heads_q) * double(p.batch) >
      double(kMost))
    return "";
  near->bias.rows = p.seq_q;
  near->bias.heads = p.heads_q;
  if (some) near->bias.batch = p.batch;
  for (Strides* s : {&near->bias.strides, &near->d_bias}) {
    s->d = 1, s->s = round_up(p.seq_kv, kChunk / 2);
    s->h = s->s * p.seq_q;
    s->b = near->bias.batch > 1 ? s->h * p.heads_q : 0;
  }
  return text("d_bias is summed over %s; a bias with all of them takes the fast path",
              rows    ? "query rows"
              : heads ? "heads"
                      : "some of the batch entries");
}

String relax_keep_strides(const Problem& p, Problem* near) {
  if (!p.keep || is_round(p.keep.strides, kChunk)) return "";
  round_up(&near->keep.strides, kChunk);
  return odd_words("keep", p.keep.strides, "byte", kChunk);
}

String relax_head_size(const Problem& p, Problem* near) {
  const int64_t step = kChunk / p.element_size();
  if (p.head_dim % step == 0 && p.head_dim_v % step == 0) return "";
  near->head_dim = round_up(p.head_dim, step);
  near->head_dim_v = round_up(p.head_dim_v, step);
  for (Strides Problem::*s : {&Problem::q, &Problem::k, &Problem::v, &Problem::o, &Problem::d_o,
                              &Problem::d_q, &Problem::d_k, &Problem::d_v})
    round_up(&(near->*s), step);
  const bool v = p.head_dim % step == 0;
  return text("%s is %lld; multiples of %lld take the fast path", v ? "head_dim_v" : "head_dim",
              (long long)(v ? p.head_dim_v : p.head_dim), (long long)step);
}

String relax_strides(const Problem& p, Problem* near) {
  const int64_t step = kChunk / p.element_size();
  String words;
  const auto relax = [&](const char* name, Strides Problem::*s, int64_t heads, int64_t rows) {
    Strides given = p.*s;
    if (p.batch == 1) given.b = 0;
    if (heads == 1) given.h = 0;
    if (rows == 1) given.s = 0;
    if (is_round(given, step)) return;
    if (words.empty()) words = odd_words(name, given, "element", step);
    round_up(&(near->*s), step);
  };
  const bool packed_q = is_packed(p.lengths_q), packed_kv = is_packed(p.lengths_kv);
  const int64_t q = packed_q ? p.total_q : p.seq_q, kv = packed_kv ? p.total_kv : p.seq_kv;
  relax("q", &Problem::q, p.heads_q, q);
  relax("k", &Problem::k, p.heads_kv, kv);
  relax("v", &Problem::v, p.heads_kv, kv);
  if (p.backward) relax("d_o", &Problem::d_o, p.heads_q, q);
  return words;
}

constexpr Relax kRelax[] = {relax_bias_type,    relax_bias_strides, relax_bias_sums,
                            relax_keep_strides, relax_head_size,    relax_strides};
constexpr int kRelaxCount = int(sizeof(kRelax) / sizeof(kRelax[0]));

// The refusal of a path, or of its first tile.
String refusal_of(const Plan& plan, const String& path) {
  for (const Refusal& r : plan.refusals)
    if (r.candidate == path) return r.reason;
  for (const Refusal& r : plan.refusals)
    if (r.candidate.compare(0, path.size(), path) == 0) return r.reason;
  return "";
}

}  // namespace

Slow find_slow(const Plan& plan, const Caps& caps) {
  const Problem& p = plan.problem;
  Problem nearby[kRelaxCount];
  String words[kRelaxCount];
  Problem all = p;
  String all_words;
  int count = 0;
  for (Relax relax : kRelax) {
    nearby[count] = p;
    words[count] = relax(p, &nearby[count]);
    if (words[count].empty()) continue;
    relax(all, &all);
    all_words += (count ? "; " : "") + words[count];
    ++count;
  }
  if (count == 0) return {};
  const Estimate own = estimate(plan, caps);
  if (!own || (!own.inside && !own.at_least) || own.ms <= kSlow * least_ms(all, caps)) return {};
  const auto found = [&](const Problem& near, const String& reason) -> Slow {
    Plan other;
    if (!make_plan(near, caps, &other).ok()) return {};
    const Estimate e = estimate(other, caps);
    if (!e.inside || own.ms <= kSlow * e.ms) return {};
    const String path = String(backend_name(other.backend)) + "." + other.path;
    const String why = std::strcmp(other.path, plan.path) == 0 ? "" : refusal_of(plan, path);
    return {reason, text("slow plan: %s takes %s; a nearby problem would take %s on %s: %s%s%s%s",
                         plan.name().c_str(), own.words().c_str(), e.words().c_str(), path.c_str(),
                         reason.c_str(), why.empty() ? "" : (" (" + path + " refused: ").c_str(),
                         why.c_str(), why.empty() ? "" : ")")};
  };
  for (int n = 0; n < count; ++n) {
    const Slow slow = found(nearby[n], words[n]);
    if (!slow.reason.empty()) return slow;
  }
  return count > 1 ? found(all, all_words) : Slow{};
}

}  // namespace tandem
