// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with a dense bias and a keep mask. Warp 0 of the producer warpgroup loads by TMA,
// and the consumer warpgroups compute, both as without the mask (score_bias.cuh). Between them warp
// 1 + n edits the tiles of the bias of warpgroup n: it writes minus infinity to the elements that
// the mask hides.
#include "edit_bias.cuh"
#include "kernel.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <>
struct FwdRoles<FwdVariant::bias_keep> {
  static constexpr bool kDependentLaunch = false;  // produce_bias() does this later
  static constexpr bool has_tile(const FwdTile& t) { return fwd_has_bias_keep(t); }
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
    main_loop_ping_pong<BiasScore<T, S, FwdBiasParams>, T>(params, shared);
  }
};

}  // namespace

Kernel<FwdBiasParams> fwd_bias_keep_kernel(tandem_dtype dtype, const char* tile) {
  return select_kernel<FwdVariant::bias_keep, FwdBiasParams>(dtype, tile);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
