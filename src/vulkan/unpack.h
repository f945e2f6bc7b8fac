// SPDX-License-Identifier: MIT OR Apache-2.0
// Reads what the build has packed: one file of the format .xz, with the filter LZMA2 alone.
#ifndef TANDEM_SRC_VULKAN_UNPACK_H
#define TANDEM_SRC_VULKAN_UNPACK_H
#include <cstddef>
#include <cstdint>

namespace tandem {

// Writes exactly `size` bytes to out. False: the packed bytes are not those of a file of that size,
// or a changed bit shows; what out holds then is undefined. Reads and writes nothing outside of the
// two arrays, whatever the bytes are.
bool unpack(const uint8_t* packed, size_t packed_size, uint8_t* out, size_t size);

}  // namespace tandem
#endif
