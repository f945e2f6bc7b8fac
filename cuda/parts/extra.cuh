// SPDX-License-Identifier: MIT OR Apache-2.0
// Lengths, band offset, and the addresses of the optional inputs. Twin of shaders/parts/extra.glsl.
#ifndef TANDEM_CUDA_PARTS_EXTRA_CUH
#define TANDEM_CUDA_PARTS_EXTRA_CUH
#include "../kernels.h"
#include "problem/sequence.h"
#include "problem/tile_range.h"
#include "tile.cuh"

namespace tandem {
namespace cuda {

// A problem with the lengths of a batch entry and the optional inputs. It is the same in the whole
// workgroup, and most of it lies in the kernel's parameters.
struct Extra {
  const Features& f;
  const ExtraBlock& x;
  const uint64_t* address;  // the push block's extra[]
  float scale;
  int heads_q, batch;
  uint drop_offset;
  int seq_q, seq_kv;          // of the batch entry
  int64_t first_q, first_kv;  // where it starts in packed tensors
  // Rows of an output that are written. Rows behind a length are zeros, or another entry's.
  int written_q, written_kv;
  TandemBand band;
};

// Whether a tensor whose tandem_lengths this is has no batch dimension.
TANDEM_DEVICE bool is_packed(uint lengths) { return lengths >= uint(Lengths::packed); }

// Reads a length or an offset.
struct ReadLength {
  TANDEM_DEVICE int operator()(const int* at) const { return __ldg(at); }
};
// The same past L1, in a kernel that an SM may run before the one that writes it has ended: L1 may
// have the number that was there before.
struct ReadLengthPastL1 {
  TANDEM_DEVICE int operator()(const int* at) const { return __ldcg(at); }
};

// Rows of a batch entry. address: of lengths, of cumulative offsets, or of what place_entries
// wrote. *first: where it starts in a packed tensor. total: rows of the packed tensor.
template <typename Read = ReadLength>
TANDEM_DEVICE int entry_length(Lengths lengths, uint64_t address, int batch, int longest, int total,
                               int64_t* first, const Read& read = Read()) {
  *first = 0;
  if (lengths == Lengths::full) return longest;
  const int* at = reinterpret_cast<const int*>(address) +
                  int64_t(batch) * (lengths == Lengths::gapped ? TANDEM_PLACE_NUMBERS : 1);
  if (lengths == Lengths::padded) return tandem_padded_rows(read(at), longest);
  const TandemSequence s = tandem_packed_rows(read(at), read(at + 1), total, longest);
  *first = s.first;
  return s.rows;
}

// How many entries of packed rows come before this one in memory.
TANDEM_DEVICE int entry_rank(Lengths lengths, uint64_t address, int batch) {
  if (lengths != Lengths::gapped) return batch;
  return __ldg(reinterpret_cast<const int*>(address) + int64_t(batch) * TANDEM_PLACE_NUMBERS + 2);
}

template <typename P>
TANDEM_DEVICE Extra make_extra(const P& params, int batch) {
  const Features& f = params.features;
  const auto& u = params.block;
  const uint64_t* address = params.push.extra;
  const Lengths lengths_q = Lengths(f.LENGTHS_Q), lengths_kv = Lengths(f.LENGTHS_KV);
  int64_t first_q, first_kv;
  const int seq_q = entry_length(lengths_q, address[f.AT_LENGTHS_Q], batch, u.seq_q,
                                 params.extra.total_q, &first_q);
  const int seq_kv = entry_length(lengths_kv, address[f.AT_LENGTHS_KV], batch, u.seq_kv,
                                  params.extra.total_kv, &first_kv);
  const int off = params.extra.bottom_right ? seq_kv - seq_q : u.band_off;
  return Extra{f,
               params.extra,
               address,
               u.scale,
               u.heads_q,
               batch,
               params.push.drop_offset,
               seq_q,
               seq_kv,
               first_q,
               first_kv,
               is_packed(f.LENGTHS_Q) ? seq_q : u.seq_q,
               is_packed(f.LENGTHS_KV) ? seq_kv : u.seq_kv,
               TandemBand{u.band_left, u.band_right, off}};
}

// Views of a head of a tensor of queries or keys, for reading.
template <typename T = Any>
TANDEM_DEVICE View<T> query_view(const Extra& e, uint dtype, uint64_t address, const Strides& s,
                                 int head, int width, bool wide) {
  return make_rows_view<T>(dtype, address, s, e.batch, head, e.first_q, e.seq_q, width, wide);
}
template <typename T = Any>
TANDEM_DEVICE View<T> key_view(const Extra& e, uint dtype, uint64_t address, const Strides& s,
                               int head, int width, bool wide) {
  return make_rows_view<T>(dtype, address, s, e.batch, head, e.first_kv, e.seq_kv, width, wide);
}

// The entry of an input that batch entry b reads, where so many read one. Most inputs have no
// groups, and those that do pay for the division.
TANDEM_DEVICE int group_of(int batch, int entries) {
  return entries == 1 ? batch : batch / entries;
}

// The gradient with respect to lse, of row n of all, where bwd_row_sums forms delta.
TANDEM_DEVICE float d_lse_of(const Extra& e, int64_t n) {
  return __ldg(reinterpret_cast<const float*>(e.address[e.f.AT_D_LSE]) + n);
}

// The optional inputs of one query head; absent ones are 0.
struct HeadExtra {
  int index;  // over batch and heads
  const char *bias, *keep;
  const float* dist;
  float slope, tau;
};

// GROUPS: bias, keep and slopes may have groups of the batch. Kernels without spare registers leave
// them to others: a division spilled 1,940 bytes in fwd of whole heads (nvcc 13.0).
template <bool GROUPS = true>
TANDEM_DEVICE HeadExtra head_extra(const Extra& e, int head) {
  HeadExtra of{e.batch * e.heads_q + head, nullptr, nullptr, nullptr, 0.f, 0.f};
  if (e.seq_q == 0 || e.seq_kv == 0) return of;  // then only the lengths need to be given
  const auto number = [&](uint slot, int at) {
    return __ldg(reinterpret_cast<const float*>(e.address[slot]) + at);
  };
  if (e.f.BIAS) {
    const int64_t at = (GROUPS ? group_of(e.batch, e.x.bias_entries) : e.batch) * e.x.bias.b +
                       head / e.x.bias_group * e.x.bias.h;
    of.bias = reinterpret_cast<const char*>(e.address[e.f.AT_BIAS]) +
              at * (e.f.BIAS == TANDEM_F32 ? 4 : 2);
  }
  if (e.f.KEEP)
    of.keep = reinterpret_cast<const char*>(e.address[e.f.AT_KEEP]) +
              (GROUPS ? group_of(e.batch, e.x.keep_entries) : e.batch) * e.x.keep.b +
              head / e.x.keep_group * e.x.keep.h;
  if (e.f.DIST)
    of.dist =
        reinterpret_cast<const float*>(e.address[e.f.AT_DIST]) + int64_t(head) * e.x.dist_window;
  if (e.f.ALIBI) {
    const int group = GROUPS && e.f.GROUPED & 4 ? e.batch / e.x.slope_entries : 0;
    of.slope = number(e.f.AT_SLOPE, group * e.heads_q + head);
  }
  if (Normalizer(e.f.NORM) == Normalizer::elastic) of.tau = number(e.f.AT_TAU, head);
  return of;
}

// Calls visit(row, quad) for each row of the invocation in the P tile. Not unrolled: the code for
// the elements of a tile with optional inputs is long, and shares the registers with the
// accumulators.
template <typename S, typename Visit>
TANDEM_DEVICE void each_quad(float4* ptile, const Visit& visit) {
  const Invocation<S> me;
#pragma unroll 1
  for (int r = 0; r < S::RM; ++r) {
    float4& at = ptile[me.row(r) * S::P_PITCH + me.tc];
    float x[4] = {at.x, at.y, at.z, at.w};
    visit(r, x);
    at = make_float4(x[0], x[1], x[2], x[3]);
  }
}

}  // namespace cuda
}  // namespace tandem
#endif
