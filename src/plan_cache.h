// SPDX-License-Identifier: MIT OR Apache-2.0
// A device keeps the plans that were made last, whether the application still has them or not: to make one again is to
// look it up.
#ifndef TANDEM_SRC_PLAN_CACHE_H
#define TANDEM_SRC_PLAN_CACHE_H
#include <memory>
#include <mutex>

#include "device.h"

namespace tandem {

// What plans of one problem share. Immutable.
struct PlanBody {
  Plan plan;
  std::unique_ptr<Program> program;
  String name;
};

class PlanCache {
 public:
  static constexpr size_t kPlans = 64;
  // problem as this version has it: its bytes are the key. nullptr: not here.
  std::shared_ptr<const PlanBody> find(const tandem_problem& problem);
  // Returns what the cache has from now on, which may be another thread's. The plan that has not been asked for
  // for longest makes room.
  std::shared_ptr<const PlanBody> add(const tandem_problem& problem,
                                      std::shared_ptr<const PlanBody> body);
  void clear();

 private:
  struct Entry {
    uint64_t hash, used;
    tandem_problem problem;
    std::shared_ptr<const PlanBody> body;
  };
  Entry* look_up(const tandem_problem& problem, uint64_t hash);

  std::mutex mutex_;
  Vec<Entry> entries_;
  uint64_t uses_ = 0;
};

}  // namespace tandem
#endif
