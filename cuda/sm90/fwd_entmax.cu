// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of alpha-entmax on Hopper. The first walk over the keys searches the rows' thresholds, the last one has weights and
// P V, and leaves out the tiles in which the search met nothing above the thresholds of that time, lower bounds all.
//
// alpha = 1.5: in the first walk each thread keeps what lies above its rows' lower bound in a list in shared memory. When a
// list grows long, Newton's steps over the lists raise the bounds, and what is then below is dropped for good. The lists
// left at the end hold the whole support: they alone give the threshold. Rows whose support no list holds, and any other
// alpha: a walk for each of Newton's steps, from the best bound so far.
//
// Newton's steps go from below over the norm of [z - t]_+, which is convex: they never pass the
// root, but by what a bound is rounded. So none is made from a bound that is far below, and
// thresholds beyond +-kFarThreshold are relative to the row's largest score: such rows leave lists
// and bound, NaN, have a walk that finds that score and take it off all scores in later walks.
#include <cstring>

#include "entmax.cuh"
#include "fwd_store.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

constexpr int kMaxWalks = 64;  // a dozen is a lot
constexpr float kFarThreshold = 256.f, kFarBelow = 32.f;

template <int ROW>
struct EntmaxShape : FwdShape<ROW, FwdSet::plain, kEntmaxQStages> {
  using Base = FwdShape<ROW, FwdSet::plain, kEntmaxQStages>;
  static constexpr int MOST = fwd_entmax_candidates(Base::tile);  // candidates of a list
  // Up to FULL a list is safe for 8 more; LONG ones are to be shortened.
  static constexpr int FULL = MOST - 8, LONG = FULL - 4;
  static constexpr int LISTS_AT = fwd_entmax_lists_at(Base::tile);
  static constexpr int STEP = Base::GROUPS * 128 * 2 * 4;  // bytes from a candidate to the next
};

// What fwd's shared memory has beyond that of softmax: whether the search goes on, the tile that lies in each stage of k, the
// tiles' bits, the lists.
template <typename S>
struct Search {
  uint at;
  TANDEM_DEVICE explicit Search(const Shared<S>& shared) : at(shared.behind(0)) {}
  TANDEM_DEVICE uint verdict() const { return at; }
  TANDEM_DEVICE uint tile(int stage) const { return at + 8 + 4 * stage; }
  TANDEM_DEVICE uint again(int n) const { return at + 16 + 4 * n; }
  TANDEM_DEVICE uint words(int group, int set) const {
    return at + 32 + (2 * group + set) * (kSupportWords * 4);
  }
  TANDEM_DEVICE uint lists() const { return at + S::LISTS_AT; }
  TANDEM_DEVICE void init() const {
    barrier_init(verdict(), 4 * S::GROUPS);
    for (int n = 0; n < 3; ++n) put_shared(again(n), 0);
  }
};

// Walks so far: parity of the verdict, place of its flag, set of bits.
struct Walks {
  uint n = 0;  // modulo 6
  TANDEM_DEVICE int parity() const { return int(n & 1); }
  TANDEM_DEVICE int flag() const { return int(n < 3 ? n : n - 3); }
  TANDEM_DEVICE int flag_before() const { return int(n == 0 ? 2 : n < 4 ? n - 1 : n - 4); }
  TANDEM_DEVICE void next() { n = n == 5 ? 0 : n + 1; }
};

// rel: tile, counted from the first one that is seen.
TANDEM_DEVICE bool has_support(uint words, int rel) {
  return rel >= kSupportTiles || (shared_int(words + uint(rel / 32 * 4)) >> (rel % 32) & 1);
}

