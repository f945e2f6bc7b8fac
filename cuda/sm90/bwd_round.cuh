// SPDX-License-Identifier: MIT OR Apache-2.0
// d_q from the f32 sums of bwd_dkv_dq, in the kernel that forms them: the workgroup that is the last to add to a tile of them
// rounds it, by the two helping warps that have nothing else to do: one counts, the other rounds. Who adds would lose time by
// that. For sets of optional inputs that kRounds names; the others have bwd_dq_cast.
//
// How sums get from those who add to who rounds. Bulk adds are of the async proxy; cp.async.bulk.wait_group (not .read) ends when
// they are done and can be seen by the thread that gave them, in the generic proxy, too. That thread tells the counting
// warp in shared memory (release), which reads it (acquire) and adds 1 to the tile's number in the workspace (acquire and
// release, of the device). Who finds all others there has acquired what they released, all sums, and leaves a note for
// the rounding warp, behind an mbarrier. A fence of proxies lets the copy engine bring the sums. In a fixed order the turns do
// what the counts do, and who is last is known.
//
// Both warps sleep while they wait: spinning takes issue slots from who multiplies.
#ifndef TANDEM_CUDA_SM90_BWD_ROUND_CUH
#define TANDEM_CUDA_SM90_BWD_ROUND_CUH
#include "bwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr int kNap = 200;  // ns

// Of query head `head` in its entry: the number of its first tile among all that there are sums of.
template <int ROW, typename Set>
TANDEM_DEVICE int64_t first_tile(const BwdDkvDqBlock& u, const Walk& walk, int head,
                                 int packed_tiles) {
  constexpr int kBr = kBwdShapes[ROW].br;
  if constexpr (kHasLengths<Set>)
    if (packed_tiles > 0) return int64_t(head) * packed_tiles + walk.first_q / kBr + walk.batch;
  return (int64_t(walk.batch) * u.heads_q + head) * ((u.seq_q + kBr - 1) / kBr);
}

// Until a phase is over, as barrier_wait(); one lane asks.
TANDEM_DEVICE void barrier_sleep(uint barrier, int parity) {
  if (int(threadIdx.x) % 32 == 0)
    while (!barrier_test(barrier, parity)) __nanosleep(kNap);
  __syncwarp();
  barrier_wait(barrier, parity);
}
// How many of its tiles this workgroup has added.
TANDEM_DEVICE void tell_added(uint at, uint tiles) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(at), "r"(tiles) : "memory");
}
TANDEM_DEVICE void wait_added(uint at, uint tiles) {
  uint x;
  while (true) {
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    if (x >= tiles) return;
    __nanosleep(kNap);
  }
}
TANDEM_DEVICE uint count_added(uint* at) {
  uint x;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(x) : "l"(at) : "memory");
  return x;
}

// Places for notes in shared memory, and the barriers of each: full, empty.
struct Notes {
  uint at;
  TANDEM_DEVICE uint note(uint n) const { return at + n % kNotes * kNoteBytes; }
  TANDEM_DEVICE uint full(uint n) const { return at + kNotes * kNoteBytes + n % kNotes * 16; }
  TANDEM_DEVICE uint empty(uint n) const { return full(n) + 8; }
  static TANDEM_DEVICE int parity(uint n) { return int(n / kNotes % 2); }
  TANDEM_DEVICE void init() const {
    for (uint n = 0; n < kNotes; ++n) {
      barrier_init(full(n), 1);
      barrier_init(empty(n), 1);
    }
  }
  // A tile of sums that is to become d_q from address `to` on, rows of it; to = 0: there is no more.
  TANDEM_DEVICE void put(uint n, uint64_t sums, uint64_t to, int rows) const {
    barrier_wait(empty(n), parity(n) ^ 1);
    asm volatile("st.shared.v2.u64 [%0], {%1, %2};" ::"r"(note(n)), "l"(sums), "l"(to) : "memory");
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(note(n) + 16), "r"(rows) : "memory");
    barrier_arrive(full(n));
  }
  TANDEM_DEVICE void get(uint n, uint64_t* sums, uint64_t* to, int* rows) const {
    barrier_sleep(full(n), parity(n));
    asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];"
                 : "=l"(*sums), "=l"(*to)
                 : "r"(note(n))
                 : "memory");
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(*rows) : "r"(note(n) + 16) : "memory");
  }
};

