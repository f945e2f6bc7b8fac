// SPDX-License-Identifier: MIT OR Apache-2.0
// Prototype of shaders/coopmat/bwd_dq.comp: see README.md.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
shared uvec4 ks[TILE];
shared uvec4 vs[TILE];
shared float diff[CAUSAL != 0 ? M * M : 1];
shared float stat[2 * BR];
void main() {
  const int tid = int(gl_LocalInvocationIndex), sg = int(gl_SubgroupID);
  const int tile = push.tiles - 1 - int(gl_WorkGroupID.x) % push.tiles, head = int(gl_WorkGroupID.x) / push.tiles;
  const int S = push.S, row0 = tile * BR + sg * M * RB, base = head * S * D / 8;
  Load4 kp = Load4(push.k), vp = Load4(push.v);
  Half qp = Half(push.q), dop = Half(push.d_o);
  if (CAUSAL != 0) for (int i = tid; i < M * M; i += WG) diff[i] = float(i % M - i / M);
  MA q[RB][DB], d_o[RB][DB];
  ACC lse[RB], delta[RB];
  for (int i = tid; i < BR; i += WG) {
    stat[i] = -Flt(push.lse).f[head * S + tile * BR + i] * LOG2E;
    stat[BR + i] = Flt(push.delta).f[head * S + tile * BR + i];
  }
  barrier();
  [[unroll]] for (int r = 0; r < RB; r++) {
    [[unroll]] for (int d = 0; d < DB; d++) {
      coopMatLoad(q[r][d], qp.h, uint(base) * 8 + (row0 + r * M) * D + d * M, D, ROWS);
      coopMatLoad(d_o[r][d], dop.h, uint(base) * 8 + (row0 + r * M) * D + d * M, D, ROWS);
    }
    // every column the same: column major with stride 0
    coopMatLoad(lse[r], stat, (sg * RB + r) * M, 0, COLS);
    coopMatLoad(delta[r], stat, BR + (sg * RB + r) * M, 0, COLS);
  }
  ACC dq[RB][DB];
  [[unroll]] for (int r = 0; r < RB; r++)
    [[unroll]] for (int d = 0; d < DB; d++) dq[r][d] = ACC(0.0);
  const int last = CAUSAL != 0 ? (tile * BR + BR + BC - 1) / BC : S / BC;
  const int full = CAUSAL != 0 ? tile * BR / BC : last;
  const float c = push.scale * LOG2E;
  uvec4 kr[VEC], vr[VEC];
  const int lr = tid / (D / 8), lc = tid % (D / 8), lstep = WG / (D / 8);
#define FETCH(t) \
  [[unroll]] for (int i = 0; i < VEC; i++) { \
    kr[i] = kp.w[base + ((t) * BC + lr + i * lstep) * (D / 8) + lc]; \
    vr[i] = vp.w[base + ((t) * BC + lr + i * lstep) * (D / 8) + lc]; }
  FETCH(0)
  for (int t = 0; t < last; t++) {
    barrier();
    [[unroll]] for (int i = 0; i < VEC; i++) {
      ks[(lr + i * lstep) * PITCH + lc] = kr[i];
      vs[(lr + i * lstep) * PITCH + lc] = vr[i];
    }
    barrier();
    if (t + 1 < last) { FETCH(t + 1) }
    [[dont_unroll]] for (int n = 0; n < NB; n++) {
      ACC s[RB], dp[RB];
      [[unroll]] for (int r = 0; r < RB; r++) s[r] = ACC(0.0), dp[r] = ACC(0.0);
      [[unroll]] for (int d = 0; d < DB; d++) {
        MB b, e;
        coopMatLoad(b, ks, n * M * PITCH + d * (M / 8), PITCH, COLS);
        coopMatLoad(e, vs, n * M * PITCH + d * (M / 8), PITCH, COLS);
        [[unroll]] for (int r = 0; r < RB; r++) {
          s[r] = coopMatMulAdd(q[r][d], b, s[r]);
          dp[r] = coopMatMulAdd(d_o[r][d], e, dp[r]);
        }
      }
      if (CAUSAL != 0 && t >= full) {
        ACC x; coopMatLoad(x, diff, 0, M, ROWS);
        [[unroll]] for (int r = 0; r < RB; r++) {
          const float lim = float(row0 + r * M - t * BC - n * M);
          [[unroll]] for (int i = 0; i < x.length(); i++) s[r][i] = x[i] > lim ? -1e30 : s[r][i];
        }
      }
      MA p[RB];
      [[unroll]] for (int r = 0; r < RB; r++) {
        [[unroll]] for (int i = 0; i < lse[r].length(); i++) s[r][i] = exp2(fma(s[r][i], c, lse[r][i])) * (dp[r][i] - delta[r][i]);
        p[r] = MA(s[r]);
      }
      [[unroll]] for (int d = 0; d < DB; d++) {
        MB b;
        coopMatLoad(b, ks, n * M * PITCH + d * (M / 8), PITCH, ROWS);
        [[unroll]] for (int r = 0; r < RB; r++) dq[r][d] = coopMatMulAdd(p[r], b, dq[r][d]);
      }
    }
  }
  Half dqp = Half(push.d_q);
  [[unroll]] for (int r = 0; r < RB; r++)
    [[unroll]] for (int d = 0; d < DB; d++) {
      [[unroll]] for (int i = 0; i < dq[r][d].length(); i++) dq[r][d][i] *= push.scale;
      coopMatStore(ACCH(dq[r][d]), dqp.h, uint(base) * 8 + (row0 + r * M) * D + d * M, D, ROWS);
    }
}
