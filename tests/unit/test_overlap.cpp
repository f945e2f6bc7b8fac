// SPDX-License-Identifier: MIT OR Apache-2.0
// Footprints of tensors, and whether two share a byte, against the bytes one by one.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/overlap.h"

using namespace tandem;

namespace {

using Four = std::array<int64_t, 4>;

std::vector<bool> bytes_of(uint64_t element, const Four& size, const Four& stride) {
  int64_t last = 0;
  for (size_t n = 0; n < 4; ++n) {
    if (size[n] == 0) return {};
    last += (size[n] - 1) * stride[n];
  }
  std::vector<bool> bytes((size_t(last) + 1) * element);
  for (int64_t b = 0; b < size[0]; ++b)
    for (int64_t h = 0; h < size[1]; ++h)
      for (int64_t s = 0; s < size[2]; ++s)
        for (int64_t d = 0; d < size[3]; ++d)
          for (uint64_t n = 0; n < element; ++n)
            bytes[uint64_t(b * stride[0] + h * stride[1] + s * stride[2] + d * stride[3]) *
                      element +
                  n] = true;
  return bytes;
}

std::vector<bool> bytes_of(const Footprint& f) {
  std::vector<bool> bytes(f.extent);
  const auto dim = [&](int n) { return n < f.dims ? f.dim[size_t(n)] : Footprint::Dim{0, 1}; };
  for (uint64_t a = 0; a < dim(0).count; ++a)
    for (uint64_t b = 0; b < dim(1).count; ++b)
      for (uint64_t c = 0; c < dim(2).count; ++c)
        for (uint64_t d = 0; d < dim(3).count; ++d)
          for (uint64_t n = 0; n < f.run; ++n)
            bytes[a * dim(0).stride + b * dim(1).stride + c * dim(2).stride + d * dim(3).stride +
                  n] = true;
  return bytes;
}

class Layouts {
 public:
  explicit Layouts(unsigned seed) : random_(seed) {}
  int64_t below(int64_t n) { return int64_t(random_() % uint64_t(n)); }
  // Most nest, with or without gaps, in a random order of dimensions; the others are any.
  void draw(Four* size, Four* stride) {
    int order[4] = {0, 1, 2, 3};
    std::shuffle(order, order + 4, random_);
    int64_t below_it = 1;
    const bool any = below(4) == 0;
    for (int n : order) {
      (*size)[size_t(n)] = below(40) == 0 ? 0 : 1 + below(4);
      (*stride)[size_t(n)] = any ? below(20) : below_it + (below(3) == 0 ? below(6) : 0);
      below_it = std::max<int64_t>(below_it, (*stride)[size_t(n)] * (*size)[size_t(n)]);
    }
  }

 private:
  std::mt19937 random_;
};

}  // namespace

TEST_CASE("overlap: a footprint has the bytes of the elements") {
  Layouts layouts(1);
  for (int n = 0; n < 3000; ++n) {
    Four size, stride;
    layouts.draw(&size, &stride);
    const uint64_t element = uint64_t(1) << layouts.below(3);
    const Footprint f = footprint(element, size, stride);
    const bool empty = std::count(size.begin(), size.end(), 0) > 0;
    REQUIRE((f.run == 0) == empty);
    if (empty) continue;
    CAPTURE(n);
    REQUIRE(bytes_of(f) == bytes_of(element, size, stride));
  }
  const Footprint whole = footprint(2, {2, 3, 5, 8}, {120, 40, 8, 1});
  CHECK(whole.dims == 0);
  CHECK(whole.run == 480);
}

TEST_CASE("overlap: two tensors share memory if and only if they share a byte") {
  Layouts layouts(2);
  int shared = 0, apart_in_range = 0;
  for (int n = 0; n < 20000; ++n) {
    Four size_a, stride_a, size_b, stride_b;
    layouts.draw(&size_a, &stride_a);
    layouts.draw(&size_b, &stride_b);
    if (layouts.below(2)) size_b = size_a, stride_b = stride_a;  // as the parts of a fused buffer
    const uint64_t element_a = uint64_t(1) << layouts.below(3), element_b = uint64_t(1)
                                                                            << layouts.below(3);
    const Footprint a = footprint(element_a, size_a, stride_a),
                    b = footprint(element_b, size_b, stride_b);
    if (a.run == 0 || b.run == 0) continue;
    const std::vector<bool> in_a = bytes_of(a), in_b = bytes_of(b);
    const auto most = int64_t(in_a.size()) + 3, least = -int64_t(in_b.size()) - 3;
    for (int m = 0; m < 8; ++m) {
      const int64_t distance = least + layouts.below(most - least);
      bool expected = false;
      for (size_t i = 0; i < in_b.size() && !expected; ++i) {
        const int64_t at = int64_t(i) + distance;
        expected = in_b[i] && at >= 0 && at < int64_t(in_a.size()) && in_a[size_t(at)];
      }
      CAPTURE(n);
      CAPTURE(distance);
      // At the end of the address space, too.
      for (const uint64_t base : {uint64_t(1) << 40, ~uint64_t(0) - 20}) {
        REQUIRE(share_memory(a, base, b, base + uint64_t(distance)) == expected);
        REQUIRE(share_memory(b, base + uint64_t(distance), a, base) == expected);
      }
      shared += expected;
      apart_in_range +=
          !expected && distance < int64_t(in_a.size()) && distance > -int64_t(in_b.size());
    }
  }
  CHECK(shared > 20000);
  CHECK(apart_in_range > 5000);
}

TEST_CASE("overlap: large layouts") {
  // Fused qkv of a model: q, k and v of 32 and 8 heads of 128, 4 x 8192 tokens, f16.
  const int64_t row = (32 + 8 + 8) * 128, S = 8192;
  const Footprint q = footprint(2, {4, 32, S, 128}, {S * row, 128, row, 1}),
                  k = footprint(2, {4, 8, S, 128}, {S * row, 128, row, 1});
  const uint64_t at = uint64_t(1) << 40, k_at = at + 32 * 128 * 2;
  CHECK(!share_memory(q, at, k, k_at));
  CHECK(!share_memory(k, k_at, k, k_at + 8 * 128 * 2));
  CHECK(share_memory(q, at, k, k_at - 2));
  CHECK(share_memory(q, at + uint64_t(row) * 2, k, k_at + 8 * 128 * 2 + 2));
  // Its last rows alone.
  CHECK(share_memory(q, at, k, at + uint64_t((4 * S - 1) * row + 31 * 128 + 127) * 2));
  CHECK(!share_memory(q, at, k, at + uint64_t((4 * S - 1) * row + 32 * 128) * 2));
  // Extents of 2^62 bytes are of no memory that exists; nothing overflows.
  const int64_t far = (int64_t(1) << 60) - 1;
  const Footprint huge = footprint(4, {2, 1, 1, 1}, {far, 1, 1, 1});
  CHECK(huge.extent == uint64_t(far) * 4 + 4);
  CHECK(!share_memory(huge, at, huge, at + 8));
}
