// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem plan --time.
#ifndef TANDEM_TOOLS_PLAN_TIME_H
#define TANDEM_TOOLS_PLAN_TIME_H
#include <string>

#include "tools.h"

namespace tandem::tool {

// Switches off the caches that drivers keep on disk, unless the environment says something of them.
// Before the first session.
void without_driver_caches();

// Prints what each pipeline of the problem's plan takes (of a backward, of its forward's first):
// on a new device; on a second one, which shows what the driver remembers by itself; and on a third
// one that was given the first one's blob. Throws harness::Error.
void time_pipelines(const std::string& device, const std::string& line, const std::string& disable);

}  // namespace tandem::tool
#endif
