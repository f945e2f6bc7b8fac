// SPDX-License-Identifier: MIT OR Apache-2.0
// Backend against backend: the same problem with the same Br x Bc forced on both, every pair of
// targets, judged by the same bounds as against the reference.
#include "parity.h"

using namespace parity;

namespace {

void check_pairs(tandem_problem p, uint32_t tile, uint64_t seed) {
  if (!mine(p)) return;
  p.tile_rows = p.tile_cols = tile;
  Case test(p, seed);
  std::vector<Outputs> outputs(targets().size());
  std::vector<bool> ran(targets().size(), false);
  for (size_t n = 0; n < targets().size(); ++n) {
    Target& target = targets()[n];
    const CaseResult result = test.run(*target.session, &outputs[n]);
    const std::string where = target.name + ": " + repro(p, seed);
    if (result.refused)
      continue;  // a device may be too small for the tile; the plan tests say when
    CHECK_MESSAGE(result.ok, where << "\n  " << result.message);
    if (!result.ok) continue;
    // A path without tiles (the reference) takes any; every other runs the one that was asked for.
    CHECK_MESSAGE((result.tile_rows == tile || result.path == "ref"),
                  where << ": ran tile " << result.tile_rows);
    CHECK_MESSAGE((result.tile_cols == tile || result.path == "ref"), where);
    count(result.kernels);
    ran[n] = true;
  }
  for (size_t a = 0; a < targets().size(); ++a)
    for (size_t b = a + 1; b < targets().size(); ++b) {
      if (!ran[a] || !ran[b]) continue;
      CaseResult result;
      result.ok = true;
      test.judge_pair(outputs[a], outputs[b], &result);
      CHECK_MESSAGE(result.ok, targets()[a].name << " against " << targets()[b].name << ": "
                                                 << repro(p, seed) << "\n  " << result.message);
    }
}

}  // namespace

TEST_CASE("pairs: every two targets agree on the same tiles") {
  int n = 0;
  for (uint32_t tile : {32u, 64u})
    for (const Mask& mask : {kNone, kBottomRight}) {
      const tandem_dtype dtype = tandem_dtype(1 + n++ % 3);
      check_pairs(problem(TANDEM_BACKWARD, dtype, {1, 4, 2, 97, 130, 64, 64}, mask), tile,
                  seed_of("pairs", uint64_t(n)));
      if (!at_least(Tier::ci)) continue;
      check_pairs(problem(TANDEM_BACKWARD, dtype, {2, 2, 2, 200, 200, 128, 64}, mask, Layout::bshd),
                  tile, seed_of("pairs wide", uint64_t(n)));
    }
}

TEST_CASE("pairs: long rows on the same tiles" * doctest::skip(!at_least(Tier::device))) {
  for (uint32_t tile : {32u, 64u})
    for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16, TANDEM_BF16})
      check_pairs(problem(TANDEM_BACKWARD, dtype, {1, 4, 2, 1023, 1500, 128, 128}, kBottomRight),
                  tile, seed_of("pairs long", dtype));
}
