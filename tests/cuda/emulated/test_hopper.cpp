// SPDX-License-Identifier: MIT OR Apache-2.0
// Whether the emulator shows mistakes in the use of Hopper's instructions: small kernels which are
// right, and give right numbers in whatever order things happen; the same with one mistake each,
// and give wrong ones, or end with a sentence that names it. Each run is a process of its own.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string>

#include "../../../cuda/sm90/ptx/cluster.cuh"
#include "../../../cuda/sm90/ptx/global_memory.cuh"
#include "../../../cuda/sm90/ptx/mbarrier.cuh"
#include "../../../cuda/sm90/ptx/named_barrier.cuh"
#include "../../../cuda/sm90/ptx/shared_memory.cuh"
#include "../../../cuda/sm90/ptx/tma.cuh"
#include "../../../cuda/sm90/ptx/wgmma.cuh"
#include "../sm90/device.h"
#include "check.h"

namespace {

using namespace tandem::cuda;
using namespace tandem::cuda::sm90;
using sm90_test::launch;
using sm90_test::Memory;

constexpr int kSteps = 12, kTile = 128;  // numbers of a tile

enum class Mistake {
  none,
  full_not_awaited,
  empty_not_awaited,
  wrong_phase,
  arrival_too_many,
  too_few_bytes,
  product_not_awaited,
  operand_overwritten,
  no_commit,
  sum_not_read,
  sum_left_behind,
  other_count,
  somebody_missing,
  too_many_registers,
  no_cluster_barrier,
  left_before_others,
  kernel_not_awaited,
  word_never_written,
  lanes_apart
};

// A thread copies tiles to two places in turn, 128 others add them up.
template <Mistake M>
void copies(const float* from, float* to) {
  TANDEM_SHARED_ARRAY(float, tile, 2 * kTile);
  TANDEM_SHARED_ARRAY(uint64_t, barriers, 4);
  const auto full = [&](int n) { return shared_address(barriers + n % 2); };
  const auto empty = [&](int n) { return shared_address(barriers + 2 + n % 2); };
  if (threadIdx.x == 0) {
    for (int n = 0; n < 2; ++n) mbarrier_init(full(n), 1), mbarrier_init(empty(n), 128);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 128) {
    for (int n = 0; n < kSteps; ++n) {
      if (M != Mistake::empty_not_awaited) mbarrier_wait(empty(n), (n / 2 & 1) ^ 1);
      mbarrier_arrive_expect_tx(full(n), M == Mistake::too_few_bytes ? 256 : 512);
      bulk_load(shared_address(tile + n % 2 * kTile), from + n * kTile, full(n), 512);
      if (M == Mistake::arrival_too_many) mbarrier_arrive(full(n));
    }
  } else if (threadIdx.x < 128) {
    float sum = 0;
    for (int n = 0; n < kSteps; ++n) {
      const int parity = n / 2 & 1;
      if (M != Mistake::full_not_awaited)
        mbarrier_wait(full(n), M == Mistake::wrong_phase ? parity ^ 1 : parity);
      sum += tile[n % 2 * kTile + int(threadIdx.x)];
      mbarrier_arrive(empty(n));
    }
    to[threadIdx.x] = sum;
  }
}

// Products of ones, the second of which may be overwritten when the first is done.
template <Mistake M>
void products(const float*, float* to) {
  unsigned char* memory = aligned_shared_memory();
  const auto fill = [&](unsigned char* at, uint bits) {
    for (int n = int(threadIdx.x); n < 64 * 64; n += 128)
      reinterpret_cast<ushort*>(at)[n] = ushort(bits);
    fence_proxy_async_shared();
    __syncthreads();
  };
  const uint a = shared_address(memory), b = a + 8192;
  fill(memory, 0x3c00), fill(memory + 8192, 0x3c00);
  float x[32] = {}, y[32];
  for (int n = 0; n < 4; ++n) {
    wgmma_fence();
    for (int k = 0; k < 4; ++k)
      Wgmma<Half, 64>::ss<0, 0>(y, k_major(a + uint(32 * k)), k_major(b + uint(32 * k)), k > 0);
    if (M != Mistake::no_commit) wgmma_commit_group();
    if (M != Mistake::product_not_awaited && M != Mistake::operand_overwritten)
      wgmma_wait_group<0>();
    if (M == Mistake::operand_overwritten) {
      fill(memory + 8192, 0);
      fill(memory + 8192, 0x3c00);
      wgmma_wait_group<0>();
    }
    for (int i = 0; i < 32; ++i) x[i] += y[i];
  }
  wgmma_wait_group<0>();
  float sum = 0;
  for (float each : x) sum += each;
  to[threadIdx.x] = sum / (4 * 64 * 32);
}

// Sums of what lies in shared memory, which is written again for the next ones.
template <Mistake M>
void sums(const float*, float* to) {
  TANDEM_SHARED_ARRAY(float, tile, kTile);
  for (int n = 0; n < kSteps; ++n) {
    tile[threadIdx.x] = float(n);
    fence_proxy_async_shared();
    named_barrier_sync<1>(128);
    if (threadIdx.x == 0) {
      bulk_reduce_add(to, shared_address(tile), 512);
      bulk_commit_group();
      if (M != Mistake::sum_not_read && M != Mistake::sum_left_behind) bulk_wait_group_read<0>();
      if (M == Mistake::sum_left_behind && n + 1 < kSteps) bulk_wait_group_read<0>();
    }
    named_barrier_sync<1>(128);
  }
  if (M != Mistake::sum_left_behind && threadIdx.x == 0) bulk_wait_group<0>();
}

// Copies of the same, each to a place of its own.
template <Mistake M>
void stores(const float*, float* to) {
  TANDEM_SHARED_ARRAY(float, tile, 16);
  for (int n = 0; n < kSteps; ++n) {
    if (threadIdx.x < 16) tile[threadIdx.x] = float(n);
    fence_proxy_async_shared();
    named_barrier_sync<1>(128);
    if (threadIdx.x == 0) {
      bulk_store(reinterpret_cast<uint64_t>(to + 16 * n), shared_address(tile), 64);
      bulk_commit_group();
      if (M != Mistake::sum_not_read) bulk_wait_group_read<0>();
    }
    named_barrier_sync<1>(128);
  }
  if (threadIdx.x == 0) bulk_wait_group<0>();
}

template <Mistake M>
void named(const float*, float* to) {
  const int group = int(threadIdx.x) / 128;
  TANDEM_SHARED_ARRAY(int, word, 1);
  if (group == 0) {
    if (threadIdx.x == 0) *word = 7;
    named_barrier_arrive(3, M == Mistake::other_count ? 192 : 256);
  } else if (M != Mistake::somebody_missing || threadIdx.x < 224) {
    named_barrier_sync(3, 256);
    to[threadIdx.x % 128] = float(*word);
  }
}

template <Mistake M>
void registers(const float*, float* to) {
  if (threadIdx.x < 128)
    warpgroup_reg_dealloc<40>();
  else
    warpgroup_reg_alloc<M == Mistake::too_many_registers ? 240 : 232>();
  to[threadIdx.x % 128] = 1.f;
}

// Each workgroup of a cluster reads what the other one has written.
template <Mistake M>
void cluster(const float*, float* to) {
  TANDEM_SHARED_ARRAY(uint4, words, 32);
  const uint rank = cluster_rank();
  words[threadIdx.x] = make_uint4(rank, 0, 0, 0);
  if (M != Mistake::no_cluster_barrier) cluster_sync();
  const uint there = cluster_address(shared_address(words + threadIdx.x), rank ^ 1);
  if (M == Mistake::left_before_others && rank == 1) return;
  to[32 * rank + threadIdx.x] = float(ld_cluster_v4_u32(there).x);
  if (M != Mistake::left_before_others) cluster_sync();
}

template <Mistake M>
void word(const float*, float* to) {
  uint* at = reinterpret_cast<uint*>(to);
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0)
      while (ld_acquire(at) != 0xffffffffu + 1u) {
      }
    to[32 + threadIdx.x] = 1.f;
  } else if (M != Mistake::word_never_written && threadIdx.x == 0) {
    red_add_release(at, 1);
  }
}

