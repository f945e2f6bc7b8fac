// SPDX-License-Identifier: MIT OR Apache-2.0
// Attention of real models (models.inc), for the bench, for random problems and for the planner.
#ifndef TANDEM_HARNESS_MODELS_H
#define TANDEM_HARNESS_MODELS_H
#include <cstdint>
#include <string>
#include <vector>

#include "host.h"

namespace tandem::harness {

struct Model {
  const char* name;
  const char* line;  // a problem line; fwd: inference alone
};
const std::vector<Model>& models();

// Lengths of a model's batch entries, [B]: from the whole size down to about half of it, and in a
// packed tensor in that proportion, so that they add up to its total. Entries of q and kv are as
// long as each other where their sizes and totals are, as in self-attention.
std::vector<int64_t> model_lengths(const tandem_problem& problem, bool kv);
// A tree's prompt and answers, whose answers have this many rows together: with fewer than 12,288
// rows there are 8 answers, else 16.
constexpr int64_t kTree = 8192;
// The rows that see key j of so many: of 16 documents, each causal, where the number is a power of
// two; else of a prompt that 8 or 16 answers share, as in training by reinforcement.
std::pair<int64_t, int64_t> model_span(int64_t seq, int64_t j);
// Whether a model's keep shows key j to query row i: entry 3 of each 4 hides two regions from each
// other, at 4/7 of rows and keys; a mask of one row leaves out up to 3/16 of the last keys; a
// square one of more than kTree rows is that of model_span().
bool model_keep(const Dims& keep, int64_t b, int64_t i, int64_t j);
// The entry of the table that a pair reads: a relative position in a window of sqrt(Sq) rows, where
// the table has just these; T5's bucket of a distance, in a table of up to 64; else any one.
int64_t model_index(const tandem_problem& problem, int64_t i, int64_t j);
// Lengths, spans, indices or keep as these say; any other input as the seed says.
void fill_model_input(const tandem_problem& problem, Role role, uint64_t seed, HostTensor* tensor);

// A random problem of a model's kind: its head sizes, types, masks and biases, with lengths a few
// percent off. Batch, heads and then lengths are smaller until B Hq Sq Sk (D + Dv) is at most
// max_work, windows in proportion. Seeds that agree in seed / kSameKernels have the same model.
tandem_problem random_model_problem(uint64_t seed, int64_t max_work);

}  // namespace tandem::harness
#endif
