// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias from the dS that bwd_dkv left: d_bias of DS_BLOCK query rows and DS_SUM_KEYS keys of a
// head is dS transposed, or its sum over the batch, or a split's part of it, in order.
#version 460
#extension GL_GOOGLE_include_directive : require
#define STREAMED (64 * 65 / 4) // floats [64 query rows, DS_SUM_KEYS + 1]
#define KEEP_BY_ELEMENT 1
#include "coopmat/bwd_dbias_common.glsl"
#include "coopmat/ds.glsl"

const int SUM_VEC = DS_SUM_KEYS * DS_PITCH / WG; // chunks of an invocation, of as many keys
const int TURN_PITCH = DS_SUM_KEYS + 1;
#define TURNED(n) streamed[(n) / 4][(n) % 4]

float ds_half(uint word, int k) {
  const uint bits = word >> 16 * k & 0xffffu;
#if TANDEM_BF16
  return uintBitsToFloat(bits << 16);
#else
  return unpackHalf2x16(bits).x;
#endif
}

void main() {
  const uint index = own_index();
  if (index >= block.total) return;
  const int key_tiles = (block.seq_kv + DS_SUM_KEYS - 1) / DS_SUM_KEYS,
            tile = int(index % block.tiles);
  const int col0 = tile % key_tiles * DS_SUM_KEYS, row0 = tile / key_tiles * DS_BLOCK;
  // The head, among those with a d_bias of their own; its readers are group heads of the launch
  // apart.
  const int at = int(index / block.tiles), split = at % block.splits, head = at / block.splits;
  const int entries = TAKES_DS > 1 ? block.batches : 1;
  const int n = head / block.group * block.group * entries + head % block.group;
  const Place place = ds_place(n, block.group);
  set_entry(place.batch);
  const TandemTiles tiles =
      tandem_key_tiles(mask_band(), row0, DS_BLOCK, DS_SUM_KEYS, entry.seq_q, entry.seq_kv);
  // Otherwise bwd_dkv has left no dS there.
  const bool seen = col0 / DS_SUM_KEYS >= tiles.begin && col0 / DS_SUM_KEYS < tiles.end;
  // Keys past the end repeat the last one, which is in a cache; query rows past the end stay zeros.
  const int own_row = TID % DS_PITCH,
            last = (min(block.seq_kv - col0, DS_SUM_KEYS) - 1) * DS_PITCH + own_row;

  vec4 low[SUM_VEC], high[SUM_VEC];
  EACH(i, SUM_VEC) low[i] = high[i] = vec4(0);
  const int first = ds_chunk(row0, col0 % DS_BLOCK), end = split_begin(split + 1);
  if (seen && row0 + own_row * 8 < block.seq_q) {
    [[dont_unroll]] for (int e = split_begin(split); e < end; e++) {
      if (SKIP_SPANS) { // bwd_dkv leaves no dS where the mask map shows nothing
        const Place reader = ds_place(n + e * block.group, block.group);
        set_head(reader.batch, reader.head);
        if (map_of(row0, DS_BLOCK, col0, DS_SUM_KEYS).x == 0) continue;
      }
      Rows4 from = Rows4(ds_address(block.work, n + e * block.group, col0));
      uvec4 words[SUM_VEC];
      EACH(i, SUM_VEC) words[i] = from.w[first + min(TID + i * WG, last)];
      EACH(i, SUM_VEC) {
        low[i] += vec4(ds_half(words[i].x, 0), ds_half(words[i].x, 1), ds_half(words[i].y, 0),
                       ds_half(words[i].y, 1));
        high[i] += vec4(ds_half(words[i].z, 0), ds_half(words[i].z, 1), ds_half(words[i].w, 0),
                        ds_half(words[i].w, 1));
      }
    }
  }
  const uvec2 elements = add64(mul64(block.d_bias.bh.xy, block.bias_batch > 1 ? place.batch : 0),
                               mul64(block.d_bias.bh.zw, place.head));
  begin_ds(add64(elements, mul64(uvec2(block.part, 0), split)), block.seq_q);
  // Half of the query rows at a time.
  EACH(part, 2) {
    barrier();
    EACH(i, SUM_VEC) {
      const int at = TID + i * WG, key = at / DS_PITCH,
                row = at % DS_PITCH * 8 - part * (DS_BLOCK / 2);
      if (row >= 0 && row < DS_BLOCK / 2)
        EACH(k, 8)
          TURNED((row + k) * TURN_PITCH + key) =
              floatBitsToUint(k < 4 ? low[i][k & 3] : high[i][k & 3]);
    }
    barrier();
    [[dont_unroll]] for (int at = TID; at < DS_BLOCK / 2 * DS_SUM_KEYS / 8; at += WG) {
      const int row = at / (DS_SUM_KEYS / 8), key = at % (DS_SUM_KEYS / 8) * 8,
                from = row * TURN_PITCH + key;
      store_chunk(row0 + part * (DS_BLOCK / 2) + row, col0 + key,
                  uintBitsToFloat(
                      uvec4(TURNED(from), TURNED(from + 1), TURNED(from + 2), TURNED(from + 3))),
                  uintBitsToFloat(uvec4(TURNED(from + 4), TURNED(from + 5), TURNED(from + 6),
                                        TURNED(from + 7))));
    }
  }
}