template <Mistake M>
void shuffles(const float*, float* to) {
  float x = float(threadIdx.x);
  if (M == Mistake::lanes_apart && threadIdx.x == 3)
    __syncwarp();
  else
    x = __shfl_xor_sync(kAllLanes, x, 1);
  to[threadIdx.x] = x;
}

// The second begins when the first says so, and reads what that writes then.
void first(const float*, float* to) {
  launch_dependent_grids();
  __syncthreads();
  for (int n = 0; n < 50; ++n) __nanosleep(100);
  to[threadIdx.x] = 3.f;
}
template <Mistake M>
void second(const float*, float* to) {
  if (M != Mistake::kernel_not_awaited) grid_dependency_wait();
  to[128 + threadIdx.x] = to[threadIdx.x];
}

// ---- runs ---------------------------------------------------------------------------------------

using Kernel = void (*)(const float*, float*);
struct Run {
  const char* name;
  Kernel kernel;
  unsigned blocks, threads, cluster;
  size_t shared;
  int count;  // of numbers that are right or wrong
  float (*right)(int n);
  Kernel before;  // launched first, or null
};

// In a process of its own, with this seed. Returns what it said: "right", "wrong", or why it died.
std::string outcome(const Run& run, unsigned seed) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    simt::settings().order = seed ? simt::Order::shuffled : simt::Order::forward;
    simt::random().seed(seed + 1);
    std::vector<float> data(kSteps * kTile);
    for (size_t n = 0; n < data.size(); ++n) data[n] = float(n % 100);
    const Memory<float> from(data), to(std::vector<float>(256, 0.f));
    if (std::strcmp(run.name, "word") == 0) cudaMemset(to.get(), 0xff, 4);
    for (const Kernel kernel : {run.before, run.kernel}) {
      if (!kernel) continue;
      auto grid = std::make_unique<simt::Grid>();
      const float* in = from.get();
      float* out = to.get();
      grid->body = [=] { kernel(in, out); };
      grid->name = run.name;
      grid->size = {run.blocks, 1, 1}, grid->threads = {run.threads, 1, 1};
      grid->shared_bytes = run.shared, grid->cluster = run.cluster;
      grid->early = run.before && kernel == run.kernel;
      simt::machine().launch(std::move(grid));
    }
    const std::vector<float> result = to.read();
    bool right = true;
    const int at = run.before ? 128 : std::strcmp(run.name, "word") == 0 ? 32 : 0;
    for (int n = 0; n < run.count; ++n) right &= result[size_t(at + n)] == run.right(n);
    std::fprintf(stderr, right ? "right" : "wrong");
    std::fflush(stderr);
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[512];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) said.append(part, size_t(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT) said += " (a signal)";
  return said;
}

