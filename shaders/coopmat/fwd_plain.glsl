// SPDX-License-Identifier: MIT OR Apache-2.0
// The plain loop of fwd over tiles, for softmax without dropout, keep, spans and distance biases
// (PLAIN_LOOP, src/plan/coopmat/plain_loop.cpp). Products start from a dense bias; softcap and
// ALiBi come behind them. It is for coopmat2, where left operands are as wide as accumulators (KN
// is 1). An iteration begins with the exponentials, and multiplies the next tile's scores at its
// end. Then no branch but that of the row maxima is between the products: around a branch NVIDIA's
// compiler (580.159.04) copies o from registers to registers (bench/lab/2026-11.md, "What a
// compiler makes of the loop").

const bool PLAIN = PLAIN_LOOP != 0 && PREFETCHES;
// K and V are prefetched in registers of their own, each from where the previous tile is stored: a
// whole iteration ahead. With RM 2, a bias, or heads of more than 192, they alternate, as there is
// no room for two: a block of features takes 8 registers of o and 4 of q.
const bool BOTH_AHEAD = int(RM != 1) + int(BIAS != 0) + int(2 * DV_BLOCKS + D_BLOCKS > 36) == 0;
// The rows' maxima stay in the scratch, where only the branch that changes them reads them. Not on
// lavapipe, whose barriers of a subgroup are the workgroup's; no other device has subgroups of 8.
const bool MAXIMA_WAIT =
    int(TANDEM_CM2 == 0) + int(!PLAIN) + int(RM != 1) + int(BIAS != 0) + int(SUBGROUP == 8) == 0;
