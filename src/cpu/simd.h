// SPDX-License-Identifier: MIT OR Apache-2.0
// The interface between the drivers of path cpu.simd (simd_program.cpp, compiled for any machine)
// and its kernels (<stem>_simd.inl, compiled once per instruction set). A kernel call computes one
// tile. There are no inline functions here, as the linker could replace all copies of one by that
// compiled for AVX-512.
#ifndef TANDEM_SRC_CPU_SIMD_H
#define TANDEM_SRC_CPU_SIMD_H
#include <cstdint>

#include "problem/tile_range.h"
#include "tandem/tandem.h"

namespace tandem {

struct SimdRows {  // the rows of one head of a tensor
  void* base;
  int64_t row, feature;  // strides in elements
  tandem_dtype dtype;
};

// The optional inputs of a query head and a batch entry; null or 0 where there are none. What a
// kernel adds to its products, what it hides of them (terms_simd.inl, shown_simd.inl), and what it
// drops of the weights (dropout_simd.inl).
struct SimdTerms {
  SimdRows bias;  // its rows, whose features are keys; row 0: one row for all queries
  const uint8_t* keep;
  int64_t keep_row, keep_key;  // strides in bytes; keep_row 0: one row for all queries
  const int32_t* spans;        // of key 0: span_count intervals of rows a key
  int span_count;
  // Block lists: of each block_q rows a list of block_width entries, with bits for block_bits.
  const int32_t* blocks;
  const uint32_t* bits;
  int64_t block_q, block_kv, block_width, block_bits;
  float softcap, slope;
  bool has_slope;
  const float* dist;  // of distances 0 to dist_window - 1
  int64_t dist_window;
  const float* table;  // the bias of a pair is table[its index], 0 behind table_size
  int64_t table_size;
  const void* index;  // of row 0
  int64_t index_row;
  tandem_dtype index_dtype;
  // Dropout, where keeps is not 0: the factor of a weight that is kept. head counts over the batch.
  float keeps;
  uint32_t drop_below, seed_low, seed_high, drop_offset;
  int head;
  // Scratch, as large as s: the bias; 0, or -inf where keep or a block hides; the derivatives of
  // softcap; the factors of dropout. Null where it is not needed: bend in the forward.
  float *term, *hides, *bend, *drop;
};

// What makes weights of scores. tau: of the first query head, elastic softmax. Entmax's weights
// are [z - t]_+^exponent of z = (alpha - 1) s, with the exponent 1 / (alpha - 1).
enum class SimdKind : int { softmax, elastic, entmax };
struct SimdNormal {
  SimdKind kind;
  const float* tau;
  float alpha_less_1, exponent;
  int whole;          // the exponent, where it is a whole number up to 16; else 0
  int seq_q, seq_kv;  // with the band, they count a row's keys
};

// Which products take pairs of bf16 (pairs_simd.inl): of the features of q and k, of those of v and
// d_o, and weights times rows. All kernels of a problem have the same, so that they form the same
// bits.
struct SimdPairs {
  bool qk, v, weights;
};

// Scratch arrays are 64-byte aligned. "Lanes" are the rows that a kernel keeps while it loops over
// the tiles of the other axis: query rows in fwd and bwd_dq, keys in bwd_dkv. Arrays with lanes
// have a pitch.
struct SimdFwd {
  SimdRows q, k, v, o;
  float* lse;  // of row0; null: not wanted
  float* top;  // raised to the largest score of the rows; null: not wanted
  int64_t head_dim, head_dim_v;
  float scale, sink;
  bool has_sink;
  SimdPairs pairs;
  SimdNormal normal;
  const SimdTerms* terms;  // null: none
  TandemBand band;
  TandemTiles tiles;  // key tiles
  int row0, rows, seq_kv, bc;
  int64_t pitch;
  float *qt, *ot;                  // [D][pitch] [Dv][pitch]
  float *k_staged, *v_staged, *s;  // [bc][D] [bc][Dv] [bc][pitch]
  float *m, *l, *factor;           // [pitch]
  float* scores;                   // [Sk][pitch]; null for softmax
};

struct SimdBwdDot {
  SimdRows o, d_o;
  bool pairs;  // SimdPairs::v
  int64_t head_dim_v;
  int row0, rows;
  float* delta;        // of row0, as the two below
  const float* lse;    // minus infinity where a row sees no key; d_lse is not taken there
  const float* d_lse;  // null: it is not given
};

// For rows whose lse is far from 0 (far_row.h): the largest score, the logarithm of the sum
// relative to it, and delta of the weights that these two make. The other kernels form the same
// bits of scores, so that weights sum to 1.
struct SimdBwdOrigin {
  SimdRows q, k, v, d_o;
  bool want_delta, has_sink;
  int64_t head_dim, head_dim_v;
  float scale, sink;
  SimdPairs pairs;
  SimdNormal normal;
  const SimdTerms* terms;  // null: none
  TandemBand band;
  TandemTiles tiles;  // key tiles
  int row0, rows, seq_kv, bc;
  int64_t pitch;
  float *qt, *d_ot;                     // [D][pitch] [Dv][pitch]
  float *k_staged, *v_staged, *s, *dp;  // [bc][D] [bc][Dv] [bc][pitch] [bc][pitch]
  float *m, *l, *factor, *delta;        // [pitch]; m, l and delta are the results
  float* scores;                        // [Sk][pitch], of entmax
};

// If any row of an execute is far, scores are relative to origin, and lse is relative
// to it. For rows that are not far, origin is 0 and lse is as it was given.
struct SimdBwdDq {
  SimdRows q, k, v, d_o, d_q;         // d_q.base null: it is not wanted
  const float *lse, *delta, *origin;  // of row0; origin null: no row is far
  int64_t head_dim, head_dim_v;
  float scale;
  SimdPairs pairs;
  SimdNormal normal;
  const SimdTerms* terms;  // null: none
  // Sums of d_bias over calls, null where they are not wanted: [keys][pitch] of these rows, or of a
  // bias with one row [keys].
  float* bias_sums;
  double* bias_row_sums;
  // Sums of the gradients of the distance bias and of the table over calls, the latter
  // kSimdTableCopies times up to a size of kSimdShortTable; null: not wanted.
  double *dist_sums, *table_sums;
  TandemBand band;
  TandemTiles tiles;  // key tiles
  int row0, rows, seq_kv, bc;
  int64_t pitch;
  float *qt, *d_ot, *d_qt;                        // [D][pitch] [Dv][pitch] [D][pitch]
  float *k_staged, *v_staged, *s, *dp;            // [bc][D] [bc][Dv] [bc][pitch] [bc][pitch]
  float *lse_lanes, *delta_lanes, *origin_lanes;  // [pitch]
  float* row_sums;                                // [kSimdRowSums][pitch], of bwd_row_sums
  // bwd_row_sums, of row0: delta, which it forms; the sums of |distance| ds and of d_tau of each
  // row, null where they are not wanted; d_lse, null where there is none.
  float *new_delta, *slope_rows, *tau_rows;
  const float* d_lse;
};

struct SimdBwdDkv {
  SimdRows q, k, v, d_o, d_k, d_v;  // q and d_o: the first query head of the group
  int64_t q_head, d_o_head;         // strides from head to head, in elements
  int group;
  bool want_k, want_v;
  // They start at row 0 of the first query head.
  const float *lse, *delta, *origin;
  int64_t head_dim, head_dim_v;
  float scale;
  SimdPairs pairs;
  SimdNormal normal;
  const SimdTerms* terms;  // of each query head of the group; null: none
  TandemBand band;
  TandemTiles tiles;  // query tiles
  int col0, cols, seq_q, br;
  int64_t pitch, lse_head;       // from one query head's lse, delta and origin to the next one's
  float *kt, *vt, *d_kt, *d_vt;  // [D][pitch] [Dv][pitch] [D][pitch] [Dv][pitch]
  float *q_staged, *d_o_staged, *s, *dp;  // [br][D] [br][Dv] [br][pitch] [br][pitch]
};

// Parts of the keys of a head's rows, and what they join to, or the gradients of both.
struct SimdMerge {
  int count;  // of the parts, that which o and lse hold included
  bool into;  // o and lse hold one
  SimdRows part_o, o, d_o, d_part_o;
  int64_t part_step, d_part_step;  // from one part to the next, in elements
  const float *part_lse, *d_lse;   // of row 0 of the head; d_lse null: it is not given
  float *lse, *d_part_lse;         // lse null: not wanted
  int64_t lse_step, head_dim_v;    // from one part's lse to the next one's
  int row0, rows;
  float* weights;  // scratch, [2][count]
};

struct SimdKernels {
  const char* isa;
  bool has_pairs;  // of bf16
  void (*fwd)(const SimdFwd&);
  void (*fwd_twice)(const SimdFwd&);  // of weights that need the row's lse or threshold first
  void (*bwd_dot)(const SimdBwdDot&);
  void (*bwd_origin)(const SimdBwdOrigin&);
  void (*bwd_row_sums)(const SimdBwdDq&);
  void (*bwd_dkv)(const SimdBwdDkv&);
  void (*bwd_dq)(const SimdBwdDq&);
  void (*merge)(const SimdMerge&);
  void (*bwd_merge)(const SimdMerge&);
};
extern const SimdKernels kSimdBaseline;
extern const SimdKernels kSimdAvx2;        // x86-64 only
extern const SimdKernels kSimdAvx512;      // x86-64 only
extern const SimdKernels kSimdAvx512Bf16;  // x86-64, of compilers that know it

constexpr int kSimdMaxLanes = 16;      // pitches are multiples of it, which suits every ISA
constexpr int kSimdMaxFeatures = 576;  // kMaxHeadDim
constexpr int kSimdRowSums = 5;        // sums of a row that bwd_row_sums carries along
// A pair adds to the copy of its key, as sums into one element wait for each other.
constexpr int kSimdTableCopies = 4;
constexpr int kSimdShortTable = 1024;

}  // namespace tandem
#endif
