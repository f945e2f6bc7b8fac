// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv of f32 problems with optional inputs (inputs.cuh).
#ifndef TANDEM_CUDA_SM80_BWD_DKV_INPUTS_CUH
#define TANDEM_CUDA_SM80_BWD_DKV_INPUTS_CUH
#include "bwd_dkv.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dkv_inputs(const __grid_constant__ BwdDkvFull params) {
  form_d_kv<T, ROW, NoDq>(params);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
