// SPDX-License-Identifier: MIT OR Apache-2.0
// Counts what plans do, for scripts/fit-cost. Reads lines "recorded-device path problem-line". For
// each it prints the width of its plan on that path, its estimate in ms, its loop, its fill and its
// terms; "-" if the path refuses it. With --workspace, for scripts/workspaces: the bytes of the
// plan's workspace alone.
#include <iostream>
#include <sstream>
#include <string>

#define DOCTEST_CONFIG_IMPLEMENT
#include "plan/cost/cost.h"
#include "plan_fixture.h"

using namespace tandem;

int main(int argc, char** argv) {
  const bool workspace = argc == 2 && std::string(argv[1]) == "--workspace";
  std::cout << (workspace ? "workspace" : "width ms loop fill");
  if (!workspace)
    for (const char* name : kCostTermNames) std::cout << ' ' << name;
  std::cout << '\n';
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string device, path, problem;
    words >> device >> path;
    std::getline(words, problem);
    Caps caps;
    for (const plan_fixture::Profile& p : plan_fixture::profiles())
      if (device == p.id) caps = p.caps;
    for (const PathRow& row : kPaths)
      if (row.backend == caps.backend && path != row.name)
        caps.disabled.push_back(String(backend_name(row.backend)) + "." + row.name);
    tandem_problem given;
    Problem checked;
    Plan plan;
    CostTerms terms;
    if (!parse_problem(problem.c_str() + 1, &given).ok() || !make_problem(&given, &checked).ok() ||
        !make_plan(checked, caps, &plan).ok() || (!workspace && !cost_terms(plan, caps, &terms))) {
      std::cout << "-\n";
      continue;
    }
    if (workspace) {
      std::cout << plan.workspace_size << '\n';
      continue;
    }
    std::cout.precision(17);
    std::cout << terms.width << ' ' << estimate(plan, caps).ms << ' ' << terms.loop << ' '
              << terms.fill;
    for (double value : terms.of) std::cout << ' ' << value;
    std::cout << '\n';
  }
}
