// SPDX-License-Identifier: MIT OR Apache-2.0
// cuda/sm90/ptx/base.cuh and wgmma.cuh on a Hopper GPU, or on the emulator of tests/cuda/emulated:
// each layout of an operand against a product on the CPU, boxes with their order of pieces, moves
// of 8 x 8 matrices, barriers. Inputs are small integers, so that results are exact.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <type_traits>

#include "../../../cuda/sm90/ptx/cluster.cuh"
#include "../../../cuda/sm90/ptx/cp_async.cuh"
#include "../../../cuda/sm90/ptx/global_memory.cuh"
#include "../../../cuda/sm90/ptx/mbarrier.cuh"
#include "../../../cuda/sm90/ptx/named_barrier.cuh"
#include "../../../cuda/sm90/ptx/shared_memory.cuh"
#include "../../../cuda/sm90/ptx/tma.cuh"
#include "../../../cuda/sm90/ptx/wgmma.cuh"
#include "device.h"

namespace {

using namespace tandem::cuda;
using namespace tandem::cuda::sm90;
using sm90_test::Memory;

struct Random {
  uint32_t state;
  uint32_t next() { return state = state * 1664525u + 1013904223u; }
  int small() { return int(next() >> 24) % 7 - 3; }
};

template <typename T>
ushort bits_of(float x);
template <>
ushort bits_of<Half>(float x) {
  return __half_as_ushort(__float2half_rn(x));
}
template <>
ushort bits_of<Bfloat>(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// A tile of rows x features of 16-bit elements into panels.
TANDEM_DEVICE void put_panels(unsigned char* to, const ushort* from, int rows, int features) {
  const int panels = (features + 63) / 64;
  for (int n = int(threadIdx.x); n < rows * panels * 64; n += int(blockDim.x)) {
    const int row = n / (panels * 64), feature = n % (panels * 64), f = feature % 64;
    const uint at =
        uint(feature / 64 * rows * kPanelBytes) + swizzle_128b(row, f / 8) + uint(f % 8 * 2);
    *reinterpret_cast<ushort*>(to + at) =
        feature < features ? from[row * features + feature] : ushort(0);
  }
}

unsigned char* __device__ aligned_memory() {
  unsigned char* p = reinterpret_cast<unsigned char*>(shared_memory());
  return p + (1024 - shared_address(p) % 1024) % 1024;
}

enum { kKMajor, kMnMajor, kRegisters };

// d[64 x N] = a[64 x K] b[K x N]. a as stored: 64 x K, or K x 64 across; b: N x K, or K x N across,
// behind FIRST other columns.
template <typename T, int N, int K, int A, int B_MN_MAJOR, int FIRST>
__global__ void __launch_bounds__(128) multiply(const ushort* a, const ushort* b, float* d) {
  unsigned char* at = aligned_memory();
  constexpr int a_rows = A == kMnMajor ? K : 64, a_features = A == kMnMajor ? 64 : K;
  constexpr int b_rows = B_MN_MAJOR ? K : N, b_features = B_MN_MAJOR ? FIRST + N : K;
  unsigned char* b_tile = at + 64 * K * 2;
  put_panels(at, a, a_rows, a_features);
  put_panels(b_tile, b, b_rows, b_features);
  fence_proxy_async_shared();
  __syncthreads();
  const uint a_at = shared_address(at), b_at = shared_address(b_tile);
  const int lane = int(threadIdx.x) % 32, row = int(threadIdx.x) / 32 * 16 + lane / 4;
  float x[N / 2];
  uint r[K / 4];
  if (A == kRegisters) {
    const auto pair = [&](int i, int k) {
      return uint(a[i * K + k]) | uint(a[i * K + k + 1]) << 16;
    };
#pragma unroll
    for (int k = 0; k < K / 16; ++k) {
      const int col = 16 * k + lane % 4 * 2;
      r[4 * k] = pair(row, col), r[4 * k + 1] = pair(row + 8, col);
      r[4 * k + 2] = pair(row, col + 8), r[4 * k + 3] = pair(row + 8, col + 8);
    }
  }
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < K / 16; ++k) {
    const uint64_t right =
        B_MN_MAJOR ? mn_major(b_at + uint(k * 16 * kPanelBytes + 2 * FIRST), K * kPanelBytes)
                   : k_major(b_at + uint(k / 4 * N * kPanelBytes + k % 4 * 32));
    if constexpr (A == kRegisters) {
      Wgmma<T, N>::template rs<B_MN_MAJOR>(x, r[4 * k], r[4 * k + 1], r[4 * k + 2], r[4 * k + 3],
                                           right, k > 0);
    } else {
      const uint64_t left = A == kMnMajor
                                ? mn_major(a_at + uint(k * 16 * kPanelBytes), K * kPanelBytes)
                                : k_major(a_at + uint(k / 4 * 64 * kPanelBytes + k % 4 * 32));
      Wgmma<T, N>::template ss<A == kMnMajor, B_MN_MAJOR>(x, left, right, k > 0);
    }
  }
  wgmma_commit_group();
  wgmma_wait_group<0>();
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      d[(row + i / 2 * 8) * N + 8 * j + lane % 4 * 2 + i % 2] = x[4 * j + i];
}

template <typename T, int N, int K, int A, int B_MN_MAJOR, int FIRST = 0>
void check_product() {
  static const std::string name = std::string(std::is_same<T, Half>::value ? "f16" : "bf16") +
                                  " N " + std::to_string(N) + " K " + std::to_string(K) + " A " +
                                  (A == kKMajor    ? "K-major"
                                   : A == kMnMajor ? "MN-major"
                                                   : "registers") +
                                  " B " + (B_MN_MAJOR ? "MN-major" : "K-major") + " from column " +
                                  std::to_string(FIRST);
  sm90_test::doing() = name.c_str();
  CAPTURE(name);
  Random random{uint32_t(N * 1000 + K * 10 + A * 2 + B_MN_MAJOR)};
  std::vector<float> a(64 * K), b(N * K);  // a[i][k], b[k][j]
  for (float& x : a) x = float(random.small());
  for (float& x : b) x = float(random.small());
  std::vector<ushort> a_bits(a.size()), b_bits(size_t((FIRST + N) * K));
  for (int i = 0; i < 64; ++i)
    for (int k = 0; k < K; ++k)
      a_bits[A == kMnMajor ? k * 64 + i : i * K + k] = bits_of<T>(a[i * K + k]);
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < N; ++j)
      b_bits[B_MN_MAJOR ? k * (FIRST + N) + FIRST + j : j * K + k] = bits_of<T>(b[k * N + j]);
  const Memory<ushort> a_memory(a_bits), b_memory(b_bits);
  const Memory<float> d_memory(64 * N);
  const auto kernel = multiply<T, N, K, A, B_MN_MAJOR, FIRST>;
  const int bytes = 1024 + 64 * K * 2 + (FIRST + N + 63) / 64 * 64 * K * 2 + 64;
  sm90_test::must(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "cudaFuncSetAttribute");
  sm90_test::launch(kernel, 1, 128, bytes, a_memory.get(), b_memory.get(), d_memory.get());
  const std::vector<float> d = d_memory.read();
  int wrong = 0;
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < N; ++j) {
      float truth = 0;
      for (int k = 0; k < K; ++k) truth += a[i * K + k] * b[k * N + j];
      if (d[i * N + j] != truth && ++wrong == 1)
        MESSAGE("first at ", i, ",", j, ": ", d[i * N + j], " for ", truth);
    }
  CHECK(wrong == 0);
}

