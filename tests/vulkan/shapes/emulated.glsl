// SPDX-License-Identifier: MIT OR Apache-2.0
// Matrices of any shape on a device that lists none of it: what shaders/coopmat asks of them, by
// elements that lie row by row in the subgroup's invocations, each with whole rows. It takes the
// place of the types in coopmat/matrix.glsl (shapes.cmake), for a test of everything else in the
// kernels. GLSL copies no arrays whose size a pipeline tells, so a module has one shape, EMULATED_M
// x EMULATED_N, and subgroups of 8.
const int LANES = 8;
const int ACC_SIZE = EMULATED_M * EMULATED_N / LANES;
const int A_SIZE = EMULATED_M * KN * EMULATED_N / LANES,
          B_SIZE = KN * EMULATED_N * EMULATED_N / LANES;
#define ACC float[ACC_SIZE]
#define ACC_F16 HALF[ACC_SIZE]
struct OPERAND_A {
  HALF e[A_SIZE];
};
struct OPERAND_B {
  HALF e[B_SIZE];
};

ACC filled(float x) {
  ACC y;
  [[unroll]] for (int i = 0; i < ACC_SIZE; i++) y[i] = x;
  return y;
}
ACC_F16 halves(ACC x) {
  ACC_F16 y;
  [[unroll]] for (int i = 0; i < ACC_SIZE; i++) y[i] = HALF(x[i]);
  return y;
}
#define ACC_16(x) halves(x)
OPERAND_A operand(ACC x) { // MK is MN
  OPERAND_A y;
  [[unroll]] for (int i = 0; i < A_SIZE; i++) y.e[i] = HALF(x[i]);
  return y;
}

// Elements of 16 bytes, of an invocation, of a row; the i-th element of one, to and from a word of
// 16 bytes' four.
int per_chunk(ACC x) { return 4; }
int per_chunk(ACC_F16 x) { return 8; }
int per_chunk(OPERAND_A x) { return 8; }
int per_chunk(OPERAND_B x) { return 8; }
int size_of(ACC x) { return ACC_SIZE; }
int size_of(ACC_F16 x) { return ACC_SIZE; }
int size_of(OPERAND_A x) { return A_SIZE; }
int size_of(OPERAND_B x) { return B_SIZE; }
int cols_of(ACC x) { return MN; }
int cols_of(ACC_F16 x) { return MN; }
int cols_of(OPERAND_A x) { return MK; }
int cols_of(OPERAND_B x) { return MN; }
float word_of(ACC x, int e, float old, int i) { return x[e]; }
uint word_of(ACC x, int e, uint old, int i) { return floatBitsToUint(x[e]); }
uint word_of(ACC_F16 x, int e, uint old, int i) {
  const uint bits = packHalf2x16(vec2(x[e], 0));
  return (i & 1) == 0 ? (old & 0xffff0000u) | bits : (old & 0xffffu) | bits << 16;
}
uint word_of(OPERAND_A x, int e, uint old, int i) {
  const uint bits = packHalf2x16(vec2(x.e[e], 0));
  return (i & 1) == 0 ? (old & 0xffff0000u) | bits : (old & 0xffffu) | bits << 16;
}
float word_of(OPERAND_A x, int e, float old, int i) {
  return uintBitsToFloat(word_of(x, e, floatBitsToUint(old), i));
}
float word_of(ACC_F16 x, int e, float old, int i) {
  return uintBitsToFloat(word_of(x, e, floatBitsToUint(old), i));
}
void set(inout ACC x, int e, float word, int i) { x[e] = word; }
void set(inout ACC x, int e, uint word, int i) { x[e] = uintBitsToFloat(word); }
HALF half_of(uint word, int i) { return HALF(unpackHalf2x16(word)[i & 1]); }
void set(inout ACC_F16 x, int e, float word, int i) { x[e] = half_of(floatBitsToUint(word), i); }
void set(inout OPERAND_A x, int e, uint word, int i) { x.e[e] = half_of(word, i); }
void set(inout OPERAND_A x, int e, float word, int i) {
  x.e[e] = half_of(floatBitsToUint(word), i);
}
void set(inout OPERAND_B x, int e, uint word, int i) { x.e[e] = half_of(word, i); }

// n-th element of the matrix, row by row, in memory where lines lie stride elements apart.
int place_of(int n, int cols, int stride, int order) {
  return order == ROW_MAJOR ? n / cols * stride + n % cols : n % cols * stride + n / cols;
}
#define PLACE(x, e, at, stride, by) \
  ((at) * per_chunk(x) + place_of(LANE * size_of(x) + e, cols_of(x), (stride) * per_chunk(x), by))
