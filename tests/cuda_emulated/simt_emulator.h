// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs the sources in cuda/ as plain C++: each thread of a block is a fiber that runs to its next barrier
// or shuffle. Slow, exact, and without a GPU: wrong indices, missing barriers and divergent barriers show
// here. What it cannot show: timing, registers, memory ordering inside a warp.
//
// The order in which threads run between two barriers is a setting. A kernel that lacks a barrier gives
// other results in another order.
#ifndef TANDEM_TESTS_SIMT_EMULATOR_H
#define TANDEM_TESTS_SIMT_EMULATOR_H
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace simt {

enum class Order { forward, backward, shuffled };
struct Settings {
  Order order = Order::forward;
  unsigned long long blocks_run = 0;
};
inline Settings& settings() {
  static Settings s;
  return s;
}

// A thread's copies on their way to shared memory, in groups.
struct Copies {
  struct Chunk {
    unsigned char* to;
    unsigned char data[16];
  };
  std::vector<Chunk> open;
  std::vector<std::vector<Chunk>> groups;
};

class Block {
 public:
  Block(unsigned threads, size_t shared_bytes)
      : shared_bytes_(shared_bytes), shared_(new unsigned char[shared_bytes + kGuard + 16]) {
    threads_.resize(threads);
    warps_.resize((threads + 31) / 32);
    for (Thread& t : threads_) t.stack.reset(new char[kStack]);
    for (unsigned i = 0; i < threads; ++i) order_.push_back(i);
  }

  // body() is run by every thread.
  template <typename Body>
  void run(const Body& body) {
    // Shared memory starts as NaN, with a guard behind it.
    std::memset(shared_.get(), 0xff, shared_bytes_ + kGuard + 16);
    live_ = unsigned(threads_.size());
    arrived_ = 0;
    any_[0] = any_[1] = 0;
    for (Warp& w : warps_) w.arrived = 0;
    struct Entry {
      static void start(unsigned high, unsigned low) {
        const Body& b = *reinterpret_cast<const Body*>(uintptr_t(high) << 32 | low);
        b();
        Block& block = *current();
        if (!block.copies().open.empty() || !block.copies().groups.empty())
          die("a thread ends with copies on their way");
        block.threads_[block.running_].done = true;
        --block.live_;
        block.release();
        for (;;) block.yield();
      }
    };
    const uintptr_t address = reinterpret_cast<uintptr_t>(&body);
    for (Thread& t : threads_) {
      t.done = t.begun = false;
      getcontext(&t.context);
      t.context.uc_stack.ss_sp = t.stack.get();
      t.context.uc_stack.ss_size = kStack;
      t.context.uc_link = nullptr;
      makecontext(&t.context, reinterpret_cast<void (*)()>(&Entry::start), 2,
                  unsigned(uint64_t(address) >> 32), unsigned(address));
    }
    current() = this;
    while (live_ > 0) {
      const Order order = settings().order;
      if (order == Order::backward) std::sort(order_.rbegin(), order_.rend());
      if (order == Order::forward) std::sort(order_.begin(), order_.end());
      if (order == Order::shuffled) std::shuffle(order_.begin(), order_.end(), random_);
      const unsigned long long before = progress_;
      for (unsigned i : order_) {
        if (threads_[i].done) continue;
        running_ = i;
        resume();
      }
      if (progress_ == before) die("threads of a block wait for each other: a divergent barrier");
    }
    current() = nullptr;
    for (size_t i = 0; i < kGuard; ++i)
      if (shared()[shared_bytes_ + i] != 0xff) die("a write past the block's shared memory");
    ++settings().blocks_run;
  }

  void barrier() {
    const unsigned long long mine = generation_;
    ++arrived_;
    release();
    while (generation_ == mine) yield();
  }
  // The others have read what the barrier before the last one left when its flag is used again.
  int barrier_or(int x) {
    const unsigned long long mine = generation_;
    if (x) any_[mine % 2] = 1;
    barrier();
    return any_[mine % 2];
  }
  // What all lanes of the warp brought, once they have; to be read before the next exchange but one.
  template <typename T>
  const T* exchange(const T& mine) {
    static_assert(sizeof(T) <= kSlot, "a lane's share");
    Warp& w = warps_[running_ / 32];
    const unsigned now = w.generation;
    unsigned char* all = w.value[now % 2];
    std::memcpy(all + running_ % 32 * sizeof(T), &mine, sizeof(T));
    if (++w.arrived == std::min(32u, unsigned(threads_.size()) - running_ / 32 * 32)) {
      w.arrived = 0;
      ++w.generation;
      ++progress_;
    }
    while (w.generation == now) yield();
    return reinterpret_cast<const T*>(all);
  }
  float shuffle_xor(float x, int lanes) { return exchange(x)[running_ % 32 ^ unsigned(lanes)]; }
  Copies& copies() { return threads_[running_].copies; }
  size_t shared_bytes() const { return shared_bytes_; }
  unsigned char* shared() const {
    return shared_.get() + (16 - reinterpret_cast<uintptr_t>(shared_.get()) % 16) % 16;
  }
  unsigned thread() const { return running_; }
  [[noreturn]] static void die(const char* why) {
    std::fprintf(stderr, "simt_emulator: %s\n", why);
    std::abort();
  }
  static Block*& current() {
    static Block* block = nullptr;
    return block;
  }

 private:
  static constexpr size_t kStack = 256 * 1024, kGuard = 4096, kSlot = 64;
  struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    jmp_buf at;
    bool begun = false, done = false;
    Copies copies;
  };
  struct Warp {
    alignas(16) unsigned char value[2][32 * kSlot];
    unsigned arrived = 0, generation = 0;
  };
  // A thread's first step is by its context, all others are by jumps, which do not ask the system for the signal mask:
  // with swapcontext() that was half of the tests' time.
  void resume() {
    Thread& t = threads_[running_];
    if (_setjmp(main_)) return;
    if (t.begun) _longjmp(t.at, 1);
    t.begun = true;
    setcontext(&t.context);
  }
  void yield() {
    if (!_setjmp(threads_[running_].at)) _longjmp(main_, 1);
  }
  void release() {
    if (live_ == 0 || arrived_ == live_) ++progress_;
    if (arrived_ == 0 || arrived_ != live_) return;
    arrived_ = 0;
    ++generation_;
    any_[generation_ % 2] = 0;
  }

  size_t shared_bytes_;
  std::unique_ptr<unsigned char[]> shared_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;
  std::minstd_rand random_;
  jmp_buf main_;
  unsigned running_ = 0, live_ = 0, arrived_ = 0;
  unsigned long long generation_ = 0, progress_ = 0;
  int any_[2] = {};
};

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct ThreadIndex {  // reads as threadIdx
  struct X {
    operator unsigned() const { return Block::current()->thread(); }
  } x;
};
inline Index& block_index() {
  static Index i;
  return i;
}
inline dim3& grid_size() {
  static dim3 d;
  return d;
}
inline void* shared() { return Block::current()->shared(); }

