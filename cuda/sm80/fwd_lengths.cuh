// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of few query rows with lengths of keys, as in decoding (inputs.cuh).
#ifndef TANDEM_CUDA_SM80_FWD_LENGTHS_CUH
#define TANDEM_CUDA_SM80_FWD_LENGTHS_CUH
#include "fwd.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    fwd_lengths(const __grid_constant__ FwdFull params) {
  form_o<T, ROW>(params);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
