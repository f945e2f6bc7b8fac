// SPDX-License-Identifier: MIT OR Apache-2.0
// What masks, spans and block lists show of a tile of scores. A tile of which nothing is shown is
// skipped; one that is shown as a whole needs no mask. Included inside an anonymous namespace,
// after simd_tile.inl.

// A tile of scores: steps of lanes, at a pitch. KEYS: lanes are keys and steps are rows, else the
// other way round.
struct ScoreTile {
  float scale;
  TandemBand band;
  int row0, rows, col0, cols;
  float* s;  // products, then scores; -inf where an input hides
  int64_t pitch;
};

// A block is kBlockSide rows and keys or more (TANDEM_MAP_BLOCK).
constexpr int kBlockSide = 64, kTileBlocks = kSimdMaxFeatures / kBlockSide + 2;
constexpr int kBlockHidden = -2, kBlockFull = -1;  // else: the slot of the block's bits

struct Shown {
  bool any = true;                                  // whether a pair of the tile is shown
  bool keys = false, pairs = false, spans = false;  // what hides some: needs a look at each pair
  // Of block lists: the blocks that the tile lies in.
  int64_t row_block = 0, col_block = 0;
  int32_t slot[kTileBlocks][kTileBlocks];
};

// What some pairs of a tile add up to.
struct Tally {
  bool shows = false, hides = false;
  void add(bool shown) { (shown ? shows : hides) = true; }
  bool mixed() const { return shows && hides; }
};

// Looks at a mask with a row for each query, eight bytes at a time where they lie side by side.
inline Tally tally_pairs(const SimdTerms& x, const ScoreTile& t) {
  Tally tally;
  for (int r = 0; r < t.rows && !tally.mixed(); ++r) {
    const uint8_t* at = x.keep + (t.row0 + r) * x.keep_row + t.col0 * x.keep_key;
    int j = 0;
    for (; x.keep_key == 1 && j + 8 <= t.cols; j += 8) {
      uint64_t bytes;
      std::memcpy(&bytes, at + j, 8);
      tally.shows |= bytes != 0;
      tally.hides |= ((bytes - 0x0101010101010101u) & ~bytes & 0x8080808080808080u) != 0;
    }
    for (; j < t.cols; ++j) tally.add(at[j * x.keep_key] != 0);
  }
  return tally;
}
inline Tally tally_keys(const SimdTerms& x, const ScoreTile& t) {
  Tally tally;
  for (int j = 0; j < t.cols; ++j) tally.add(x.keep[(t.col0 + j) * x.keep_key] != 0);
  return tally;
}

// The rows of the tile that see a key by an interval, from the tile's first row on.
struct Span {
  int begin, end;
};
inline Span clamp_span(const int32_t* span, const ScoreTile& t) {
  const auto within = [&](int32_t row) {
    return row <= t.row0 ? 0 : row >= t.row0 + t.rows ? t.rows : row - t.row0;
  };
  return {within(span[0]), within(span[1])};
}
inline const int32_t* spans_of(const SimdTerms& x, const ScoreTile& t, int key) {
  return x.spans + int64_t(t.col0 + key) * x.span_count * 2;
}
inline Tally tally_spans(const SimdTerms& x, const ScoreTile& t) {
  Tally tally;
  for (int j = 0; j < t.cols; ++j) {
    bool whole = false;
    for (int n = 0; n < x.span_count; ++n) {
      const Span s = clamp_span(spans_of(x, t, j) + 2 * n, t);
      tally.shows |= s.begin < s.end;
      whole |= s.begin == 0 && s.end == t.rows;
    }
    tally.hides |= !whole;
  }
  return tally;
}