template <typename T, int N, int K>
void check_products() {
  check_product<T, N, K, kKMajor, 0>();
  check_product<T, N, K, kKMajor, 1>();
  check_product<T, N, K, kMnMajor, 0>();
  check_product<T, N, K, kMnMajor, 1>();
  check_product<T, N, K, kRegisters, 0>();
  check_product<T, N, K, kRegisters, 1>();
}

// ---- boxes --------------------------------------------------------------------------------------

// Copies a box, shows the shared memory as it lies, and stores the box to another tensor.
__global__ void through_box(const __grid_constant__ CUtensorMap from,
                            const __grid_constant__ CUtensorMap to, ushort* seen, int rows, int d,
                            int s, int h, int b, bool back) {
  unsigned char* at = aligned_memory();
  TANDEM_SHARED_ARRAY(uint64_t, barrier, 1);
  const uint barrier_at = shared_address(barrier);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier_at, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 32 && elect_one()) {
    mbarrier_arrive_expect_tx(barrier_at, rows * kPanelBytes);
    tma_load(shared_address(at), &from, barrier_at, d, s, h, b);
  }
  mbarrier_wait(barrier_at, 0);
  for (int n = int(threadIdx.x); n < rows * 64; n += int(blockDim.x))
    seen[n] = reinterpret_cast<const ushort*>(at)[n];
  __syncthreads();
  if (back && threadIdx.x < 32 && elect_one()) {
    tma_store(&to, shared_address(at), d, s, h, b);
    bulk_commit_group();
    bulk_wait_group<0>();
  }
}

