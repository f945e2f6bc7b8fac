// SPDX-License-Identifier: MIT OR Apache-2.0
// Plans that are made before a case asks for them, on all processors. Through Vulkan a pipeline
// takes up to a second to compile, and the plans of one case keep few processors busy.
#ifndef TANDEM_HARNESS_AHEAD_H
#define TANDEM_HARNESS_AHEAD_H
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "session.h"

namespace tandem::harness {

struct PlanAhead {
  tandem_device* device;
  tandem_problem problem;
};

// Makes plans on threads of its own and drops them. Their devices keep the pipelines, so that a
// later call for the same plan finds them, or waits for those that are being compiled. Plans that a
// device refuses are passed over. Devices must outlive it.
class PlansAhead {
 public:
  // next: writes the next plan, in the order in which they will be asked for; false: there is none.
  // Called by one thread at a time. What it throws ends the list.
  explicit PlansAhead(std::function<bool(PlanAhead*)> next);
  ~PlansAhead();  // begins no other, and waits for those that are begun
  PlansAhead(const PlansAhead&) = delete;
  PlansAhead& operator=(const PlansAhead&) = delete;

 private:
  void serve();
  std::mutex mutex_;  // of the two below
  std::function<bool(PlanAhead*)> next_;
  bool done_ = false;
  std::vector<std::thread> threads_;
};

// Whether it is of use: a Vulkan driver of a GPU. TANDEM_AHEAD=0 or 1 in the environment decides
// for all Vulkan drivers.
bool is_worth_planning_ahead(const Session& session);

}  // namespace tandem::harness
#endif
