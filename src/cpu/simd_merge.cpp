// SPDX-License-Identifier: MIT OR Apache-2.0
// merge and bwd_merge of cpu.simd.
#include "simd_program.h"

namespace tandem {

float* SimdProgram::merge_scratch(Carver& carver) const {
  const Parts& parts = plan_.problem.parts;
  return carver.take(2, parts.count + parts.into);
}

void SimdProgram::merge(const Call& call) const {
  const Problem& p = plan_.problem;
  const tandem_args& args = call.args;
  constexpr int kRows = 64;  // of a unit
  const auto rows = [&](const tandem_buffer& buffer, const Strides& t, tandem_dtype dtype,
                        int64_t b, int64_t h) {
    char* const base = address<char>(buffer);
    const int64_t at = (b * t.b + h * t.h) * (dtype == TANDEM_F32 ? 4 : 2);
    return SimdRows{base ? base + at : nullptr, t.s, t.d, dtype};
  };
  for_each_tile(call, p.batch, p.heads_q, (p.seq_q + kRows - 1) / kRows, false,
                [&](int64_t b, int64_t h, int tile, void* memory) {
                  Carver carver(memory);
                  const int64_t row = (b * p.heads_q + h) * p.seq_q;
                  const auto of_rows = [&](const tandem_buffer& buffer) {
                    float* const base = address<float>(buffer);
                    return base ? base + row : nullptr;
                  };
                  SimdMerge t{};
                  t.count = p.parts.count + p.parts.into, t.into = p.parts.into;
                  t.part_o = rows(args.part_o, p.part_o, p.parts.dtype, b, h);
                  t.part_step = p.parts.stride, t.d_part_step = p.parts.d_stride;
                  t.part_lse = of_rows(args.part_lse);
                  t.lse_step = p.batch * p.heads_q * p.seq_q;
                  t.head_dim_v = p.head_dim_v;
                  t.row0 = tile * kRows, t.rows = int(std::min<int64_t>(kRows, p.seq_q - t.row0));
                  t.weights = merge_scratch(carver);
                  if (!p.backward) {
                    t.o = rows(args.o, p.o, p.dtype, b, h), t.lse = of_rows(args.lse);
                    return kernels_.merge(t);
                  }
                  t.d_o = rows(args.d_o, p.d_o, p.dtype, b, h);
                  t.d_lse = p.d_lse ? of_rows(args.d_lse) : nullptr;
                  t.d_part_o = rows(args.d_part_o, p.d_part_o, p.parts.dtype, b, h);
                  t.d_part_lse = of_rows(args.d_part_lse);
                  kernels_.bwd_merge(t);
                });
}

}  // namespace tandem