// Each workgroup of a two-CTA cluster copies every other box to both, and shows all that it has.
__global__ void __cluster_dims__(2, 1, 1)
    through_multicast(const __grid_constant__ CUtensorMap from, ushort* seen, int rows, int boxes) {
  unsigned char* at = aligned_memory();
  TANDEM_SHARED_ARRAY(uint64_t, barrier, 1);
  const uint barrier_at = shared_address(barrier), rank = cluster_rank();
  const int bytes = rows * kPanelBytes;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier_at, 1);
    fence_mbarrier_init();
  }
  cluster_sync();
  if (threadIdx.x < 32 && elect_one()) {
    for (int n = int(rank); n < boxes; n += 2)
      tma_load_multicast(shared_address(at) + uint(n * bytes), &from, barrier_at, 0, n * rows, 0, 0,
                         3);
    mbarrier_arrive_expect_tx(barrier_at, boxes * bytes);
  }
  mbarrier_wait(barrier_at, 0);
  for (int n = int(threadIdx.x); n < boxes * rows * 64; n += int(blockDim.x))
    seen[int(rank) * boxes * rows * 64 + n] = reinterpret_cast<const ushort*>(at)[n];
  cluster_sync();
}

// Each workgroup of a two-CTA cluster sends numbers of its threads, and then a copy of what it got,
// to the other one.
__global__ void __launch_bounds__(128, 1) through_cluster(float* seen) {
  unsigned char* at = aligned_memory();
  const uint sent = shared_address(at), copied = sent + 128 * 16;
  TANDEM_SHARED_ARRAY(uint64_t, barriers, 2);
  const uint barrier = shared_address(barriers), rank = cluster_rank(), thread = threadIdx.x;
  if (thread == 0) {
    for (uint n = 0; n < 2; ++n) {
      mbarrier_init(barrier + 8 * n, 1);
      mbarrier_arrive_expect_tx(barrier + 8 * n, 128 * 16);
    }
    fence_mbarrier_init();
  }
  cluster_sync();
  const float x = float(1000 * rank + 4 * thread);
  st_async_cluster(cluster_address(sent + 16 * thread, rank ^ 1), x, x + 1.f, x + 2.f, x + 3.f,
                   cluster_address(barrier, rank ^ 1));
  mbarrier_wait(barrier, 0);
  for (uint n = 0; n < 4; ++n)
    seen[rank * 1024 + 4 * thread + n] = ld_shared_f32(sent + 16 * thread + 4 * n);
  __syncthreads();
  if (thread == 0)
    bulk_copy_cluster(cluster_address(copied, rank ^ 1), sent, 128 * 16,
                      cluster_address(barrier + 8, rank ^ 1));
  mbarrier_wait(barrier + 8, 0);
  for (uint n = 0; n < 4; ++n)
    seen[rank * 1024 + 512 + 4 * thread + n] = ld_shared_f32(copied + 16 * thread + 4 * n);
  cluster_sync();
}

__device__ uint at_of(int row, int piece) { return swizzle_128b(row, piece); }
__global__ void panel_table(uint* to) {
  to[threadIdx.x * 8 + blockIdx.x] = at_of(int(threadIdx.x), int(blockIdx.x));
}

// ---- moves of matrices --------------------------------------------------------------------------

// Where lane `lane` points for four matrices that are the 16 x 16 elements from (row, col) on: as
// accumulators lie.
TANDEM_DEVICE uint matrices_at(uint panel, int row, int col) {
  const int lane = int(threadIdx.x) % 32;
  return panel + swizzle_128b(row + lane % 16, col / 8 + lane / 16);
}

