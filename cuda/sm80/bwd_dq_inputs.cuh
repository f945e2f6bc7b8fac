// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq of f32 problems with optional inputs (inputs.cuh); and d_bias, where no element of the
// bias is read twice.
#ifndef TANDEM_CUDA_SM80_BWD_DQ_INPUTS_CUH
#define TANDEM_CUDA_SM80_BWD_DQ_INPUTS_CUH
#include "bwd_dq.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dq_inputs(const __grid_constant__ BwdDqFull params) {
  form_d_q<T, ROW>(params);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
