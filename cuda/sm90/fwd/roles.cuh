// SPDX-License-Identifier: MIT OR Apache-2.0
// Which producer and which main loop the variants of fwd.cu have.
#ifndef TANDEM_CUDA_SM90_FWD_ROLES_CUH
#define TANDEM_CUDA_SM90_FWD_ROLES_CUH
#include "kernel.cuh"
#include "main_loop_bias_192_rows.cuh"
#include "main_loop_wide_heads.cuh"
#include "score_plain.cuh"
#include "score_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <>
struct FwdRoles<FwdVariant::plain> {
  static constexpr bool kDependentLaunch = true;
  static constexpr bool has_tile(const FwdTile& t) { return !t.bias; }
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

template <>
struct FwdRoles<FwdVariant::bias> {
  // produce_bias() and produce_bias_192() do this later.
  static constexpr bool kDependentLaunch = false;
  static constexpr bool has_tile(const FwdTile& t) { return fwd_bias_shared_bytes(t) > 0; }
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
template <>
struct FwdRoles<FwdVariant::scaled_bias> : FwdRoles<FwdVariant::bias> {
  static constexpr bool has_tile(const FwdTile& t) { return fwd_scales_q(t); }
};

template <>
struct FwdRoles<FwdVariant::softcap_alibi> {
  static constexpr bool kDependentLaunch = true;
  static constexpr bool has_tile(const FwdTile& t) { return fwd_varlen_shared_bytes(t) > 0; }
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
template <>
struct FwdRoles<FwdVariant::varlen> : FwdRoles<FwdVariant::softcap_alibi> {
  static constexpr bool has_tile(const FwdTile& t) { return fwd_has_varlen_alone(t); }
};

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