// Sends the walks' tiles from the last to the first, each walk ended by a tile of -1. The first tile of a walk is always
// visited, so it can come before the verdict on the walk before.
template <typename S>
TANDEM_DEVICE void produce(const FwdFullParams& params, const Shared<S>& shared) {
  const Search<S> search(shared);
  Rounds<S> rounds(params.block);
  Copier<S, FwdFullParams> copy(params, shared);
  Walks walks;
  FwdPlace at;
  while (rounds.next(&at, [](const FwdPlace&) {})) {
    const int own_head = head_of(params.block, at), batch = batch_of(params.block, at);
    const int kv_head = own_head / params.block.group;
    const auto send = [&](int t) {
      const int stage = copy.k_step.stage();
      barrier_wait(shared.k_empty(stage), copy.k_step.parity() ^ 1);
      put_shared(search.tile(stage), t);
      if (t >= 0) {
        copy.k(t, kv_head, batch);
      } else {
        barrier_arrive(shared.k_full(stage));
        copy.k_step.next();
      }
    };
    const auto next_tile = [&](int t) {
      while (--t >= at.span.begin) {
        bool some = false;
#pragma unroll
        for (int group = 0; group < S::GROUPS; ++group)
          some |= has_support(search.words(group, walks.parity()), t - at.span.begin);
        if (some) break;
      }
      return t;
    };
    const int last = at.span.end - 1;
    copy.q(at.row0, own_head, batch);
    for (int t = last; t >= at.span.begin; --t) send(t);
    send(-1);
    for (;;) {
      send(last);
      barrier_wait(search.verdict(), walks.parity());
      if (!shared_int(search.again(walks.flag()))) break;
      for (int t = next_tile(last); t >= at.span.begin; t = next_tile(t)) send(t);
      send(-1);
      walks.next();
    }
    int before = last;
    for (int t = next_tile(last); t >= at.span.begin; before = t, t = next_tile(t)) {
      send(t);
      copy.v(before, kv_head, batch);
    }
    send(-1);
    copy.v(before, kv_head, batch);
    walks.next();
  }
}

// The lists of a thread's two rows, as products, and their lower bounds. Candidates of a list lie STEP bytes apart, so that
// the threads of a warp never meet in a bank.
template <typename S>
struct Candidates {
  static constexpr int N = S::N;
  uint first;   // of row 0; row 1 is half a step further
  uint end[2];  // behind the last
  float bound[2];
  TANDEM_DEVICE uint row(int r) const { return first + uint(r * (S::STEP / 2)); }
  TANDEM_DEVICE int count(int r) const { return int((end[r] - row(r)) / S::STEP); }
  TANDEM_DEVICE void clear() { end[0] = row(0), end[1] = row(1); }
  TANDEM_DEVICE bool any_beyond(int count) const {
    return __any_sync(kAllLanes,
                      max(int(end[0] - row(0)), int(end[1] - row(1))) >= count * S::STEP);
  }

  TANDEM_DEVICE void append(const float (&s)[N / 2]) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) append_above<S::STEP>(end[i / 2], s[4 * j + i], bound[i / 2]);
      if (j % 4 == 3)  // at most 8 more of each row
#pragma unroll
        for (int r = 0; r < 2; ++r) end[r] = min(end[r], row(r) + uint(S::FULL * S::STEP));
    }
  }

  TANDEM_DEVICE bool any_far() const {
    return __any_sync(kAllLanes, bound[0] != bound[0] || bound[1] != bound[1]);
  }

  // Newton's steps, at most so many, over the lists and, if asked for, a tile's products. radius: 1
  // in products. A bound that is far below becomes NaN.
  TANDEM_DEVICE void raise(int steps, float radius, bool tile, const float (&s)[N / 2]) {
    const int count0 = count(0), count1 = count(1);
    const int most = __reduce_max_sync(kAllLanes, max(count0, count1));
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      float x[2] = {}, xx[2] = {};
      const auto add = [&](int r, float v) {
        const float y = fmaxf(v - bound[r], 0.f);
        x[r] += y;
        xx[r] = fmaf(y, y, xx[r]);
      };
#pragma unroll 1
      for (int k = 0; k < most; k += 4) {
        float v[4][2];
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int r = 0; r < 2; ++r) v[i][r] = shared_float(row(r) + uint((k + i) * S::STEP));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          add(0, k + i < count0 ? v[i][0] : -INFINITY);
          add(1, k + i < count1 ? v[i][1] : -INFINITY);
        }
      }
      if (tile) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) add(i / 2 % 2, s[i]);
      }
      bool moves = false;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = quad_sum(x[r]), squares = quad_sum(xx[r]);
        if (!(squares > radius * radius)) continue;
        if (!(squares < kFarBelow * radius * sum)) {
          bound[r] = NAN;
          continue;
        }
        const float next = bound[r] + (squares - radius * sqrtf(squares)) / sum;
        moves |= next > bound[r];
        bound[r] = fmaxf(next, bound[r]);
      }
      if (!__any_sync(kAllLanes, moves)) break;
    }
  }

  // Drops what is not above the bounds.
  TANDEM_DEVICE void shorten() {
    const int count0 = count(0), count1 = count(1);
    const int most = __reduce_max_sync(kAllLanes, max(count0, count1));
    clear();
#pragma unroll 1
    for (int k = 0; k < most; k += 4) {
      float v[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) v[i][r] = shared_float(row(r) + uint((k + i) * S::STEP));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (k + i < (r ? count1 : count0) && v[i][r] > bound[r]) {
            put_shared(end[r], v[i][r]);
            end[r] += S::STEP;
          }
    }
  }
};

