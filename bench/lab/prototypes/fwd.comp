// SPDX-License-Identifier: MIT OR Apache-2.0
// Prototype of shaders/coopmat/fwd.comp: see README.md.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
shared uvec4 ks[TILE];
shared uvec4 vs[TILE];
shared float diff[CAUSAL != 0 ? M * M : 1];

void main() {
  const int tid = int(gl_LocalInvocationIndex), sg = int(gl_SubgroupID);
  const int tile = push.tiles - 1 - int(gl_WorkGroupID.x) % push.tiles, head = int(gl_WorkGroupID.x) / push.tiles;
  const int S = push.S;
  const int row0 = tile * BR + sg * M * RB;
  const int base = head * S * D / 8;            // uvec4 index
  Load4 kp = Load4(push.k), vp = Load4(push.v);
  Half qp = Half(push.q);

  if (CAUSAL != 0) for (int i = tid; i < M * M; i += WG) diff[i] = float(i % M - i / M);
  MA q[RB][DB];
  [[unroll]] for (int r = 0; r < RB; r++)
    [[unroll]] for (int d = 0; d < DB; d++)
      if (QREG != 0) coopMatLoad(q[r][d], qp.h, uint(base) * 8 + (row0 + r * M) * D + d * M, D, gl_CooperativeMatrixLayoutRowMajor);

  ACC o[RB][DB], m[RB], l[RB];
  [[unroll]] for (int r = 0; r < RB; r++) {
    m[r] = ACC(-1e30);
    l[r] = ACC(0.0);
    [[unroll]] for (int d = 0; d < DB; d++) o[r][d] = ACC(0.0);
  }
  const int last = CAUSAL != 0 ? (tile * BR + BR + BC - 1) / BC : S / BC;
  const int full = CAUSAL != 0 ? tile * BR / BC : last;
  const float c = push.scale * 1.4426950408889634;

  uvec4 kr[VEC], vr[STAGE == 1 ? VEC : 1];
  const int lr = tid / (D / 8), lc = tid % (D / 8), lstep = WG / (D / 8);
  [[unroll]] for (int i = 0; i < VEC; i++) {
    kr[i] = kp.w[base + (lr + i * lstep) * (D / 8) + lc];
    if (STAGE == 1) vr[i] = vp.w[base + (lr + i * lstep) * (D / 8) + lc];
  }
  if (STAGE == 2) {
    [[unroll]] for (int i = 0; i < VEC; i++) ks[(lr + i * lstep) * PITCH + lc] = kr[i];
    barrier();
  }
  for (int t = 0; t < last; t++) {
    if (STAGE == 1) {
    barrier();
    [[unroll]] for (int i = 0; i < VEC; i++) {
      ks[(lr + i * lstep) * PITCH + lc] = kr[i];
      vs[(lr + i * lstep) * PITCH + lc] = vr[i];
    }
    barrier();
    if (t + 1 < last) {
      [[unroll]] for (int i = 0; i < VEC; i++) {
        kr[i] = kp.w[base + ((t + 1) * BC + lr + i * lstep) * (D / 8) + lc];
        vr[i] = vp.w[base + ((t + 1) * BC + lr + i * lstep) * (D / 8) + lc];
      }
    }
    } else {
      [[unroll]] for (int i = 0; i < VEC; i++) kr[i] = vp.w[base + (t * BC + lr + i * lstep) * (D / 8) + lc];
    }
    ACC s[RB][NB];
    [[unroll]] for (int n = 0; n < NB; n++)
      [[unroll]] for (int r = 0; r < RB; r++) s[r][n] = ACC(0.0);
    if ((VAR & 4) == 0) {
      [[unroll]] for (int d = 0; d < DB; d++) {
        [[unroll]] for (int n = 0; n < NB; n++) {
          MB b;
          coopMatLoad(b, ks, n * M * PITCH + d * (M / 8), PITCH, gl_CooperativeMatrixLayoutColumnMajor);
          [[unroll]] for (int r = 0; r < RB; r++) s[r][n] = coopMatMulAdd(q[r][d], b, s[r][n]);
        }
      }
    }
    if (STAGE == 2) {
      [[unroll]] for (int i = 0; i < VEC; i++) vs[(lr + i * lstep) * PITCH + lc] = kr[i];
      barrier();
      if (t + 1 < last)
        [[unroll]] for (int i = 0; i < VEC; i++) kr[i] = kp.w[base + ((t + 1) * BC + lr + i * lstep) * (D / 8) + lc];
    }
    MA p[RB][NB];
    [[unroll]] for (int r = 0; r < RB; r++) {
      if ((VAR & 1) == 0) {
      if (CAUSAL != 0 && t >= full) {
        [[unroll]] for (int n = 0; n < NB; n++)
          {
            ACC x; coopMatLoad(x, diff, 0, M, ROWS);
            const float lim = float(row0 + r * M - t * BC - n * M);
            [[unroll]] for (int i = 0; i < x.length(); i++) s[r][n][i] = x[i] > lim ? -1e30 : s[r][n][i];
          }
      }
      ACC top = s[r][0];
      [[unroll]] for (int n = 1; n < NB; n++)
        [[unroll]] for (int i = 0; i < top.length(); i++) top[i] = max(top[i], s[r][n][i]);
      bool grows = true;
      if ((VAR & 8) != 0) {
        grows = false;
        [[unroll]] for (int i = 0; i < top.length(); i++) grows = grows || fma(top[i], c, -m[r][i]) > 8.0;
        grows = subgroupAny(grows);
      }
      if (grows) {
        coopMatReduceNV(top, top, gl_CooperativeMatrixReduceRowNV, maxop);
        ACC keep;
        [[unroll]] for (int i = 0; i < top.length(); i++) {
          top[i] = max(m[r][i], top[i] * c);
          keep[i] = exp2(m[r][i] - top[i]);
          l[r][i] *= keep[i];
        }
        m[r] = top;
        [[unroll]] for (int d = 0; d < DB; d++)
          [[unroll]] for (int i = 0; i < top.length(); i++) o[r][d][i] *= keep[i];
      }
      [[unroll]] for (int n = 0; n < NB; n++) {
        [[unroll]] for (int i = 0; i < top.length(); i++) {
          s[r][n][i] = exp2(fma(s[r][n][i], c, -m[r][i]));
          l[r][i] += s[r][n][i];
        }
        p[r][n] = MA(s[r][n]);
      }
      } else {
      [[unroll]] for (int n = 0; n < NB; n++) p[r][n] = MA(s[r][n]);
      }
    }
    if ((VAR & 2) == 0) {
      [[unroll]] for (int n = 0; n < NB; n++) {
        [[unroll]] for (int d = 0; d < DB; d++) {
          MB b;
          coopMatLoad(b, vs, n * M * PITCH + d * (M / 8), PITCH, gl_CooperativeMatrixLayoutRowMajor);
          [[unroll]] for (int r = 0; r < RB; r++) o[r][d] = coopMatMulAdd(p[r][n], b, o[r][d]);
        }
      }
    } else {
      [[unroll]] for (int r = 0; r < RB; r++) [[unroll]] for (int n = 0; n < NB; n++)
        [[unroll]] for (int i = 0; i < l[r].length(); i++) o[r][0][i] += s[r][n][i];
    }
    if (STAGE == 2) {
      if (t + 1 < last)
        [[unroll]] for (int i = 0; i < VEC; i++) ks[(lr + i * lstep) * PITCH + lc] = kr[i];
      barrier();
    }
  }
  if (push.lse != uvec2(0)) {
    [[unroll]] for (int r = 0; r < RB; r++) coopMatReduceNV(l[r], l[r], gl_CooperativeMatrixReduceRowNV, addop);
  }
  Half op = Half(push.o);
  Flt lp = Flt(push.lse);
  [[unroll]] for (int r = 0; r < RB; r++) {
    ACC x;
    [[unroll]] for (int i = 0; i < x.length(); i++) x[i] = (m[r][i] + log2(l[r][i])) / LOG2E;
    // all columns are equal: store them on top of each other
    coopMatStore(x, lp.f, head * S + row0 + r * M, 0, COLS);
    [[unroll]] for (int d = 0; d < DB; d++) {
      [[unroll]] for (int i = 0; i < l[r].length(); i++) o[r][d][i] /= l[r][i];
      coopmat<float16_t, gl_ScopeSubgroup, M, M, gl_MatrixUseAccumulator> h =
          coopmat<float16_t, gl_ScopeSubgroup, M, M, gl_MatrixUseAccumulator>(o[r][d]);
      coopMatStore(h, op.h, uint(base) * 8 + (row0 + r * M) * D + d * M, D, gl_CooperativeMatrixLayoutRowMajor);
    }
  }
}
