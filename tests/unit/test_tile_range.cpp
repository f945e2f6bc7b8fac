// SPDX-License-Identifier: MIT OR Apache-2.0
// src/problem/tile_range.h against brute force: every backend finds its tiles by these two
// functions, so a tile too few is a wrong result everywhere at once, and a tile too many or a
// needless mask is lost speed. And src/problem/sequence.h, which says what a batch entry's rows
// are.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "problem/sequence.h"
#include "problem/tile_range.h"

namespace {

bool same(const TandemTiles& a, const TandemTiles& b) {
  const bool empty_full = a.full_begin == a.full_end && b.full_begin == b.full_end;
  return a.begin == b.begin && a.end == b.end &&
         (empty_full || (a.full_begin == b.full_begin && a.full_end == b.full_end));
}

// seen(t): some pair of the tile is visible; full(t): all of it is. Both must be one run of tiles,
// which is itself part of what the geometry relies on.
template <class Seen, class Full>
TandemTiles runs(int tiles, Seen seen, Full full, bool* contiguous) {
  TandemTiles r{0, 0, 0, 0};
  int seen_count = 0, full_count = 0;
  for (int t = 0; t < tiles; ++t) {
    if (seen(t)) {
      if (seen_count++ == 0) r.begin = t;
      r.end = t + 1;
    }
    if (full(t)) {
      if (full_count++ == 0) r.full_begin = t;
      r.full_end = t + 1;
    }
  }
  *contiguous = seen_count == r.end - r.begin && full_count == r.full_end - r.full_begin;
  return r;
}

// The definition, in 64 bits.
bool visible(const TandemBand& band, int64_t i, int64_t j) {
  return j >= i + band.off - band.left && j <= i + band.off + band.right;
}

struct Brute {  // visible pairs of a small problem, as a table
  TandemBand band;
  int seq_q, seq_kv;
  bool at(int i, int j) const { return visible(band, i, j); }

  TandemTiles keys(int row0, int rows, int cols, bool* contiguous) const {
    const int last = row0 + rows < seq_q ? row0 + rows : seq_q;
    auto count = [&](int t) {
      int n = 0;
      for (int i = row0; i < last; ++i)
        for (int j = t * cols; j < (t + 1) * cols && j < seq_kv; ++j) n += at(i, j);
      return n;
    };
    return runs((seq_kv + cols - 1) / cols, [&](int t) { return count(t) > 0; },
                [&](int t) { return count(t) == (last - row0) * cols; }, contiguous);
  }
  TandemTiles queries(int col0, int cols, int rows, bool* contiguous) const {
    const int last = col0 + cols < seq_kv ? col0 + cols : seq_kv;
    auto count = [&](int t) {
      int n = 0;
      for (int j = col0; j < last; ++j)
        for (int i = t * rows; i < (t + 1) * rows && i < seq_q; ++i) n += at(i, j);
      return n;
    };
    return runs((seq_q + rows - 1) / rows, [&](int t) { return count(t) > 0; },
                [&](int t) { return count(t) == (last - col0) * rows; }, contiguous);
  }
};

struct Count {
  long tiles = 0, empty = 0, with_full = 0, mismatches = 0;
};

void compare(const Brute& brute, int br, int bc, Count* count) {
  bool contiguous = false;
  auto check = [&](const TandemTiles& got, const TandemTiles& want, const char* which, int first) {
    ++count->tiles;
    count->empty += want.begin == want.end;
    count->with_full += want.full_begin != want.full_end;
    const bool inside =
        got.begin == got.end ||
        (got.full_begin >= got.begin && got.full_end <= got.end && got.full_begin <= got.full_end);
    if (contiguous && inside && same(got, want)) return;
    if (++count->mismatches > 5) return;
    INFO(which << " first " << first << " Br " << br << " Bc " << bc << " Sq " << brute.seq_q
               << " Sk " << brute.seq_kv << " left " << brute.band.left << " right "
               << brute.band.right << " off " << brute.band.off);
    CHECK(contiguous);
    CHECK(got.begin == want.begin);
    CHECK(got.end == want.end);
    CHECK(got.full_begin == want.full_begin);
    CHECK(got.full_end == want.full_end);
  };
  for (int row0 = 0; row0 < brute.seq_q; row0 += br) {
    const TandemTiles want = brute.keys(row0, br, bc, &contiguous);
    check(tandem_key_tiles(brute.band, row0, br, bc, brute.seq_q, brute.seq_kv), want, "row", row0);
  }
  for (int col0 = 0; col0 < brute.seq_kv; col0 += bc) {
    const TandemTiles want = brute.queries(col0, bc, br, &contiguous);
    check(tandem_query_tiles(brute.band, col0, bc, br, brute.seq_q, brute.seq_kv), want, "key",
          col0);
  }
}

}  // namespace