template <typename T, typename S, bool FAST>
TANDEM_DEVICE void consume(const FwdFullParams& params, const Shared<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const Search<S> search(shared);
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const bool speaks = threadIdx.x % 128 == 0;  // for its warpgroup
  const float z_scale = u.scale * params.extra.entmax_scale;
  const float scale = plain_scale(u) ? z_scale : 1.f;
  const uint64_t q_at = along(shared.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(shared.k(0)), v_at = across(shared.v(0), S::K_PANEL);

  float s[N / 2];
  Step<S::Q_STAGES> q_step;
  Step<S::STAGES> k_step, v_step;
  const auto product_s = [&] {
    product_along<T, S>(s, further(q_at, q_step.stage() * S::Q_BYTES),
                        further(k_at, k_step.stage() * S::K_BYTES));
  };
  const auto release_k = [&] {
    if (speaks) barrier_arrive(shared.k_empty(k_step.stage()));
    k_step.next();
  };
  const auto release_v = [&] {
    if (speaks) barrier_arrive(shared.v_empty(v_step.stage()));
    v_step.next();
  };
  // The next tile of a walk; -1 behind its last.
  const auto next_tile = [&] {
    barrier_wait(shared.k_full(k_step.stage()), k_step.parity());
    const int t = __shfl_sync(kAllLanes, shared_int(search.tile(k_step.stage())), 0);
    if (t < 0) {
      named_sync(4 + group, 128);  // its readers
      release_k();
    }
    return t;
  };

  Rounds<S> rounds(u);
  Walks walks;
  FwdPlace at;
  while (rounds.next(&at, [&](const FwdPlace& p) { store_nothing<S>(u, params.push, p); })) {
    const auto score = [&](int t) {
      if (!plain_scale(u)) {
        const float factor = fresh(u.scale) * params.extra.entmax_scale;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) s[i] *= factor;
      }
      if (t < at.span.full_begin || t >= at.span.full_end)
        mask_tile<N>(s, rounds.band(), at.row0 + fresh_row(), t * N + fresh_col(), u.seq_kv,
                     -INFINITY);
    };
    // Bits that the walk to come sets.
    const auto clear_words = [&] {
      named_sync(4 + group, 128);
      if (threadIdx.x % 128 < kSupportWords)
        put_shared(search.words(group, walks.parity()) + threadIdx.x % 128 * 4, 0);
      named_sync(4 + group, 128);
    };
    const auto set_bit = [&](int t, bool some) {
      const int rel = t - at.span.begin;
      if (!__any_sync(kAllLanes, some || !params.features.SKIP)) return;
      if (threadIdx.x % 32 == 0 && rel < kSupportTiles)
        or_shared(search.words(group, walks.parity()) + uint(rel / 32 * 4), 1u << (rel % 32));
    };
    // Whether any row of the workgroup still moves; the walks after that use the bits of the last one.
    const auto verdict = [&](bool moves) {
      moves = __any_sync(kAllLanes, moves);
      if (threadIdx.x % 32 == 0) {
        if (moves) put_shared(search.again(walks.flag()), 1);
        barrier_arrive(search.verdict());
      }
      __syncwarp();
      barrier_wait(search.verdict(), walks.parity());
      const bool again = __shfl_sync(kAllLanes, shared_int(search.again(walks.flag())), 0) != 0;
      if (threadIdx.x == 128) put_shared(search.again(walks.flag_before()), 0);
      return again;
    };

    // Of z: lower bounds, in the end the thresholds; rows that see nothing: -inf, that do not
    // exist: +inf. NaN: the row's largest score is to be found. Relative to origin, a product: 0,
    // or that of a far row's largest score.
    float t_row[2], origin[2] = {0.f, 0.f};
    const auto begin_threshold = [&](int r, float top) {
      const bool far = !(fabsf(top * scale) <= kFarThreshold) && top > -INFINITY;
      origin[r] = far ? top : 0.f;
      t_row[r] = far ? -1.f : top * scale - 1.f;
    };
    const auto any_origin = [&] {
      return bool(__any_sync(kAllLanes, origin[0] != 0.f || origin[1] != 0.f));
    };
    const auto take_origin = [&] {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] -= origin[i / 2 % 2];
    };
    bool moves = false;
    clear_words();
    barrier_wait(shared.q_full(q_step.stage()), q_step.parity());
    if constexpr (FAST) {
      const float radius = 1.f / scale;
      Candidates<S> list;
      list.first = search.lists() + (threadIdx.x - 128) * 4;
      list.clear();
#pragma unroll
      for (int r = 0; r < 2; ++r)
        list.bound[r] = at.row0 + fresh_row() + 8 * r < u.seq_q ? -INFINITY : INFINITY;
      bool lost = false;  // a list was too long
      // Tiles so far, and after how many of them the lists are shortened again: by all warps at the same time, as they wait
      // for each other anyway. Twice as many keys hold about as many candidates more as the support has keys.
      int done = 0, due = 2;
#pragma unroll 1
      for (int t = next_tile(); t >= 0; t = next_tile()) {
        product_s();
        wait<0>();
        release_k();
        score(t);
        // Steps to take, first over this tile as well, before its products are appended, or then over the lists alone.
        int steps = 0;
        bool tile = true, some = lost;
        if (__any_sync(kAllLanes, list.bound[0] == -INFINITY || list.bound[1] == -INFINITY)) {
          float top[2];
          find_tops<N>(top, s);
#pragma unroll
          for (int r = 0; r < 2; ++r)
            if (list.bound[r] == -INFINITY)
              list.bound[r] = fabsf(top[r]) <= kFarThreshold * radius || top[r] == -INFINITY
                                  ? top[r] - radius
                                  : NAN;
          lost |= list.any_far();
          steps = 3;
        }
        const bool late = ++done >= due;
        if (late) due = done < 8 ? 2 * done : done + done * 5 / 8;
#pragma unroll 1
        for (int tries = 0; !lost; ++tries) {
          if (steps > 0) {
            list.raise(steps, radius, tile, s);
            lost = list.any_far();
            if (lost) break;
            if (tries > 0) list.shorten();
            if (!tile) break;
          }
          const uint from[2] = {list.end[0], list.end[1]};
          list.append(s);
          some = list.end[0] != from[0] || list.end[1] != from[1];
          if (list.any_beyond(S::FULL)) {
            list.end[0] = from[0], list.end[1] = from[1];
            lost = some = tries > 0;
            steps = 3;
          } else if (late || list.any_beyond(S::LONG)) {
            steps = 1;
            tile = false;
          } else {
            break;
          }
        }
        set_bit(t, some || lost);
      }
      if (!lost) {
        list.raise(1, radius, false, s);
        list.shorten();
        list.raise(30, radius, false, s);
        lost = list.any_far();
      }
      moves = lost;
#pragma unroll
      for (int r = 0; r < 2; ++r) t_row[r] = list.bound[r] * scale;
    } else {
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
      for (int t = next_tile(); t >= 0; t = next_tile()) {
        product_s();
        wait<0>();
        release_k();
        score(t);
        float here[2];
        find_tops<N>(here, s);
#pragma unroll
        for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], here[r]);
        set_bit(t, true);
      }
      moves = true;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (at.row0 + fresh_row() + 8 * r < u.seq_q)
          begin_threshold(r, top[r]);
        else
          t_row[r] = INFINITY;
      }
    }