__global__ void move_matrices(const ushort* from, uint* loaded, uint* turned, ushort* stored,
                              ushort* stored_turned) {
  unsigned char* at = aligned_memory();
  const uint panel = shared_address(at), second = panel + 16 * kPanelBytes,
             third = second + 64 * kPanelBytes;
  const int lane = int(threadIdx.x);
  put_panels(at, from, 16, 64);
  __syncthreads();
  for (int k = 0; k < 4; ++k) {
    uint r[4], t[4];
    ldmatrix_x4(r, matrices_at(panel, 0, 16 * k));
    ldmatrix_x4_trans(t, matrices_at(panel, 0, 16 * k));
    for (int i = 0; i < 4; ++i) {
      loaded[(k * 4 + i) * 32 + lane] = r[i];
      turned[(k * 4 + i) * 32 + lane] = t[i];
    }
    stmatrix_x4(matrices_at(second, 0, 16 * k), r);
    // The transposed of these 16 columns: rows 16 k and on of the third tile. Matrix 1 and 2 change
    // places.
    const uint turned_r[4] = {r[0], r[2], r[1], r[3]};
    stmatrix_x4_trans(matrices_at(third, 16 * k, 0), turned_r);
  }
  __syncthreads();
  for (int n = lane; n < 16 * 64; n += 32) {
    const int row = n / 64, f = n % 64;
    stored[n] = *reinterpret_cast<const ushort*>(at + 16 * kPanelBytes + swizzle_128b(row, f / 8) +
                                                 f % 8 * 2);
    stored_turned[n] = *reinterpret_cast<const ushort*>(at + 80 * kPanelBytes +
                                                        swizzle_128b(f, row / 8) + row % 8 * 2);
  }
}

// ---- barriers and sums --------------------------------------------------------------------------

// Three groups in turn append their number, as the warpgroups of fwd take turns.
__global__ void take_turns(int* order, int rounds) {
  TANDEM_SHARED_ARRAY(int, count, 1);
  const int group = int(threadIdx.x) / 128;
  if (threadIdx.x == 0) *count = 0;
  __syncthreads();
  if (group == 2) named_barrier_arrive(1, 256);
  for (int n = 0; n < rounds; ++n) {
    named_barrier_sync(1 + group, 256);
    if (threadIdx.x % 128 == 0) order[(*count)++] = group;
    __threadfence_block();
    named_barrier_arrive(1 + (group + 1) % 3, 256);
  }
}

// Each thread adds four floats to four that the threads of its index modulo 8 share.
__global__ void add_fours(float* to) {
  const float x = float(threadIdx.x);
  red_add_v4_f32(reinterpret_cast<uint64_t>(to + 4 * (threadIdx.x % 8)),
                 make_float4(x, 1.f, -x, 0.5f));
}

// Each thread adds two floats to two that the threads of its index modulo 8 share.
__global__ void add_twos(float* to) {
  red_add_v2_f32(reinterpret_cast<uint64_t>(to + 2 * (threadIdx.x % 8)), float(threadIdx.x), 0.5f);
}

// Each thread copies the first bytes of its 16, as many as its index modulo 17.
__global__ void copy_parts(const uint* from, uint* to) {
  TANDEM_SHARED_ARRAY(uint4, tile, 128);
  const int thread = int(threadIdx.x);
  const uint own = shared_address(tile + thread);
  cp_async_16(own, from + 4 * thread, thread % 17);
  cp_async_commit_group();
  cp_async_wait_group<0>();
  for (int i = 0; i < 4; ++i) to[4 * thread + i] = ld_shared_u32(own + 4 * uint(i));
}

// The numbers above 3: a list; another one with their index, 16 bits at half of the distance.
__global__ void append_numbers(const float* from, uint* to, int count) {
  TANDEM_SHARED_ARRAY(uint, lists, 64);
  const uint first = shared_address(lists), second = first + 64, words = first + 128;
  for (int i = 0; i < 64; ++i) st_shared(first + 4 * uint(i), 0u);
  uint plain = first, indexed = second;
  for (int i = 0; i < count; ++i) {
    append_above<4>(plain, from[i], 3.f);
    append_above<4>(indexed, from[i], 3.f, words - second / 2, uint(i));
  }
  for (int i = 0; i < 64; ++i) to[i] = ld_shared_u32(first + 4 * uint(i));
}

