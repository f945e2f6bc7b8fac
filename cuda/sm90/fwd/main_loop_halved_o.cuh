// SPDX-License-Identifier: MIT OR Apache-2.0
// Main loop of heads over 256 (halved_o.cuh). While a warpgroup computes weights, P V of the step
// before is in flight, and S of the next step is issued before that ends.
#ifndef TANDEM_CUDA_SM90_FWD_MAIN_LOOP_HALVED_O_CUH
#define TANDEM_CUDA_SM90_FWD_MAIN_LOOP_HALVED_O_CUH
#include "../../parts/softmax.cuh"
#include "halved_o.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Softmax of rows whose scores two warpgroups have. Both need the same origin of a row, and find it
// together; each has the sum of its own weights.
template <typename S>
struct HalvedSoftmax : Softmax<S::KEYS> {
  static constexpr int N = S::KEYS;
  using Base = Softmax<N>;
  using Base::Base;
  using Base::l;
  using Base::m;

  // A number of each of the thread's rows goes to the other warpgroup, and that one's comes.
  TANDEM_DEVICE static void exchange(const HalvedSharedStorage<S>& shared, int warpgroup,
                                     const float (&x)[2], float (&other)[2]) {
    const int row = accumulator_row() - 64 * warpgroup;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (read_tid_x() % 4 == 0) st_shared(shared.row(warpgroup, row + 8 * r), x[r]);
    named_barrier_sync<kRowsShared>(256);
#pragma unroll
    for (int r = 0; r < 2; ++r) other[r] = ld_shared_f32(shared.row(warpgroup ^ 1, row + 8 * r));
  }

  // The first half of Softmax::step(): moves origins where a row needs it, and makes products of
  // far rows relative to theirs. All threads of both warpgroups vote, so both move the same rows.
  template <typename Rows>
  TANDEM_DEVICE bool find_origins(float (&s)[N / 2], float scale, float slack, float (&factor)[2],
                                  const Rows& rows, const HalvedSharedStorage<S>& shared,
                                  int warpgroup) {
    bool grown = (float_bits(l[0]) | float_bits(l[1])) < 0, larger = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int top = max(top_word<N>(s, r), 0);
      grown |= !(__int_as_float(top) * scale <= m[r] + slack);
      larger |= top > this->seen;
      factor[r] = 1.f;
    }
    if (__any_sync(kAllLanes, larger) &&
        this->see({top_word<N>(s, 0), top_word<N>(s, 1)}, rows())) {
      float top[2];
      find_tops<N>(top, s);
      this->see_negative(top, rows());
    }
    if (!named_barrier_any<kOriginVote, 256>(grown)) return false;
    float top[2], other[2];
    find_tops<N>(top, s);
    exchange(shared, warpgroup, top, other);
    bool grows = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], other[r]);
      const float powers = top[r] * scale;
      if (this->origin(r).far ? top[r] > m[r] : powers > m[r] + slack) {
        const bool far = !(fabsf(powers) <= kFarScore);
        const Origin to{far ? top[r] : powers, far};
        factor[r] = exp2_fast(this->origin(r).above(to, scale));
        this->move(r, to);
        grows = true;
      }
      if (this->origin(r).far & (m[r] > -INFINITY)) {
#pragma unroll
        for (int i = 0; i < N / 4; ++i) s[i / 2 * 4 + 2 * r + i % 2] -= m[r];
      }
    }
    return __any_sync(kAllLanes, grows);
  }
  // The second half: turns products into weights.
  TANDEM_DEVICE void weigh(float (&s)[N / 2], float scale, const float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // No key is visible yet: any finite number gives weights of 0.
      const float base = this->origin(r).far ? 0.f : m[r];
      float x = 0.f, y = 0.f;
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        s[4 * j + 2 * r] = exp2_fast(fmaf(s[4 * j + 2 * r], scale, -base));
        s[4 * j + 2 * r + 1] = exp2_fast(fmaf(s[4 * j + 2 * r + 1], scale, -base));
        x += s[4 * j + 2 * r];
        y += s[4 * j + 2 * r + 1];
      }
      l[r] = fmaf(l[r], factor[r], copysignf(x + y, l[r]));
    }
  }
};