#pragma unroll 1
    for (int walk = 1; verdict(moves && walk < kMaxWalks); ++walk) {
      walks.next();
      clear_words();
      const bool relative = any_origin(),
                 seeks =
                     FAST && __any_sync(kAllLanes, t_row[0] != t_row[0] || t_row[1] != t_row[1]);
      float most[2] = {-INFINITY, -INFINITY};
      float f[2] = {}, g[2] = {};  // sums of y and of u
#pragma unroll 1
      for (int t = next_tile(); t >= 0; t = next_tile()) {
        product_s();
        wait<0>();
        release_k();
        score(t);
        if (relative) take_origin();
        if (seeks) {
          float top[2];
          find_tops<N>(top, s);
#pragma unroll
          for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], top[r]);
        }
        float here[2] = {};
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
          const int r = i / 2 % 2;
          const float x = fmaxf(fmaf(s[i], scale, -t_row[r]), 0.f);
          const float y = FAST ? x : entmax_power(params, x);
          here[r] += y;
          f[r] = fmaf(x, y, f[r]);
        }
        set_bit(t, seeks || here[0] > 0.f || here[1] > 0.f);
#pragma unroll
        for (int r = 0; r < 2; ++r) g[r] += here[r];
      }
      moves = false;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = quad_sum(f[r]), slope = quad_sum(g[r]);
        if (FAST && t_row[r] != t_row[r]) {
          begin_threshold(r, most[r]);
          moves = true;
          continue;
        }
        if (!(sum > 1.f)) continue;
        if (FAST && !(sum < kFarBelow * slope)) {
          t_row[r] = NAN;
          moves = true;
          continue;
        }
        const float root = FAST ? sqrtf(sum)
                           : params.features.ALPHA == 2
                               ? 1.f
                               : exp2_fast(__log2f(sum) * (1.f - params.extra.entmax_scale));
        const float step = (sum - root) / slope, next = t_row[r] + step;
        // As large as this, compared with the weights' own x, a step leaves an error of its square.
        moves |= next > t_row[r] && step > (FAST ? 1e-4f : 1e-6f) * sum / slope;
        t_row[r] = fmaxf(next, t_row[r]);
      }
    }

    float o[S::DV / 2];
    uint p[N / 4];