// Through two stages of shared memory, flat: a thread copies, a warpgroup doubles, a thread adds to
// the sums, and copies.
__global__ void stages(const float* from, float* to, float* doubled, int steps) {
  unsigned char* at = aligned_memory();
  float* tile = reinterpret_cast<float*>(at);  // 2 stages of 128, and 128 to add
  TANDEM_SHARED_ARRAY(uint64_t, barriers, 4);
  const auto barrier = [&](int n) { return shared_address(&barriers[n]); };
  if (threadIdx.x == 0) {
    for (int n = 0; n < 4; ++n) mbarrier_init(barrier(n), n < 2 ? 1 : 128);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 128) {
    for (int n = 0; n < steps; ++n) {
      mbarrier_wait(barrier(2 + n % 2), (n / 2 & 1) ^ 1);
      mbarrier_arrive_expect_tx(barrier(n % 2), 512);
      bulk_load(shared_address(tile + n % 2 * 128), from + n * 128, barrier(n % 2), 512);
    }
  } else if (threadIdx.x < 128) {
    for (int n = 0; n < steps; ++n) {
      mbarrier_wait(barrier(n % 2), n / 2 & 1);
      tile[256 + threadIdx.x] = 2 * tile[n % 2 * 128 + threadIdx.x];
      mbarrier_arrive(barrier(2 + n % 2));
      fence_proxy_async_shared();
      named_barrier_sync<1>(128);
      if (threadIdx.x == 0) {
        bulk_reduce_add(to, shared_address(tile + 256), 512);
        bulk_store(reinterpret_cast<uint64_t>(doubled + n * 128), shared_address(tile + 256), 512);
        bulk_commit_group();
        bulk_wait_group_read<0>();
      }
      named_barrier_sync<1>(128);
    }
    if (threadIdx.x == 0) bulk_wait_group<0>();
  }
}

}  // namespace

TEST_CASE("products: every layout, widths and panels, f16 and bf16") {
  check_products<Half, 64, 64>();
  check_products<Bfloat, 64, 128>();
  check_products<Bfloat, 128, 64>();
  check_products<Half, 128, 128>();
  check_products<Bfloat, 256, 64>();
  check_products<Half, 192, 64>();
  check_products<Bfloat, 96, 192>();
  check_products<Bfloat, 80, 64>();
  check_products<Bfloat, 112, 64>();
  check_products<Half, 176, 64>();
  check_products<Bfloat, 160, 64>();
  check_products<Half, 32, 128>();
  // The second half of a panel, as dQ of 64 rows and 64 features has it.
  check_product<Half, 32, 128, kKMajor, 1, 32>();
  check_product<Bfloat, 32, 128, kKMajor, 1, 32>();
}

TEST_CASE("boxes: order of pieces, zeros outside, and back") {
  // 100 features of 40 rows, 3 heads, 2 batches; rows 104 apart, heads and batches with gaps
  const sm90_test::Shape4 shape{{100, 40, 3, 2}, {104, 104 * 41, 104 * 41 * 3 + 8}};
  const size_t count = 2 * (104 * 41 * 3 + 8);
  std::vector<ushort> data(count);
  for (size_t n = 0; n < count; ++n) data[n] = ushort(n * 40503u >> 3 & 0x7fff);
  const Memory<ushort> from(data), to(std::vector<ushort>(count, 0xabcd));
  constexpr int rows = 24;
  const CUtensorMap from_map = sm90_test::make_map(from.get(), shape, rows);
  // Stores go by whole 16 bytes: with 100 features they would write 104.
  sm90_test::Shape4 to_shape = shape;
  to_shape.size[0] = 96;
  const CUtensorMap to_map = sm90_test::make_map(to.get(), to_shape, rows);
  const Memory<uint> table_memory(rows * 8);
  sm90_test::launch(panel_table, 8, rows, 0, table_memory.get());
  const std::vector<uint> table = table_memory.read();
  std::vector<ushort> expected_to(count, 0xabcd);
  int wrong = 0;
  for (int b = 0; b < 2; ++b)
    for (int d : {0, 64})
      for (int s : {0, 24, 32, -8}) {
        const int h = b == 0 ? 2 : 1;
        const Memory<ushort> seen_memory(rows * 64);
        sm90_test::launch(through_box, 1, 64, 8192, from_map, to_map, seen_memory.get(), rows, d, s,
                          h, b, s >= 0);
        const std::vector<ushort> seen = seen_memory.read();
        for (int i = 0; i < rows; ++i)
          for (int f = 0; f < 64; ++f) {
            const bool inside = d + f < 100 && s + i >= 0 && s + i < 40;
            const int64_t at =
                b * int64_t(shape.stride[2]) + h * int64_t(shape.stride[1]) + (s + i) * 104 + d + f;
            if (inside && d + f < 96 && s >= 0) expected_to[size_t(at)] = data[size_t(at)];
            const ushort expected = inside ? data[size_t(at)] : ushort(0);
            wrong += seen[table[size_t(i * 8 + f / 8)] / 2 + size_t(f % 8)] != expected;
          }
      }
  CHECK(wrong == 0);
  const std::vector<ushort> stored = to.read();
  int different = 0;
  for (size_t n = 0; n < count; ++n)
    if (stored[n] != expected_to[n] && ++different == 1)
      MESSAGE("first at ", n, ": ", stored[n], " for ", expected_to[n]);
  CHECK(different == 0);
}

