// SPDX-License-Identifier: MIT OR Apache-2.0
// The few driver types that src/cuda names, for the build on the emulator.
#ifndef TANDEM_TESTS_EMULATED_CUDA_H
#define TANDEM_TESTS_EMULATED_CUDA_H
typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400
} CUresult;
#endif
