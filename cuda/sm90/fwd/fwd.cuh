// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper: the kernels without optional inputs, with a dense bias, and with lengths, sinks,
// softcap and ALiBi: which producer and which main loop each has.
#ifndef TANDEM_CUDA_SM90_FWD_FWD_CUH
#define TANDEM_CUDA_SM90_FWD_FWD_CUH
#include <type_traits>

#include "kernel.cuh"
#include "main_loop_bias_192_rows.cuh"
#include "main_loop_wide_heads.cuh"
#include "score_plain.cuh"
#include "score_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

struct PlainRoles {
  static constexpr bool kDependentLaunch = true;
  template <typename S>
  static TANDEM_DEVICE void init(const FwdSharedStorage<S>&) {}
  template <typename S>
  static TANDEM_DEVICE void produce(const FwdParams& params, const FwdSharedStorage<S>& shared) {
    if constexpr (S::WIDE_HEADS)
      if (threadIdx.x >= 32) store_empty<S>(params);
    if (threadIdx.x == 0) {
      if constexpr (S::WIDE_HEADS)
        produce_wide_heads<S>(params, shared);
      else if constexpr (S::DECOUPLED)
        produce_decoupled<S>(params, shared);
      else
        sm90::produce<S>(params, shared);
    }
  }
  template <typename T, typename S>
  static TANDEM_DEVICE void consume(const FwdParams& params, const FwdSharedStorage<S>& shared) {
    if constexpr (S::WIDE_HEADS)
      main_loop_wide_heads<T, S>(params, shared);
    else if constexpr (S::DECOUPLED)
      main_loop_decoupled<T, S>(params, shared);
    else
      main_loop_ping_pong<PlainScore<T, S, FwdParams>, T>(params, shared);
  }
};

struct BiasRoles {
  // produce_bias() and produce_bias_192() do this later.
  static constexpr bool kDependentLaunch = false;
  template <typename S>
  static TANDEM_DEVICE void init(const FwdSharedStorage<S>&) {}
  template <typename S>
  static TANDEM_DEVICE void produce(const FwdBiasParams& params,
                                    const FwdSharedStorage<S>& shared) {
    if constexpr (S::BIAS_192)
      if (threadIdx.x >= 32) store_empty<S>(params);
    if (threadIdx.x == 0) {
      if constexpr (S::BIAS_192)
        produce_bias_192<S>(params, shared);
      else
        produce_bias<S>(params, shared);
    }
  }
  template <typename T, typename S>
  static TANDEM_DEVICE void consume(const FwdBiasParams& params,
                                    const FwdSharedStorage<S>& shared) {
    if constexpr (S::BIAS_192)
      main_loop_bias_192<T, S>(params, shared);
    else
      main_loop_ping_pong<BiasScore<T, S, FwdBiasParams>, T>(params, shared);
  }
};

struct VarlenRoles {
  static constexpr bool kDependentLaunch = true;
  template <typename S>
  static TANDEM_DEVICE void init(const FwdSharedStorage<S>&) {}
  template <typename S>
  static TANDEM_DEVICE void produce(const FwdOptionalParams& params,
                                    const FwdSharedStorage<S>& shared) {
    if (threadIdx.x < 32)
      produce_varlen<S>(params, shared);
    else
      store_unseen<S>(params);
  }
  template <typename T, typename S>
  static TANDEM_DEVICE void consume(const FwdOptionalParams& params,
                                    const FwdSharedStorage<S>& shared) {
    main_loop_ping_pong<VarlenScore<T, S, FwdOptionalParams>, T>(params, shared);
  }
};

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  using Optional = std::conditional_t<Row::has(trait::bias_tiles), BiasRoles, VarlenRoles>;
  using Roles = std::conditional_t<Row::inputs == 0, PlainRoles, Optional>;
  return fwd<T, TILE, Row, Roles, Params>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
