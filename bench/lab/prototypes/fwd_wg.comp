// SPDX-License-Identifier: MIT OR Apache-2.0
// A forward whose matrices belong to the workgroup and come by tensor addressing,
// VK_NV_cooperative_matrix2: see README.md.
// VAR: sum of 1 no softmax, 8 origin moves only when a score exceeds it by 8, 32 Q is loaded for
// each tile
// STAGE: 0 loads where they are needed, 1 V before S, 2 and K of the next tile before the softmax
// TYPE: float16_t or bfloat16_t; CLAMP: mode of clamping, 0 none, 1 zeros past the end.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_bfloat16 : enable
#ifndef TYPE
#define TYPE float16_t
#endif
#ifndef ROUNDS  // weights to bf16, which NVIDIA's conversion cuts off
#define ROUNDS 0
#endif
#ifndef VOTES
#define VOTES 0
#endif
#ifndef SUMS
#define SUMS 0
#endif
#ifndef NARROW
#define NARROW 0
#endif
#ifndef CLAMP
#define CLAMP 0
#endif
#define WG_A(R, C) coopmat<TYPE, gl_ScopeWorkgroup, R, C, gl_MatrixUseA>
#define WG_B(R, C) coopmat<TYPE, gl_ScopeWorkgroup, R, C, gl_MatrixUseB>
#define WG_ACC(T, R, C) coopmat<T, gl_ScopeWorkgroup, R, C, gl_MatrixUseAccumulator>
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Data { TYPE h[]; };
shared uint votes;

float weight(const in uint r, const in uint c, const in float s, const in float m, const in float scale) {
  return exp2(fma(s, scale, -m));
}
float mask(const in uint r, const in uint c, const in float s, const in int lim) { return int(c) - int(r) > lim ? -1e34 : s; }
float larger(const in uint r, const in uint c, const in float a, const in float b, const in float scale) { return max(a, b * scale); }
float kept(const in uint r, const in uint c, const in float a, const in float b) { return exp2(a - b); }
float lse_of(const in uint r, const in uint c, const in float m, const in float l) { return (m + log2(l)) / LOG2E; }

// SUMS: row sums by a product with ones; NARROW: rows' maxima in as few columns as a matrix can
// have;
// VOTES: a row maximum moves only when a score exceeds it by 8, with VAR 8 (not with NARROW).
const int EDGE = WG == 256 ? 32 : 16;  // of which a matrix's columns are a multiple
#if NARROW
#define M_COLS EDGE
#else
#define M_COLS BC
#endif
#if SUMS
#define L_COLS EDGE
#else
#define L_COLS BC
#endif

