// SPDX-License-Identifier: MIT OR Apache-2.0
// What the kernels of bwd_dbias share: a tile of d_bias, which lies in the accumulators of a
// workgroup, and the loop over the members of its sum. A member is a query head of a batch entry
// that reads the bias and, where the bias has one row for all queries, a tile of query rows.
#ifndef TANDEM_CUDA_SM80_DBIAS_SUM_CUH
#define TANDEM_CUDA_SM80_DBIAS_SUM_CUH
#include "bias_rows.cuh"
#include "shape.cuh"
#include "weigh.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// A warp owns blocks of 32 rows and 32 keys, side by side: what it holds of each product.
template <typename S>
struct DbiasShape {
  static constexpr int KEYS = S::BC / S::HALVES, STEPS = KEYS / 32;
  static_assert(S::MT == 2 && KEYS % 32 == 0, "whole blocks");
  static_assert(S::BR <= S::THREADS, "a thread for the numbers of each row");
};

// Numbers of query rows in a stage are lse and delta of each row, then the share in elastic softmax
// of each.
template <typename S>
struct DbiasTiles : SharedArrays<S> {
  static constexpr int NUMBERS = 12 * S::BR;
  using SharedArrays<S>::numbers;
  // lse is infinite in rows without keys, and relative in far rows (src/problem/far_row.h).
  TANDEM_DEVICE void lse_and_delta(float (&x)[2], int stage, int row) const {
    get_numbers(x, numbers + uint(stage * NUMBERS + 8 * row));
  }
  TANDEM_DEVICE float share(int stage, int row) const {
    return __uint_as_float(get_word(numbers + uint(stage * NUMBERS + 8 * S::BR + 4 * row)));
  }
};

// The work tile of a workgroup, and where the lane's elements of it lie.
template <typename S>
struct DbiasPlace {
  int bias_batch, bias_head, split;
  int row0, col0;  // row0 is 0 where there is one row for all queries
  int own, key;    // the first row and the first key of the warp, in the tile
  // index: of the workgroup, below u.total.
  TANDEM_DEVICE DbiasPlace(const BwdDbiasFull& params, uint index, const Lane& me) {
    const BwdDbiasBlock& u = params.block;
    const int tile = int(u.tiles - 1 - index % u.tiles);
    const int batch = int(index / u.tiles / uint(u.bias_heads));
    const int key_tiles = (u.seq_kv + S::BC - 1) / S::BC;
    bias_batch = batch % u.bias_batch, split = batch / u.bias_batch;
    bias_head = int(index / u.tiles % uint(u.bias_heads));
    row0 = tile / key_tiles * S::BR, col0 = tile % key_tiles * S::BC;
    own = 32 * (me.warp / S::HALVES), key = me.warp % S::HALVES * DbiasShape<S>::KEYS;
  }
};

struct Member {
  int batch, head, row0;  // row0: the first of its query rows
};

// Goes over the members of a split, in order.
template <typename S>
class Members {
 public:
  TANDEM_DEVICE Members(const BwdDbiasFull& params, const DbiasPlace<S>& place)
      : group_(params.extra.bias_group), tiles_(params.block.q_tiles) {
    const BwdDbiasBlock& u = params.block;
    const int begin = int(int64_t(place.split) * u.members / u.splits);
    const int end = int(int64_t(place.split + 1) * u.members / u.splits);
    left_ = end - begin;
    if (left_ == 0) return;  // the group may be 0
    const int reader = begin / tiles_;
    head_ = reader % group_, first_head_ = place.bias_head * group_;
    // One entry's first reader is entry 0.
    batch_ = place.bias_batch * params.extra.bias_entries + reader / group_;
    tile_ = params.spec.ONE_ROW ? begin % tiles_ : place.row0 / S::BR;
    last_tile_ = params.spec.ONE_ROW ? tiles_ - 1 : tile_;
  }
  TANDEM_DEVICE bool is_end() const { return left_ == 0; }
  TANDEM_DEVICE Member now() const { return {batch_, first_head_ + head_, tile_ * S::BR}; }
  TANDEM_DEVICE void next() {
    --left_;
    if (tile_ < last_tile_) {
      ++tile_;
      return;
    }
    tile_ -= tiles_ - 1;
    if (++head_ < group_) return;
    head_ = 0, ++batch_;
  }

 private:
  int group_, tiles_, left_ = 0, batch_ = 0, head_ = 0, first_head_ = 0, tile_ = 0, last_tile_ = 0;
};

