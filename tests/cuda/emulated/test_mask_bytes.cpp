// SPDX-License-Identifier: MIT OR Apache-2.0
// Rows of a mask as bits (cuda/sm90/mask_bytes.cuh) at every address and of every length. The rows
// lie between pages without access, so a read outside one ends the program.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "../../../cuda/sm90/mask_bytes.cuh"
#include "check.h"

namespace {

// Bits of KEYS keys of a row of `size` bytes, from each key on, by bytes.
template <int KEYS>
int differences(const char* row, int size) {
  int bad = 0;
  for (int key = 0; key < size + 3; ++key) {
    unsigned want = 0;
    for (int n = 0; n < KEYS && key + n < size; ++n) want |= unsigned(row[key + n] != 0) << n;
    bad += tandem::cuda::sm90::kept_bits<KEYS>(row + key, key, size - key) != want;
    // As where nothing is known of the bytes in front.
    bad += tandem::cuda::sm90::kept_bits<KEYS>(row + key, 0, size - key) != want;
  }
  return bad;
}

}  // namespace

int main() {
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  void* all = mmap(nullptr, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED || mprotect(static_cast<char*>(all) + page, page, PROT_READ | PROT_WRITE))
    return 2;
  char* begin = static_cast<char*>(all) + page;
  char* end = begin + page;
  std::srand(1);
  for (char* at = begin; at < end; ++at)
    *at = std::rand() % 3 == 0 ? char(0) : char(1 << std::rand() % 8);
  int bad = 0, rows = 0;
  for (int size = 1; size <= 75; ++size) {
    for (const char* row : {begin + 0, end - size}) {
      bad += differences<8>(row, size) + differences<16>(row, size) + differences<32>(row, size);
      ++rows;
    }
  }
  std::printf("%d rows, %d differences\n", rows, bad);
  return bad != 0;
}
