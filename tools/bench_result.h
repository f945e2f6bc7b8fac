// SPDX-License-Identifier: MIT OR Apache-2.0
// Results of `tandem bench`: the json that bench/results/ holds, and what is made of it.
#ifndef TANDEM_TOOLS_BENCH_RESULT_H
#define TANDEM_TOOLS_BENCH_RESULT_H
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::tool {

// {"header": {device, driver, backend, commit, date, clocks_mhz, turns}, "rows": [{case, op, impl,
// backend, path, dtype, B, Hq, Hk, Sq, Sk, D, Dv, mask, features, ms, tflops, max_err_ratio,
// ...}]}. turns is there, and true, where all rows were timed in turns. A row with "refused", a
// sentence, has null for ms, tflops and max_err_ratio; estimated_ms is there where the plan has
// one. Members beyond these may be added to rows, never taken away.
using Result = nlohmann::ordered_json;

Result load_result(const std::string& file);  // throws std::runtime_error
void save_result(const Result& result, const std::string& file);
std::string result_table(const Result& result);
std::string result_csv(const Result& result);

// Rows of all files under the first one's header; files of another device are refused.
Result merge_results(const std::vector<std::string>& files);

// Two files' times of each case side by side, each with a verdict: a case is faster or slower where
// its medians differ by more than half of what the samples of both files spread over, and by more
// than 1 %.
struct Comparison {
  std::string text;  // a table, and a line that counts the verdicts
  int faster = 0, slower = 0, same = 0;
  int unknown = 0;             // a file has no spread of it
  int lost = 0;                // timed before, refused now
  int added = 0, missing = 0;  // in one file alone
};
Comparison compare_results(const std::string& before, const std::string& after);

}  // namespace tandem::tool
#endif
