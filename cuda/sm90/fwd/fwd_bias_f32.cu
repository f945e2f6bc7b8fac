// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with a dense bias of f32, with or without a keep mask. The producer thread and the
// main loop are those of a bias of 16 bits (score_bias.cuh). Tiles of the bias take twice the
// room, so the kernel has tiles of its own, of two warpgroups. These leave registers for warps that
// edit tiles of the bias where there is a mask (edit_bias.cuh).
#include "edit_bias.cuh"
#include "kernel.cuh"
#include "score_f32_bias.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <>
struct FwdRoles<FwdVariant::bias_f32> {
  static constexpr bool kDependentLaunch = false;  // produce_bias() does this later
  static constexpr bool has_tile(const FwdTile& t) { return t.f32_bias; }
  template <typename S>
  static TANDEM_DEVICE void init(const FwdSharedStorage<S>&) {}
  template <typename S>
  static TANDEM_DEVICE void produce(const FwdBiasParams& params,
                                    const FwdSharedStorage<S>& shared) {
    static_assert(S::WARPGROUPS <= 3, "a warp each, beside the producer thread's");
    const int warp = __shfl_sync(kAllLanes, read_tid_x() / 32, 0);
    if (read_tid_x() == 0)
      produce_bias<S>(params, shared);
    else if (1 <= warp && warp <= S::WARPGROUPS) {
      grid_dependency_wait();  // a kernel before may have written the mask
      edit_bias<S>(params, shared, warp - 1);
    }
  }
  template <typename T, typename S>
  static TANDEM_DEVICE void consume(const FwdBiasParams& params,
                                    const FwdSharedStorage<S>& shared) {
    main_loop_ping_pong<F32BiasScore<T, S, FwdBiasParams>, T>(params, shared);
  }
};

}  // namespace

Kernel<FwdBiasParams> fwd_f32_bias_kernel(tandem_dtype dtype, const char* tile) {
  return select_kernel<FwdVariant::bias_f32, FwdBiasParams>(dtype, tile);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
