// SPDX-License-Identifier: MIT OR Apache-2.0
// Packed modules of any bytes: unpack() reads and writes nothing outside of its two arrays, which
// are of just their sizes on the heap. Inputs have no header of .xz, so that most get behind it.
#include "vulkan/unpack.h"

#include <memory>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  const size_t room = bytes.value<uint16_t>();
  const bool whole = !bytes.one_of(16);
  static const uint8_t header[] = {0xfd, '7', 'z',  'X', 'Z',  0, 0, 4, 0xe6, 0xd6, 0xb4, 0x46,
                                   2,    0,   0x21, 1,   0x16, 0, 0, 0, 0x74, 0x2f, 0xe5, 0xa3};
  const size_t head = whole ? sizeof header : 0, left = bytes.left();
  const std::unique_ptr<uint8_t[]> packed(new uint8_t[head + left]), out(new uint8_t[room]);
  std::memcpy(packed.get(), header, head);
  if (left > 0) std::memcpy(packed.get() + head, data + size - left, left);
  (void)tandem::unpack(packed.get(), head + left, out.get(), room);
  return 0;
}