// A consumer warpgroup: its side of the pipeline, and its products. The arrays are variables of the
// main loop, as those of FwdConsumer are.
template <typename T, typename S>
struct HalvedConsumer {
  using Stages = PipelineState<S::STAGES>;
  static constexpr int kWidth = S::PANELS * kPanel;  // features of a product into o
  const HalvedSharedStorage<S>& shared;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const uint rank = halved_rank<S>();
  float (&s)[S::KEYS / 2], (&o)[S::PRODUCTS][kWidth / 2], (&odd)[16];
  uint (&q)[4 * S::Q_PANELS][4];  // the first panels of Q, as A operands
  Stages next;                    // the first stage of the next step's K or V
  Stages k;                       // that of the last panel of K
  Stages v;                       // the first one of V in flight
  uint step = 0;                  // over all work tiles, of P V

  TANDEM_DEVICE HalvedConsumer(const HalvedSharedStorage<S>& at, float (&scores)[S::KEYS / 2],
                               float (&out)[S::PRODUCTS][kWidth / 2], float (&shared_panel)[16],
                               uint (&rows)[4 * S::Q_PANELS][4])
      : shared(at), s(scores), o(out), odd(shared_panel), q(rows) {}

  TANDEM_DEVICE void wait(const Stages& of) const {
    mbarrier_wait(shared.full(of.stage()), of.phase());
  }
  // Releases a stage that this warpgroup alone reads: two of its warps do, as one warp of each
  // warpgroup does where both read.
  TANDEM_DEVICE void release(const Stages& of) const {
    if (read_tid_x() % 64 == 0) arrive(of);
  }
  TANDEM_DEVICE void release_shared(const Stages& of) const {
    if (read_tid_x() % 128 == 0) arrive(of);
  }
  // Also at the workgroup that loads the stage.
  TANDEM_DEVICE void arrive(const Stages& of) const {
    const uint empty = shared.empty(of.stage());
    mbarrier_arrive(empty);
    if constexpr (S::CLUSTER > 1)
      if (!shared.loads(rank, of.stage())) mbarrier_arrive_remote(cluster_address(empty, rank ^ 1));
  }
  TANDEM_DEVICE static Stages further(Stages from, int count) {
    from.next_few(count);
    return from;
  }
  template <int COUNT>
  TANDEM_DEVICE void skip() {
    if constexpr (COUNT > S::STAGES) next.next_few(S::STAGES);
    next.next_few(COUNT > S::STAGES ? COUNT - S::STAGES : COUNT);
  }
  // Of V of a step whose stages begin at `from`: the first panel of this warpgroup of a block.
  TANDEM_DEVICE Stages own_v(const Stages& from, int block) const {
    return further(from, block * S::V_BLOCK + warpgroup * S::HALF);
  }
  // Releases a block of V.
  TANDEM_DEVICE void release_v(int block) const {
    Stages own = own_v(v, block);
#pragma unroll
    for (int n = 0; n < S::HALF; ++n, own.next()) release(own);
    if constexpr (S::ODD) release_shared(further(v, S::V_ODD + block));
  }

