// SPDX-License-Identifier: MIT OR Apache-2.0
// Buffers between pages that nothing may touch, on devices that take addresses of the host's
// memory: the CPU device, the emulated CUDA device, lavapipe. A kernel that touches one of these
// pages ends the process with a sentence. So a read outside of a tensor is found, which the bytes
// around a guarded buffer do not show, and a write that lands behind those bytes.
//   TANDEM_GUARD_PAGES  first: each buffer begins right behind a guard page
//                       last: each ends right before one; the workspace, whose address has to be
//                       aligned, less than 256 bytes before. Tensors then have no better alignment
//                       than their size has, up to 16 bytes
#ifndef TANDEM_HARNESS_GUARD_PAGES_H
#define TANDEM_HARNESS_GUARD_PAGES_H
#include <cstddef>
#include <memory>
#include <string>

#include "session.h"

namespace tandem::harness {

enum class GuardPages { off, first, last };
GuardPages guard_pages();  // throws Error for another word

size_t whole_pages(size_t bytes);
// At least `room` bytes, in whole pages, between two guard pages. The sentence names the buffer of
// `bytes` that begins at byte `front`.
std::unique_ptr<Memory> memory_between_pages(size_t room, const char* name, size_t front,
                                             size_t bytes);

// The end of the sentence from now on: what repeats the case.
void name_case_of_faults(const std::string& repeat);

}  // namespace tandem::harness
#endif