constexpr unsigned kSeeds = 12;

void is_right(const Run& run) {
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    const std::string said = outcome(run, seed);
    CHECK(said == "right", "%s, seed %u: %s", run.name, seed, said.c_str());
  }
}
// Some order of things shows it, or every one (always): by wrong numbers, or by words. One has the
// sentence, if there is any.
void shows(const Run& run, const char* what, const char* sentence, bool always = false) {
  unsigned shown = 0, said_so = 0;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    const std::string said = outcome(run, seed);
    const bool died = said.compare(0, 10, "emulator: ") == 0;
    CHECK(died || said == "right" || said == "wrong", "%s, %s, seed %u: %s", run.name, what, seed,
          said.c_str());
    shown += said != "right";
    said_so += died && said.find(sentence) != std::string::npos;
  }
  CHECK(always ? shown == kSeeds : shown > 0, "%s, %s: shown by %u of %u orders", run.name, what,
        shown, kSeeds);
  CHECK(!*sentence || said_so > 0, "%s, %s: no order said '%s'", run.name, what, sentence);
}

template <Mistake M>
Run of(const char* name) {
  const std::string which = name;
  const auto add_up = [](int n) {
    float sum = 0;
    for (int step = 0; step < kSteps; ++step) sum += float((step * kTile + n) % 100);
    return sum;
  };
  const auto one = [](int) { return 1.f; };
  if (which == "copies") return {name, copies<M>, 1, 160, 1, 0, 128, add_up, nullptr};
  if (which == "products") return {name, products<M>, 1, 128, 1, 16384, 128, one, nullptr};
  if (which == "sums")
    return {name,   sums<M>, 1,   128,
            1,      0,       128, [](int) { return float(kSteps * (kSteps - 1) / 2); },
            nullptr};
  if (which == "stores")
    return {name,   stores<M>, 1, 128, 1, 0, 16 * kSteps, [](int n) { return float(n / 16); },
            nullptr};
  if (which == "named")
    return {name, named<M>, 1, 256, 1, 0, 128, [](int) { return 7.f; }, nullptr};
  if (which == "registers") return {name, registers<M>, 1, 384, 1, 0, 128, one, nullptr};
  if (which == "cluster")
    return {name, cluster<M>, 2, 32, 2, 0, 64, [](int n) { return n < 32 ? 1.f : 0.f; }, nullptr};
  if (which == "word") return {name, word<M>, 2, 32, 1, 0, 32, one, nullptr};
  if (which == "early") return {name, second<M>, 2, 64, 1, 0, 64, [](int) { return 3.f; }, first};
  return {name, shuffles<M>, 1, 32, 1, 0, 32, [](int n) { return float(n ^ 1); }, nullptr};
}

}  // namespace