#define coopMatLoad(x, memory, at, stride, order)                                      \
  do {                                                                                 \
    [[unroll]] for (int e_ = 0; e_ < size_of(x); e_++) {                               \
      const int n_ = PLACE(x, e_, at, stride, order);                                  \
      set(x, e_, memory[n_ / per_chunk(x)][n_ % per_chunk(x) * 4 / per_chunk(x)], n_); \
    }                                                                                  \
  } while (false)
#define coopMatStore(x, memory, at, stride, order)                                        \
  do {                                                                                    \
    [[unroll]] for (int e_ = 0; e_ < size_of(x); e_++) {                                  \
      const int n_ = PLACE(x, e_, at, stride, order);                                     \
      const int chunk_ = n_ / per_chunk(x), word_ = n_ % per_chunk(x) * 4 / per_chunk(x); \
      memory[chunk_][word_] = word_of(x, e_, memory[chunk_][word_], n_);                  \
    }                                                                                     \
  } while (false)

#define coopMatMulAdd multiply
ACC multiply(OPERAND_A a, OPERAND_B b, ACC c) {
  [[unroll]] for (int k = 0; k < MK; k++) {
    [[unroll]] for (int j = 0; j < MN; j++) {
      const int n = k * MN + j;
      const float y = subgroupShuffle(float(b.e[n % B_SIZE]), uint(n / B_SIZE));
      [[unroll]] for (int i = 0; i < MM / SUBGROUP; i++) c[i * MN + j] =
          fma(float(a.e[i * MK + k]), y, c[i * MN + j]);
    }
  }
  return c;
}

#define coopMatReduceNV(y, x, which, of)                                      \
  do {                                                                        \
    [[unroll]] for (int i_ = 0; i_ < ACC_SIZE; i_ += MN) {                    \
      float all_ = x[i_];                                                     \
      [[unroll]] for (int j_ = 1; j_ < MN; j_++) all_ = of(all_, x[i_ + j_]); \
      [[unroll]] for (int j_ = 0; j_ < MN; j_++) y[i_ + j_] = all_;           \
    }                                                                         \
  } while (false)
#define coopMatPerElementNV(y, x, of, a, b)                                                    \
  do {                                                                                         \
    [[unroll]] for (int e_ = 0; e_ < ACC_SIZE; e_++) y[e_] =                                   \
        of(uint((LANE * ACC_SIZE + e_) / MN), uint((LANE * ACC_SIZE + e_) % MN), x[e_], a, b); \
  } while (false)

// Tensor addressing of rows.glsl: a block of rows that lie apart, clamped to zeros.
struct CLAMPED {
  int rows, width, stride, row, col;
};
#define createTensorLayoutNV(dims_, mode_) CLAMPED(0, 0, 0, 0, 0)
#define setTensorLayoutDimensionNV(x_, rows_, width_) CLAMPED(rows_, width_, 0, 0, 0)
#define setTensorLayoutStrideNV(x_, stride_, one_) CLAMPED(x_.rows, x_.width, int(stride_), 0, 0)
#define sliceTensorLayoutNV(x_, r_, rows_, c_, cols_) CLAMPED(x_.rows, x_.width, x_.stride, r_, c_)
#define TENSOR_PLACE(x, e, at)                                    \
  const int row_ = at.row + (LANE * size_of(x) + e) / cols_of(x), \
            col_ = at.col + (LANE * size_of(x) + e) % cols_of(x); \
  const int n_ = row_ * at.stride + col_;                         \
  const bool exists_ = row_ < at.rows && col_ < at.width;
#define coopMatLoadTensorNV(x, memory, from, layout)                                        \
  do {                                                                                      \
    const CLAMPED at_ = layout;                                                             \
    for (int e_ = 0; e_ < size_of(x); e_++) {                                               \
      TENSOR_PLACE(x, e_, at_)                                                              \
      uint word_ = 0;                                                                       \
      if (exists_) word_ = memory[n_ / per_chunk(x)][n_ % per_chunk(x) * 4 / per_chunk(x)]; \
      set(x, e_, word_, n_);                                                                \
    }                                                                                       \
  } while (false)
#define coopMatStoreTensorNV(matrix, memory, from, layout)                    \
  do {                                                                        \
    const CLAMPED at_ = layout;                                               \
    for (int e_ = 0; e_ < size_of(matrix); e_++) {                            \
      TENSOR_PLACE(matrix, e_, at_)                                           \
      if (!exists_) continue;                                                 \
      const int chunk_ = n_ / per_chunk(matrix),                              \
                word_ = n_ % per_chunk(matrix) * 4 / per_chunk(matrix);       \
      memory[chunk_][word_] = word_of(matrix, e_, memory[chunk_][word_], n_); \
    }                                                                         \
  } while (false)
