// SPDX-License-Identifier: MIT OR Apache-2.0
// A problem with inputs, the truth about it (the reference in double), what a plain computation in
// the problem's own precision makes of it, and the judgement of a device's outputs by the rules of
// docs/guide/accuracy.md. The test suite, `tandem check` and `tandem bench` all judge by this file.
//
// The rule for a row (a query row of o and d_q, a key row of d_k and d_v), every error against the
// reference in double and the largest over the row's elements:
//     error <= 2 * error of the stepwise computation + 1 ulp of the row's largest value + floor
// The stepwise error of a row is random. Where few terms meet, or one scalar (delta) carries the
// error of the whole row, it is sometimes nearly zero by luck. So the rule uses at least what 39 of
// 40 rows of the tensor with as many terms have, in proportion to the terms. The floor is a few f32
// roundings of the terms. A row whose terms are all zero, for example that of a query which sees no
// key, must be exactly zero. The ratio of a row is
//     2 * error / (the right side)
// so that 2 is the limit, whatever the dtype. Beside it, every element must be within a few
// roundings of the sum of the magnitudes that made it, and lse within 1e-5 (relative where it is
// above 1).
//
// Elastic softmax and entmax have kinks: a score that is off by its own roundings may put a weight
// on the other side of a threshold, or change a small one by much more than its share. The
// reference computes what that can do to an element (its slack), and every bound has it added.
#ifndef TANDEM_HARNESS_COMPARE_H
#define TANDEM_HARNESS_COMPARE_H
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host.h"
#include "session.h"

namespace tandem {
struct Problem;
}

