// SPDX-License-Identifier: MIT OR Apache-2.0
// One case of `tandem bench`, for other commands.
#ifndef TANDEM_TOOLS_BENCH_H
#define TANDEM_TOOLS_BENCH_H
#include <vector>

#include "bench_cases.h"
#include "bench_result.h"
#include "session.h"

namespace tandem::tool {

// The rows of a case, forward first: without errors, as nothing is judged. Throws harness::Error.
std::vector<Result> bench_rows(harness::Session& session, const BenchCase& c,
                               const harness::TimeOptions& time);

}  // namespace tandem::tool
#endif