// Lane n of four gives x[m] to lane m, whose x[n] it becomes.
TANDEM_DEVICE void exchange(uint (&x)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int n = 0; n < 4; n += 2) {
    const uint other = __shfl_xor_sync(kAllLanes, odd ? x[n] : x[n + 1], 1);
    (odd ? x[n] : x[n + 1]) = other;
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint other = __shfl_xor_sync(kAllLanes, high ? x[n] : x[n + 2], 2);
    (high ? x[n] : x[n + 2]) = other;
  }
}

template <int ROW, typename Set>
TANDEM_DEVICE void init_rounding(const Memory<ROW, Set>& memory) {
  barrier_init(memory.rounding_barrier(), 1);
  Notes{memory.notes()}.init();
  put_shared(memory.added(), 0.f);  // the number 0, too
}

// A block of d_q: what is there of its rows and columns.
struct RoundedBlock {
  ushort* to;
  const Strides& strides;
  int rows, columns;
  // 8 columns of a row.
  TANDEM_DEVICE void put(int row, int column, const uint (&w)[4]) const {
    if (row >= rows || column >= columns) return;
    ushort* at = to + row * strides.s + column * strides.d;
    if (strides.d == 1 && column + 8 <= columns && (reinterpret_cast<uint64_t>(at) & 15) == 0) {
      *reinterpret_cast<uint4*>(at) = make_uint4(w[0], w[1], w[2], w[3]);
      return;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (column + e < columns) at[e * strides.d] = ushort(w[e / 2] >> (e % 2 * 16));
  }
  // A warp: from sums as accumulators lie (kSumsBlock), in shared memory. 8 rows x 32 columns at a time: registers are short.
  template <typename T>
  TANDEM_DEVICE void round(uint sums, float scale) const {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll 1
    for (int n = 0; n < 16; ++n) {
      const int row = n / 2 * 8, column = n % 2 * 32;
      const uint from = sums + uint(column * 256 + row / 16 * 512 + row % 16 / 8 * 8 + lane * 16);
      uint words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = shared_float2(from + 2048 * i);
        words[i] = T::pack(x.x * scale, x.y * scale);
      }
      exchange(words);
      put(row + lane / 4, column + lane % 4 * 8, words);
    }
  }
  TANDEM_DEVICE void clear() const {
    const uint zero[4] = {0, 0, 0, 0};
#pragma unroll 1
    for (int n = int(threadIdx.x) % 32; n < 64 * 8; n += 32) put(n / 8, n % 8 * 8, zero);
  }
};

// Where a tile of d_q begins; t: of query head n of the group.
template <int ROW, typename Params>
TANDEM_DEVICE uint64_t d_q_tile(const Params& params, const Walk& walk, int n, int t) {
  const Strides& s = params.d_q.strides;
  return params.d_q.address +
         2 * uint64_t(walk.batch * s.b + (walk.head_kv * params.block.group + n) * s.h +
                      int64_t(walk.first_q + t * kBwdShapes[ROW].br) * s.s);
}
template <typename Params>
TANDEM_DEVICE int d_q_rows(const Params& params, const Walk& walk, int packed_tiles) {
  return packed_tiles > 0 ? walk.seq_q : params.block.seq_q;
}

