// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem bench --host: what plans and executes cost the calling thread.
#ifndef TANDEM_TOOLS_BENCH_HOST_H
#define TANDEM_TOOLS_BENCH_HOST_H
#include <string>
#include <vector>

#include "bench_result.h"
#include "session.h"

namespace tandem::tool {

// Rows of one fresh device: {case, op, what, backend, path, us, us_p10, us_p90, samples, problem}.
// what is one of
//   plan_first    the first plan of its kind on a device, compiling or loading its kernels
//   plan_cold     a problem that is new to the device, with kernels that are ready
//   plan_cached   a problem that the device has had before
//   execute       one tandem_execute(), those of all problems in turns, with inputs of random
//                 numbers; on the CPU the work is in it
// lines: of problems; empty: a few of the tool's own. warmup: how long the device works before
// execute is timed.
std::vector<Result> host_rows(harness::Session& session, const std::vector<std::string>& lines,
                              const harness::TimeOptions& warmup);
std::string host_table(const Result& result);

}  // namespace tandem::tool
#endif
