// SPDX-License-Identifier: MIT OR Apache-2.0
// Launches of cuda/sm90. sm90_absent.cpp replaces its files if the build has no code for
// sm_90a.
#ifndef TANDEM_SRC_CUDA_SM90_H
#define TANDEM_SRC_CUDA_SM90_H
#include "runtime.h"

namespace tandem {

// Whether this build has code for sm_90a.
bool has_sm90_code();
// Whether that code loads on the current device.
bool sm90_loads();

// Makes the recorder of a launch of the path sm90 (Sm90Launch). plan and launch must
// outlive it.
Status sm90_recorder(const Plan& plan, const Launch& launch, const Launching& with,
                     Recorder* recorder);

}  // namespace tandem
#endif
