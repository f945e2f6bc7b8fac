// SPDX-License-Identifier: MIT OR Apache-2.0
// How many threads of this process can run at once.
#ifndef TANDEM_SRC_BASE_USABLE_THREADS_H
#define TANDEM_SRC_BASE_USABLE_THREADS_H
#include "host_memory.h"

namespace tandem {

// Processors that this thread may run on (sched_getaffinity), or as many as the quota of its
// control group pays for, rounded up, if those are fewer; at least 1.
unsigned usable_threads();

// The quota in processors, the least one from the process's control group up to what is mounted;
// 0: there is none. Versions 1 and 2. read(path, &text) reads a file, and says whether it can.
using ReadFile = FunctionRef<bool(const char* path, String* text)>;
double control_group_quota(const ReadFile& read);

}  // namespace tandem
#endif
