// SPDX-License-Identifier: MIT OR Apache-2.0
// A device keeps the plans that were made last, whether or not the application still has them, so
// that making one again is a look-up.
#ifndef TANDEM_SRC_API_PLAN_CACHE_H
#define TANDEM_SRC_API_PLAN_CACHE_H
#include <memory>

#include "base/fork.h"
#include "device.h"
#include "kernels/overlap.h"
#include "plan/slices.h"

namespace tandem {

struct NamedPlan : Plan {
  String full_name;  // with the problem line
  OverlapCheck overlap;
  Slicing slicing;          // with Problem::slices
  double estimated_ms = 0;  // of one execute; 0: no time of a problem like this one is known
};
// What the plans of one problem share.
struct SharedPlan {
  std::shared_ptr<const NamedPlan> plan;
  std::shared_ptr<const Program> program;
};

class PlanCache {
 public:
  static constexpr size_t kPlans = 64;
  // The bytes of problem, as this version has it, are the key. Returns an empty plan if it is
  // absent.
  SharedPlan find(const tandem_problem& problem);
  // Returns the plan that the cache holds from now on, which may be another thread's. A full cache
  // drops the plan that was not looked up for the longest time.
  SharedPlan add(const tandem_problem& problem, SharedPlan plan);

 private:
  struct Entry {
    uint64_t hash, used;
    tandem_problem problem;
    SharedPlan plan;
  };
  Entry* look_up(const tandem_problem& problem, uint64_t hash);

  ForkMutex mutex_;
  Vec<Entry> entries_;
  uint64_t uses_ = 0;
};

}  // namespace tandem
#endif
