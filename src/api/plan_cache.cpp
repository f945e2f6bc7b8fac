// SPDX-License-Identifier: MIT OR Apache-2.0
#include "plan_cache.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace tandem {
namespace {

uint64_t hash_of(const tandem_problem& problem) {
  static_assert(sizeof(problem) % 8 == 0, "words");
  uint64_t words[sizeof(problem) / 8], hash = 0;
  std::memcpy(words, &problem, sizeof(problem));
  for (uint64_t word : words) hash = (hash ^ word ^ (hash >> 29)) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

}  // namespace

PlanCache::Entry* PlanCache::look_up(const tandem_problem& problem, uint64_t hash) {
  for (Entry& e : entries_)
    if (e.hash == hash && std::memcmp(&e.problem, &problem, sizeof problem) == 0)
      return e.used = ++uses_, &e;
  return nullptr;
}

SharedPlan PlanCache::find(const tandem_problem& problem) {
  const uint64_t hash = hash_of(problem);
  std::lock_guard<ForkMutex> lock(mutex_);
  const Entry* entry = look_up(problem, hash);
  return entry ? entry->plan : SharedPlan();
}

SharedPlan PlanCache::add(const tandem_problem& problem, SharedPlan plan) {
  const uint64_t hash = hash_of(problem);
  SharedPlan old;  // destroyed after the lock is released
  std::lock_guard<ForkMutex> lock(mutex_);
  if (const Entry* entry = look_up(problem, hash)) return entry->plan;
  if (entries_.size() < kPlans) {
    entries_.push_back({hash, ++uses_, problem, plan});
  } else {
    Entry& oldest =
        *std::min_element(entries_.begin(), entries_.end(),
                          [](const Entry& a, const Entry& b) { return a.used < b.used; });
    std::swap(old, oldest.plan);
    oldest = {hash, ++uses_, problem, plan};
  }
  return plan;
}

}  // namespace tandem