  // Reads the panels of Q that stay in registers. S then reads less of shared memory, whose
  // bandwidth its products would fill.
  TANDEM_DEVICE void load_q() const {
    const int lane = read_tid_x() % 32, row = read_tid_x() % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int p = 0; p < S::Q_PANELS; ++p)
#pragma unroll
      for (int n = 0; n < 4; ++n)
        ldmatrix_x4(q[4 * p + n],
                    shared.q() + uint(p * S::PANEL_BYTES) + swizzle_128b(row, 2 * n + lane / 16));
  }
  // Issues S = Q K^T of this warpgroup's keys. Panels are released as they are read, but for the
  // last one. P V before it ends behind the products of the first panel; then ended() is called.
  template <typename Ended>
  TANDEM_DEVICE void product_s(const Ended& ended) {
    Stages own = further(next, warpgroup), read = own;
#pragma unroll
    for (int p = 0; p < S::D_PANELS; ++p, own.next_few(2)) {
      wait(own);
      const uint64_t keys = k_major(opaque(shared.stage(own.stage())));
      wgmma_fence();
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (p < S::Q_PANELS) {
          const uint(&a)[4] = q[4 * p + n];
          Wgmma<T, S::KEYS>::template rs<0>(s, a[0], a[1], a[2], a[3], advance(keys, n * 32),
                                            p + n > 0);
        } else {
          const uint64_t rows = k_major(opaque(shared.q()) + p * S::PANEL_BYTES);
          Wgmma<T, S::KEYS>::template ss<0, 0>(s, advance(rows, n * 32), advance(keys, n * 32),
                                               p + n > 0);
        }
      wgmma_commit_group();
      wgmma_wait_group<1>();
      if (p == 0) {
        ended();
      } else {
        release(read);
        read.next_few(2);
      }
    }
    k = read;
    skip<2 * S::D_PANELS>();
  }
  // Waits for S, behind which LEFT groups of products stay in flight.
  template <int LEFT>
  TANDEM_DEVICE void end_s() const {
    wgmma_wait_group<LEFT>();
    release(k);
  }

  // Zeroes the rows of this warpgroup's panels of V of a block that are behind the last key. left:
  // the first of them. Both warpgroups zero a panel that they share: one may multiply already.
  TANDEM_DEVICE void clear_keys(int block, int left) const {
    const int thread = read_tid_x() % 128;
    const auto clear_panel = [&](const Stages& of) {
#pragma unroll 1
      for (int n = max(left, 0) * kPanelBytes + 16 * thread; n < S::KEYS * kPanelBytes; n += 2048)
        st_shared(shared.stage(of.stage()) + uint(n), 0, 0, 0, 0);
    };
    Stages own = own_v(v, block);
#pragma unroll 1
    for (int n = 0; n < S::HALF; ++n, own.next()) clear_panel(own);
    if constexpr (S::ODD) clear_panel(further(v, S::V_ODD + block));
    fence_proxy_async_shared();
    named_barrier_sync(kKeysCleared + warpgroup, 128);
  }
  // Issues O += P V of one block. left: as many keys of the step exist, or more than it has.
  TANDEM_DEVICE void product_o(int block, int left) {
    Stages own = own_v(v, block);
    uint64_t from[S::PRODUCTS];
#pragma unroll
    for (int g = 0; g < S::PRODUCTS; ++g) {
      from[g] = mn_major(opaque(shared.stage(own.stage())), S::PANEL_BYTES);
#pragma unroll
      for (int n = 0; n < S::PANELS; ++n, own.next()) wait(own);
    }
    uint64_t from_odd = 0;
    if constexpr (S::ODD) {
      const Stages both = further(v, S::V_ODD + block);
      wait(both);
      from_odd = mn_major(opaque(shared.stage(both.stage())) + warpgroup * 64, S::PANEL_BYTES);
    }
    if constexpr (S::LENGTHS)
      if (left < (block + 1) * S::KEYS) clear_keys(block, left - block * S::KEYS);
    const uint64_t p = k_major(opaque(shared.p(step, block)));
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < S::KEYS / 16; ++n) {
#pragma unroll
      for (int g = 0; g < S::PRODUCTS; ++g)
        Wgmma<T, kWidth>::template ss<0, 1>(o[g], advance(p, n * 32),
                                            advance(from[g], n * 16 * kPanelBytes), 1);
      if constexpr (S::ODD)
        Wgmma<T, 32>::template ss<0, 1>(odd, advance(p, n * 32),
                                        advance(from_odd, n * 16 * kPanelBytes), 1);
    }
    wgmma_commit_group();
  }
  // Issues P V of a step, whose weights both warpgroups have written. S_BEFORE: S of the next step
  // is in flight, and ends in here.
  template <bool S_BEFORE>
  TANDEM_DEVICE void product_o(int left) {
    v = next;
    product_o(0, left);
    if constexpr (S_BEFORE) end_s<1>();
    if constexpr (S::FEW_STAGES) {
      // Warpgroup 1 waits for panels in stages that warpgroup 0 has had of block 0. A warp that
      // waits two phases ahead of an mbarrier does not wait.
      if (warpgroup == 0) named_barrier_arrive<kBlockArrived>(256);
      wgmma_wait_group<0>();
      release_v(0);
      if (warpgroup == 1) named_barrier_sync<kBlockArrived>(256);
    }
    product_o(1, left);
    skip<2 * S::DV_PANELS>();
    ++step;
  }
  // Rounds the weights of this warpgroup's keys and stores them.
  TANDEM_DEVICE void store_weights() const {
    const int lane = read_tid_x() % 32, row = read_tid_x() % 128 / 32 * 16 + lane % 16;
    const uint to = shared.p(step, warpgroup);
#pragma unroll
    for (int k = 0; k < S::KEYS / 16; ++k) {
      const uint r[4] = {T::pack(s[8 * k], s[8 * k + 1]), T::pack(s[8 * k + 2], s[8 * k + 3]),
                         T::pack(s[8 * k + 4], s[8 * k + 5]), T::pack(s[8 * k + 6], s[8 * k + 7])};
      stmatrix_x4(to + swizzle_128b(row, 2 * k + lane / 16), r);
    }
    fence_proxy_async_shared();
  }
  TANDEM_DEVICE void clear_o() {
#pragma unroll
    for (int g = 0; g < S::PRODUCTS; ++g) clear(o[g]);
    if constexpr (S::ODD) clear(odd);
  }
  TANDEM_DEVICE void rescale_o(const float (&factor)[2]) {
#pragma unroll
    for (int g = 0; g < S::PRODUCTS; ++g) rescale_rows(o[g], factor);
    if constexpr (S::ODD) rescale_rows(odd, factor);
  }
  // Stores o of a work tile, times inverse.
  TANDEM_DEVICE void store_o(const FwdBlock& u, const FwdPush& push, const FwdWorkTile& at,
                             const float (&inverse)[2]) {
    // The first feature; the function that stores counts from it.
    const auto store = [&](auto& accumulators, int first) {
      constexpr int kColumns = 2 * int(sizeof accumulators / sizeof accumulators[0]);
      FwdBlock part = u;
      part.head_dim_v -= first;
      ushort* to = reinterpret_cast<ushort*>(push.o) + batch_of(u, at) * u.o.b +
                   head_of(u, at) * u.o.h + first * u.o.d;
      store_all_rows<T, kColumns>(accumulators, inverse, to, part, at.row0 - 64 * warpgroup,
                                  u.seq_q);
    };
#pragma unroll
    for (int g = 0; g < S::PRODUCTS; ++g)
      store(o[g], (warpgroup * S::HALF + g * S::PANELS) * kPanel);
    if constexpr (S::ODD) store(odd, 2 * S::HALF * kPanel + 32 * warpgroup);
  }
  // The same of a part of the keys: f32, in rows of whole chunks of eight.
  TANDEM_DEVICE void store_part(const FwdBlock& u, const FwdPush& push, const FwdWorkTile& at,
                                const float (&inverse)[2]) {
    const int row = at.row0 + accumulator_row() - 64 * warpgroup;
    float* const base = reinterpret_cast<float*>(push.o) + int64_t(at.index) * u.o.h;
    const auto store = [&](auto& accumulators, int first) {
      constexpr int kChunks = int(sizeof accumulators / sizeof accumulators[0]) / 4;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int left = row + 8 * r < u.seq_q ? int(u.o.s) - first : 0;
        float* to = base + (row + 8 * r) * u.o.s + first + accumulator_col();
#pragma unroll
        for (int j = 0; j < kChunks; ++j)
          if (8 * j < left)
            *reinterpret_cast<float2*>(to + 8 * j) =
                make_float2(accumulators[4 * j + 2 * r] * inverse[r],
                            accumulators[4 * j + 2 * r + 1] * inverse[r]);
      }
    };
