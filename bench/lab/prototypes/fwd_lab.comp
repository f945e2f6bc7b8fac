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
  const int turn0 = (VAR & 64) != 0 && CAUSAL == 0 ? tile * 5 % last : 0;
#define AT(t) ((VAR & 64) != 0 ? ((t) + turn0 >= last ? (t) + turn0 - last : (t) + turn0) : (t))

  uvec4 kr[VEC], vr[VEC];
  const int lr = tid / (D / 8), lc = tid % (D / 8), lstep = WG / (D / 8);
#define FETCH(x, from, t) { const int at = base + (AT(min(t, last - 1)) * BC + lr) * (D / 8) + lc; \
    [[unroll]] for (int i = 0; i < VEC; i++) x[i] = from.w[at + i * lstep * (D / 8)]; }
#define PUT(to, x) [[unroll]] for (int i = 0; i < VEC; i++) to[(lr + i * lstep) * PITCH + lc] = x[i];
  FETCH(kr, kp, 0)
  PUT(ks, kr)
  if (STAGE == 3 || STAGE == 5) { FETCH(kr, kp, 1) FETCH(vr, vp, 0) }
  if (STAGE == 4) FETCH(kr, vp, 0)
  barrier();
  for (int t = 0; t < last; t++) {
    if (STAGE == 2) FETCH(vr, vp, t)
    if (STAGE == 4) { PUT(vs, kr) FETCH(kr, kp, t + 1) }
    if (STAGE == 5) { PUT(vs, vr) FETCH(vr, vp, t + 1) }
    ACC s[RB][NB];
    bool again;
    do {
      again = false;
      [[unroll]] for (int n = 0; n < NB; n++)
        [[unroll]] for (int r = 0; r < RB; r++) s[r][n] = ACC(0.0);
      if (CAUSAL != 0 && t >= full) {
        [[unroll]] for (int n = 0; n < NB; n++) [[unroll]] for (int r = 0; r < RB; r++) {
            ACC x; coopMatLoad(x, diff, 0, M, ROWS);
            const float lim = float(row0 + r * M - t * BC - n * M);
            [[unroll]] for (int i = 0; i < x.length(); i++) s[r][n][i] = x[i] > lim ? -1e34 : 0.0;
        }
      }
      const int H = (VAR & 128) != 0 ? 2 : (VAR & 256) != 0 ? 1 : NB;
      [[unroll]] for (int n0 = 0; n0 < NB; n0 += H)
        [[unroll]] for (int d = 0; d < DB; d++)
          [[unroll]] for (int n = n0; n < n0 + H; n++) {
            MB b;
            coopMatLoad(b, ks, n * M * PITCH + d * (M / 8), PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (int r = 0; r < RB; r++) s[r][n] = coopMatMulAdd(q[r][d], b, s[r][n]);
          }
      if ((VAR & 32) != 0) {
        ACC top[RB];
        bool grows = false;
        [[unroll]] for (int r = 0; r < RB; r++) top[r] = s[r][0];
        [[unroll]] for (int n = 0; n < NB; n++)
          [[unroll]] for (int r = 0; r < RB; r++)
            [[unroll]] for (int i = 0; i < top[r].length(); i++) {
              top[r][i] = max(top[r][i], s[r][n][i]);
              s[r][n][i] = exp2(fma(s[r][n][i], c, -m[r][i]));
            }
        [[unroll]] for (int r = 0; r < RB; r++)
          [[unroll]] for (int i = 0; i < top[r].length(); i++) grows = grows || fma(top[r][i], c, -m[r][i]) > 8.0;
        again = subgroupAny(grows);
        if (again) {
          [[unroll]] for (int r = 0; r < RB; r++) {
            coopMatReduceNV(top[r], top[r], gl_CooperativeMatrixReduceRowNV, maxop);
            ACC keep;
            [[unroll]] for (int i = 0; i < keep.length(); i++) {
              top[r][i] = max(m[r][i], top[r][i] * c);
              keep[i] = exp2(m[r][i] - top[r][i]);
              l[r][i] *= keep[i];
            }
            m[r] = top[r];
            [[unroll]] for (int d = 0; d < DB; d++)
              [[unroll]] for (int i = 0; i < keep.length(); i++) o[r][d][i] *= keep[i];
          }
        }
      }
    } while (again);
    if (STAGE < 4) { PUT(vs, vr) }
    if (STAGE == 3) FETCH(vr, vp, t + 1)
    barrier();
    if (STAGE == 4) { PUT(ks, kr) FETCH(kr, vp, t + 1) }
    if (STAGE == 5) { PUT(ks, kr) FETCH(kr, kp, t + 2) }
    if (STAGE == 2) FETCH(kr, kp, t + 1)
    if ((VAR & 32) == 0) {
      ACC top[RB];
      bool grows = false;
      [[unroll]] for (int r = 0; r < RB; r++) {
        top[r] = s[r][0];
        [[unroll]] for (int n = 1; n < NB; n++)
          [[unroll]] for (int i = 0; i < top[r].length(); i++) top[r][i] = max(top[r][i], s[r][n][i]);
        [[unroll]] for (int i = 0; i < top[r].length(); i++) grows = grows || fma(top[r][i], c, -m[r][i]) > 8.0;
      }
      if (subgroupAny(grows)) {
        [[unroll]] for (int r = 0; r < RB; r++) {
          coopMatReduceNV(top[r], top[r], gl_CooperativeMatrixReduceRowNV, maxop);
          ACC keep;
          [[unroll]] for (int i = 0; i < keep.length(); i++) {
            top[r][i] = max(m[r][i], top[r][i] * c);
            keep[i] = exp2(m[r][i] - top[r][i]);
            l[r][i] *= keep[i];
          }
          m[r] = top[r];
          [[unroll]] for (int d = 0; d < DB; d++)
            [[unroll]] for (int i = 0; i < keep.length(); i++) o[r][d][i] *= keep[i];
        }
      }
      [[unroll]] for (int n = 0; n < NB; n++)
        [[unroll]] for (int r = 0; r < RB; r++)
          [[unroll]] for (int i = 0; i < top[r].length(); i++) s[r][n][i] = exp2(fma(s[r][n][i], c, -m[r][i]));
    }
    [[unroll]] for (int n = 0; n < NB; n++) {
      MA p[RB];
      [[unroll]] for (int r = 0; r < RB; r++) {
        [[unroll]] for (int i = 0; i < l[r].length(); i++) l[r][i] += s[r][n][i];
        p[r] = MA(s[r][n]);
      }
      [[unroll]] for (int d = 0; d < DB; d++) {
        MB b;
        coopMatLoad(b, vs, n * M * PITCH + d * (M / 8), PITCH, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (int r = 0; r < RB; r++) o[r][d] = coopMatMulAdd(p[r], b, o[r][d]);
      }
    }
    if (STAGE < 4) { PUT(ks, kr) }
    if (STAGE == 3) FETCH(kr, kp, t + 2)
    barrier();
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