TEST_CASE("boxes: to both workgroups of a cluster") {
  constexpr int rows = 8, boxes = 5;
  const sm90_test::Shape4 shape{{64, rows * boxes, 1, 1},
                                {64, 64 * rows * boxes, 64 * rows * boxes}};
  std::vector<ushort> data(64 * rows * boxes);
  for (size_t n = 0; n < data.size(); ++n) data[n] = ushort(n * 40503u >> 3 & 0x7fff);
  const Memory<ushort> from(data), seen_memory(2 * data.size());
  const CUtensorMap map = sm90_test::make_map(from.get(), shape, rows);
  const Memory<uint> table_memory(rows * 8);
  sm90_test::launch(panel_table, 8, rows, 0, table_memory.get());
  const std::vector<uint> table = table_memory.read();
  sm90_test::launch_clusters(2, through_multicast, 2, 64, 8192, map, seen_memory.get(), rows,
                             boxes);
  const std::vector<ushort> seen = seen_memory.read();
  int wrong = 0;
  for (size_t n = 0; n < seen.size(); ++n) {
    const size_t box = n / 64 / rows * rows * 64, row = n / 64 % rows, f = n % 64;
    wrong += seen[box + table[row * 8 + f / 8] / 2 + f % 8] != data[n % data.size()];
  }
  CHECK(wrong == 0);
}

TEST_CASE("words and copies between workgroups of a cluster") {
  const Memory<float> seen_memory(2 * 1024);
  sm90_test::launch_clusters(2, through_cluster, 2, 128, 2 * 128 * 16, seen_memory.get());
  const std::vector<float> seen = seen_memory.read();
  int wrong = 0;
  for (int rank = 0; rank < 2; ++rank)
    for (int n = 0; n < 512; ++n) {
      wrong += seen[size_t(1024 * rank + n)] != float(1000 * (1 - rank) + n);
      wrong += seen[size_t(1024 * rank + 512 + n)] != float(1000 * rank + n);  // there and back
    }
  CHECK(wrong == 0);
}

TEST_CASE("8 x 8 matrices: as accumulators lie, there and back, transposed") {
  std::vector<ushort> data(16 * 64);
  for (size_t n = 0; n < data.size(); ++n) data[n] = ushort(n);
  const Memory<ushort> from(data), stored(16 * 64), stored_turned(16 * 64);
  const Memory<uint> loaded_memory(16 * 32), turned_memory(16 * 32);
  sm90_test::launch(move_matrices, 1, 32, 20480, from.get(), loaded_memory.get(),
                    turned_memory.get(), stored.get(), stored_turned.get());
  const std::vector<uint> loaded = loaded_memory.read(), turned = turned_memory.read();
  int wrong = 0;
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 4; ++i)
      for (int lane = 0; lane < 32; ++lane)
        for (int c = 0; c < 2; ++c) {
          const int row = lane / 4 + i % 2 * 8, col = 16 * k + i / 2 * 8 + lane % 4 * 2 + c;
          wrong +=
              int(loaded[size_t((k * 4 + i) * 32 + lane)] >> 16 * c & 0xffff) != row * 64 + col;
          // Transposed matrix by matrix: what is at (x, y) of a matrix comes from (y, x).
          const int from_row = i % 2 * 8 + lane % 4 * 2 + c,
                    from_col = 16 * k + i / 2 * 8 + lane / 4;
          wrong += int(turned[size_t((k * 4 + i) * 32 + lane)] >> 16 * c & 0xffff) !=
                   from_row * 64 + from_col;
        }
  CHECK(wrong == 0);
  CHECK(stored.read() == data);
  CHECK(stored_turned.read() == data);
}

