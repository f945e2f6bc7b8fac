// SPDX-License-Identifier: MIT OR Apache-2.0
#include "program.h"

namespace tandem {

std::unique_ptr<Program> make_simd_program(const Plan&, Pool&) { return nullptr; }
const char* simd_isa() { return "none"; }

}  // namespace tandem
