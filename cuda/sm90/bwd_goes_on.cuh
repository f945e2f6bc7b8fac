// SPDX-License-Identifier: MIT OR Apache-2.0
// How a workgroup of bwd_dkv_dq goes from one tile of keys to the next without a barrier of all its warps: each goes on when it is done. The
// warp that loads says what comes next, and asks for K and V of it, when those that multiply are done with the ones before and
// all have heard what those were. Places in shared memory and phases of barriers go on from where they are (Walk::begun).
// Otherwise K, V and the first Q are waited for at each tile, while nothing is multiplied, and so is the end of its stores
// (docs/hopper-measured.md: 8 us of 96 at D 128).
//
// Way says which tiles: first(), next() and find(); Way::kOnce: there is no next one.
#ifndef TANDEM_CUDA_SM90_BWD_GOES_ON_CUH
#define TANDEM_CUDA_SM90_BWD_GOES_ON_CUH
#include "bwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

TANDEM_DEVICE uint shared_uint(uint at) {
  return __reduce_or_sync(kAllLanes, shared_word(at));  // one of the registers that the warp shares
}
constexpr uint kNothing = ~0u;

// What a workgroup works on: a barrier and words in shared memory, kBwdNowBytes.
struct Now {
  uint at;
  // K, V and the words are the loader's again: said by each warp that multiplies, and by three that help.
  TANDEM_DEVICE uint heard() const { return at; }
  TANDEM_DEVICE void init() const { barrier_init(heard(), 8 + 3); }
  TANDEM_DEVICE uint item() const { return shared_uint(at + 8); }
  TANDEM_DEVICE uint pass() const { return shared_uint(at + 12); }
  TANDEM_DEVICE uint begun() const { return shared_uint(at + 16); }
  TANDEM_DEVICE void set(uint item, uint pass, uint begun) const {
    put_shared(at + 8, item);
    put_shared(at + 12, pass);
    put_shared(at + 16, begun);
  }
};

// The memory, anew, lest addresses be kept from round to round, for which there are no registers.
template <int ROW, typename Set>
TANDEM_DEVICE Memory<ROW, Set> fresh_memory() {
  return {moved_word(shared_address(panel_memory()))};
}
template <int ROW, typename Set>
TANDEM_DEVICE Now now_of(const Memory<ROW, Set>& memory) {
  return {Set::now_at(memory)};
}

// The warp that loads. Its branches are by votes, as those of ZeroCopies (bwd_zeros.cuh).
template <int ROW, typename Set, typename Way>
TANDEM_DEVICE void load_rounds(const typename Set::Params& params) {
  uint pass = 0, begun = 0, item = Way::first(params, fresh_memory<ROW, Set>());
#pragma unroll 1
  for (uint round = 0;; ++round) {
    const auto memory = fresh_memory<ROW, Set>();
    const Now now = now_of(memory);
    Walk walk;
    if (__any_sync(kAllLanes, item != kNothing) &&
        !__any_sync(kAllLanes, Way::find(params, item, pass, &walk)))
      item = kNothing;
    walk.begun = begun, walk.pass = pass;
    barrier_wait(now.heard(), int(round & 1) ^ 1);
    if (fresh_thread() == 0) now.set(item, pass, begun);
    if (__any_sync(kAllLanes, item == kNothing)) {
      if (fresh_thread() == 0) barrier_arrive(Barriers<ROW>(memory.barriers()).kv);
      return;
    }
    load_tiles(params, walk, memory);
    if (Way::kOnce) return;
    begun += uint(params.block.group * max(walk.span.end - walk.span.begin, 0));
    if (Way::kPasses && __any_sync(kAllLanes, pass + 1 < Way::passes(params)))
      ++pass;
    else
      pass = 0, item = Way::next(params, memory, round);
  }
}
// The others: run(memory, walk) for each tile. HELPS: they do not read K and V, and those that do let go of them in multiply().
template <int ROW, typename Set, typename Way, bool HELPS, typename Run>
TANDEM_DEVICE void in_rounds(const typename Set::Params& params, Run&& run) {
#pragma unroll 1
  for (int parity = 0;; parity ^= 1) {
    const auto memory = fresh_memory<ROW, Set>();
    const Now now = now_of(memory);
    barrier_wait(Barriers<ROW>(memory.barriers()).kv, parity);
    const uint item = now.item(), pass = Way::kPasses ? now.pass() : 0, begun = now.begun();
    if (HELPS && fresh_thread() % 32 == 0) barrier_arrive(now.heard());
    if (item == kNothing) return;
    Walk walk;
    Way::find(params, item, pass, &walk);
    walk.begun = begun, walk.pass = pass;
    run(memory, walk);
    if (Way::kOnce) return;
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
