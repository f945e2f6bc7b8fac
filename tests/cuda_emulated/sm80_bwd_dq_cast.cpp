// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernel as plain C++ (simt_emulator.h).
#include "cuda/sm80/bwd_dq_cast.cu"