// Calls use(member, stage, far) for each member that is not left out: left_out(member), which may
// have barriers, says so. far: some row of the tile is far. ELASTIC: rows may have a share. Ends
// with a barrier.
template <typename T, typename S, bool ELASTIC, typename LeftOut, typename Use>
TANDEM_DEVICE void each_member(const BwdDbiasFull& params, const DbiasPlace<S>& place,
                               const LeftOut& left_out, const Use& use) {
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC;
  static_assert(S::STAGES <= 2, "as it is written");
  using Tiles = DbiasTiles<S>;
  const Tiles tiles;
  const int me = int(threadIdx.x);
  Members<S> members(params, place);
  const auto find = [&] {
    while (!members.is_end() && left_out(members.now())) members.next();
  };
  // Index of the first row of a member among all rows.
  const auto row_of = [&](const Member& of) {
    return (int64_t(of.batch) * params.block.heads_q + of.head) * params.block.seq_q + of.row0;
  };
  float lse = 0.f, delta = 0.f, share = 0.f;  // of a query row
  bool far = false;                           // the row is far
  const auto fetch = [&](int stage) {
    const BwdDbiasBlock& u = params.block;
    const BwdDbiasPush& push = params.push;
    const Member of = members.now();
    const Extra e = make_extra(params, of.batch);
    // A fourth of the warps has a tensor each: addresses take more instructions than copies.
    constexpr int FOURTH = S::THREADS / 4;
    static_assert(FOURTH % 32 == 0, "whole warps");
    const int tensor = me / FOURTH;
    const bool second = tensor % 2 != 0;
    if (tensor < 2) {
      const View<T> rows =
          query_view<T>(e, 0, second ? push.d_o : push.q, second ? u.d_o : u.q, of.head,
                        second ? u.head_dim_v : u.head_dim, push.wide & (second ? 8u : 1u));
      load_rows<W, BR, FOURTH>((second ? tiles.d_o : tiles.q) + uint(stage * S::Q_TILE), rows,
                               of.row0, me % FOURTH);
    } else {
      const View<T> keys =
          key_view<T>(e, 0, second ? push.v : push.k, second ? u.v : u.k, of.head / u.group,
                      second ? u.head_dim_v : u.head_dim, push.wide & (second ? 4u : 2u));
      load_rows<W, BC, FOURTH>((second ? tiles.v : tiles.k) + uint(stage * S::KV_TILE), keys,
                               place.col0, me % FOURTH);
    }
    const int i = of.row0 + me;
    const int64_t row = row_of(of) + me;
    const bool there = me < BR && i < e.seq_q;
    lse = there ? __ldg(reinterpret_cast<const float*>(push.lse) + row) : minus_infinity();
    delta = there ? __ldg(reinterpret_cast<const float*>(push.delta) + row) : 0.f;
    if (ELASTIC) share = elastic_shift(e, head_extra(e, of.head), i);
  };
  // Only this looks at what fetch() has read, so that nothing waits for it meanwhile.
  const auto put_numbers = [&](int stage) {
    if (me >= BR) return;
    const uint to = tiles.numbers + uint(stage * Tiles::NUMBERS);
    far = tandem_is_far(lse);
    if (far) lse = far_row(params.push.delta, row_of(members.now()) + me).relative;
    put_pair(to + uint(8 * me), __float_as_uint(lse == minus_infinity() ? -lse : lse),
             __float_as_uint(delta));
    if (ELASTIC) put_number(to + uint(8 * BR + 4 * me), share);
  };

  int stage = 0;
  find();
  if (!members.is_end()) fetch(0), put_numbers(0);
  commit();
#pragma unroll 1
  while (!members.is_end()) {
    const Member now = members.now();
    members.next();
    find();
    wait<0>();
    const bool some_far = __syncthreads_or(far) != 0;
    if constexpr (S::STAGES > 1) {
      if (!members.is_end()) fetch(1 - stage);
      commit();
      use(now, stage, some_far);
      stage = 1 - stage;
      if (!members.is_end()) put_numbers(stage);
    } else {
      use(now, 0, some_far);
      __syncthreads();
      if (!members.is_end()) fetch(0), put_numbers(0);
      commit();
    }
  }
  wait<0>();
  __syncthreads();
}

// Stores the sums of a tile, or of a split's part of it. With one row for all queries it first sums
// the rows, in a fixed order, by way of shared memory.
template <typename S, int STEPS>
TANDEM_DEVICE void store_sums(const BwdDbiasFull& params, const float (&sum)[STEPS][2][4][4]) {
  constexpr int WARP_ROWS = S::WARPS / S::HALVES;
  const BwdDbiasBlock& u = params.block;
  const Lane me(thread_number());
  const DbiasPlace<S> place(params, params.first_group + block_number(), me);
  const Strides& s = u.d_bias;
  const int size = params.spec.D_BIAS == TANDEM_F32 ? 4 : 2;
  const int64_t first =
      place.bias_batch * s.b + place.bias_head * s.h + int64_t(place.split) * u.part;
  char* base = reinterpret_cast<char*>(params.push.d_bias) + first * size;
  const bool pairs =
      s.d == 1 && s.s % 2 == 0 && reinterpret_cast<uint64_t>(base) % uint64_t(2 * size) == 0;
  if (params.spec.ONE_ROW) {
    const uint partial = shared_start();
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float x = 0.f;
#pragma unroll
          for (int h = 0; h < 4; ++h) x += sum[step][h / 2][n][2 * (h % 2) + c];
#pragma unroll
          for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(kAllLanes, x, lanes);
          const int at = place.own / 32 * S::BC + place.key + 32 * step + 8 * n + 2 * me.t + c;
          if (me.g == 0) put_number(partial + uint(4 * at), x);
        }
    __syncthreads();
    const BiasRows to{params.spec.D_BIAS, base, s, 1, u.seq_kv, pairs};
    const int key = 2 * thread_number();
    if (key >= S::BC) return;
    float x[2] = {};
#pragma unroll
    for (int n = 0; n < WARP_ROWS; ++n) {
      float part[2];
      get_numbers(part, partial + uint(4 * (n * S::BC + key)));
      x[0] += part[0], x[1] += part[1];
    }
    to.put(0, place.col0 + key, x[0], x[1]);
    return;
  }
  const BiasRows to{params.spec.D_BIAS, base, s, u.seq_q, u.seq_kv, pairs};
  const int row = place.row0 + place.own + me.g, col = place.col0 + place.key + 2 * me.t;
#pragma unroll
  for (int step = 0; step < STEPS; ++step)
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          to.put(row + 16 * m + 8 * h, col + 32 * step + 8 * n, sum[step][m][n][2 * h],
                 sum[step][m][n][2 * h + 1]);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
