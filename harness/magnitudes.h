// SPDX-License-Identifier: MIT OR Apache-2.0
// Inputs of other sizes than training's: scores up to 1e8, finite numbers as masks, sinks near the
// end of f32, the largest and the smallest numbers of a type; and the rules by which results are
// judged there. tests/parity/magnitudes.cpp and `tandem check` share both.
//
// Large scores have large roundings: s = c + bias with a bias of -1e10 has lost c. A path may then
// have the weights of the exact scores or those of the scores that f32 forms, and of a score of 1e7
// any f32 near it. So an element must lie in an interval. A key's weight lies between the least and
// the most that its row's scores allow, each of them anywhere within kScoreUnits of the magnitudes
// that it is made of, around the exact score or the one of f32. There is no interval for a row
// whose largest scores are the same number on every path (equal keys, or a bias that leaves nothing
// of c): its weights are equal, or those of what is left of c in double, as in cpu.ref. Whatever
// the scores,
//   - what is finite in the truth is finite,
//   - the weights of a row that sees a key sum to 1: o lies between the values averaged; over the
//     keys, d_v adds up to d_o of all rows that see one; ds of a row adds up to 0.
#ifndef TANDEM_HARNESS_MAGNITUDES_H
#define TANDEM_HARNESS_MAGNITUDES_H
#include <memory>
#include <string>

#include "compare.h"

namespace tandem::harness {

// What a score may be off by, relative to the sum of the magnitudes that it is made of: 128
// roundings of f32, and the units in which far rows count (src/problem/far_row.h). Matrix hardware
// truncates each of 64 products to the largest one's last place. lse and thresholds come from the
// forward's product, the weights from the backward's, which may be formed in other steps. Both
// together are off by 2^-17.6 on vulkan.coopmat and coopmat2 (H100, entmax of equal scores, 1e3 to
// 1e4).
constexpr double kScoreUnits = 0x1p-17;

struct Magnitudes {
  enum class Scores {
    usual,   // as the seed says
    low,     // all about -score
    high,    // all about score
    spread,  // either sign, about score
    one,     // one key of each head at score, the others far below
    equal,   // all keys of a head are the same, at score or, of every other head, at -score
    zero,    // q is 0
    tiny     // q and k are the smallest numbers of their type
  };
  enum class Bias {
    usual,
    some,  // a third of the keys of each row have it, the others a usual bias
    all,   // all keys of a third of the rows
    pad,   // some keys at the beginning, and those behind the diagonal: causal, with left padding
    rows,  // all of some rows; all of others is minus infinity, and a few keys elsewhere
    one    // one key of each row has it
  };
  enum class Values { usual, ones, largest, tiny, zero, some };  // some: every third row is 0

  Scores scores = Scores::usual;
  double score = 0;
  Bias bias = Bias::usual;
  double bias_value = 0;  // rounded to the bias's type; the type's largest where it is beyond that
  double sink = 0;        // 0: usual; else of every other head, of the others its negative
  Values v = Values::usual, d_o = Values::usual;

  bool usual() const;
};

// "scores=low:1e+06,bias=pad:-1e+10,sink=3e+38,v=ones,d_o=some", what is usual left out. parse
// throws Error.
std::string print(const Magnitudes& m);
Magnitudes parse_magnitudes(const std::string& text);

// Those that `tandem check` takes for a seed: percent of all problems have some. They fit the
// problem's optional inputs.
Magnitudes random_magnitudes(uint64_t seed, const tandem_problem& problem, int percent = 33);

// Overwrites what m names of the case's inputs.
void fill_magnitudes(const Magnitudes& m, Case& test);

// The rules above for a case with the inputs that it has now. They have references of their own.
class MagnitudeRules {
 public:
  explicit MagnitudeRules(Case& test);
  ~MagnitudeRules();
  MagnitudeRules(const MagnitudeRules&) = delete;
  MagnitudeRules& operator=(const MagnitudeRules&) = delete;
  // Adds to result, as Case::judge() does. loses_denormals: the device may take f32 numbers below
  // 2^-126 for 0, and so may products be, where an input has numbers below it.
  void judge(const Outputs& outputs, CaseResult* result, bool loses_denormals = false) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Case::run() and the rules.
CaseResult run_and_judge(Case& test, const MagnitudeRules& rules, Session& session,
                         Outputs* outputs = nullptr);

// Repeats a case: tandem check --repro "<line>" --seed S --magnitudes WORDS.
std::string repro(const tandem_problem& problem, uint64_t seed, const Magnitudes& m);

}  // namespace tandem::harness
#endif
