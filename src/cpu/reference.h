// SPDX-License-Identifier: MIT OR Apache-2.0
// The reference: what the library computes, in double and in plain loops. The path cpu.ref, the
// tests and the tools share it. reference() takes a whole problem. The functions named by stem
// below it compute one head each; the path calls them with o and lse as they were stored.
//
// All arrays are contiguous in the logical order of the API, [B,H,S,D]; problem strides have no
// effect.
#ifndef TANDEM_SRC_CPU_REFERENCE_H
#define TANDEM_SRC_CPU_REFERENCE_H
#include <cstdint>
#include <vector>

#include "problem/problem.h"

namespace tandem {

enum class Precision {
  exact,  // double throughout; the truth
  // What a chain of plain operations gives in the problem's dtype: f32 sums, and every array that
  // the chain stores (s, p, o, dp, delta, ds, results) rounded to the dtype. The yardstick of
  // the error-ratio rule.
  stepwise,
};

// Packed tensors are given unpacked: [B,H,S,D]. Rows behind a sequence's length are not read.
struct RefInputs {
  std::vector<double> q, k, v;  // [B,Hq,Sq,D] [B,Hk,Sk,D] [B,Hk,Sk,Dv]
  std::vector<double> d_o;      // [B,Hq,Sq,Dv], backward only
  std::vector<double> d_lse;    // [B,Hq,Sq], backward with d_lse only
  // Optional inputs of the problem; otherwise empty.
  std::vector<double> bias;                    // [bias batch, heads, rows, Sk]
  std::vector<uint8_t> keep;                   // [keep batch, heads, rows, Sk]
  std::vector<int32_t> spans;                  // [spans batch, heads, Sk, 2 a span]
  std::vector<double> bias_table;              // [Hq,N]
  std::vector<int32_t> bias_index;             // [index batch, Sq, Sk]
  std::vector<double> dist_bias;               // [Hq,W]
  std::vector<double> slope, tau, sink;        // [Hq]; slope and sink [batch, Hq]
  std::vector<int64_t> lengths_q, lengths_kv;  // [B], not cumulative
  uint64_t dropout_seed = 0;
  uint32_t dropout_offset = 0;
  // Of a merge: the parts, [parts,B,Hq,Sq,Dv] and [parts,B,Hq,Sq], and what o and lse hold before.
  std::vector<double> part_o, part_lse, into_o, into_lse;
};

struct Reference {
  std::vector<double> o, lse;                  // always; lse [B,Hq,Sq], of entmax the threshold
  std::vector<double> max_logit;               // [max_logit_batch, Hq], if it is wanted
  std::vector<double> delta;                   // backward
  std::vector<double> d_q, d_k, d_v;           // backward, those that the problem asks for
  std::vector<double> d_bias;                  // bias's shape
  std::vector<double> d_bias_table;            // [Hq,N]
  std::vector<double> d_dist_bias;             // [Hq,W]
  std::vector<double> d_slope, d_tau, d_sink;  // as slope, tau and sink
  std::vector<double> d_part_o, d_part_lse;    // backward of a merge, as the parts
  // What the rounding errors of an element are proportional to; Precision::exact only. y are the
  // weights, g what ds is proportional to (p, or u of entmax), c_ij = |d_o_i| |v_j|, which bounds
  // dp_ij and what cancels in it, and e_ij = g_ij (c_ij + sum_j M g c):
  //   o: sum y |v|    d_v: sum y |d_o|    d_q: scale sum e |k|    d_k: scale sum e |q|
  //   d_bias, d_bias_table, d_dist_bias: sum e    d_slope: sum |t| e    d_tau: sum M c / n
  //   d_sink: sum p_sink sum_j g c
  std::vector<double> o_floor, d_q_floor, d_k_floor, d_v_floor;
  std::vector<double> d_bias_floor, d_dist_bias_floor, d_slope_floor, d_tau_floor, d_sink_floor;
  std::vector<double> d_bias_table_floor;
  std::vector<double> d_part_o_floor, d_part_lse_floor;  // of a merge; it has no slack
  // How far an element may change beyond that, because next to a kink a small error of a score
  // changes a weight or a gradient by much; Precision::exact with a score_error only. For softmax,
  // the change of a gradient through ds if o, from which delta is formed, rounds to a neighbour all
  // over one row.
  std::vector<double> o_slack, d_q_slack, d_k_slack, d_v_slack;
  std::vector<double> d_bias_slack, d_dist_bias_slack, d_slope_slack, d_tau_slack, d_sink_slack;
  std::vector<double> d_bias_table_slack;
  std::vector<double> d_part_o_slack, d_part_lse_slack;
};

// Computes the forward and, for a backward problem, all gradients. Throws std::bad_alloc. With
// score_error, slack is the effect of errors of score_error * max(1, sum of the magnitudes that
// make up a score) in every score.
//
// With round_scores, Precision::exact rounds a score to f32 where a kernel does: after the scale,
// the softcap and each added term, and z of entmax. All else stays double. If scores are so large
// that this decides between keys, either reference is right. A sum beyond f32 is an infinity, as in
// a kernel.
// infinity, as in a kernel.
Reference reference(const Problem& problem, const RefInputs& inputs,
                    Precision precision = Precision::exact, unsigned threads = 1,
                    double score_error = 0, bool round_scores = false);

// The root t of sum [z - t]_+^(1/(alpha-1)) = 1, to the last bits for any z. -inf if all z are; NaN
// if one is NaN or +inf.
double entmax_threshold(const double* z, int64_t count, double alpha);
// t - max z, which keeps the last bits if max z is large, and max z.
double entmax_threshold(const double* z, int64_t count, double alpha, double* max);

// A tensor of any dtype and strides as contiguous doubles, and back (rounded to nearest even).
std::vector<double> gather(const void* base, tandem_dtype dtype, const Strides& strides,
                           int64_t batch, int64_t heads, int64_t rows, int64_t features);
void scatter(const std::vector<double>& from, void* base, tandem_dtype dtype,
             const Strides& strides, int64_t batch, int64_t heads, int64_t rows, int64_t features);

// Inputs of a stem for one query head; in bwd_dkv for a group of them, one after the other. Members
// that a stem does not need may be null.
struct RefHead {
  const double *q = nullptr, *k = nullptr, *v = nullptr, *d_o = nullptr;
  const double *o = nullptr, *lse = nullptr, *delta = nullptr;
  const double* d_lse = nullptr;                  // null: it is not given
  bool stored_lse = false, stored_delta = false;  // they were stored as f32
  // Optional inputs, of the first head. Those that the problem has must be given.
  const double* bias = nullptr;                                    // [bias rows, Sk]
  const uint8_t* keep = nullptr;                                   // [keep rows, Sk]
  const int32_t* spans = nullptr;                                  // [Sk, 2 a span]
  int64_t bias_step = 0, keep_step = 0, spans_step = 0;            // to the next head
  const double* bias_table = nullptr;                              // [N] a head
  const int32_t* bias_index = nullptr;                             // [Sq, Sk], of all heads
  const double* dist_bias = nullptr;                               // [W] a head
  const double *slope = nullptr, *tau = nullptr, *sink = nullptr;  // one a head
  int64_t q_len = -1, kv_len = -1;                                 // -1: Sq, Sk
  int64_t index = 0;                                               // b Hq + h, which dropout counts
  uint64_t dropout_seed = 0;
  uint32_t dropout_offset = 0;
  double score_error = 0;     // for slack
  bool round_scores = false;  // to f32
};

// Outputs may be null if they are not wanted; floors and slack may always be null.
// max_logit is raised.
void fwd_ref(const Problem& problem, Precision precision, const RefHead& head, double* o,
             double* lse, double* o_floor, double* o_slack = nullptr, double* max_logit = nullptr);
void bwd_dot_ref(const Problem& problem, Precision precision, const RefHead& head, double* delta);

struct RefRows {  // [Sq] each; the floor of delta is a bound on its magnitude
  double *delta = nullptr, *delta_floor = nullptr, *delta_slack = nullptr;
  double *tau = nullptr, *tau_floor = nullptr, *tau_slack = nullptr;        // parts of d_tau
  double *slope = nullptr, *slope_floor = nullptr, *slope_slack = nullptr;  // of -d_slope
};
void bwd_row_sums_ref(const Problem& problem, Precision precision, const RefHead& head,
                      const RefRows& rows);

void bwd_dkv_ref(const Problem& problem, Precision precision, const RefHead& group, double* d_k,
                 double* d_v, double* d_k_floor, double* d_v_floor, double* d_k_slack = nullptr,
                 double* d_v_slack = nullptr);
void bwd_dq_ref(const Problem& problem, Precision precision, const RefHead& head, double* d_q,
                double* d_q_floor, double* d_q_slack = nullptr);

// These add one head's part to sums over several heads or batch entries: [bias rows, Sk] and [W].
void bwd_dbias_ref(const Problem& problem, Precision precision, const RefHead& head, double* d_bias,
                   double* floor, double* slack);
void bwd_dist_bias_ref(const Problem& problem, Precision precision, const RefHead& head,
                       double* d_dist_bias, double* floor, double* slack);

// Adds one head's part to the gradient of its table, [N].
void reduce_table_ref(const Problem& problem, Precision precision, const RefHead& head,
                      double* d_bias_table, double* floor, double* slack);

// What merge and bwd_merge read of one head: parts of its keys. The first one may lie apart.
struct RefWeights {
  double origin = 0, sum = 0;  // the largest lse, and the sum of the weights relative to it
  int64_t seen = 0;            // parts that saw a key
  std::vector<double> weight;  // of all parts
};
struct RefParts {
  int64_t count = 0;
  const double *o = nullptr, *lse = nullptr;            // of the first part: [Sq,Dv] and [Sq]
  int64_t o_step = 0, lse_step = 0;                     // to the next one
  const double *into_o = nullptr, *into_lse = nullptr;  // in front of the others, if not null
  const double* o_of(int64_t n) const {
    return into_o ? n == 0 ? into_o : o + (n - 1) * o_step : o + n * o_step;
  }
  const double* lse_of(int64_t n) const {
    return into_lse ? n == 0 ? into_lse : lse + (n - 1) * lse_step : lse + n * lse_step;
  }
  // stepwise: every number rounded to f32.
  void weigh(bool stepwise, int64_t row, RefWeights* to) const;
};
void merge_ref(const Problem& problem, Precision precision, const RefParts& parts, double* o,
               double* lse, double* o_floor);
// Part n's gradients begin n `rows` rows behind the first one's. Floors may be null.
struct RefPartGradients {
  int64_t rows = 0;
  double *d_o = nullptr, *d_lse = nullptr, *d_o_floor = nullptr, *d_lse_floor = nullptr;
};
void bwd_merge_ref(const Problem& problem, Precision precision, const RefParts& parts,
                   const double* d_o, const double* d_lse, const RefPartGradients& out);

// The sinks' weights, exp(sink - lse), in the rows of a head: [Sq].
void sink_weights_ref(const Problem& problem, Precision precision, const RefHead& head, double* to);

// d_slope, d_tau and d_sink of head h over batch entries [first, end), from all rows' parts,
// [B,Hq,Sq] each.
struct RefHeadParts {
  const double *sink = nullptr, *delta = nullptr, *tau = nullptr, *slope = nullptr;
};
void bwd_head_sums_ref(const Problem& problem, Precision precision, int64_t h, int64_t first,
                       int64_t end, const RefHeadParts& parts, double* d_slope, double* d_tau,
                       double* d_sink);

}  // namespace tandem
#endif