// Warp 2: counts what warp 1 has added, and leaves notes.
template <int ROW, typename Set>
TANDEM_DEVICE void count_sums(const typename Set::Params& params, const Walk& walk,
                              const Memory<ROW, Set>& memory, int packed_tiles) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr int kTileBytes = S.br / 64 * Memory<ROW, Set>::kPanels * kSumsBlock * 4;
  if (!params.d_q.address) return;
  const BwdDkvDqBlock& u = params.block;
  const bool one = int(threadIdx.x) % 32 == 0;
  const Notes notes{memory.notes()};
  uint tiles = 0, written = 0;
  typename Set::template Tiles<ROW> visited(params, walk);
  for (int n = 0; n < u.group; ++n)
#pragma unroll 1
    for (int at = visited.next(n, walk.span.begin); at < walk.span.end;
         at = visited.next(n, at + 1)) {
      ++tiles;
      if (one) {
        const int t = walk.turned(at);
        const int64_t tile =
            first_tile<ROW, Set>(u, walk, walk.head_kv * u.group + n, packed_tiles) + t;
        wait_added(memory.added(), tiles);
        const uint before =
            u.in_turn
                ? visited.before(u, walk, n, t)
                : count_added(reinterpret_cast<uint*>(params.push.turns) + tile * (S.br / 64));
        if (before + 1 == visited.visitors(u, walk, n, t))
          notes.put(written++, params.push.d_q_sums + uint64_t(tile * kTileBytes),
                    d_q_tile<ROW>(params, walk, n, t),
                    d_q_rows(params, walk, packed_tiles) - t * S.br);
      }
      __syncwarp();
    }
  if (one) notes.put(written, 0, 0, 0);
}

// Warp 3.
template <typename T, int ROW, typename Set>
TANDEM_DEVICE void round_sums(const typename Set::Params& params, const Walk& walk,
                              const Memory<ROW, Set>& memory, int packed_tiles) {
  constexpr BwdShape S = kBwdShapes[ROW];
  constexpr bool kPanel = Memory<ROW, Set>::kPanels > 1;  // a block is a panel, else 64 rows
  static_assert(S.br / 64 * Memory<ROW, Set>::kPanels == 2, "places for two");
  if (!params.d_q.address) return;
  const auto block_of = [&](int block, uint64_t tile, int rows) {
    const Strides& s = params.d_q.strides;
    return RoundedBlock{reinterpret_cast<ushort*>(tile) + block * 64 * (kPanel ? s.d : s.s), s,
                        rows - (kPanel ? 0 : 64 * block),
                        params.block.head_dim - (kPanel ? 64 * block : 0)};
  };
  {
    // Rows that see no key are nobody's: the head's workgroups share their zeros.
    const int rows = d_q_rows(params, walk, packed_tiles);
    typename Set::template Tiles<ROW> visited(params, walk);
    for (int n = 0; n < params.block.group; ++n)
#pragma unroll 1
      for (int t = walk.tile; t * S.br < rows; t += int(params.block.tiles))
        if (visited.visitors(params.block, walk, n, t) == 0)
          for (int block = 0; block < 2; ++block)
            block_of(block, d_q_tile<ROW>(params, walk, n, t), rows - t * S.br).clear();
  }
  const Notes notes{memory.notes()};
  // Of 96 features the second panel has half.
  constexpr int kBlock = kSumsBlock * 4, kBytes = S.d == 96 ? kBlock + kBlock / 2 : 2 * kBlock;
#pragma unroll 1
  for (uint number = 0;; ++number) {
    uint64_t sums, to;
    int rows;
    notes.get(number, &sums, &to, &rows);
    if (to == 0) break;
    if (int(threadIdx.x) % 32 == 0) {
      fence_async_all();
      barrier_expect(memory.rounding_barrier(), kBytes);
      copy_flat(memory.rounding(0), reinterpret_cast<const float*>(sums), memory.rounding_barrier(),
                kBytes);
    }
    __syncwarp();
    barrier_sleep(memory.rounding_barrier(), int(number % 2));
#pragma unroll 1
    for (int block = 0; block < 2; ++block)
      block_of(block, to, rows).template round<T>(memory.rounding(block), params.block.scale);
    __syncwarp();
    if (int(threadIdx.x) % 32 == 0) barrier_arrive(notes.empty(number));
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