// Reads the lists of the tile's rows (src/problem/block_lists.h): partial blocks, then full ones;
// of a block that is listed twice the later entry counts.
inline Tally tally_blocks(const SimdTerms& x, const ScoreTile& t, Shown* shown) {
  shown->row_block = t.row0 / x.block_q, shown->col_block = t.col0 / x.block_kv;
  const int64_t rows = (t.row0 + t.rows - 1) / x.block_q - shown->row_block + 1,
                columns = (t.col0 + t.cols - 1) / x.block_kv - shown->col_block + 1;
  Tally tally;
  const auto clamp = [](int64_t n, int64_t most) { return n < 0 ? 0 : n > most ? most : n; };
  for (int64_t r = 0; r < rows; ++r) {
    int32_t* slot = shown->slot[r];
    for (int64_t c = 0; c < columns; ++c) slot[c] = kBlockHidden;
    const int32_t* list = x.blocks + (shown->row_block + r) * (2 + x.block_width);
    const int64_t partial = clamp(list[0], x.block_bits > 0 ? x.block_bits : x.block_width),
                  full = clamp(list[1], x.block_width - partial);
    for (int64_t n = 0; n < partial + full; ++n) {
      const int64_t c = list[2 + n] - shown->col_block;
      if (c < 0 || c >= columns) continue;
      slot[c] = n < partial && x.block_bits > 0 ? int32_t(n) : kBlockFull;
    }
    for (int64_t c = 0; c < columns; ++c) {
      tally.shows |= slot[c] != kBlockHidden;
      tally.hides |= slot[c] != kBlockFull;
    }
  }
  return tally;
}

inline void look_at(const SimdTerms& x, const ScoreTile& t, Shown* shown) {
  const auto count = [&](const Tally& tally, bool* hides) {
    shown->any = shown->any && tally.shows;
    *hides = tally.hides;
  };
  if (x.keep && x.keep_row == 0) count(tally_keys(x, t), &shown->keys);
  if (x.keep && x.keep_row != 0 && shown->any) count(tally_pairs(x, t), &shown->pairs);
  if (x.blocks) count(tally_blocks(x, t, shown), &shown->pairs);
  if (x.span_count > 0 && shown->any) count(tally_spans(x, t), &shown->spans);
}

// Row r of the tile as numbers: 0, or -inf where a mask or a block hides the pair.
inline void put_hides(const SimdTerms& x, const ScoreTile& t, const Shown& shown, int r,
                      float* row) {
  if (!x.blocks) {
    const uint8_t* at = x.keep + (t.row0 + r) * x.keep_row + t.col0 * x.keep_key;
    if (x.keep_key == 1)
      for (int j = 0; j < t.cols; ++j) row[j] = at[j] ? 0 : -kInfinity;
    else
      for (int j = 0; j < t.cols; ++j) row[j] = at[j * x.keep_key] ? 0 : -kInfinity;
    return;
  }
  const int64_t i = t.row0 + r, block = i / x.block_q;
  for (int j = 0; j < t.cols;) {
    const int64_t key = t.col0 + j, column = key / x.block_kv;
    const int end = int(smaller(int64_t(t.cols), (column + 1) * x.block_kv - t.col0));
    const int32_t slot = shown.slot[block - shown.row_block][column - shown.col_block];
    if (slot < 0) {
      for (; j < end; ++j) row[j] = slot == kBlockFull ? 0 : -kInfinity;
      continue;
    }
    const uint32_t* words = x.bits + ((block * x.block_bits + slot) * x.block_q + i % x.block_q) *
                                         (x.block_kv / 32);
    const int first = int(key - column * x.block_kv) - j;  // of the bit of lane 0
    for (; j < end; ++j)
      row[j] = words[(first + j) / 32] >> ((first + j) % 32) & 1 ? 0 : -kInfinity;
  }
}

// Numbers of each pair of a tile, in the order of scores: put(row of the tile, numbers of its
// keys).
template <bool KEYS, typename Put>
inline void stage_pairs(const ScoreTile& t, int64_t lanes, float* to, const Put& put) {
  if (KEYS) {
    for (int r = 0; r < t.rows; ++r) put(r, to + r * t.pitch);
    return;
  }
  float block[4 * kSimdMaxFeatures];
  for (int64_t r = 0; r < t.rows; r += 4) {
    const int count = smaller(4, int(t.rows - r));
    for (int n = 0; n < count; ++n) put(int(r) + n, block + n * kSimdMaxFeatures);
    transpose(block, kSimdMaxFeatures, count, t.cols, to + r, t.pitch);
  }
  for (int64_t r = t.rows; r < lanes; ++r)
    for (int64_t j = 0; j < t.cols; ++j) to[j * t.pitch + r] = 0;
}
