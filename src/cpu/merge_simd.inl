// SPDX-License-Identifier: MIT OR Apache-2.0
// merge, and bwd_merge: rows of a head, from the parts of their keys.

// Of part n of those that are joined: the one that o and lse hold comes first.
inline const float* lse_of_part(const SimdMerge& t, int n) {
  return t.into ? n == 0 ? t.lse : t.part_lse + (n - 1) * t.lse_step : t.part_lse + n * t.lse_step;
}
inline SimdRows part_at(SimdRows first, int64_t step, int64_t n) {
  first.base = static_cast<char*>(first.base) + n * step * (first.dtype == TANDEM_F32 ? 4 : 2);
  return first;
}
inline SimdRows rows_of_part(const SimdMerge& t, int n) {
  return t.into && n == 0 ? t.o : part_at(t.part_o, t.part_step, n - t.into);
}

// The weights of a row's parts to t.weights, 0 for those that see nothing. seen: how many see a
// key; last: the last of them.
struct MergedRow {
  int seen = 0, last = 0;
  float lse = -kInfinity;
};
inline MergedRow weigh_parts(const SimdMerge& t, int64_t row) {
  MergedRow to;
  float origin = -kInfinity, sum = 0;
  for (int n = 0; n < t.count; ++n) {
    const float x = lse_of_part(t, n)[row];
    t.weights[n] = 0;
    if (x == -kInfinity) continue;
    if (to.seen == 0 || x > origin) origin = x;
    ++to.seen;
    to.last = n;
  }
  for (int n = 0; n < t.count; ++n) {
    const float x = lse_of_part(t, n)[row];
    if (x == -kInfinity) continue;
    t.weights[n] = x == origin ? 1 : std::exp(x - origin);
    sum += t.weights[n];
  }
  for (int n = 0; n < t.count && to.seen > 0; ++n) t.weights[n] /= sum;
  to.lse = to.seen == 0 ? -kInfinity : to.seen == 1 ? origin : origin + std::log(sum);
  return to;
}

// A row that one part alone sees keeps that part's bits.
void merge_kernel(const SimdMerge& t) {
  float sum[kSimdMaxFeatures], x[kSimdMaxFeatures];
  const int64_t Dv = t.head_dim_v;
  for (int r = 0; r < t.rows; ++r) {
    const int64_t i = t.row0 + r;
    const MergedRow row = weigh_parts(t, i);
    for (int64_t c = 0; c < Dv; ++c) sum[c] = 0;
    if (row.seen == 1) load_row(rows_of_part(t, row.last), i, Dv, sum);
    for (int n = 0; n < t.count && row.seen > 1; ++n) {
      const float weight = t.weights[n];
      if (lse_of_part(t, n)[i] == -kInfinity) continue;  // whatever its o holds
      load_row(rows_of_part(t, n), i, Dv, x);
      for (int64_t c = 0; c < Dv; ++c) sum[c] += weight * x[c];
    }
    store_row(t.o, i, Dv, sum);
    if (t.lse) t.lse[i] = row.lse;
  }
}

void bwd_merge_kernel(const SimdMerge& t) {
  float given[kSimdMaxFeatures], x[kSimdMaxFeatures];
  const int64_t Dv = t.head_dim_v;
  float* const products = t.weights + t.count;
  for (int r = 0; r < t.rows; ++r) {
    const int64_t i = t.row0 + r;
    const MergedRow row = weigh_parts(t, i);
    const float of_lse = t.d_lse && row.seen > 0 ? t.d_lse[i] : 0;
    float average = 0;
    load_row(t.d_o, i, Dv, given);
    for (int n = 0; n < t.count; ++n) {
      const bool sees = lse_of_part(t, n)[i] != -kInfinity;
      products[n] = 0;
      if (sees) {
        load_row(rows_of_part(t, n), i, Dv, x);
        for (int64_t first = 0; first < Dv; first += kChain) {
          float part = 0;
          for (int64_t c = first; c < Dv && c < first + kChain; ++c) part += x[c] * given[c];
          products[n] += part;
        }
        average += t.weights[n] * products[n];
      }
      for (int64_t c = 0; c < Dv; ++c)
        x[c] = !sees ? 0 : row.seen == 1 ? given[c] : t.weights[n] * given[c];
      store_row(part_at(t.d_part_o, t.d_part_step, n), i, Dv, x);
    }
    for (int n = 0; n < t.count; ++n) {
      const bool sees = lse_of_part(t, n)[i] != -kInfinity;
      t.d_part_lse[n * t.lse_step + i] =
          !sees           ? 0
          : row.seen == 1 ? of_lse
                          : t.weights[n] * (of_lse + (products[n] - average));
    }
  }
}
