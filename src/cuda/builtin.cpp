// SPDX-License-Identifier: MIT OR Apache-2.0
#include "backend.h"

namespace tandem {

Status find_cuda_backend(const CudaBackend** backend) {
  *backend = &kCudaBackend;
  return Status();
}

}  // namespace tandem