#pragma unroll
    for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
    const auto product_o = [&] {
      barrier_wait(shared.v_full(v_step.stage()), v_step.parity());
      product_across<T, S>(o, p, further(v_at, v_step.stage() * S::V_BYTES));
    };
    const bool relative = any_origin();
    const auto weigh = [&](int t) {
      score(t);
      if (relative) take_origin();
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const float from = t_row[i / 2 % 2] == -INFINITY ? INFINITY : t_row[i / 2 % 2];
        const float x = fmaf(s[i], scale, -from);
        s[i] = FAST ? x * fabsf(x) : fmaxf(x, 0.f) * entmax_power(params, x);
      }
      settle(s);  // and not behind the wait that follows
    };
    const auto own = [&](int t) {
      return has_support(search.words(group, walks.parity()), t - at.span.begin);
    };
    int t = next_tile();
#pragma unroll 1
    while (t >= 0) {
      if (!own(t)) {
        barrier_wait(shared.v_full(v_step.stage()), v_step.parity());
        named_sync(4 + group, 128);  // no products that the warps would meet at
        release_k();
        release_v();
        t = next_tile();
        continue;
      }
      product_s();
      wait<0>();
      release_k();
      weigh(t);
      pack_tile<T, N, true>(p, s);
      t = next_tile();
#pragma unroll 1
      while (t >= 0 && own(t)) {
        product_s();
        product_o();
        wait<1>();
        release_k();
        weigh(t);
        wait<0>();
        release_v();
        pack_tile<T, N, true>(p, s);
        t = next_tile();
      }
      product_o();
      wait<0>();
      release_v();
    }
    walks.next();
    if (speaks) barrier_arrive(shared.q_empty(q_step.stage()));
    q_step.next();
    const float one[2] = {1.f, 1.f};
#pragma unroll
    for (int r = 0; r < 2; ++r) t_row[r] = fmaf(origin[r], scale, t_row[r]);
    store_lse(u, params.push, at, t_row);
    store_rows<T, S::DV>(o, one, params.push.o, u, at);
  }
}

template <typename T, int ROW, bool FAST>
__global__ void __launch_bounds__(FwdShape<ROW>::tile.threads(), 1)
    fwd_entmax(const __grid_constant__ FwdFullParams params) {
  using S = EntmaxShape<ROW>;
  if (threadIdx.x == 0)
    Search<S>(Shared<S>{(shared_address(shared_memory()) + 1023u) & ~1023u}).init();
  const Shared<S> shared = begin_fwd<S>(params);
  if (threadIdx.x < 128) {
    give_registers<S::PRODUCER>();
    if (threadIdx.x == 0) produce<S>(params, shared);
  } else {
    take_registers<S::CONSUMER>();
    consume<T, S, FAST>(params, shared);
  }
}

template <typename T, int ROW = 0>
Kernel<FwdFullParams> select(const char* name, bool fast) {
  if constexpr (ROW < kFwdTileCount) {
    if constexpr (fwd_entmax_shared_bytes(kFwdTiles[ROW]) > 0)
      if (std::strcmp(name, kFwdTiles[ROW].name) == 0) {
        if (fast) return fwd_entmax<T, ROW, true>;
        if constexpr (kFwdTiles[ROW].d == 128) return fwd_entmax<T, ROW, false>;
      }
    return select<T, ROW + 1>(name, fast);
  } else {
    return nullptr;
  }
}

Kernel<FwdFullParams> select(tandem_dtype dtype, const Launch& launch, bool fast) {
  if (!launch.tile.name) return nullptr;
  if (dtype == TANDEM_F16) return select<Half>(launch.tile.name, fast);
  if (dtype == TANDEM_BF16) return select<Bfloat>(launch.tile.name, fast);
  return nullptr;
}

}  // namespace

Kernel<FwdFullParams> fwd_entmax_kernel(tandem_dtype dtype, const Launch& launch) {
  return select(dtype, launch, true);
}
Kernel<FwdFullParams> fwd_entmax_any_kernel(tandem_dtype dtype, const Launch& launch) {
  return select(dtype, launch, false);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