TEST_CASE("tile ranges equal brute force over all small problems") {
  const int open = TANDEM_BAND_OPEN;
  const int bounds[] = {0, 1, 2, 3, 5, 9, 14, open};
  Count count;
  for (int seq_q = 1; seq_q <= 12; ++seq_q)
    for (int seq_kv = 1; seq_kv <= 12; ++seq_kv)
      for (int off : {0, seq_kv - seq_q})
        for (int left : bounds)
          for (int right : bounds)
            for (int br = 1; br <= 5; ++br)
              for (int bc = 1; bc <= 5; ++bc)
                compare({{left, right, off}, seq_q, seq_kv}, br, bc, &count);
  CHECK(count.mismatches == 0);
  // The loops reached what they were written for.
  CHECK(count.tiles > 2000000);
  CHECK(count.empty > 1000);
  CHECK(count.with_full > 100000);
}

TEST_CASE("tile ranges with any offset, as packed lengths will give") {
  Count count;
  for (int seq_q : {1, 4, 7})
    for (int seq_kv : {1, 5, 8})
      for (int off = -10; off <= 10; ++off)
        for (int left : {0, 2, TANDEM_BAND_OPEN})
          for (int right : {0, 3, TANDEM_BAND_OPEN})
            for (int br : {1, 3, 4})
              for (int bc : {1, 2, 4}) compare({{left, right, off}, seq_q, seq_kv}, br, bc, &count);
  CHECK(count.mismatches == 0);
  CHECK(count.empty > 100);
}

TEST_CASE("tile ranges at real tile sizes, around their multiples") {
  Count count;
  const int sizes[] = {1, 31, 32, 33, 63, 64, 65, 127, 128, 129};
  for (int seq_q : sizes)
    for (int seq_kv : sizes)
      for (int off : {0, seq_kv - seq_q})
        for (int left : {0, 17, 64, TANDEM_BAND_OPEN})
          for (int right : {0, 40, TANDEM_BAND_OPEN})
            for (int tile : {32, 64})
              compare({{left, right, off}, seq_q, seq_kv}, tile, tile, &count);
  CHECK(count.mismatches == 0);
}

TEST_CASE("tile ranges past a batch entry's length are empty") {
  // Workgroups are dispatched for the longest sequence; a short one has no tiles for the rest.
  for (int off : {-9, 0, 4, 20})
    for (int left : {0, 3, TANDEM_BAND_OPEN})
      for (int right : {0, 3, TANDEM_BAND_OPEN})
        for (int seq_q : {0, 1, 5})
          for (int seq_kv : {0, 1, 6})
            for (int first : {5, 6, 8, 64}) {
              const TandemBand band{left, right, off};
              if (first >= seq_q) {
                const TandemTiles t = tandem_key_tiles(band, first, 4, 4, seq_q, seq_kv);
                CHECK(t.begin == t.end);
                CHECK(tandem_key_count(band, first, seq_q, seq_kv) == 0);
              }
              if (first >= seq_kv) {
                const TandemTiles t = tandem_query_tiles(band, first, 4, 4, seq_q, seq_kv);
                CHECK(t.begin == t.end);
              }
              if (seq_kv == 0) CHECK(tandem_key_tiles(band, 0, 4, 4, seq_q, 0).end == 0);
              if (seq_q == 0) CHECK(tandem_query_tiles(band, 0, 4, 4, 0, seq_kv).end == 0);
            }
}

