// SPDX-License-Identifier: MIT OR Apache-2.0
// A work tile of the forward kernels: a tile of query rows and the tiles of keys that its KV loop
// visits.
#ifndef TANDEM_CUDA_SM90_FWD_WORK_TILE_CUH
#define TANDEM_CUDA_SM90_FWD_WORK_TILE_CUH
#include "problem/tile_range.h"
#include "shared_storage.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// A work tile: rows [row0, row0 + S::M) of a query head, and the key tiles that they see.
struct FwdWorkTile {
  int row0;
  uint index;  // of the head, over the batch
  TandemTiles span;
};

TANDEM_DEVICE int batch_of(const FwdBlock& u, const FwdWorkTile& at) {
  return int(at.index / uint(u.heads_q));
}
TANDEM_DEVICE int head_of(const FwdBlock& u, const FwdWorkTile& at) {
  return int(at.index % uint(u.heads_q));
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
