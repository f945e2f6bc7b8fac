// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dkv: stores the workgroup's rows of d_k and d_v.
if (GRAD_K != 0) {
  View d_k =
      kv_view(push.d_k, block.d_k, b, hk, stored_kv(), block.head_dim, (push.wide & 16u) != 0);
  EACH(r, RM)
    EACH(d, D_OUT)
      ELEMENTS(k, acc_k[r][d]) acc_k[r][d][k] *= block.scale;
  PUT_BLOCKS(acc_k, D_OUT)
  store_rows(d_k, row0, D_CHUNKS, entry.seq_kv);
}
if (GRAD_V != 0) {
  View d_v =
      kv_view(push.d_v, block.d_v, b, hk, stored_kv(), block.head_dim_v, (push.wide & 32u) != 0);
  PUT_BLOCKS(acc_v, DV_OUT)
  store_rows(d_v, row0, DV_CHUNKS, entry.seq_kv);
}