template <typename P>
void launch(void (*kernel)(P), dim3 grid, dim3 threads, size_t shared_bytes, const P& params) {
  Block block(threads.x, shared_bytes);
  grid_size() = grid;
  const auto body = [&] { kernel(params); };
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      block_index().x = x, block_index().y = y;
      block.run(body);
    }
}

}  // namespace simt

#define threadIdx (::simt::ThreadIndex{})
#define blockIdx (::simt::block_index())
#define gridDim (::simt::grid_size())
#define __syncthreads() (::simt::Block::current()->barrier())
#define __syncthreads_or(x) (::simt::Block::current()->barrier_or(x))
#define __shfl_xor_sync(mask, x, lanes) (::simt::Block::current()->shuffle_xor(x, lanes))

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
inline float __fmul_rn(float x, float y) {
  volatile float r = x * y;  // volatile: no contraction with what follows
  return r;
}
inline float __fadd_rn(float x, float y) {
  volatile float r = x + y;
  return r;
}
inline float __fsub_rn(float x, float y) {
  volatile float r = x - y;
  return r;
}
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __uint_as_float(unsigned u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline unsigned __float_as_uint(float f) {
  unsigned u;
  std::memcpy(&u, &f, 4);
  return u;
}

// ---- 16-bit types as bits, rounded to nearest even ----
struct __half {
  unsigned short bits;
};
struct __nv_bfloat16 {
  unsigned short bits;
};
inline __half __ushort_as_half(unsigned short u) { return {u}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
inline float __half2float(__half h) {
  const int exponent = h.bits >> 10 & 31, fraction = h.bits & 1023;
  float x;
  if (exponent == 31)
    x = fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else
    x = exponent ? std::ldexp(float(1024 + fraction), exponent - 25)
                 : std::ldexp(float(fraction), -24);
  return h.bits & 0x8000 ? -x : x;
}
inline __half __float2half_rn(float x) {
  const unsigned sign = __float_as_uint(x) >> 16 & 0x8000;
  const float a = std::fabs(x);
  unsigned bits;
  if (a != a)
    bits = 0x7fff;
  else if (a >= 65520.f)
    bits = 0x7c00;
  else if (a < 6.103515625e-05f)  // subnormal: nearbyint rounds to even
    bits = unsigned(std::nearbyint(std::ldexp(a, 24)));
  else {
    int exponent;
    const float fraction = std::frexp(a, &exponent);  // [0.5, 1): 11 bits are kept
    bits = unsigned(std::nearbyint(std::ldexp(fraction, 11))) + (unsigned(exponent + 13) << 10);
  }
  return {static_cast<unsigned short>(sign | bits)};
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  unsigned u = __float_as_uint(x);
  if (x != x) return {0x7fff};
  u += 0x7fff + (u >> 16 & 1);
  return {static_cast<unsigned short>(u >> 16)};
}
#endif