TEST_CASE("splits of a tile range cover each of its tiles exactly once, in order and evenly") {
  int mismatches = 0;
  for (int begin : {0, 3})
    for (int count = 0; count <= 13; ++count)
      for (int full_begin = begin; full_begin <= begin + count; ++full_begin)
        for (int full_end = full_begin; full_end <= begin + count; ++full_end)
          for (int splits = 1; splits <= 15; ++splits) {
            const TandemTiles whole{begin, begin + count, full_begin, full_end};
            int next = begin, least = count, most = 0;
            for (int n = 0; n < splits; ++n) {
              const TandemTiles t = tandem_split_tiles(whole, n, splits);
              mismatches += t.begin != next;
              mismatches += t.end < t.begin;
              next = t.end;
              least = tandem_min(least, t.end - t.begin);
              most = tandem_max(most, t.end - t.begin);
              // A range of its own, and the same tiles go without a mask.
              mismatches +=
                  t.full_begin < t.begin || t.full_end > t.end || t.full_begin > t.full_end;
              for (int tile = t.begin; tile < t.end; ++tile)
                mismatches += (tile >= t.full_begin && tile < t.full_end) !=
                              (tile >= full_begin && tile < full_end);
            }
            mismatches += next != begin + count;
            mismatches += most - least > 1;
          }
  CHECK(mismatches == 0);
  // No sum leaves 32 bits.
  const int tiles = TANDEM_SEQ_LIMIT / 8, splits = 65535;
  int next = 0;
  for (int n = 0; n < splits; ++n) {
    const TandemTiles t = tandem_split_tiles({0, tiles, 0, tiles}, n, splits);
    mismatches += t.begin != next;
    next = t.end;
  }
  CHECK(mismatches == 0);
  CHECK(next == tiles);
}

TEST_CASE("the keys that a row sees by position are counted right") {
  int mismatches = 0;
  for (int seq_q : {0, 1, 4, 7})
    for (int seq_kv : {0, 1, 5, 8})
      for (int off = -10; off <= 10; ++off)
        for (int left : {0, 2, 9, TANDEM_BAND_OPEN})
          for (int right : {0, 3, 9, TANDEM_BAND_OPEN})
            for (int i = 0; i < 9; ++i) {
              const TandemBand band{left, right, off};
              int count = 0;
              for (int j = 0; i < seq_q && j < seq_kv; ++j) count += visible(band, i, j);
              mismatches += tandem_key_count(band, i, seq_q, seq_kv) != count;
            }
  CHECK(mismatches == 0);
  const int limit = TANDEM_SEQ_LIMIT - 1, open = TANDEM_BAND_OPEN;
  CHECK(tandem_key_count({open, open, limit - 1}, 0, 1, limit) == limit);
  CHECK(tandem_key_count({open, 0, 1 - limit}, limit - 1, limit, 1) == 1);
}

// The same formulas in 64 bits, without any care for range.
static TandemTiles wide_tiles(int64_t lo, int64_t hi, int64_t full_lo, int64_t full_hi,
                              int64_t size, int64_t tile) {
  auto clamp = [&](int64_t x) { return x < 0 ? int64_t(0) : x; };
  lo = clamp(lo);
  hi = hi > size - 1 ? size - 1 : hi;
  if (lo > hi) return {0, 0, 0, 0};
  TandemTiles t{int(lo / tile), int(hi / tile + 1), 0, 0};
  full_lo = clamp(full_lo);
  full_hi = full_hi > size - 1 ? size - 1 : full_hi;
  const int64_t begin = (full_lo + tile - 1) / tile, end = full_hi < 0 ? 0 : (full_hi + 1) / tile;
  if (begin < end) t.full_begin = int(begin), t.full_end = int(end);
  return t;
}