#pragma unroll
    for (int g = 0; g < S::PRODUCTS; ++g)
      store(o[g], (warpgroup * S::HALF + g * S::PANELS) * kPanel);
    if constexpr (S::ODD) store(odd, 2 * S::HALF * kPanel + 32 * warpgroup);
  }
};

// Stores lse of a part of a row's keys, of the thread's row r. l: the row's sum.
template <typename S>
TANDEM_DEVICE void store_part_lse(const FwdBlock& u, const FwdPush& push, const FwdWorkTile& at,
                                  const HalvedSoftmax<S>& softmax, int r, float l) {
  const int row = at.row0 + accumulator_row() + 8 * r;
  if (row >= u.seq_q || read_tid_x() % 4 != 0) return;
  float* lse = reinterpret_cast<float*>(push.lse);
  const int64_t index = int64_t(at.index) * u.seq_q + row;
  if (l == 0.f) {
    lse[index] = -INFINITY;
    return;
  }
  const float m = softmax.m[r], unit = softmax.origin(r).ln_unit(product_unit(u)),
              origin = __fmul_rn(m, unit);
  put_part_lse(lse, index, origin, fmaf(m, unit, -origin) + logf(l));
}

template <typename T, typename S>
TANDEM_DEVICE void main_loop_halved_o(const typename S::Params& params,
                                      const HalvedSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  float s[S::KEYS / 2], o[S::PRODUCTS][S::PANELS * kPanel / 2], odd[16];
  uint q[4 * S::Q_PANELS][4];
  HalvedConsumer<T, S> c(shared, s, o, odd, q);
  HalvedTileScheduler<S> scheduler(params);
  const float scale = step_scale(u);
  FwdWorkTile at;
#pragma unroll 1
  for (uint tile = 0; next_visible_tile(scheduler, &at); ++tile) {
    at.row0 += S::ROWS * int(c.rank);
    HalvedSoftmax<S> softmax(wants_largest(params.push));
    float factor[2];
    // Scores of step t become weights in shared memory. FIRST: no P V is in flight.
    const auto weigh = [&](auto first, int t) {
      const int row = at.row0 + accumulator_row() - 64 * c.warpgroup;
      scale_products(s, u);
      if (t < at.span.full_begin || t >= at.span.full_end) {
        const HalvedKeys keys = keys_of<S>(params, at);
        mask_tile<S::KEYS>(s, keys.band, row, t * S::N + S::KEYS * c.warpgroup + accumulator_col(),
                           keys.count, -INFINITY);
      }
      const bool rescale = softmax.find_origins(
          s, scale, u.slack, factor, [&] { return u.seq_q - row; }, shared, c.warpgroup);
      if constexpr (!first.value && !S::FEW_STAGES) {
        wgmma_wait_group<1>();
        c.release_v(0);
      }
      softmax.weigh(s, scale, factor);
      c.store_weights();
      if (rescale) {  // seldom
        wgmma_wait_group<0>();
        c.rescale_o(factor);
      }
    };
    // How many keys of step t exist, or more than it has.
    const auto left_of = [&](int t) {
      if constexpr (S::LENGTHS)
        if (t + 1 == at.span.end) return keys_of<S>(params, at).count - t * S::N;
      return S::N;
    };
    mbarrier_wait(shared.q_full(), int(tile % 2));
    c.load_q();
    c.product_s([] {});
    c.template end_s<0>();
    // Q of the next work tile may come when the last S is done.
    const auto release_q = [&](bool done) {
      if (done && read_tid_x() % 128 == 0) mbarrier_arrive(shared.q_empty());
    };
    release_q(at.span.begin == at.span.end - 1);
    c.clear_o();
    const int last = at.span.end - 1;
    weigh(std::true_type(), last);
#pragma unroll 1
    for (int t = last - 1; t >= at.span.begin; --t) {
      // P V of the step before last ends in here.
      c.product_s([&] {
        if (t < last - 1) c.release_v(1);
      });
      named_barrier_sync<kWeightsWritten>(256);
      c.template product_o<true>(left_of(t + 1));
      release_q(t == at.span.begin);
      weigh(std::false_type(), t);
    }
    wgmma_wait_group<0>();
    if (at.span.begin < last) c.release_v(1);
    named_barrier_sync<kWeightsWritten>(256);
    c.template product_o<false>(left_of(at.span.begin));
    raise_max_logit(u, params.push, softmax, product_unit(u), [&] {
      return BatchHead{batch_of_part(u, at), head_of(u, at)};
    });
    float sum[2], other[2], lse[2], inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = quad_sum(softmax.sum(r));
    softmax.exchange(shared, c.warpgroup, sum, other);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float l = sum[r] + other[r];
      lse[r] = softmax.lse(r, l, product_unit(u));
      inverse[r] = l == 0.f ? 0.f : __frcp_rn(l);
      if (u.splits > 1 && c.warpgroup == 0) store_part_lse(u, params.push, at, softmax, r, l);
    }
    if (u.splits == 1 && c.warpgroup == 0) store_lse(u, params.push, at, lse);
    wgmma_wait_group<0>();
    if constexpr (!S::FEW_STAGES) c.release_v(0);
    c.release_v(1);
    if (u.splits > 1)
      c.store_part(u, params.push, at, inverse);
    else
      c.store_o(u, params.push, at, inverse);
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
