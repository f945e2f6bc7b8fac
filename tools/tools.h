// SPDX-License-Identifier: MIT OR Apache-2.0
// The sub-commands of `tandem`: each file adds its own to the command line.
#ifndef TANDEM_TOOLS_TOOLS_H
#define TANDEM_TOOLS_TOOLS_H
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "session.h"

namespace tandem::tool {

// exit_code is what the process returns; commands write it from their callbacks.
void add_info(CLI::App& app, int* exit_code);
void add_plan(CLI::App& app, int* exit_code);
void add_check(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);
void add_doctor(CLI::App& app, int* exit_code);

std::string version_text();  // "0.1.0"
std::string build_commit();  // of the source tree when it was built; "unknown" outside of git
// A problem line; throws harness::Error with what is wrong, in its grammar or with its problem.
tandem_problem problem_of(const std::string& line);

bool stderr_is_terminal();

// Throws where a file cannot be written; called before the work whose result it gets. What is there
// stays as it is.
void check_writable(const std::string& file);

// What the user named, else what TANDEM_DEVICE names (comma-separated), else all usable devices.
std::vector<std::string> chosen_devices(const std::vector<std::string>& named);

// Text in columns, the widest cell of a column giving its width.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() < 2; }
  // Columns whose header starts with '>' are right-aligned.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tandem::tool
#endif
