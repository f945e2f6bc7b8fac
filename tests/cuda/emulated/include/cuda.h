// SPDX-License-Identifier: MIT OR Apache-2.0
// The driver types that src/cuda and the kernels name, for the build on the emulator.
#ifndef TANDEM_TESTS_CUDA_EMULATED_INCLUDE_CUDA_H
#define TANDEM_TESTS_CUDA_EMULATED_INCLUDE_CUDA_H
#include <cstdint>

typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400
} CUresult;

// ---- tensor maps: of four dimensions of 16-bit or f32 elements, rows of boxes in the order of
// SWIZZLE_128B ----
typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
} CUtensorMapDataType;
typedef enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 } CUtensorMapInterleave;
typedef enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 3 } CUtensorMapSwizzle;
typedef enum CUtensorMapL2promotion {
  CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3
} CUtensorMapL2promotion;
typedef enum CUtensorMapFloatOOBfill {
  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0
} CUtensorMapFloatOOBfill;
typedef struct alignas(64) CUtensorMap {
  uint64_t made;  // kTensorMapMade: not garbage
  unsigned char* base;
  uint64_t size[4], step[3];  // step: in bytes
  uint32_t box[4], element;   // element: its bytes
} CUtensorMap;
static_assert(sizeof(CUtensorMap) == 128, "as in the driver");
constexpr uint64_t kTensorMapMade = 0x70616d726f736e65;

// What the driver refuses, and what the project has no use for.
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                       void* base, const cuuint64_t* size, const cuuint64_t* step,
                                       const cuuint32_t* box, const cuuint32_t* every,
                                       CUtensorMapInterleave, CUtensorMapSwizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const uint32_t element = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  if (rank != 4 || reinterpret_cast<uintptr_t>(base) % 16 != 0 || box[0] * element != 128)
    return CUDA_ERROR_INVALID_VALUE;
  *map = {};
  map->made = kTensorMapMade;
  map->base = static_cast<unsigned char*>(base);
  map->element = element;
  for (int n = 0; n < 4; ++n) {
    if (size[n] == 0 || size[n] > uint64_t(1) << 32 || box[n] == 0 || box[n] > 256 || every[n] != 1)
      return CUDA_ERROR_INVALID_VALUE;
    map->size[n] = size[n], map->box[n] = box[n];
  }
  for (int n = 0; n < 3; ++n) {
    if (step[n] % 16 != 0 || step[n] >= uint64_t(1) << 40) return CUDA_ERROR_INVALID_VALUE;
    map->step[n] = step[n];
  }
  return CUDA_SUCCESS;
}
inline CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* base) {
  if (reinterpret_cast<uintptr_t>(base) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  return map->base = static_cast<unsigned char*>(base), CUDA_SUCCESS;
}
#endif
