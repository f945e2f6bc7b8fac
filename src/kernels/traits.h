// SPDX-License-Identifier: MIT OR Apache-2.0
// What tells the kernels of a stem and a path apart beside the inputs that they take: the words of
// the column `traits` of kernels.inc, each a bit of KernelRow::traits.
#ifndef TANDEM_SRC_KERNELS_TRAITS_H
#define TANDEM_SRC_KERNELS_TRAITS_H
#include <cstdint>

namespace tandem {
namespace trait {

constexpr uint32_t none = 0;
constexpr uint32_t joined = 1u << 0;  // no launch of its own: an earlier one does its work
// cuda.simt, and other paths' kernels of it.
constexpr uint32_t narrow = 1u << 1;  // loads by element; its partner without this has wide loads
constexpr uint32_t fixed = 1u << 2;   // other inputs than those of its column are not compiled in
constexpr uint32_t zeroes = 1u << 3;  // bwd_dot: zeroes what the next kernel adds to, as well
constexpr uint32_t fast = 1u << 4;    // bwd_dot: o and d_o at multiples of 16 bytes
constexpr uint32_t outer = 1u << 14;  // f32: 8 x 8 elements a thread, operands transposed
// cuda.sm80.
constexpr uint32_t tf32 = 1u << 5;       // f32 operands are rounded to TF32
constexpr uint32_t mma = 1u << 28;       // bwd_dbias: on tensor cores, unlike simt's
constexpr uint32_t over_256 = 1u << 29;  // heads over 256 of 16 bits, beside some optional inputs
// vulkan.coopmat2 and coopmat.
constexpr uint32_t redo = 1u << 6;    // fwd: only rows for which matrices do not suffice
constexpr uint32_t k2 = 1u << 7;      // operands are twice as deep as accumulators are wide
constexpr uint32_t lean = 1u << 8;    // few registers: tiles with numbers in shared memory
constexpr uint32_t tensor = 1u << 9;  // the tile's own rows come and go by tensor addressing
constexpr uint32_t ds = 1u << 10;  // bwd_dkv leaves dS in the workspace; bwd_dq, bwd_dbias take it
constexpr uint32_t pair = 1u << 11;     // rows belong to pairs of subgroups
constexpr uint32_t strips = 1u << 13;   // fwd: rows come and go by strips of features
constexpr uint32_t split_d = 1u << 30;  // heads over 256: features are split over subgroups
// bwd_dkv of coopmat2 and bwd_dkv_dq of sm90: several workgroups may share a tile of keys.
constexpr uint32_t parts = 1u << 12;
// cuda.sm90.
constexpr uint32_t to_128 = 1u << 13;       // fwd: heads up to 128
constexpr uint32_t decoupled = 1u << 14;    // fwd: each warpgroup visits the keys of its own rows
constexpr uint32_t wide_heads = 1u << 15;   // fwd: one stage of Q
constexpr uint32_t one_row = 1u << 16;      // a bias has one row for all queries, and no gradient
constexpr uint32_t bias_tiles = 1u << 17;   // a bias is read as tiles, by TMA
constexpr uint32_t f32_bias = 1u << 18;     // a bias of f32 beside tensors of 16 bits
constexpr uint32_t rows_192 = 1u << 19;     // fwd: tiles of 192 rows for a bias alone
constexpr uint32_t scales_q = 1u << 20;     // fwd: Q is multiplied by the scale
constexpr uint32_t any_alpha = 1u << 21;    // entmax with an alpha other than 1.5
constexpr uint32_t persistent = 1u << 22;   // one workgroup a SM, with a dynamic tile scheduler
constexpr uint32_t d_q_alone = 1u << 23;    // bwd_dkv_dq: of d_q, d_k and d_v it stores d_q
constexpr uint32_t d_kv_alone = 1u << 24;   // bwd_dkv_dq: of d_q, d_k and d_v it stores d_k and d_v
constexpr uint32_t postprocess = 1u << 25;  // bwd_dkv_dq: it also rounds and stores d_q
constexpr uint32_t two_cta = 1u << 26;      // bwd_dkv_dq: two-CTA clusters, in passes
constexpr uint32_t slices = 1u << 27;       // bwd_dkv_dq: d_bias in slices of the batch
constexpr uint32_t heads_inside = 1u << 28;  // bwd_dkv_dq: all heads of a query tile, then the next
constexpr uint32_t halved_o = 1u << 29;      // fwd: each warpgroup has a half of o's features
constexpr uint32_t two_sided = 1u << 30;     // bwd_dkv_dq: a workgroup has Q and K, one dO and V
constexpr uint32_t gathers = 1u << 31;       // bwd_dkv_dq: of the queries, those with support alone

}  // namespace trait
}  // namespace tandem
#endif
