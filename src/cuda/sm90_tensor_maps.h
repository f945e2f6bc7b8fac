// SPDX-License-Identifier: MIT OR Apache-2.0
// Tensor maps of the inputs of the kernels of cuda.sm90. A recorder encodes those of a kernel once,
// which takes a microsecond each. Each execute replaces their addresses, which takes much less.
#ifndef TANDEM_SRC_CUDA_SM90_TENSOR_MAPS_H
#define TANDEM_SRC_CUDA_SM90_TENSOR_MAPS_H
#include "../../cuda/sm90/params.h"
#include "plan/plan.h"
#include "runtime.h"

namespace tandem {

struct TensorMapFunctions {
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  decltype(&cuTensorMapReplaceAddress) replace = nullptr;
  Status load();
};

// A tensor map without its address.
struct TensorMapShape {
  CUtensorMapDataType type;
  cuuint64_t sizes[4];
  cuuint64_t steps[3];  // in bytes
  cuuint32_t box[4];
};

// A tensor that kernels read through a tensor map (TANDEM_TENSOR_MAP in src/kernels/abi/sm90).
struct MappedTensor {
  const char* name;
  uint64_t Addresses::*address;
  TensorMapShape (*shape)(const Problem& p, const Launch& launch);
  bool is_bias;  // a tensor map that a kernel without trait::bias_tiles leaves empty
};
namespace mapped {
TensorMapShape q_shape(const Problem& p, const Launch& launch);
TensorMapShape k_shape(const Problem& p, const Launch& launch);
TensorMapShape v_shape(const Problem& p, const Launch& launch);
TensorMapShape d_o_shape(const Problem& p, const Launch& launch);
TensorMapShape bias_shape(const Problem& p, const Launch& launch);
constexpr MappedTensor q{"q", &Addresses::q, q_shape, false};
constexpr MappedTensor k{"k", &Addresses::k, k_shape, false};
constexpr MappedTensor v{"v", &Addresses::v, v_shape, false};
constexpr MappedTensor d_o{"d_o", &Addresses::d_o, d_o_shape, false};
constexpr MappedTensor bias{"bias", &Addresses::bias, bias_shape, true};
}  // namespace mapped

namespace cuda {
namespace sm90 {
// Calls each(tensor, map) for each tensor map among the parameters of a kernel. Structs of other
// interface files have none.
template <typename Other, typename Each>
void for_each_tensor_map(Other&, Each&&) {}
#define TANDEM_EXTENSION(Name, Base)                    \
  template <typename Each>                              \
  void for_each_tensor_map(Name& params, Each&& each) { \
    for_each_tensor_map(static_cast<Base&>(params), each);
#define TANDEM_INTERFACE(Name) \
  template <typename Each>     \
  void for_each_tensor_map([[maybe_unused]] Name& params, [[maybe_unused]] Each&& each) {
#define TANDEM_TENSOR_MAP(name) each(mapped::name, params.name);
#define TANDEM_MEMBER(type, name) for_each_tensor_map(params.name, each);
#include "kernels/abi/sm90/all.inc"
}  // namespace sm90
}  // namespace cuda

// Encodes a tensor map, with an address that every execute replaces.
Status encode_tensor_map(const TensorMapFunctions& functions, const MappedTensor& tensor,
                         const Problem& p, const Launch& launch, CUtensorMap* map);

template <typename Params>
Status encode_tensor_maps(const TensorMapFunctions& functions, const Problem& p,
                          const Launch& launch, Params* params) {
  Status status;
  cuda::sm90::for_each_tensor_map(*params, [&](const MappedTensor& tensor, CUtensorMap& map) {
    if (status.ok() && (!tensor.is_bias || launch.has(trait::bias_tiles)))
      status = encode_tensor_map(functions, tensor, p, launch, &map);
  });
  return status;
}

// Where the dense bias is whose tiles a launch reads; nullptr: there is none.
inline uint64_t Addresses::*bias_address(const Plan& plan, const Launch& launch) {
  if (!launch.has(trait::bias_tiles)) return nullptr;
  return plan.scratch[Scratch::packed_bias].present ? &Addresses::packed_bias : &Addresses::bias;
}

// Gives the tensor maps of a kernel the addresses of an execute. bias: bias_address().
template <typename Params>
bool replace_addresses(decltype(TensorMapFunctions::replace) replace, uint64_t Addresses::*bias,
                       const Addresses& a, Params* params) {
  bool replaced = true;
  cuda::sm90::for_each_tensor_map(*params, [&](const MappedTensor& tensor, CUtensorMap& map) {
    const auto address = tensor.is_bias ? bias : tensor.address;
    if (address)
      replaced = replaced && replace(&map, reinterpret_cast<void*>(a.*address)) == CUDA_SUCCESS;
  });
  return replaced;
}

}  // namespace tandem
#endif