void main() {
  const int tile = push.tiles - 1 - int(gl_WorkGroupID.x) % push.tiles, head = int(gl_WorkGroupID.x) / push.tiles;
  const int S = push.S, row0 = tile * BR;
  const uint base = uint(head) * S * D;
  Data qp = Data(push.q), kp = Data(push.k), vp = Data(push.v), op = Data(push.o);
  tensorLayoutNV<2, CLAMP> all = createTensorLayoutNV(2, CLAMP);
  all = setTensorLayoutDimensionNV(all, S, D);
  tensorViewNV<2, false, 1, 0> turned = createTensorViewNV(2, false, 1, 0);

  WG_A(BR, D) q;
  coopMatLoadTensorNV(q, qp.h, base, sliceTensorLayoutNV(all, row0, BR, 0, D));
  WG_ACC(float, BR, D) o = WG_ACC(float, BR, D)(0.0);
  WG_ACC(float, BR, BC) s;
  WG_ACC(float, BR, M_COLS) m = WG_ACC(float, BR, M_COLS)(-1e30);
  WG_ACC(float, BR, L_COLS) l = WG_ACC(float, BR, L_COLS)(0.0);
  const int last = CAUSAL != 0 ? (row0 + BR + BC - 1) / BC : S / BC;
  const int full = CAUSAL != 0 ? row0 / BC : last;
  const float c = push.scale * LOG2E;
  WG_B(D, BC) k;
  if (STAGE == 2) coopMatLoadTensorNV(k, kp.h, base, sliceTensorLayoutNV(all, 0, BC, 0, D), turned);

  [[dont_unroll]] for (int t = 0; t < last; t++) {
    WG_B(BC, D) v;
    if (STAGE != 2) coopMatLoadTensorNV(k, kp.h, base, sliceTensorLayoutNV(all, t * BC, BC, 0, D), turned);
    if (STAGE != 0) coopMatLoadTensorNV(v, vp.h, base, sliceTensorLayoutNV(all, t * BC, BC, 0, D));
    s = WG_ACC(float, BR, BC)(0.0);
    if ((VAR & 32) != 0) coopMatLoadTensorNV(q, qp.h, base, sliceTensorLayoutNV(all, row0, BR, 0, D));
    s = coopMatMulAdd(q, k, s);
    if (STAGE == 2)
      coopMatLoadTensorNV(k, kp.h, base, sliceTensorLayoutNV(all, min(t + 1, last - 1) * BC, BC, 0, D), turned);
    if ((VAR & 1) == 0) {
      if (CAUSAL != 0 && t >= full) coopMatPerElementNV(s, s, mask, row0 - t * BC);
      bool grows = true;
      if ((VAR & 8) != 0) {
        grows = false;
#if VOTES
        [[unroll]] for (int i = 0; i < s.length(); i++) grows = grows || fma(s[i], c, -m[i]) > 8.0;
#endif
        barrier();
        votes = 0;
        barrier();
        if (subgroupAny(grows)) votes = 1;
        barrier();
        grows = votes != 0;
      }
      if (grows) {
        WG_ACC(float, BR, M_COLS) top, keep;
        coopMatReduceNV(top, s, gl_CooperativeMatrixReduceRowNV, maxop);
        coopMatPerElementNV(top, m, larger, top, c);
        coopMatPerElementNV(keep, m, kept, top);
        m = top;
        WG_ACC(float, BR, L_COLS) keeps;
        coopMatReduceNV(keeps, keep, gl_CooperativeMatrixReduceRowNV, maxop);
        l *= keeps;
        WG_ACC(float, BR, D) wide;
        coopMatReduceNV(wide, keep, gl_CooperativeMatrixReduceRowNV, maxop);
        o *= wide;
      }
#if NARROW
      {
        WG_ACC(float, BR, BC) origin;
        coopMatReduceNV(origin, m, gl_CooperativeMatrixReduceRowNV, maxop);
        coopMatPerElementNV(s, s, weight, origin, c);
      }
#else
      coopMatPerElementNV(s, s, weight, m, c);
#endif
#if !SUMS
      l += s;
#endif
    }
#if ROUNDS
    [[unroll]] for (int i = 0; i < s.length(); i++) s[i] = uintBitsToFloat(floatBitsToUint(s[i]) + 0x8000u);
#endif
    WG_A(BR, BC) p = WG_A(BR, BC)(s);
#if SUMS
    l = coopMatMulAdd(p, WG_B(BC, L_COLS)(1.0), l);
#endif
    if (STAGE == 0) coopMatLoadTensorNV(v, vp.h, base, sliceTensorLayoutNV(all, t * BC, BC, 0, D));
    o = coopMatMulAdd(p, v, o);
  }
#if !SUMS
  coopMatReduceNV(l, l, gl_CooperativeMatrixReduceRowNV, addop);
#endif
  WG_ACC(float, BR, D) wide;
  coopMatReduceNV(wide, l, gl_CooperativeMatrixReduceRowNV, maxop);
  o /= wide;
  coopMatStoreTensorNV(WG_ACC(TYPE, BR, D)(o), op.h, base, sliceTensorLayoutNV(all, row0, BR, 0, D));
  WG_ACC(float, BR, M_COLS) sums;
  coopMatReduceNV(sums, l, gl_CooperativeMatrixReduceRowNV, maxop);
  coopMatPerElementNV(m, m, lse_of, sums);
  Flt lp = Flt(push.lse);
  coopMatStore(m, lp.f, uint(head) * S + row0, 0, COLS);  // all columns are equal
}
