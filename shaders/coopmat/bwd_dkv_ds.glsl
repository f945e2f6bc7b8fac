// SPDX-License-Identifier: MIT OR Apache-2.0
// What bwd_dkv leaves of dS.

uvec2 ds_from; // the head's dS, from the workgroup's first key on
// The dS of skipped tiles from t on, before end, which bwd_dq and bwd_dbias may visit: in blocks of
// which the mask map shows something, as they skip the others.
void leave_no_ds(int t, int end, int row0) {
  const int each = DS_BLOCK / COLS; // tiles of a block
  DsStore to = DsStore(ds_from);
  [[dont_unroll]] for (; t < end; t++) {
    if (SKIP_SPANS) {
      const int shown =
          next_shown(t / each * each, end, row0 / DS_BLOCK * DS_BLOCK, DS_BLOCK, true);
      t = max(t, shown / each * each);
      if (t >= end) break;
    }
    [[dont_unroll]] for (int n = TID; n < ROWS * COLS / 8; n += WG)
        to.w[ds_chunk(t * COLS + n % (COLS / 8) * 8, row0 % DS_BLOCK + n / (COLS / 8))] = uvec4(0);
  }
}
// All query rows that see one of the keys of a workgroup of bwd_dbias.
const int SEEN_ROWS = ROWS > DS_SUM_KEYS ? ROWS : DS_SUM_KEYS;
