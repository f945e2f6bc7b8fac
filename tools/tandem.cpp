// SPDX-License-Identifier: MIT OR Apache-2.0
// The `tandem` command.
#include "tandem/tandem.h"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "problem/problem.h"
#include "tandem_commit.h"
#include "tools.h"

#ifdef _WIN32
#include <io.h>
#define isatty _isatty
#define fileno _fileno
#else
#include <unistd.h>
#endif

namespace tandem::tool {

std::string version_text() {
  const uint32_t v = tandem_version();
  return fmt::format("{}.{}.{}", v >> 22, v >> 12 & 0x3ff, v & 0xfff);
}

std::string build_commit() { return TANDEM_COMMIT; }

tandem_problem problem_of(const std::string& line) {
  const tandem_problem problem = harness::parse(line);
  Problem checked;
  const Status status = make_problem(&problem, &checked);
  if (!status.ok())
    throw harness::Error(status.code(), std::string(tandem_status_string(status.code())) + ": " +
                                            status.message().c_str());
  return problem;
}

void check_writable(const std::string& file) {
  const bool there = std::ifstream(file).good();
  if (!std::ofstream(file, std::ios::app)) throw std::runtime_error(file + " cannot be written");
  if (!there) std::remove(file.c_str());
}

bool stderr_is_terminal() { return isatty(fileno(stderr)) != 0; }

std::vector<std::string> chosen_devices(const std::vector<std::string>& named) {
  if (!named.empty()) return named;
  std::vector<std::string> devices;
  if (const char* list = std::getenv("TANDEM_DEVICE"); list && *list) {
    std::string word;
    for (const char* c = list;; ++c) {
      if (*c && *c != ',') {
        word += *c;
        continue;
      }
      if (!word.empty()) devices.push_back(word);
      word.clear();
      if (!*c) return devices;
    }
  }
  return harness::usable_devices();
}

std::string Table::text() const {
  std::vector<size_t> widths(rows_.front().size());
  const auto cell = [&](size_t row, size_t column) {
    const std::string& s = rows_[row][column];
    return row == 0 && !s.empty() && s[0] == '>' ? s.substr(1) : s;
  };
  for (size_t r = 0; r < rows_.size(); ++r)
    for (size_t c = 0; c < rows_[r].size(); ++c) widths[c] = std::max(widths[c], cell(r, c).size());
  std::string s;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      const bool right = !rows_[0][c].empty() && rows_[0][c][0] == '>';
      line += right ? fmt::format("{:>{}}  ", cell(r, c), widths[c])
                    : fmt::format("{:<{}}  ", cell(r, c), widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    s += line + "\n";
  }
  return s;
}

}  // namespace tandem::tool

int main(int argc, char** argv) {
  CLI::App app{"Attention, forward and backward, on CPU, Vulkan and CUDA"};
  app.set_version_flag("--version", tandem::tool::version_text());
  app.require_subcommand(1);
  int exit_code = 0;
  tandem::tool::add_info(app, &exit_code);
  tandem::tool::add_plan(app, &exit_code);
  tandem::tool::add_check(app, &exit_code);
  tandem::tool::add_bench(app, &exit_code);
  tandem::tool::add_doctor(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "tandem: out of host memory; are the problem's tensors too large for it?\n");
    return 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "tandem: {}\n", e.what());
    return 1;
  }
  return exit_code;
}
