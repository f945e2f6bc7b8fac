// SPDX-License-Identifier: MIT OR Apache-2.0
// Prototype of a forward in which two subgroups share 2 M rows. Each has half of a tile's keys in
// S = Q K^T and half of the features in O = P V, so that a right operand read from shared memory
// feeds two products. They exchange their halves of P through shared memory. See README.md.
// VAR: 16: half as much exchange, O of M rows and all features.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
const bool WIDE_O = (VAR & 16) != 0;
const int NH = NB / 2;                      // own blocks of keys
const int ORB = WIDE_O ? 1 : 2;             // row blocks of o
const int OD = WIDE_O ? DB : DB / 2;        // feature blocks of o
const int SUBS = WG / SG;
const int PP = NH * M / 8 + 1;              // pitch of what a subgroup gives away
const int GIVE = ORB * M * PP;
shared uvec4 ks[TILE];
shared uvec4 vs[TILE];
shared uvec4 ps[SUBS * GIVE];
shared float tops[SUBS * 2 * M];
shared uint grown[2];
shared float diff[CAUSAL != 0 ? M * M : 1];

void main() {
  const int tid = int(gl_LocalInvocationIndex), sg = int(gl_SubgroupID), half_ = sg & 1, other = sg ^ 1;
  const int tile = push.tiles - 1 - int(gl_WorkGroupID.x) % push.tiles, head = int(gl_WorkGroupID.x) / push.tiles;
  const int S = push.S;
  const int row0 = tile * BR + (sg >> 1) * 2 * M;
  const int base = head * S * D / 8;            // uvec4 index
  Load4 kp = Load4(push.k), vp = Load4(push.v);
  Half qp = Half(push.q);

  if (CAUSAL != 0) for (int i = tid; i < M * M; i += WG) diff[i] = float(i % M - i / M);
  for (int i = tid; i < SUBS * 2 * M; i += WG) tops[i] = -1e30;
  if (tid < 2) grown[tid] = 0;
  // Row block r of the pair's: with WIDE_O the own one is the first.
  int rows[2];
  rows[0] = row0 + (WIDE_O ? half_ * M : 0);
  rows[1] = row0 + (WIDE_O ? (1 - half_) * M : M);
  MA q[2][DB];
  [[unroll]] for (int r = 0; r < 2; r++)
    [[unroll]] for (int d = 0; d < DB; d++)
      coopMatLoad(q[r][d], qp.h, uint(base) * 8 + rows[r] * D + d * M, D, gl_CooperativeMatrixLayoutRowMajor);

  ACC o[ORB][OD], m[2], l[2];
  [[unroll]] for (int r = 0; r < 2; r++) {
    m[r] = ACC(-1e30);
    l[r] = ACC(0.0);
  }
  [[unroll]] for (int r = 0; r < ORB; r++)
    [[unroll]] for (int d = 0; d < OD; d++) o[r][d] = ACC(0.0);
  const int last = CAUSAL != 0 ? (tile * BR + BR + BC - 1) / BC : S / BC;
  const int full = CAUSAL != 0 ? tile * BR / BC : last;
  const float c = push.scale * 1.4426950408889634;

  uvec4 st[VEC];
  const int lr = tid / (D / 8), lc = tid % (D / 8), lstep = WG / (D / 8);
  [[unroll]] for (int i = 0; i < VEC; i++) st[i] = kp.w[base + (lr + i * lstep) * (D / 8) + lc];
  [[unroll]] for (int i = 0; i < VEC; i++) ks[(lr + i * lstep) * PITCH + lc] = st[i];
  barrier();
  float counts = 1.0; // whether this tile's weights are still to be added to l
  int turn = 0;
  for (int t = 0; t < last;) {
    [[unroll]] for (int i = 0; i < VEC; i++) st[i] = vp.w[base + (t * BC + lr + i * lstep) * (D / 8) + lc];
    ACC s[2][NH];
    const int key0 = t * BC + half_ * NH * M;
    [[unroll]] for (int n = 0; n < NH; n++)
      [[unroll]] for (int r = 0; r < 2; r++) s[r][n] = ACC(0.0);
    if (CAUSAL != 0 && t >= full) {
      [[unroll]] for (int n = 0; n < NH; n++) [[unroll]] for (int r = 0; r < 2; r++) {
        ACC x; coopMatLoad(x, diff, 0, M, ROWS);
        const float lim = float(rows[r] - key0 - n * M);
        [[unroll]] for (int i = 0; i < x.length(); i++) s[r][n][i] = x[i] > lim ? -1e34 : 0.0;
      }
    }
    [[unroll]] for (int d = 0; d < DB; d++) {
      [[unroll]] for (int n = 0; n < NH; n++) {
        MB b;
        coopMatLoad(b, ks, (half_ * NH + n) * M * PITCH + d * (M / 8), PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (int r = 0; r < 2; r++) s[r][n] = coopMatMulAdd(q[r][d], b, s[r][n]);
      }
    }
    bool grows = false;
    ACC top[2], origin[2];
    [[unroll]] for (int r = 0; r < 2; r++) {
      top[r] = s[r][0];
      [[unroll]] for (int n = 1; n < NH; n++)
        [[unroll]] for (int i = 0; i < top[r].length(); i++) top[r][i] = max(top[r][i], s[r][n][i]);
      origin[r] = m[r];
      [[unroll]] for (int i = 0; i < top[r].length(); i++) grows = grows || fma(top[r][i], c, -m[r][i]) > 8.0;
    }
    grows = subgroupAny(grows);
    if (grows) {
      [[unroll]] for (int r = 0; r < 2; r++) {
        coopMatReduceNV(top[r], top[r], gl_CooperativeMatrixReduceRowNV, maxop);
        [[unroll]] for (int i = 0; i < top[r].length(); i++) origin[r][i] = max(m[r][i], top[r][i] * c);
        coopMatStore(origin[r], tops, (sg * 2 + r) * M, 0, COLS);
      }
      grown[turn] = 1;
    }
    const float add = grows ? 0.0 : counts;
    if (!grows) counts = 0.0;
    MA p[2][NH];
    [[unroll]] for (int n = 0; n < NH; n++)
      [[unroll]] for (int r = 0; r < 2; r++) {
        [[unroll]] for (int i = 0; i < top[0].length(); i++) {
          s[r][n][i] = exp2(fma(s[r][n][i], c, -origin[r][i]));
          l[r][i] = fma(add, s[r][n][i], l[r][i]);
        }
        p[r][n] = MA(s[r][n]);
      }
    [[unroll]] for (int n = 0; n < NH; n++)
      [[unroll]] for (int r = 0; r < ORB; r++)
        coopMatStore(p[WIDE_O ? 1 : r][n], ps, sg * GIVE + r * M * PP + n * (M / 8), PP, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (int i = 0; i < VEC; i++) vs[(lr + i * lstep) * PITCH + lc] = st[i];
    barrier();
    if (grown[turn] != 0) { // the tile is multiplied again, from the new origins
      [[unroll]] for (int r = 0; r < 2; r++) {
        ACC mine, others, keep;
        coopMatLoad(mine, tops, (sg * 2 + r) * M, 0, COLS);
        coopMatLoad(others, tops, (other * 2 + (WIDE_O ? 1 - r : r)) * M, 0, COLS);
        [[unroll]] for (int i = 0; i < keep.length(); i++) {
          mine[i] = max(m[r][i], max(mine[i], others[i]));
          keep[i] = exp2(m[r][i] - mine[i]);
          l[r][i] *= keep[i];
        }
        m[r] = mine;
        if (r < ORB) {
          [[unroll]] for (int d = 0; d < OD; d++)
            [[unroll]] for (int i = 0; i < keep.length(); i++) o[r][d][i] *= keep[i];
        }
      }
      if (tid == 0) grown[1 - turn] = 0;
      turn = 1 - turn;
      barrier();
      continue;
    }
    if (tid == 0) grown[1 - turn] = 0;
    turn = 1 - turn;
    counts = 1.0;
    t++;
    if (t < last)
      [[unroll]] for (int i = 0; i < VEC; i++) st[i] = kp.w[base + (t * BC + lr + i * lstep) * (D / 8) + lc];
    [[unroll]] for (int n = 0; n < NH; n++) { // own keys
      [[unroll]] for (int d = 0; d < OD; d++) {
        MB b;
        coopMatLoad(b, vs, (half_ * NH + n) * M * PITCH + ((WIDE_O ? 0 : half_ * OD) + d) * (M / 8), PITCH, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (int r = 0; r < ORB; r++) o[r][d] = coopMatMulAdd(p[r][n], b, o[r][d]);
      }
    }
    [[unroll]] for (int n = 0; n < NH; n++) { // the other's
      MA x[ORB];
      [[unroll]] for (int r = 0; r < ORB; r++)
        coopMatLoad(x[r], ps, other * GIVE + r * M * PP + n * (M / 8), PP, gl_CooperativeMatrixLayoutRowMajor);
      [[unroll]] for (int d = 0; d < OD; d++) {
        MB b;
        coopMatLoad(b, vs, ((1 - half_) * NH + n) * M * PITCH + ((WIDE_O ? 0 : half_ * OD) + d) * (M / 8), PITCH, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (int r = 0; r < ORB; r++) o[r][d] = coopMatMulAdd(x[r], b, o[r][d]);
      }
    }
    if (t < last)
      [[unroll]] for (int i = 0; i < VEC; i++) ks[(lr + i * lstep) * PITCH + lc] = st[i];
    barrier();
  }
  [[unroll]] for (int r = 0; r < 2; r++) {
    coopMatReduceNV(l[r], l[r], gl_CooperativeMatrixReduceRowNV, addop);
    coopMatStore(l[r], tops, (sg * 2 + r) * M, 0, COLS);
  }
  barrier();
  Half op = Half(push.o);
  Flt lp = Flt(push.lse);
  [[unroll]] for (int r = 0; r < ORB; r++) {
    ACC x;
    coopMatLoad(x, tops, (other * 2 + (WIDE_O ? 1 - r : r)) * M, 0, COLS);
    [[unroll]] for (int i = 0; i < x.length(); i++) {
      l[r][i] += x[i];
      x[i] = (m[r][i] + log2(l[r][i])) / LOG2E;
    }
    if (WIDE_O || half_ == 0) coopMatStore(x, lp.f, head * S + rows[r], 0, COLS);
    [[unroll]] for (int d = 0; d < OD; d++) {
      [[unroll]] for (int i = 0; i < l[r].length(); i++) o[r][d][i] /= l[r][i];
      ACCH h = ACCH(o[r][d]);
      coopMatStore(h, op.h, uint(base) * 8 + rows[r] * D + ((WIDE_O ? 0 : half_ * OD) + d) * M, D, gl_CooperativeMatrixLayoutRowMajor);
    }
  }
}
