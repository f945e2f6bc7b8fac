// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of bwd_dkv_dq with a keep mask, lengths or both beside the dense bias: a source of their
// own, which compiles beside the others.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_BIAS_KEEP_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DKV_DQ_BIAS_KEEP_CUH
#include "bwd_dkv_dq_bias.cuh"
#endif
