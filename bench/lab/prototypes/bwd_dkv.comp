// SPDX-License-Identifier: MIT OR Apache-2.0
// Prototype of shaders/coopmat/bwd_dkv.comp: see README.md.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
shared uvec4 qs[TILE];
shared uvec4 dos[TILE];
shared float diff[CAUSAL != 0 ? M * M : 1];
shared float stat[2 * BC];
shared uvec4 vsh[QREG == 1 ? 1 : BR * PITCH];
shared uvec4 ksh[QREG == 2 ? BR * PITCH : 1];
void main() {
  const int tid = int(gl_LocalInvocationIndex), sg = int(gl_SubgroupID);
  const int tile = int(gl_WorkGroupID.x) % push.tiles, head = int(gl_WorkGroupID.x) / push.tiles;
  const int S = push.S, key0 = tile * BR + sg * M * RB, base = head * S * D / 8;
  Load4 qp = Load4(push.q), dop = Load4(push.d_o);
  Half kp = Half(push.k), vp = Half(push.v);
  MA k[RB][DB], v[RB][DB];
  const int lr = tid / (D / 8), lc = tid % (D / 8), lstep = WG / (D / 8);
  [[unroll]] for (int r = 0; r < RB; r++)
    [[unroll]] for (int d = 0; d < DB; d++) {
      if (QREG != 2) coopMatLoad(k[r][d], kp.h, uint(base) * 8 + (key0 + r * M) * D + d * M, D, ROWS);
      if (QREG == 1 && (VAR & 16) == 0) coopMatLoad(v[r][d], vp.h, uint(base) * 8 + (key0 + r * M) * D + d * M, D, ROWS);
    }
  if (QREG != 1)
    for (int i = 0; i < BR / lstep; i++) {
      vsh[(lr + i * lstep) * PITCH + lc] = Load4(push.v).w[base + (tile * BR + lr + i * lstep) * (D / 8) + lc];
      if (QREG == 2) ksh[(lr + i * lstep) * PITCH + lc] = Load4(push.k).w[base + (tile * BR + lr + i * lstep) * (D / 8) + lc];
    }
  ACC dk[RB][DB], dv[RB][DB];
  [[unroll]] for (int r = 0; r < RB; r++)
    [[unroll]] for (int d = 0; d < DB; d++) dk[r][d] = ACC(0.0), dv[r][d] = ACC(0.0);
  if (CAUSAL != 0) for (int i = tid; i < M * M; i += WG) diff[i] = float(i / M - i % M);
  const int first = CAUSAL != 0 ? tile * BR / BC : 0, last = S / BC;
  const int full = CAUSAL != 0 ? (tile * BR + BR + BC - 1) / BC : 0;
  const float c = push.scale * LOG2E;
  uvec4 qr[VEC], dor[VEC];
  float st = 0;
  Flt lsep = Flt(push.lse), dlp = Flt(push.delta);
#define FETCH(t) \
  [[unroll]] for (int i = 0; i < VEC; i++) { \
    qr[i] = qp.w[base + ((t) * BC + lr + i * lstep) * (D / 8) + lc]; \
    dor[i] = dop.w[base + ((t) * BC + lr + i * lstep) * (D / 8) + lc]; } \
  if (tid < BC) st = -lsep.f[head * S + (t) * BC + tid] * LOG2E; else if (tid < 2 * BC) st = dlp.f[head * S + (t) * BC + tid - BC];
  FETCH(first)
  for (int t = first; t < last; t++) {
    barrier();
    [[unroll]] for (int i = 0; i < VEC; i++) {
      qs[(lr + i * lstep) * PITCH + lc] = qr[i];
      dos[(lr + i * lstep) * PITCH + lc] = dor[i];
    }
    if (tid < 2 * BC) stat[tid] = st;
    barrier();
    if (t + 1 < last) { FETCH(t + 1) }
    [[dont_unroll]] for (int n = 0; n < NB; n++) {
      ACC s[RB], dp[RB];
      [[unroll]] for (int r = 0; r < RB; r++) s[r] = ACC(0.0), dp[r] = ACC(0.0);
      [[unroll]] for (int d = 0; d < DB; d++) {
        MB b, e;
        coopMatLoad(b, qs, n * M * PITCH + d * (M / 8), PITCH, COLS);
        coopMatLoad(e, dos, n * M * PITCH + d * (M / 8), PITCH, COLS);
        [[unroll]] for (int r = 0; r < RB; r++) {
          s[r] = coopMatMulAdd(k[r][d], b, s[r]);
          dp[r] = coopMatMulAdd(v[r][d], e, dp[r]);
        }
      }
      if (CAUSAL != 0 && t < full) {
        ACC x; coopMatLoad(x, diff, 0, M, ROWS);
        [[unroll]] for (int r = 0; r < RB; r++) {
          const float lim = float(t * BC + n * M - key0 - r * M);
          [[unroll]] for (int i = 0; i < x.length(); i++) s[r][i] = x[i] > lim ? -1e30 : s[r][i];
        }
      }
      ACC lse, delta;
      coopMatLoad(lse, stat, n * M, 0, ROWS);
      coopMatLoad(delta, stat, BC + n * M, 0, ROWS);
      MA p[RB], ds[RB];
      [[unroll]] for (int r = 0; r < RB; r++) {
        [[unroll]] for (int i = 0; i < lse.length(); i++) s[r][i] = exp2(fma(s[r][i], c, lse[i]));
        p[r] = MA(s[r]);
        [[unroll]] for (int i = 0; i < lse.length(); i++) s[r][i] *= dp[r][i] - delta[i];
        ds[r] = MA(s[r]);
      }
      [[unroll]] for (int d = 0; d < DB; d++) {
        MB b, e;
        coopMatLoad(b, dos, n * M * PITCH + d * (M / 8), PITCH, ROWS);
        coopMatLoad(e, qs, n * M * PITCH + d * (M / 8), PITCH, ROWS);
        [[unroll]] for (int r = 0; r < RB; r++) {
          dv[r][d] = coopMatMulAdd(p[r], b, dv[r][d]);
          dk[r][d] = coopMatMulAdd(ds[r], e, dk[r][d]);
        }
      }
    }
  }
  Half dkp = Half(push.d_k), dvp = Half(push.d_v);
  [[unroll]] for (int r = 0; r < RB; r++)
    [[unroll]] for (int d = 0; d < DB; d++) {
      [[unroll]] for (int i = 0; i < dk[r][d].length(); i++) dk[r][d][i] *= push.scale;
      if ((VAR & 16) == 0) coopMatStore(ACCH(dk[r][d]), dkp.h, uint(base) * 8 + (key0 + r * M) * D + d * M, D, ROWS);
      if ((VAR & 32) == 0) coopMatStore(ACCH(dv[r][d]), dvp.h, uint(base) * 8 + (key0 + r * M) * D + d * M, D, ROWS);
    }
}
