// SPDX-License-Identifier: MIT OR Apache-2.0
// Stores of d_bias from accumulators.
#ifndef TANDEM_CUDA_SM80_BIAS_ROWS_CUH
#define TANDEM_CUDA_SM80_BIAS_ROWS_CUH
#include "tile.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// The rows of d_bias of a head, in its own type.
struct BiasRows {
  uint dtype;
  char* base;
  Strides s;
  int rows, cols;
  bool pairs;  // stores two adjacent columns at once
  // Stores elements (i, j) and (i, j + 1), j even.
  TANDEM_DEVICE void put(int i, int j, float x, float y) const {
    if (i >= rows || j >= cols) return;
    with_type(dtype, [&](auto type) {
      using E = decltype(type);
      auto* at = reinterpret_cast<typename E::Element*>(base) + i * s.s + j * s.d;
      if (pairs && j + 1 < cols) {
        if constexpr (std::is_same<E, F32>::value)
          *reinterpret_cast<float2*>(at) = make_float2(x, y);
        else
          *reinterpret_cast<uint*>(at) = pack<E>(x, y);
        return;
      }
      at[0] = E::from_float(x);
      if (j + 1 < cols) at[s.d] = E::from_float(y);
    });
  }
  TANDEM_DEVICE void put_one(int i, int j, float x) const {
    if (i >= rows || j >= cols) return;
    with_type(dtype, [&](auto type) {
      using E = decltype(type);
      reinterpret_cast<typename E::Element*>(base)[i * s.s + j * s.d] = E::from_float(x);
    });
  }
};

// Those of a query head that alone reads its bias. address: of d_bias.
TANDEM_DEVICE BiasRows bias_rows_of(uint dtype, uint64_t address, const Strides& s, int batch,
                                    int head, int rows, int cols) {
  const int size = dtype == TANDEM_F32 ? 4 : 2;
  return {
      dtype, reinterpret_cast<char*>(address) + (batch * s.b + head * s.h) * size,
      s,     rows,
      cols,  s.d == 1 && s.s % 2 == 0 && s.h % 2 == 0 && s.b % 2 == 0 && address % (2 * size) == 0};
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
