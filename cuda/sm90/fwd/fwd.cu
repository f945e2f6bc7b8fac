// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper: the kernels without optional inputs, with a dense bias, and with lengths, sinks,
// softcap and ALiBi (roles.cuh).
#include "roles.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const char* tile) {
  return select_kernel<FwdVariant::plain, FwdParams>(dtype, tile);
}
Kernel<FwdBiasParams> fwd_bias_kernel(tandem_dtype dtype, const char* tile) {
  return select_kernel<FwdVariant::bias, FwdBiasParams>(dtype, tile);
}
Kernel<FwdBiasParams> fwd_scaled_bias_kernel(const char* tile) {
  return tile ? select_kernel<Bfloat, FwdVariant::scaled_bias, FwdBiasParams>(tile) : nullptr;
}
Kernel<FwdOptionalParams> fwd_varlen_kernel(tandem_dtype dtype, const char* tile) {
  return select_kernel<FwdVariant::varlen, FwdOptionalParams>(dtype, tile);
}
Kernel<FwdOptionalParams> fwd_softcap_alibi_kernel(tandem_dtype dtype, const char* tile) {
  return select_kernel<FwdVariant::softcap_alibi, FwdOptionalParams>(dtype, tile);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
