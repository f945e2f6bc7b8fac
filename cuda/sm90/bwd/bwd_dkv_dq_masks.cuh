// SPDX-License-Identifier: MIT OR Apache-2.0
// The row of bwd_dkv_dq with masks and no dropout or inputs of scores: a source of its own, which
// compiles beside the other.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_MASKS_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_MASKS_CUH
#include "bwd_dkv_dq_masked.cuh"
#endif
