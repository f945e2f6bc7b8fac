// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dkv by pairs: stores the workgroup's rows of d_k and d_v.
View d_k = kv_view(push.d_k, block.d_k, b, hk, stored_kv(), block.head_dim, (push.wide & 16u) != 0);
View d_v =
    kv_view(push.d_v, block.d_v, b, hk, stored_kv(), block.head_dim_v, (push.wide & 32u) != 0);
const float scale = second ? block.scale : 1.0;
EACH(r, RM)
  EACH(d, MOST_OUT)
    ELEMENTS(n, acc[r][d]) acc[r][d][n] *= scale;
EACH(pass, PASSES) {
  barrier();
  EACH(r, RM)
    EACH(d, PASS_BLOCKS)
      if (pass * PASS_BLOCKS + d < MOST_OUT)
        put_block(PASS_AT(r, d), acc[r][pass * PASS_BLOCKS + d]);
  barrier();
  store_pass(d_v, 0, row0, pass * PASS_CHUNKS, entry.seq_kv);
  store_pass(d_k, PASS_CHUNKS, row0, pass * PASS_CHUNKS, entry.seq_kv);
}
