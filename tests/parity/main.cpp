// SPDX-License-Identifier: MIT OR Apache-2.0
// The parity suite's main: opens the targets first, and after the cases fails for a registry row
// that nothing ran. With doctest's own options (a filter, a listing) the rows are only printed, and
// so they are of a part of the cases (TANDEM_SHARD): scripts/gpu-suite adds up those of the parts.
//   TANDEM_ALL_ROWS       rows: fails for each row in any case; stems: for each stem of a path
//   TANDEM_EXPECT_BROKEN  an operation that this program has broken: success is that it was caught,
//                         by both suites or, as bwd_dq_cast:ratio, by the one named
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>
#include <cstdlib>

#include "parity.h"
#include "recorded_session.h"

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const std::string problem = parity::open_targets();
  if (!problem.empty()) {
    std::printf("parity: %s\n", problem.c_str());
    return 1;
  }
  const bool recorded = parity::any_recorded();
  if (recorded && argc == 1) context.setOption("out", "/dev/null");  // nothing is judged
  auto ahead = parity::plan_ahead([&] {
    doctest::Context cases(argc, argv);
    cases.setOption("out", "/dev/null");  // nothing is judged
    cases.run();
  });
  int result = context.run();
  ahead.reset();
  if (context.shouldExit()) {
    parity::close_targets();  // not at the exit, where NVIDIA's Vulkan driver is already gone
    return result;
  }
  if (recorded) {
    result = tandem::harness::recorded_faults().empty() ? 0 : 1;
    for (const std::string& fault : tandem::harness::recorded_faults())
      std::printf("parity: %s\n", fault.c_str());
  }
  if (const char* stem = std::getenv("TANDEM_EXPECT_BROKEN")) {
    const std::string missed = parity::check_blame(stem);
    parity::close_targets();
    if (missed.empty())
      std::printf("parity: the broken %s was caught, as it should be\n", stem);
    else
      std::printf("parity: %s\n", missed.c_str());
    return missed.empty() ? 0 : 1;
  }
  const char* wanted = std::getenv("TANDEM_ALL_ROWS");
  const std::string all = wanted ? wanted : "";
  if (!all.empty() && all != "rows" && all != "stems") {
    std::printf("parity: TANDEM_ALL_ROWS is '%s', must be rows or stems\n", all.c_str());
    return 2;
  }
  const std::vector<std::string> idle = parity::report_counts(all == "stems");
  // A filter that fits no case, a device that supports none, or a part without any, is no success.
  const bool may_be_empty = parity::sharded() && std::getenv("TANDEM_SHARD_EMPTY");
  if (!may_be_empty && !parity::ran_any()) {
    std::printf("parity: no case ran any kernel\n");
    result = 1;
  }
  if ((argc == 1 && !parity::sharded()) || !all.empty())
    for (const std::string& row : idle) {
      std::printf("parity: no case ran %s\n", row.c_str());
      result = 1;
    }
  parity::close_targets();
  const int messages = tandem::harness::total_validation_messages();
  if (messages > 0) {
    std::printf("parity: %d validation messages\n", messages);
    result = 1;
  }
  return result;
}
