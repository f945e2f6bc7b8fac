// SPDX-License-Identifier: MIT OR Apache-2.0
// Gradients of optional inputs that bwd_dq sums of a tile's ds, [keys][rows], over the calls of a
// unit, in a fixed order. Included inside an anonymous namespace, after fwd_simd.inl.

inline void add_d_bias(const SimdBwdDq& t, int col0, int keys, int64_t lanes) {
  for (int j = 0; j < keys; ++j) {
    const float* ds = t.s + j * t.pitch;
    if (t.bias_sums) {
      float* to = t.bias_sums + (col0 + j) * t.pitch;
      for (int64_t c = 0; c < lanes; c += kLanes) store(to + c, load(to + c) + load(ds + c));
    } else {
      double sum = 0;
      for (int r = 0; r < t.rows; ++r) sum += ds[r];
      t.bias_row_sums[col0 + j] += sum;
    }
  }
}

// Diagonals of the tile first, then their sums. ds of lanes behind the rows is 0.
inline void add_d_dist(const SimdBwdDq& t, int col0, int keys, int64_t lanes) {
  const int64_t least = int64_t(t.row0) + t.band.off - (col0 + keys - 1), count = t.rows + keys - 1;
  if (least >= t.terms->dist_window || least + count <= 0) return;
  float sums[2 * kSimdMaxFeatures + kSimdMaxLanes];
  for (int64_t n = 0; n < count + kLanes; ++n) sums[n] = 0;
  for (int j = 0; j < keys; ++j)
    for (int64_t c = 0; c < lanes; c += kLanes) {
      float* to = sums + keys - 1 - j + c;
      store(to, load(to) + load(t.s + j * t.pitch + c));
    }
  for (int64_t n = 0; n < count; ++n)
    if (least + n >= 0 && least + n < t.terms->dist_window) t.dist_sums[least + n] += sums[n];
}

template <typename Number>
inline void add_d_table(const SimdBwdDq& t, const Number* numbers, int keys) {
  const SimdTerms& x = *t.terms;
  const auto size = uint32_t(x.table_size);
  const bool copies = x.table_size <= kSimdShortTable;
  for (int r = 0; r < t.rows; ++r) {
    const Number* of = numbers + r * x.index_row;
    for (int j = 0; j < keys; ++j) {
      const auto n = uint32_t(of[j]);
      double* to = t.table_sums + (copies ? j % kSimdTableCopies * x.table_size : 0);
      if (n < size) to[n] += t.s[j * t.pitch + r];
    }
  }
}
inline void add_d_table(const SimdBwdDq& t, int col0, int keys) {
  const SimdTerms& x = *t.terms;
  const int64_t at = t.row0 * x.index_row + col0;
  if (x.index_dtype == TANDEM_U8)
    add_d_table(t, static_cast<const uint8_t*>(x.index) + at, keys);
  else if (x.index_dtype == TANDEM_U16)
    add_d_table(t, static_cast<const uint16_t*>(x.index) + at, keys);
  else
    add_d_table(t, static_cast<const int32_t*>(x.index) + at, keys);
}

inline void add_ds(const SimdBwdDq& t, int col0, int keys, int64_t lanes) {
  if (t.bias_sums || t.bias_row_sums) add_d_bias(t, col0, keys, lanes);
  if (t.dist_sums) add_d_dist(t, col0, keys, lanes);
  if (t.table_sums) add_d_table(t, col0, keys);
}
