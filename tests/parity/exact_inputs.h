// SPDX-License-Identifier: MIT OR Apache-2.0
// Inputs whose attention weights are exact by construction, so that a right kernel's outputs are
// known to the last bit (forward) or to half a rounding (backward), and a single key too many or
// too few in a single row shows.
//
// Each key carries a code; a query hits one key, or two of them equally, and misses all others by
// so much that their weight is below 2^-45. The codes, by head size:
//   signs   D >= 24: random signs; the query is 16 times the sum of the signs of the keys that it
//           hits
//   digits  5 <= D < 24, up to 120 keys: key j carries j and j^2, and the query what makes
//           -(j - t)^2 of them, so that t is hit, or for a t between two neighbours both of them
//   ramp    D < 5, up to 120 keys: key j carries j; the last or the first visible key is hit
// Signs and digits have features left over that shift the score of the hit keys to 0: a row's lse
// is then 0 or ln 2, and its own rounding does not blur the backward.
#ifndef TANDEM_TESTS_PARITY_EXACT_INPUTS_H
#define TANDEM_TESTS_PARITY_EXACT_INPUTS_H
#include <vector>

#include "parity.h"

namespace parity {

enum class Fill {
  last,    // the last visible key of each row
  decoy,   // the key at the edge of what is visible and, equally, the hidden one beside it
  random,  // any visible key
  pair     // two visible keys with weight 1/2 each
};
constexpr Fill kFills[] = {Fill::last, Fill::decoy, Fill::random, Fill::pair};
const char* fill_name(Fill fill);

// The visible keys that each row [B,Hq,Sq] hits.
struct Hit {
  int count = 0;  // 0: the row sees nothing
  int64_t key[2] = {0, 0};
  double score = 0;  // of the keys hit, scaled
};
struct Hits {
  std::vector<Hit> rows;
  int64_t wanted = 0, got = 0;  // rows that could have, and have, what the fill is about
};

constexpr float kExactScale = 0.5f;  // the scale that a problem must have

bool exact_possible(const tandem_problem& problem, Fill fill);

// Overwrites the inputs of a case. Every row's weights are computed in double from what was
// written, and drawn again where they are not what was meant.
Hits make_exact(Case& test, Fill fill, bool shifted, uint64_t seed);

// What a right kernel gives, dense, and the sum of the magnitudes of each element's terms.
struct Exact {
  std::vector<double> value, magnitude;
};
Exact exact_o(Case& test, const Hits& hits);
void exact_gradients(Case& test, const Hits& hits, Exact* d_q, Exact* d_k, Exact* d_v);

}  // namespace parity
#endif
