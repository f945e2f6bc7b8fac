// SPDX-License-Identifier: MIT OR Apache-2.0
#include "rules.h"

#include <algorithm>
#include <iterator>

#include "base/number.h"
#include "plan/planner.h"
#include "plan/sm80/heuristics.h"

namespace tandem {
namespace {

bool has_sm80(const Caps& caps) { return caps.sm80_code && !is_disabled(caps, "cuda.sm80"); }

String why_whole_heads(const Sm90Case& c) {
  if (!has_sm80(c.caps) || sm80_whole_row(c.p, c.caps) < 0) return "";
  return "a head fits one tile of cuda.sm80, whose workgroups take several heads";
}

// Whether the forward splits keys.
bool splits_keys(const Problem& p) { return std::max(p.head_dim, p.head_dim_v) > kMaxWholeHeadDim; }

// One workgroup reads all keys of a head, so few heads are better split.
constexpr int64_t kFewRows = 32, kManyKeys = 512, kSomeRows = 128, kMoreKeys = 2048;
String why_few_heads(const Sm90Case& c) {
  const Problem& p = c.p;
  const int64_t heads = p.batch * p.heads_q, cores = c.caps.cores;
  if (p.backward || p.splits != 0 || splits_keys(p)) return "";
  const bool few = p.seq_q <= kFewRows && p.seq_kv >= kManyKeys && heads * 3 <= cores,
             some = p.seq_q <= kSomeRows && p.seq_kv >= kMoreKeys && heads * 6 <= cores;
  if (!few && !some) return "";
  return text(
      "%lld rows of %lld heads would leave most of the device idle, and it does not split keys",
      (long long)p.seq_q, (long long)heads);
}

String why_packed_rows(const Sm90Case& c) {
  if (!has_sm80(c.caps) || !sm80_packs_rows(c.p)) return "";
  // They are one tile here, too.
  if (splits_keys(c.p) && c.p.group() == 1 && c.p.seq_q > 4 && c.p.seq_kv >= kManyKeys) return "";
  return text("the %lld rows that share keys are one tile of cuda.sm80",
              (long long)(c.p.seq_q * c.p.group()));
}

// The columns `from` and `to` of tiles.inc, for plain softmax.
String why_keys(const Sm90Case& c) {
  const Problem& p = c.p;
  const FwdTile& t = *c.tile;
  const bool few = p.seq_kv < t.from;
  const bool many = t.to > 0 && !p.banded() && p.seq_kv > t.to;
  if (c.kernel->inputs != 0 || (!few && !many)) return "";
  return text("for %lld keys another tile is faster", (long long)p.seq_kv);
}

}  // namespace

// Heads over 64: three or four warpgroups hide more latency than two, and share loads of keys. But
// their tiles may have more rows and keys beyond the end, and the last wave fewer of them. Rows and
// elements are those of whole tiles of the SM that has most. Four warpgroups have short steps, so
// that keys beyond the end count little.
bool pays_more_rows(const Problem& p, int64_t cores, const FwdTile& t) {
  if (t.warpgroups < 3 || t.d <= 64 || t.bias) return true;
  if (t.d > 96 && p.seq_kv >= kMoreKeys) return true;
  const int64_t least = t.d > 96 ? kManyKeys : t.warpgroups == 4 ? 128 : kManyKeys / 2;
  if (p.banded() || p.seq_kv < least) return false;
  const auto rows = [&](int64_t of_tile) {
    const int64_t tiles = (p.seq_q + of_tile - 1) / of_tile * p.heads_q * p.batch;
    return (tiles + cores - 1) / cores * of_tile;
  };
  if (t.warpgroups == 4) return 20 * rows(t.rows()) <= 21 * rows(128);
  const auto elements = [&](int64_t of_tile, int64_t keys) {
    return rows(of_tile) * ((p.seq_kv + keys - 1) / keys * keys);
  };
  return 20 * elements(t.rows(), t.bc) <= 21 * elements(128, 128);
}

namespace {

String why_192_rows(const Sm90Case& c) {
  if (c.kernel->inputs != 0 || pays_more_rows(c.p, cores_of(c.caps), *c.tile)) return "";
  return "tiles of 128 rows are faster";
}

// With at most 64 rows the second workgroup of a cluster would have none.
String why_cluster(const Sm90Case& c) {
  const FwdTile& t = *c.tile;
  if (!t.halves_o() || (c.p.seq_q <= 64) == (t.cluster() == 1)) return "";
  return t.cluster() == 1 ? "clusters read the keys of 128 rows once"
                          : "the second workgroup of a cluster would have no rows";
}

String why_one_row_mask(const Sm90Case& c) {
  if (!c.tile->decoupled || !c.kernel->has(trait::one_row) || !c.p.banded()) return "";
  return "with a mask its rows would visit keys that they do not see";
}

String why_bias_192_mask(const Sm90Case& c) {
  return c.tile->bias && c.p.banded() ? "it serves problems without a mask alone" : "";
}

constexpr int64_t kManyTiles = 4;  // of an SM
String why_bias_192_few(const Sm90Case& c) {
  const int64_t rows = c.tile->rows(),
                tiles = c.p.batch * c.p.heads_q * ((c.p.seq_q + rows - 1) / rows);
  if (!c.tile->bias || tiles >= kManyTiles * int64_t(c.caps.cores)) return "";
  return text("it is taken from %lld tiles an SM on, here are %lld for %lld", (long long)kManyTiles,
              (long long)tiles, (long long)c.caps.cores);
}

}  // namespace

// Times are of an H100 with 132 SMs. Notebook: bench/lab/2026-11.md.
const Sm90Rule kSm90Rules[] = {
    {{"cuda.sm90.rule.whole_heads",
      "32 x 128, D 32, 4,096 heads with a bias of each: forward 0.053 ms on sm80, 0.099 here; "
      "backward 0.14, 0.41. More in src/plan/sm80/heuristics.h"},
     false,
     why_whole_heads},
    {{"cuda.sm90.rule.few_heads",
      "4 rows, D 128, Sk 8192: 32 heads 0.060 ms on sm80, 0.081 here; 56 heads 0.095, 0.085. 128 "
      "rows, 16 heads: Sk 2048 0.026, 0.033; Sk 8192 0.065, 0.105; 24 heads: Sk 2048 0.034, 0.034"},
     false,
     why_few_heads},
    {{"cuda.sm90.rule.packed_rows",
      "one query, 16 heads, 48 keys, B 2048: 0.159 ms on sm80, 0.901 here; 8 queries, 32 heads of "
      "8 kv heads, 8192 keys, B 4: 0.068, 0.088. More in src/plan/sm80/heuristics.h"},
     false,
     why_packed_rows},
    {{"cuda.sm90.rule.keys", "the columns from and to of src/plan/sm90/tiles.inc"}, true, why_keys},
    {{"cuda.sm90.rule.rows_192",
      "D 72, 729 rows and keys, 512 heads: 0.244 ms, with 128 rows 0.301; D 80, 257, 1024 heads "
      "0.115, 0.154; 1024, 64 heads 0.063, 0.060; D 72, 256, 1024 heads 0.115, 0.099; D 128, 32760 "
      "rows, 512 keys, 12 heads 0.183, 0.210; a mask, D 80, S 2048 0.247, 0.233. 256 rows on an "
      "H200, "
      "D 72: 256, 1024 heads 0.073, with 128 rows 0.090; 128 keys 0.046, 0.061; 4096, 32 heads "
      "0.314, 0.423"},
     true,
     why_192_rows},
    {{"cuda.sm90.rule.cluster", "no figures are on record"}, true, why_cluster},
    {{"cuda.sm90.rule.one_row_mask", "no figures are on record"}, true, why_one_row_mask},
    {{"cuda.sm90.rule.bias_192_mask", "not measured with a mask"}, true, why_bias_192_mask},
    {{"cuda.sm90.rule.bias_192_few",
      "measured with 5.3 and 10.7 tiles for each SM, not with fewer (\"Forward with a dense bias, "
      "D 128\")"},
     true,
     why_bias_192_few},
};
const int kSm90RuleCount = int(std::size(kSm90Rules));

String sm90_slower(const Sm90Case& c) {
  if (c.tile && (c.p.tile_rows != 0 || c.p.tile_cols != 0)) return "";
  if (!c.tile && c.p.batch_invariant) return "";  // whatever its sizes
  for (const Sm90Rule& rule : kSm90Rules) {
    if (rule.of_tiles != (c.tile != nullptr)) continue;
    const String why = rule.why(c);
    if (!why.empty() && in_force(c.caps, rule)) return why;
  }
  return "";
}

}  // namespace tandem
