// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ahead.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "base/usable_threads.h"

namespace tandem::harness {

PlansAhead::PlansAhead(std::function<bool(PlanAhead*)> next) : next_(std::move(next)) {
  // Most plans have two pipelines or more, which the device compiles side by side.
  const unsigned wanted = std::max(1u, usable_threads() / 2);
  for (unsigned n = 0; n < wanted; ++n) {
    try {
      threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
      break;  // the system has no more: those that there are do all
    }
  }
}

PlansAhead::~PlansAhead() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void PlansAhead::serve() {
  for (;;) {
    PlanAhead ahead{};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (done_) return;
      try {
        done_ = !next_(&ahead);
      } catch (...) {  // the call that makes that plan reports it
        done_ = true;
      }
      if (done_) return;
    }
    tandem_plan* plan = nullptr;
    if (tandem_plan_create(ahead.device, &ahead.problem, &plan) == TANDEM_OK)
      tandem_plan_destroy(plan);
  }
}

bool is_worth_planning_ahead(const Session& session) {
  if (session.backend() != "vulkan") return false;
  const char* word = std::getenv("TANDEM_AHEAD");
  return word && *word ? *word != '0' : !session.on_cpu();
}

}  // namespace tandem::harness
