// SPDX-License-Identifier: MIT OR Apache-2.0
// Tensors by address: element types, views of one head, loads of four features as raw words, and
// stores with rounding. Twin of shaders/parts/tensor.glsl.
#ifndef TANDEM_CUDA_PARTS_TENSOR_CUH
#define TANDEM_CUDA_PARTS_TENSOR_CUH
#include <type_traits>

#include "kernels/kernel_params.h"
#include "simt.cuh"

namespace tandem {
namespace cuda {

// ---- element types: Raw is four elements as they lie in memory ----------------------------------

struct F32 {
  using Element = float;
  using Raw = float4;
  static TANDEM_DEVICE Raw pack(Element x, Element y, Element z, Element w) {
    return make_float4(x, y, z, w);
  }
  static TANDEM_DEVICE Raw zero() { return make_float4(0.f, 0.f, 0.f, 0.f); }
  static TANDEM_DEVICE float4 to_floats(Raw r) { return r; }
  static TANDEM_DEVICE float to_float(Element e) { return e; }
  static TANDEM_DEVICE Element from_float(float x) { return x; }
};

template <typename Bits>
struct Sixteen {  // what f16 and bf16 have in common
  using Element = unsigned short;
  using Raw = uint2;
  static TANDEM_DEVICE Raw pack(Element x, Element y, Element z, Element w) {
    return make_uint2(unsigned(x) | unsigned(y) << 16, unsigned(z) | unsigned(w) << 16);
  }
  static TANDEM_DEVICE Raw zero() { return make_uint2(0u, 0u); }
  static TANDEM_DEVICE float4 to_floats(Raw r) {
    return make_float4(Bits::to_float(Element(r.x & 0xffffu)), Bits::to_float(Element(r.x >> 16)),
                       Bits::to_float(Element(r.y & 0xffffu)), Bits::to_float(Element(r.y >> 16)));
  }
};
struct F16 : Sixteen<F16> {
  static TANDEM_DEVICE float to_float(Element e) { return __half2float(__ushort_as_half(e)); }
  static TANDEM_DEVICE Element from_float(float x) { return __half_as_ushort(__float2half_rn(x)); }
};
struct BF16 : Sixteen<BF16> {
  static TANDEM_DEVICE float to_float(Element e) { return __uint_as_float(unsigned(e) << 16); }
  static TANDEM_DEVICE Element from_float(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  }
};

// One of the three, known at run time: kernels with optional inputs are not instantiated for each.
// The type is tested for a group of loads, stores or conversions, not for each element.
struct Any {
  using Raw = uint4;  // as they lie in memory, 16-bit elements in x and y
};
template <typename F>
TANDEM_DEVICE void with_type(uint dtype, const F& f) {
  if (dtype == TANDEM_F32)
    f(F32());
  else if (dtype == TANDEM_F16)
    f(F16());
  else
    f(BF16());
}
TANDEM_DEVICE uint4 widen(uint2 r) { return make_uint4(r.x, r.y, 0u, 0u); }
TANDEM_DEVICE void narrow(uint4 r, float4* out) {
  *out = make_float4(__uint_as_float(r.x), __uint_as_float(r.y), __uint_as_float(r.z),
                     __uint_as_float(r.w));
}
TANDEM_DEVICE void narrow(uint4 r, uint2* out) { *out = make_uint2(r.x, r.y); }

// ---- the rows of one head of a tensor -----------------------------------------------------------

template <typename T>
struct View {
  typename T::Element* base;
  int64_t s, d;
  int rows, width;
  bool wide;
  int first = 0;  // first feature of the sums of this workgroup (take_part() in tile.cuh)
};

template <>
struct View<Any> {
  char* base;
  int64_t s, d;
  int rows, width;
  bool wide;
  uint dtype;
  int first = 0;
  template <typename E>
  TANDEM_DEVICE View<E> as() const {
    return {reinterpret_cast<typename E::Element*>(base), s, d, rows, width, wide, first};
  }
};

template <typename T>
TANDEM_DEVICE View<T> make_view(uint64_t address, const Strides& strides, int batch, int head,
                                int rows, int width, bool wide) {
  View<T> m;
  m.base = reinterpret_cast<typename T::Element*>(address) + batch * strides.b + head * strides.h;
  m.s = strides.s;
  m.d = strides.d;
  m.rows = rows;
  m.width = width;
  m.wide = wide;
  return m;
}

// first: row of the tensor where the view begins.
TANDEM_DEVICE View<Any> make_any_view(uint dtype, uint64_t address, const Strides& strides,
                                      int batch, int head, int64_t first, int rows, int width,
                                      bool wide) {
  const int64_t at = batch * strides.b + head * strides.h + first * strides.s;
  View<Any> m;
  m.base = reinterpret_cast<char*>(address) + at * (dtype == TANDEM_F32 ? 4 : 2);
  m.s = strides.s;
  m.d = strides.d;
  m.rows = rows;
  m.width = width;
  m.wide = wide;
  m.dtype = dtype;
  return m;
}

// The same for a type that may be Any; dtype is read only then.
template <typename T>
TANDEM_DEVICE View<T> make_rows_view(uint dtype, uint64_t address, const Strides& strides,
                                     int batch, int head, int64_t first, int rows, int width,
                                     bool wide) {
  if constexpr (std::is_same<T, Any>::value) {
    return make_any_view(dtype, address, strides, batch, head, first, rows, width, wide);
  } else {
    View<T> m = make_view<T>(address, strides, batch, head, rows, width, wide);
    m.base += first * strides.s;
    return m;
  }
}

// A split's part of o, as fwd stores it: f32, rows of a multiple of four.
TANDEM_DEVICE View<F32> part_view(uint64_t address, const Strides& strides, int part, int head,
                                  int rows) {
  return make_view<F32>(address, strides, part, head, rows, int(strides.s), true);
}

// Loads COUNT quads of the rows row0 + row, row0 + row + STEP, ... at the features col0 + col to +
// 3; zeros outside the view. row0 and col0 are the same in the whole workgroup, and row0 is not
// negative. WIDE: every input is wide, its features are whole quads and a tile's rows span less
// than 4 GiB (wide_inputs() in src/cuda/device.cpp). An address then is one uniform 64-bit number
// and one 32-bit offset of the thread. With a separate address for each load a thread has no
// registers left, and the accumulators spill.
template <typename T, bool WIDE, int COUNT, int STEP>
TANDEM_DEVICE void load_words(typename T::Raw* out, const View<T>& m, int row0, int row, int col0,
                              int col) {
  using Element = typename T::Element;
  using Raw = typename T::Raw;
  if constexpr (WIDE) {
    const Element* p = m.base + row0 * m.s + col0;
    const uint offset = (uint(row) * uint(m.s) + uint(col)) * uint(sizeof(Element));
#pragma unroll
    for (int n = 0; n < COUNT; ++n) {
      const char* at = reinterpret_cast<const char*>(p + n * STEP * m.s);
      out[n] = T::zero();
      if (row < m.rows - row0 - n * STEP && col < m.width - col0)
        out[n] = __ldg(reinterpret_cast<const Raw*>(at + offset));
    }
  } else {
    const Element* p = m.base + (row0 + row) * m.s + (col0 + col) * m.d;
    const bool whole = m.wide && col0 + col + 4 <= m.width;
#pragma unroll
    for (int n = 0; n < COUNT; ++n, p += STEP * m.s) {
      out[n] = T::zero();
      if (row0 + row + n * STEP >= m.rows) continue;
      const Element* at = p;
      if (whole) {
        out[n] = __ldg(reinterpret_cast<const Raw*>(at));
      } else {
        Element e[4];
#pragma unroll
        for (int c = 0; c < 4; ++c, at += m.d) {
          e[c] = Element(0);
          if (col0 + col + c < m.width) e[c] = __ldg(at);
        }
        out[n] = T::pack(e[0], e[1], e[2], e[3]);
      }
    }
  }
}

// load_words() with WIDE. The addresses are formed without the type.
template <int COUNT, int STEP>
TANDEM_DEVICE void load_any(uint4* out, const View<Any>& m, int row0, int row, int col0, int col) {
  const bool f32 = m.dtype == TANDEM_F32;
  const int shift = f32 ? 2 : 1;
  const char* p = m.base + ((row0 * m.s + col0) << shift);
  const uint offset = (uint(row) * uint(m.s) + uint(col)) << shift;
  const int64_t step = (STEP * m.s) << shift;
#pragma unroll
  for (int n = 0; n < COUNT; ++n) out[n] = make_uint4(0u, 0u, 0u, 0u);
  if (col >= m.width - col0) return;
  if (f32) {
#pragma unroll
    for (int n = 0; n < COUNT; ++n)
      if (row < m.rows - row0 - n * STEP)
        out[n] = __ldg(reinterpret_cast<const uint4*>(p + n * step + offset));
  } else {  // f16 and bf16 are alike until they are converted
#pragma unroll
    for (int n = 0; n < COUNT; ++n)
      if (row < m.rows - row0 - n * STEP)
        out[n] = widen(__ldg(reinterpret_cast<const uint2*>(p + n * step + offset)));
  }
}

template <typename T>
TANDEM_DEVICE void store_words(const View<T>& m, int row, int col, const float (&x)[4]) {
  using Raw = typename T::Raw;
  if (row >= m.rows) return;
  typename T::Element* p = m.base + row * m.s + col * m.d;
  if (m.wide && col + 4 <= m.width) {
    *reinterpret_cast<Raw*>(p) =
        T::pack(T::from_float(x[0]), T::from_float(x[1]), T::from_float(x[2]), T::from_float(x[3]));
  } else {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (col + c < m.width) p[c * m.d] = T::from_float(x[c]);
  }
}
TANDEM_DEVICE void store_words(const View<Any>& m, int row, int col, const float (&x)[4]) {
  with_type(m.dtype, [&](auto e) { store_words(m.as<decltype(e)>(), row, col, x); });
}

}  // namespace cuda
}  // namespace tandem
#endif
