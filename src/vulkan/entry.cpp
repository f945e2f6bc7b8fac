// SPDX-License-Identifier: MIT OR Apache-2.0
#include "entry.h"

#include <cstring>
#include <initializer_list>

namespace tandem {
namespace {

// SPIR-V 1.4, sections 2.4, 3.6 and 3.31.
constexpr size_t kHeaderWords = 5;
constexpr uint32_t kOpEntryPoint = 15, kOpExecutionMode = 16, kOpCapability = 17;
constexpr uint32_t kCapabilityBehindMode = 5;  // of each mode of Preserve

size_t length_at(const Vec<uint32_t>& words, size_t at) {
  const size_t length = words[at] >> 16;
  return length ? length : words.size() - at;
}

}  // namespace

void preserve(Vec<uint32_t>* words, Preserve what) {
  size_t capabilities_end = kHeaderWords, entries_end = 0;
  uint32_t entry = 0;
  for (size_t at = kHeaderWords; at < words->size(); at += length_at(*words, at)) {
    const uint32_t op = (*words)[at] & 0xffff;
    if (op == kOpCapability) capabilities_end = at + length_at(*words, at);
    if (op == kOpEntryPoint) {
      entry = (*words)[at + 2];
      entries_end = at + length_at(*words, at);
    }
  }
  if (entries_end == 0) return;
  const std::initializer_list<uint32_t> mode = {4u << 16 | kOpExecutionMode, entry, uint32_t(what),
                                                32};
  const std::initializer_list<uint32_t> capability = {2u << 16 | kOpCapability,
                                                      uint32_t(what) + kCapabilityBehindMode};
  words->insert(words->begin() + std::ptrdiff_t(entries_end), mode);
  words->insert(words->begin() + std::ptrdiff_t(capabilities_end), capability);
}

void name_slice_entry(Vec<uint32_t>* words) {
  for (size_t at = kHeaderWords; at < words->size(); at += length_at(*words, at)) {
    if (((*words)[at] & 0xffff) != kOpEntryPoint || length_at(*words, at) < 5) continue;
    // Both names take two words, of which the second ends with zeros.
    std::memset(&(*words)[at + 3], 0, 8);
    std::memcpy(&(*words)[at + 3], kSliceEntry, 5);
    return;
  }
}

}  // namespace tandem
