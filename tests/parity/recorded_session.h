// SPDX-License-Identifier: MIT OR Apache-2.0
// A session on a device that is not there: plans are those of a recorded device (profiles.inc), and
// an execute does nothing, or what a test says. It shows which kernels the cases of a suite would
// run. On Vulkan, what each plan's modules need is compared with the device's limits.
#ifndef TANDEM_TESTS_PARITY_RECORDED_SESSION_H
#define TANDEM_TESTS_PARITY_RECORDED_SESSION_H
#include <functional>
#include <set>
#include <string>

#include "harness/session.h"
#include "plan/plan.h"

namespace tandem::harness {

// The backend of a profile; "" if there is no such profile.
std::string recorded_backend(const std::string& profile);
std::unique_ptr<Session> open_recorded(const std::string& profile, const SessionOptions& options);

// A session that computes nothing and has the plans of a device that is there. It hands each
// problem, with that device, to `planned`.
// `session` must outlive it.
using Planned = std::function<void(tandem_device* device, const tandem_problem& problem)>;
std::unique_ptr<Session> open_twin(Session& session, const Planned& planned);

// Compares what a Vulkan plan needs with the device's limits (recorded_limits.cpp); null: not
// linked, as in programs without Vulkan.
extern void (*recorded_limits)(const tandem::Plan& plan, const Caps& caps);

// What an execute does, in place of the device. All memory is the host's, {0, address}.
extern std::function<void(const tandem::Problem& problem, const tandem_args& args)>
    recorded_execute;

// Limits that plans have exceeded, and whatever else a suite adds.
std::set<std::string>& recorded_faults();

}  // namespace tandem::harness
#endif