TEST_CASE("named barriers: groups in turn") {
  constexpr int rounds = 50;
  const Memory<int> order_memory(3 * rounds);
  sm90_test::launch(take_turns, 1, 384, 0, order_memory.get(), rounds);
  const std::vector<int> order = order_memory.read();
  int wrong = 0;
  for (int n = 0; n < 3 * rounds; ++n) wrong += order[size_t(n)] != n % 3;
  CHECK(wrong == 0);
}

TEST_CASE("stages: flat copies behind mbarriers, sums into global memory and copies to it") {
  constexpr int steps = 37;
  std::vector<float> data(steps * 128), expected(128, 5.f), expected_doubled;
  for (size_t n = 0; n < data.size(); ++n) {
    data[n] = float(n % 251);
    expected[n % 128] += 2 * data[n];
    expected_doubled.push_back(2 * data[n]);
  }
  const Memory<float> from(data), to(std::vector<float>(128, 5.f)), doubled(data.size());
  sm90_test::launch(stages, 1, 160, 4096, from.get(), to.get(), doubled.get(), steps);
  CHECK(to.read() == expected);
  CHECK(doubled.read() == expected_doubled);
}

TEST_CASE("sums of four floats in global memory") {
  std::vector<float> expected(32, 3.f);
  for (int n = 0; n < 64; ++n) {
    const float x[4] = {float(n), 1.f, -float(n), 0.5f};
    for (int k = 0; k < 4; ++k) expected[4 * (n % 8) + k] += x[k];
  }
  const Memory<float> to(std::vector<float>(32, 3.f));
  sm90_test::launch(add_fours, 1, 64, 1024, to.get());
  CHECK(to.read() == expected);
}

TEST_CASE("sums of two floats in global memory") {
  std::vector<float> expected(16, 3.f);
  for (int n = 0; n < 64; ++n) expected[2 * (n % 8)] += float(n), expected[2 * (n % 8) + 1] += 0.5f;
  const Memory<float> to(std::vector<float>(16, 3.f));
  sm90_test::launch(add_twos, 1, 64, 1024, to.get());
  CHECK(to.read() == expected);
}

TEST_CASE("cp.async: of 16 bytes the first ones, zeros behind them") {
  std::vector<uint32_t> data(128 * 4), expected(128 * 4);
  for (size_t n = 0; n < data.size(); ++n) data[n] = uint32_t(n) * 2654435761u;
  for (size_t n = 0; n < 128; ++n) std::memcpy(&expected[4 * n], &data[4 * n], n % 17);
  const Memory<uint32_t> from(data), to(data.size());
  sm90_test::launch(copy_parts, 1, 128, 1024, from.get(), to.get());
  CHECK(to.read() == expected);
}

TEST_CASE("lists: what is above a bound, and its index") {
  const std::vector<float> data = {1, 4, 3, -5, 7, 3.5f};
  std::vector<uint32_t> expected(64);
  int n = 0;
  for (size_t i = 0; i < data.size(); ++i)
    if (data[i] > 3) {
      std::memcpy(&expected[n], &data[i], 4);
      expected[16 + n] = expected[n];
      expected[32 + n / 2] |= uint32_t(i) << (16 * (n % 2));
      ++n;
    }
  const Memory<float> from(data);
  const Memory<uint32_t> to(64);
  sm90_test::launch(append_numbers, 1, 1, 1024, from.get(), to.get(), int(data.size()));
  CHECK(to.read() == expected);
}

int main(int argc, char** argv) {
  if (!sm90_test::has_hopper()) {
    std::printf("skipped: no GPU of compute capability 9.0\n");
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