namespace tandem::harness {

constexpr double kRatioLimit = 2.0;
// What may be wrong with a score relative to the terms that make it up, for the slack at kinks: the
// same 8 roundings as in score_roundings().
constexpr double kScoreError = 8 * 0x1p-24;
constexpr double kScoreErrorF64 = 8 * 0x1p-53;  // with tensors of f64

// The judgement of one tensor.
struct Judgement {
  std::string tensor;  // "o", "lse", "d_q", ...
  bool ok = true;
  double ratio = 0;   // worst row; kRatioLimit is the limit (lse: error in units of half its bound)
  double error = 0;   // the error in that row
  std::string where;  // "b0 h1 row 63 column 5: got 0.25, want 0.26 (+-0.001)"; of the worst row
};

struct CaseResult {
  bool ok = false;
  bool refused = false;  // no kernel here: TANDEM_ERROR_UNSUPPORTED; neither ok nor a failure
  std::string message;   // why not ok
  std::string plan;      // the (last) plan's name
  std::string path;      // "scalar"
  uint32_t tile_rows = 0, tile_cols = 0;
  std::vector<uint32_t> kernels;  // registry indices that ran, forward's and backward's
  std::vector<Judgement> judgements;
  double worst_ratio() const;
};

// Rows that are known exactly, to judge others by. All but counts dense, [B,H,rows,features].
struct Samples {
  Dims dims{};
  std::vector<double> exact, stepwise;
  std::vector<double> floor;   // sums of the magnitudes of the terms of each element
  std::vector<double> counts;  // per row: terms in its sums
  std::vector<double> slack;   // what a rounded score may do at a kink; empty: nothing
  uint32_t chain = 0;          // dtype that the sums' terms are stored in; 0: that of the tensor
  bool tf32 = false;           // and products round them to TF32
  // What one unit of a weight, or of ds, brings to an element at most; 0: not known, or not a sum
  // of products.
  double operand = 0;
};

// How far an output tensor may be from the truth.
struct Bounds {
  Dims dims{};
  std::vector<double> want;
  std::vector<double> row_error;      // what 2.0 in a ratio means, per row
  std::vector<double> element_error;  // per element
};
Bounds make_bounds(const Samples& x, uint32_t dtype, double f32_roundings);

// got against want within bounds; and lse, [B,Hq,Sq], or of entmax the threshold, whose bound is
// absolute, or the largest logits, [1,1,max_logit_batch,Hq].
Judgement judge_tensor(const std::string& name, const Bounds& bounds,
                       const std::vector<double>& want, const std::vector<double>& got);
Judgement judge_lse(const Dims& rows, const std::vector<double>& want,
                    const std::vector<float>& got, double f32_roundings, bool threshold,
                    bool tf32 = false, const char* name = "lse");
Judgement judge_lse(const Dims& rows, const std::vector<double>& want,
                    const std::vector<double>& got, double roundings, bool threshold);  // of f64

double visible_keys(const Problem& problem, int64_t i);  // of query row i; <= 0: none
double visible_rows(const Problem& problem, int64_t j);  // query rows of one head that see key j

// The rule itself. f32_roundings: see score_roundings().
Judgement judge_rows(const std::string& name, const Samples& rows, uint32_t dtype,
                     double f32_roundings, const std::vector<double>& got);

// About how many f32 roundings a score carries. Its error is proportional to its terms, and passes
// through exp into all outputs; exp and the sums add a few roundings.
double score_roundings(double scale, int64_t head_dim, const std::vector<double>& q,
                       const std::vector<double>& k);
// What softcap, biases and the powers of entmax add to it. The largest magnitudes of bias,
// dist_bias and slope; 0 where there are none.
double extra_roundings(const Problem& problem, double plain, double bias, double dist_bias,
                       double slope);

// What a device wrote, on the host again. Those that the problem does not ask for are empty.
struct Outputs {
  HostTensor o, d_q, d_k, d_v, d_bias, d_bias_table, d_dist_bias, d_slope, d_tau, d_sink;
  HostTensor d_part_o, d_part_lse;
  std::vector<float> lse;        // [B,Hq,Sq]
  std::vector<double> lse_f64;   // in its place, with tensors of f64
  std::vector<float> max_logit;  // [max_logit_batch, Hq]
  // d_q of further runs, where the plan sums it in no fixed order and the bits are others.
  struct Again {
    int run;  // the first is 1
    HostTensor d_q;
  };
  std::vector<Again> d_q_again;
  HostTensor& tensor(Role role);  // of kOutputs
  const HostTensor& tensor(Role role) const;
  HostTensor& gradient(Role role) { return tensor(role); }
  const HostTensor& gradient(Role role) const { return tensor(role); }
  // What there is to judge of an output: the tensor, and of d_q those of further runs, each with
  // what names it: "", "run 2: ".
  struct Written {
    const HostTensor* tensor;
    std::string run;
  };
  std::vector<Written> written(Role role) const;
};

struct CaseOptions {
  double input_scale = 1;         // standard deviation of q, k, v, d_o
  int64_t lead = 0;               // elements between a buffer's start and its tensor: misaligns it
  int64_t spans_lead = 0;         // more of them, of spans alone
  bool addresses = false;         // Vulkan: give tensors as device addresses
  bool any_address = false;       // Vulkan: on a device that takes unaligned ones, too
  bool no_lse = false;            // forward: leave args.lse out
  uint8_t workspace_byte = 0xff;  // what the workspace holds before
  // > 1: run again, and the bits must be the same, except those of sums in no fixed order: of these
  // each run is judged.
  int repeats = 1;
  // A device that runs the forward of a backward problem, whose o and lse the other one then gets;
  // null: the same.
  Session* forward = nullptr;
  // Backward: sizes of parts of the keys, each in a call of its own (TANDEM_FLAG_PART_OF_KEYS). d_q
  // is then the sum of theirs. For problems without a band, and with bias, keep and padded lengths
  // alone of what belongs to keys.
  std::vector<int64_t> parts;
  // Run again as often in slices, of a third of the work, then of a 9th and so on: the same bits.
  // For problems with TANDEM_FLAG_SLICES.
  int sliced = 0;
};

struct Sequences {
  std::vector<int64_t> start;   // row in a packed tensor; otherwise 0
  std::vector<int64_t> length;  // within 0 to S
};

// Rows of a packed tensor that belong to no sequence.
std::vector<bool> dead_rows(const HostTensor& tensor, const Sequences& sequences);

// The random contents of an input, the same for the same seed everywhere. scale: of q, k, v, d_o.
void fill_input(const tandem_problem& problem, Role role, uint64_t seed, double scale,
                HostTensor* tensor);
// The keep mask that block lists stand for, [batch, heads, Sq, Sk]. bits: {} if they have none.
std::vector<uint8_t> expanded_blocks(const tandem_problem& problem, const HostTensor& lists,
                                     const HostTensor& bits);
// Packed offsets that no caller should give: those at 0 and at total go beyond, and from some entry
// on they may go down. No two sequences share a row.
void make_hostile(Random* random, int64_t total, std::vector<int64_t>* offsets);
// What else a seed says: Philox's seed and offset.
struct DropoutSeed {
  uint64_t seed;
  uint32_t offset;
};
DropoutSeed dropout_seed_of(uint64_t seed);

// The forward whose o and lse a backward takes.
inline tandem_problem forward_of(tandem_problem backward) {
  backward.direction = TANDEM_FORWARD;
  backward.d_lse = 0;
  backward.flags &= ~TANDEM_FLAG_PART_OF_KEYS;
  return backward;
}

// Problem + seed = inputs. Scores' parts have sensible sizes; keep mixes kinds of sparsity; lengths
// reach from 0 to beyond S, packed ones add up to the total or are hostile, gapped ones lie in any
// order, with NaN between them. The reference is
// computed when first needed and then kept.
class Case {
 public:
  // Of a backward problem the forward runs first, on the same q k v o. The backward gets what the
  // device's own forward wrote.
  Case(const tandem_problem& problem, uint64_t seed, const CaseOptions& options = {});
  ~Case();
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  const tandem_problem& problem() const;
  uint64_t seed() const;
  // Inputs, to be changed before the first run or judge (for example for exact inputs).
  HostTensor& input(Role role);
  uint64_t dropout_seed = 0;
  uint32_t dropout_offset = 0;