int main() {
  simt::device().hopper = true;
  simt::device().sms = 4;
  for (const char* name : {"copies", "products", "sums", "stores", "named", "registers", "cluster",
                           "word", "early", "shuffles"})
    is_right(of<Mistake::none>(name));
  using M = Mistake;
  shows(of<M::full_not_awaited>("copies"), "tiles are read before they have come", "", true);
  shows(of<M::empty_not_awaited>("copies"), "tiles are overwritten", "");
  shows(of<M::wrong_phase>("copies"), "the other phase", "to end a phase of parity", true);
  shows(of<M::arrival_too_many>("copies"), "two arrivals of a thread", "an arrival too many");
  shows(of<M::too_few_bytes>("copies"), "fewer bytes than come", "wait for the barrier at", true);
  shows(of<M::product_not_awaited>("products"), "accumulators are read before the wait", "", true);
  shows(of<M::operand_overwritten>("products"), "an operand is overwritten before the wait", "");
  shows(of<M::no_commit>("products"), "products in no group", "products on their way", true);
  shows(of<M::sum_not_read>("sums"), "shared memory is overwritten before it is read", "");
  shows(of<M::sum_not_read>("stores"), "what is copied is overwritten before it is read", "");
  shows(of<M::sum_left_behind>("sums"), "a thread ends before that", "still read shared memory");
  shows(of<M::other_count>("named"), "two numbers of threads", "others have come to it for", true);
  shows(of<M::somebody_missing>("named"), "a warp does not come", "224 of 256 threads", true);
  shows(of<M::too_many_registers>("registers"), "more than are free", "more registers", true);
  shows(of<M::no_cluster_barrier>("cluster"), "no barrier of the cluster", "", true);
  shows(of<M::left_before_others>("cluster"), "a workgroup leaves", "which has left");
  shows(of<M::word_never_written>("word"), "no thread writes a word", "global memory to change",
        true);
  shows(of<M::kernel_not_awaited>("early"), "the kernel before is not awaited", "");
  shows(of<M::lanes_apart>("shuffles"), "lanes go different ways", "lanes of a warp", true);
  std::printf("%d failures\n", failures);
  return failures != 0;
}