TEST_CASE("tile ranges do not overflow at the longest sequences") {
  const int limit = TANDEM_SEQ_LIMIT - 1, open = TANDEM_BAND_OPEN;
  int mismatches = 0;
  long compared = 0;
  for (int seq_q : {1, 64, 65, limit - 64, limit - 1, limit})
    for (int seq_kv : {1, 64, 65, limit - 64, limit - 1, limit})
      for (int off : {0, seq_kv - seq_q})
        for (int left : {0, 1, 4096, limit, open})
          for (int right : {0, 1, 4096, limit, open})
            for (int tile : {32, 64}) {
              const TandemBand band{left, right, off};
              for (int64_t at :
                   {int64_t(0), int64_t(tile), int64_t(seq_q) / 2, int64_t(seq_q) - 1}) {
                const int row0 = int(at / tile * tile);
                if (row0 >= seq_q) continue;
                const int64_t last =
                    (int64_t(row0) + tile < seq_q ? int64_t(row0) + tile : seq_q) - 1;
                const int64_t o = off, l = left, r = right;
                const TandemTiles want = wide_tiles(row0 + o - l, last + o + r, last + o - l,
                                                    row0 + o + r, seq_kv, tile);
                const TandemTiles got = tandem_key_tiles(band, row0, tile, tile, seq_q, seq_kv);
                mismatches += !same(got, want);
                ++compared;
              }
              for (int64_t at :
                   {int64_t(0), int64_t(tile), int64_t(seq_kv) / 2, int64_t(seq_kv) - 1}) {
                const int col0 = int(at / tile * tile);
                if (col0 >= seq_kv) continue;
                const int64_t last =
                    (int64_t(col0) + tile < seq_kv ? int64_t(col0) + tile : seq_kv) - 1;
                const int64_t o = off, l = left, r = right;
                const TandemTiles want =
                    wide_tiles(col0 - o - r, last - o + l, last - o - r, col0 - o + l, seq_q, tile);
                const TandemTiles got = tandem_query_tiles(band, col0, tile, tile, seq_q, seq_kv);
                mismatches += !same(got, want);
                ++compared;
              }
              for (int64_t i : {int64_t(0), int64_t(seq_q) / 2, int64_t(seq_q) - 1})
                for (int64_t j : {int64_t(0), int64_t(seq_kv) / 2, int64_t(seq_kv) - 1})
                  mismatches += tandem_visible(band, int(i), int(j)) != visible(band, i, j);
            }
  CHECK(mismatches == 0);
  CHECK(compared > 10000);
}

TEST_CASE("rows of a batch entry: within the tensor, whatever the numbers are") {
  constexpr int kLowest = std::numeric_limits<int>::min(),
                kHighest = std::numeric_limits<int>::max();
  const std::vector<int> given = {kLowest, kLowest + 1, -1000, -1,           0,       1, 5,
                                  6,       7,           1000,  kHighest - 1, kHighest};
  for (int total : {0, 1, 6, 1 << 29, kHighest})
    for (int longest : {0, 1, 4, (1 << 29) - 1})
      for (int begin : given) {
        CHECK(tandem_padded_rows(begin, longest) == std::clamp(begin, 0, longest));
        for (int end : given) {
          const TandemSequence s = tandem_packed_rows(begin, end, total, longest);
          const int64_t first = std::clamp<int64_t>(begin, 0, total);
          const int64_t rows = std::clamp<int64_t>(end, 0, total) - first;
          CHECK(s.first == first);
          CHECK(s.rows == std::clamp<int64_t>(rows, 0, longest));
          CHECK(int64_t(s.first) + s.rows <= total);
        }
      }
}
