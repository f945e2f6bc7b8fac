// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dkv: the g-th query head.
const int h = hk * block.group + g, head = b * block.heads_q + h;
set_head(b, h);
View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
View d_o = q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
