// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of cuda/sm90 in programs. sm90_absent.cpp stands in where the build holds no code for sm_90a.
#ifndef TANDEM_SRC_CUDA_SM90_H
#define TANDEM_SRC_CUDA_SM90_H
#include "cuda/runtime.h"

namespace tandem {

// Whether this build's code for sm_90a loads on the current device.
bool sm90_loads();

// What records a launch of the path sm90 (launch.hopper >= 0). plan and launch must outlive it.
Status sm90_recorder(const Plan& plan, const Launch& launch, const Launching& with,
                     Recorder* recorder);

// Whether the copy engine reads inputs at these addresses.
inline bool sm90_takes(const Addresses& a) { return (a.q | a.k | a.v | a.d_o | a.bias) % 16 == 0; }

}  // namespace tandem
#endif
