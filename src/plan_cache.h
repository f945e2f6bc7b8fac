// SPDX-License-Identifier: MIT OR Apache-2.0
// A device keeps the plans that were made last, whether the application still has them or not: to make one again is to
// look it up.
#ifndef TANDEM_SRC_PLAN_CACHE_H
#define TANDEM_SRC_PLAN_CACHE_H
#include <memory>
#include <mutex>

#include "device.h"

namespace tandem {

struct NamedPlan : Plan {
  String full_name;  // with the problem line
};
// What the plans of one problem share.
struct SharedPlan {
  std::shared_ptr<const NamedPlan> plan;
  std::shared_ptr<const Program> program;
};

class PlanCache {
 public:
  static constexpr size_t kPlans = 64;
  // problem as this version has it: its bytes are the key. Without a plan: not here.
  SharedPlan find(const tandem_problem& problem);
  // Returns what the cache has from now on, which may be another thread's. The plan that has not been asked for
  // for longest makes room.
  SharedPlan add(const tandem_problem& problem, SharedPlan plan);

 private:
  struct Entry {
    uint64_t hash, used;
    tandem_problem problem;
    SharedPlan plan;
  };
  Entry* look_up(const tandem_problem& problem, uint64_t hash);

  std::mutex mutex_;
  Vec<Entry> entries_;
  uint64_t uses_ = 0;
};

}  // namespace tandem
#endif
