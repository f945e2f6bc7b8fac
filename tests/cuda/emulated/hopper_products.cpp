// SPDX-License-Identifier: MIT OR Apache-2.0
// The products of hopper_engine.h. A product is given when all 128 threads of a warpgroup have come
// to it, and carried out then, or when one of them waits for it; in the order in which they were
// given.
#include <cmath>

#include "hopper_state.h"

namespace simt {
namespace hopper {
namespace {

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

// Sixteen-bit numbers as f32, COUNT of them.
template <int COUNT>
void decode(Type type, const unsigned short* from, float* to) {
  if (type == Type::bfloat) {
    for (int n = 0; n < COUNT; ++n) {
      const uint32_t x = uint32_t(from[n]) << 16;
      std::memcpy(to + n, &x, 4);
    }
    return;
  }
  for (int n = 0; n < COUNT; ++n) {
    // The exponent's bias by a product, which also makes what is subnormal right; then infinity and
    // NaN.
    const uint32_t h = from[n], magnitude = (h & 0x7fff) << 13;
    float x;
    std::memcpy(&x, &magnitude, 4);
    x *= 0x1p112f;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits |= (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
    bits |= (h & 0x8000) << 16;
    std::memcpy(to + n, &bits, 4);
  }
}

// Where the pieces of an operand lie, by its descriptor (cuda/sm90/ptx/wgmma.cuh): rows of 128
// bytes, eight of them 1,024 bytes, the next 64 elements across a stride away; the pieces of a row
// in the order of SWIZZLE_128B, which goes by addresses.
struct Tile {
  unsigned at, stride;
  explicit Tile(uint64_t descriptor)
      : at(unsigned(descriptor & 0x3fff) << 4), stride(unsigned(descriptor >> 16 & 0x3fff) << 4) {
    if (descriptor >> 62 != 1 || (descriptor >> 32 & 0x3fff) != 1024 >> 4)
      die("a descriptor of another layout than a panel's");
  }
  const unsigned short* piece(Block& block, unsigned offset) const {
    const unsigned address = at + offset;
    return reinterpret_cast<const unsigned short*>(block.at(address ^ (address >> 3 & 0x70), 16));
  }
};

// Along: rows x 16 numbers of k. Across: 16 x columns.
void read_along(Block& block, Type type, uint64_t descriptor, int rows, float* to) {
  const Tile tile(descriptor);
  for (int row = 0; row < rows; ++row)
    for (int half = 0; half < 2; ++half)
      decode<8>(type, tile.piece(block, unsigned(row * 128 + half * 16)), to + row * 16 + half * 8);
}
void read_across(Block& block, Type type, uint64_t descriptor, int columns, float* to) {
  const Tile tile(descriptor);
  for (int k = 0; k < 16; ++k)
    for (int c = 0; c < columns; c += 8)
      decode<8>(type,
                tile.piece(block, unsigned(c / 64) * tile.stride + unsigned(k * 128 + c % 64 * 2)),
                to + k * columns + c);
}

// Columns j to j + 8 EIGHTS of d += a b: 64 x 16 times 16 x width. A product of two 16-bit numbers
// is exact in f32.
template <int EIGHTS>
void multiply_add(float* d, const float* a, const float* b, int width, int j) {
  constexpr int kRows = 4;
  for (int i = 0; i < 64; i += kRows) {
    Eight sum[kRows][EIGHTS];
    for (int r = 0; r < kRows; ++r)
      for (int n = 0; n < EIGHTS; ++n)
        sum[r][n] = *reinterpret_cast<const Eight*>(d + (i + r) * width + j + 8 * n);
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < EIGHTS; ++n) {
        const Eight column = *reinterpret_cast<const Eight*>(b + k * width + j + 8 * n);
        for (int r = 0; r < kRows; ++r) sum[r][n] += a[(i + r) * 16 + k] * column;
      }
    for (int r = 0; r < kRows; ++r)
      for (int n = 0; n < EIGHTS; ++n)
        *reinterpret_cast<Eight*>(d + (i + r) * width + j + 8 * n) = sum[r][n];
  }
}
void multiply_add(float* d, const float* a, const float* b, int width) {
  int j = 0;
  for (; j + 16 <= width; j += 16) multiply_add<2>(d, a, b, width, j);
  if (j < width) multiply_add<1>(d, a, b, width, j);
}

void carry_out(Block& block, const Multiplication& m) {
  const Operands& o = m.operands;
  alignas(32) static float a[64 * 16], b[16 * 256], turned[16 * 256];
  if (o.rs) {
    for (int t = 0; t < 128; ++t) {
      const int row = t / 32 * 16 + t % 32 / 4, k = t % 4 * 2;
      for (int n = 0; n < 4; ++n) {
        const unsigned word = m.registers[size_t(4 * t + n)];
        const unsigned short two[2] = {static_cast<unsigned short>(word),
                                       static_cast<unsigned short>(word >> 16)};
        decode<2>(o.type, two, a + (row + n % 2 * 8) * 16 + k + n / 2 * 8);
      }
    }
  } else if (o.a_mn_major) {
    read_across(block, o.type, o.a, 64, turned);
    for (int k = 0; k < 16; ++k)
      for (int i = 0; i < 64; ++i) a[i * 16 + k] = turned[k * 64 + i];
  } else {
    read_along(block, o.type, o.a, 64, a);
  }
  if (o.b_mn_major) {
    read_across(block, o.type, o.b, o.width, b);
  } else {
    read_along(block, o.type, o.b, o.width, turned);
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < o.width; ++j) b[k * o.width + j] = turned[j * 16 + k];
  }
  float* d = m.to->x.data();
  if (!o.adds) std::fill_n(d, 64 * o.width, 0.f);
  multiply_add(d, a, b, o.width);
}

// Products up to that number, which all threads have given.
void carry_out_to(Block& block, Warpgroup& group, uint64_t end) {
  while (group.done < end) {
    carry_out(block, group.products.front());
    group.products.pop_front();
    ++group.first, ++group.done;
  }
}

// Of thread t the element i of accumulators: where it is in 64 rows.
int place_of(int t, int i, int width) {
  return (t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8) * width + i / 4 * 8 + t % 4 * 2 + i % 2;
}

}  // namespace

void multiply(float* d, const Operands& o, const unsigned* registers) {
  State& s = state();
  const unsigned thread = running()->index;
  Lane& lane = s.lanes[thread];
  Warpgroup& group = s.groups[thread / 128];
  const int t = int(thread % 128);
  const uint64_t number = lane.given++;
  if (number - group.first == group.products.size()) {
    group.products.push_back({o, nullptr, 0, lot(2), {}});
    if (o.rs) group.products.back().registers.resize(4 * 128);
  }
  Multiplication& m = group.products[size_t(number - group.first)];
  if (!(m.operands == o)) die("threads of a warpgroup give different products");
  if (registers) std::copy_n(registers, 4, m.registers.begin() + 4 * t);

  auto held =
      std::find_if(lane.held.begin(), lane.held.end(), [&](const Held& h) { return h.d == d; });
  if (held == lane.held.end()) {
    if (!m.to) {
      m.to = std::make_shared<Accumulators>();
      m.to->width = o.width;
      m.to->x.resize(size_t(64 * o.width));
    }
    for (int i = 0; i < o.width / 2; ++i) {
      if (o.adds) m.to->x[size_t(place_of(t, i, o.width))] = d[i];
      std::memset(d + i, 0xff, 4);
    }
    lane.held.push_back({d, m.to, number});
  } else {
    if (!m.to) m.to = held->x;
    if (m.to != held->x || m.to->width != o.width)
      die("threads of a warpgroup give products to different accumulators");
    held->last = number;
  }
  if (++m.came < 128) return;
  group.come = number + 1;
  ++progress();
  if (m.early) carry_out_to(Block::current(), group, group.come);
}

void wgmma_commit_group() {
  Lane& lane = state().lanes[running()->index];
  lane.groups.push_back(lane.given);
}

void wgmma_wait_group(unsigned left) {
  const unsigned thread = running()->index;
  Lane& lane = state().lanes[thread];
  Warpgroup& group = state().groups[thread / 128];
  uint64_t end = 0;
  while (lane.groups.size() > left) end = lane.groups.front(), lane.groups.pop_front();
  if (end == 0) return;
  wait_until([&] { return group.come >= end; },
             "the other threads of its warpgroup to give a product");
  carry_out_to(Block::current(), group, end);
  const int t = int(thread % 128);
  for (size_t n = 0; n < lane.held.size();) {
    const Held& h = lane.held[n];
    if (h.last >= end) {
      ++n;
      continue;
    }
    for (int i = 0; i < h.x->width / 2; ++i) {
      const float x = h.x->x[size_t(place_of(t, i, h.x->width))];
      h.d[i] = x;
      if (x != x) {  // as tensor cores have it, without a sign
        const uint32_t nan = 0x7fffffff;
        std::memcpy(h.d + i, &nan, 4);
      }
    }
    lane.held.erase(lane.held.begin() + ptrdiff_t(n));
  }
}

void products_end(const Block& block, const Thread& thread) {
  const Lane& lane = block.hopper->lanes[thread.index];
  if (!lane.held.empty()) die("a thread ends with products on their way");
}

}  // namespace hopper
}  // namespace simt
