// SPDX-License-Identifier: MIT OR Apache-2.0
// Launches of cuda/sm80 that differ from simt's: bwd_dkv_dq, bwd_dq_cast, and bwd_dkv with optional
// inputs.
#ifndef TANDEM_SRC_CUDA_SM80_H
#define TANDEM_SRC_CUDA_SM80_H
#include "look_ups.h"
#include "runtime.h"

namespace tandem {

// Whether this build's code for compute capability 8.0 and later loads on the current device.
bool sm80_loads();

// Make the recorders of these launches on the path sm80, by the types of their parameters. plan and
// launch must outlive them.
template <typename P>
Status record(cuda::LookUp<P> find, const Plan& plan, const Launch& launch, const Launching& with,
              Recorder* recorder);

// What chooses the instantiation of simt's or sm80's kernel of a launch.
cuda::KernelChoice kernel_choice(const Launch& launch);

}  // namespace tandem
#endif