  // How long each batch entry's sequences are, and where they begin in a packed tensor, by what the
  // lengths say now.
  Sequences sequences(bool kv) const;
  // Sets what lies in gaps of the inputs to NaN, by what lengths and offsets say now.
  void spoil_gaps();
  // Any tensor of the problem as [B,H,S,D]: packed ones with zeros behind each sequence.
  std::vector<double> logical(Role role, const HostTensor& tensor) const;

  // Runs on the device: outputs filled with NaN, guards around every buffer, workspace of exactly
  // the plan's size; guards and strided gaps checked. Does not judge values.
  CaseResult run(Session& session, Outputs* outputs);
  // run(), then judge().
  CaseResult run_and_judge(Session& session, Outputs* outputs = nullptr);
  // Outputs against the reference: adds to result.
  void judge(const Outputs& outputs, CaseResult* result);
  // Two devices' outputs against each other, by the same bounds.
  void judge_pair(const Outputs& a, const Outputs& b, CaseResult* result);

  // The truth about an output, dense in logical order; lse [B,Hq,Sq].
  const std::vector<double>& reference(Role role);
  const std::vector<double>& reference_lse();
  // The sums of the magnitudes of the terms of each of its elements.
  const std::vector<double>& reference_terms(Role role);

 private:
  struct Impl;
  void make_reference();
  std::unique_ptr<Impl> impl_;
};

// Case + run_and_judge.
CaseResult run_case(Session& session, const tandem_problem& problem, uint64_t seed,
                    const CaseOptions& options = {});

// A random problem within the features of this version; the same for the same seed everywhere.
// Problems whose seeds agree in seed / kSameKernels differ in sizes, strides and masks, and share
// their kernels.
constexpr uint64_t kSameKernels = 32;
struct RandomLimits {
  int64_t max_work = 4000000;  // B Hq Sq Sk (D + Dv), about
  int64_t max_seq = 600;
  bool backward_only = false;
  // Percent of the problems that are tidy, as models' are: 16 bits, whole multiples of 8 features,
  // dense tensors, two optional inputs at most. Few others are within reach of cuda.sm90.
  int tidy = 0;
  // Percent of the problems that have f64, which the CPU device alone computes.
  int f64 = 0;
};
tandem_problem random_problem(uint64_t seed, const RandomLimits& limits = {});
// A merge or its backward.
tandem_problem random_merge(uint64_t seed);

// What `tandem check` varies beside the problem, from the same seed.
CaseOptions random_options(uint64_t seed);

// The optional inputs of a problem, one word each: "bias", "entmax", ...; "plain" if there are
// none.
std::vector<std::string> feature_words(const tandem_problem& problem);

// How to repeat a case: tandem check --repro "<line>" --seed S.
std::string repro(const tandem_problem& problem, uint64_t seed);

}  // namespace tandem::harness
#endif
