// SPDX-License-Identifier: MIT OR Apache-2.0
#include "sm90_tensor_maps.h"

#include "plan/sm90/tensor_maps.h"

namespace tandem {
namespace {

// rows: rows of a TMA box.
TensorMapShape shape_of(const Problem& p, const Strides& s, int64_t heads, int64_t seq,
                        int64_t features, int rows) {
  // A dimension of size 1 has no step, whatever its stride says.
  const auto step = [](int64_t size, int64_t stride) {
    return size == 1 ? cuuint64_t(16) : cuuint64_t(stride) * 2;
  };
  return {
      p.dtype == TANDEM_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      {cuuint64_t(features), cuuint64_t(seq), cuuint64_t(heads), cuuint64_t(p.batch)},
      {step(seq, s.s), step(heads, s.h), step(p.batch, s.b)},
      {64, cuuint32_t(rows), 1, 1}};
}

// A packed tensor has one batch entry with all rows.
TensorMapShape row_shape(const Problem& p, const Strides& s, bool keys, int64_t features,
                         int rows) {
  const int64_t heads = keys ? p.heads_kv : p.heads_q;
  if (!is_packed(keys ? p.lengths_kv : p.lengths_q))
    return shape_of(p, s, heads, keys ? p.seq_kv : p.seq_q, features, rows);
  TensorMapShape shape = shape_of(p, s, heads, keys ? p.total_kv : p.total_q, features, rows);
  shape.sizes[3] = 1, shape.steps[2] = 16;
  return shape;
}

int kv_box_rows(const Launch& launch) {
  return launch.stem == Stem::fwd ? fwd_kv_box_rows(kFwdTiles[launch.of<Sm90Launch>().row])
                                  : launch.tile.bc;
}

}  // namespace

namespace mapped {

TensorMapShape q_shape(const Problem& p, const Launch& launch) {
  int rows = launch.tile.br;
  if (launch.stem == Stem::fwd) {
    if (launch.row().inputs == 0 || launch.has(trait::halved_o))
      rows = fwd_plain_q_rows(kFwdTiles[launch.of<Sm90Launch>().row]);
    if (launch.has(trait::rows_192)) rows = kFwdBiasRows;
  }
  return row_shape(p, p.q, false, p.head_dim, rows);
}
TensorMapShape k_shape(const Problem& p, const Launch& launch) {
  return row_shape(p, p.k, true, p.head_dim, kv_box_rows(launch));
}
TensorMapShape v_shape(const Problem& p, const Launch& launch) {
  return row_shape(p, p.v, true, p.head_dim_v, kv_box_rows(launch));
}
TensorMapShape d_o_shape(const Problem& p, const Launch& launch) {
  return row_shape(p, p.d_o, false, p.head_dim_v, launch.tile.br);
}
// The dense bias, or the copy of it, whose features are keys.
TensorMapShape bias_shape(const Problem& p, const Launch& launch) {
  const int box_rows = bias_box_rows(p, launch);
  Strides strides = p.bias.strides;
  int64_t rows = p.seq_q;
  if (packs_bias(p)) {
    const PackedBias copy = packed_bias(p, box_rows);
    strides = copy.strides(), rows = copy.rows;
  }
  TensorMapShape shape = shape_of(p, strides, p.bias.heads, rows, p.seq_kv, box_rows);
  shape.sizes[3] = cuuint64_t(p.bias.batch);
  if (launch.has(trait::f32_bias)) {
    shape.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32, shape.box[0] = 32;
    if (rows > 1) shape.steps[0] *= 2;
    if (p.bias.heads > 1) shape.steps[1] *= 2;
    shape.steps[2] *= 2;
  }
  if (p.bias.batch == 1) shape.steps[2] = 16;
  return shape;
}

}  // namespace mapped

Status TensorMapFunctions::load() {
  TANDEM_TRY(find_driver_function("cuTensorMapEncodeTiled", &encode));
  return find_driver_function("cuTensorMapReplaceAddress", &replace);
}

Status encode_tensor_map(const TensorMapFunctions& functions, const MappedTensor& tensor,
                         const Problem& p, const Launch& launch, CUtensorMap* map) {
  const TensorMapShape shape = tensor.shape(p, launch);
  const cuuint32_t every[4] = {1, 1, 1, 1};
  void* const somewhere = reinterpret_cast<void*>(uintptr_t(1) << 20);  // it must not be null
  const CUresult result =
      functions.encode(map, shape.type, 4, somewhere, shape.sizes, shape.steps, shape.box, every,
                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    return fail(TANDEM_ERROR_BACKEND, "cuTensorMapEncodeTiled of %s: CUresult %d", tensor.name,
                int(result));
  return Status();
}

}  // namespace tandem
