// SPDX-License-Identifier: MIT OR Apache-2.0
// What compilers of GPUs that are not there make of the Vulkan kernels: whatever plans for the
// driver's device launch, each pipeline in a process that may crash.
//
//   tandem_gates TABLE           compile all, hold them to the rules below, compare with TABLE
//   tandem_gates --part TABLE    a part of them
//   tandem_gates --rules         compile all, hold them to the rules: for GPUs that have no table
//   tandem_gates --write TABLE   compile all, and write TABLE; --write-part: a part of them
//   tandem_gates --plans FILE    compile nothing, compare what the planner says with FILE
//   tandem_gates --write-plans FILE
//   tandem_gates --show LINE     every statistic that the driver has, of one problem
//   tandem_gates --crash signal | matrix_in_struct
//                                whether it finds a compiler that crashes: one of three pipelines
//                                ends its process, or is of a module at which the driver does
//
// Rules: the compiler does not crash and comes to an end, but for kernels that a quirk keeps
// out of plans; a kernel of a matrix path has instructions that multiply matrices; the
// device's shared memory holds what it uses; lean tiles (src/plan/tiles.inc) spill nothing,
// those of matrices (src/plan/coopmat/tiles.inc) a few registers, and other kernels no more than
// TABLE says. With another version of the driver the other figures are not compared, and kernels
// that spill may do so twice as much. Registers are the driver's: of a subgroup on Intel's GPUs,
// else of an invocation.
#include "gates.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "compiler.h"
#include "shaders/matrix_in_struct.spv.h"

namespace gates {
namespace {

using compiled::Compiled;
using compiled::Compiler;
using compiled::Figures;

constexpr unsigned kSeconds = 600;  // that a pipeline may take, on a machine with other work

String number(long long value) { return value < 0 ? "-" : text("%lld", value); }

constexpr long long kLeanSpills = 32;  // of lean tiles of matrices, with optional inputs

constexpr const char* kColumns =
    "# kernel   tile      sub for  regs spills scratch shared waves products instructions  problem";

long long spills_of(const Figures& f) {
  return f.statistic({"Spilled VGPRs", "Spills", "Spills to memory", "STP Count"});
}

String row_of(const Job& job, const Compiled& one) {
  const Figures& f = one.figures;
  const Launch& l = *one.launch;
  const auto column = [&](std::initializer_list<const char*> names) {
    return number(f.statistic(names));
  };
  return text(
      "%-15s %-9s %3d %-4s %4s %6s %7s %6s %5s %8d %12s  %s", stem_name(l.stem),
      l.tile_word() && *l.tile_word() ? l.tile_word() : "-", f.subgroup, one.wide ? "wide" : "any",
      column({"VGPRs", "Max live registers", "Number of GPRs", "Registers used"}).c_str(),
      number(spills_of(f)).c_str(), column({"Scratch size", "Scratch Memory Size"}).c_str(),
      column({"LDS size", "Workgroup Memory Size"}).c_str(),
      column({"Subgroups per SIMD", "Max warps/SM", "Max Waves Per Core"}).c_str(), f.products,
      column({"Instructions", "Instruction Count", "Instruction count"}).c_str(), job.line.c_str());
}

// The row of a job whose compiler does not come back. what: it does instead.
String begin_of(const Job& job, const char* what) {
  const Launch& l = job.plan.launches[0];
  return text("%-15s %-9s %s  %s", stem_name(l.stem),
              l.tile.name && *l.tile.name ? l.tile.name : "-", what, job.line.c_str());
}

std::vector<String> faults_of(const Compiled& one, const Caps& caps) {
  const Figures& f = one.figures;
  const Launch& l = *one.launch;
  const MatrixLaunch* own = l.as<MatrixLaunch>();
  const bool sums = own && l.stem == Stem::bwd_dbias && l.has(trait::ds);  // multiplies nothing
  const bool matrices = own && !l.has(trait::redo) && !sums;
  std::vector<String> faults;
  const auto fault = [&](bool is, const String& what) {
    if (is) faults.push_back(what);
  };
  fault(f.statistics.empty() || f.subgroup <= 0, "the driver told no figures");
  fault(matrices && f.products == 0, "no instruction multiplies matrices");
  fault(own && f.subgroup != int(own->subgroup),
        text("the plan asks for subgroups of %u", own ? own->subgroup : 0));
  fault(l.tile.is_lean() && spills_of(f) > 0, "a lean tile is to save registers, and spills");
  fault(own && l.has(trait::lean) && spills_of(f) > kLeanSpills,
        text("a lean tile of matrices is to spill no more than %lld registers", kLeanSpills));
  const long long shared = std::max<long long>(f.statistic({"LDS size", "Workgroup Memory Size"}),
                                               (long long)l.shared_bytes);
  fault(shared > (long long)caps.shared_bytes,
        text("%lld bytes of shared memory, and the device has %u", shared, caps.shared_bytes));
  return faults;
}

// ---- processes ----

// Runs work() in a process of its own: "" or how that ended.
template <typename Work>
String in_process(const Work& work, pid_t* started = nullptr) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process could be made");
  if (child == 0) {
    int status = 1;
    try {
      work();
      status = 0;
    } catch (const std::exception& e) {
      std::printf("%s\n", e.what());
    }
    std::fflush(nullptr);
    _exit(status);  // the driver's own ends are not made for a GPU that is not there
  }
  if (started) return *started = child, "";
  int status = 0;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid");
  if (WIFSIGNALED(status)) return text("ended by signal %d", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "failed";
}

// Lines that processes leave behind them, each written at once and so whole.
class Lines {
 public:
  Lines() : file_(std::tmpfile()) {
    if (!file_) throw std::runtime_error("no temporary file");
    std::setvbuf(file_, nullptr, _IOFBF, 1 << 16);
  }
  ~Lines() { std::fclose(file_); }
  void add(const String& line) const {
    const std::string whole = std::string(line.c_str()) + "\n";
    if (write(fileno(file_), whole.data(), whole.size()) != ssize_t(whole.size())) _exit(3);
  }
  std::vector<String> all() const {
    std::vector<String> lines;
    std::rewind(file_);
    std::string line;
    for (int c; (c = std::fgetc(file_)) != EOF;) {
      if (c != '\n') {
        line += char(c);
        continue;
      }
      lines.push_back(line.c_str());
      line.clear();
    }
    return lines;
  }

 private:
  std::FILE* file_;
};

struct Outcome {
  std::vector<String> rows, faults;  // rows in order of jobs
  String driver;                     // and its device
};

// Numbers that all processes see.
struct Shared {
  std::atomic<size_t> next;
  std::atomic<size_t> current[8];  // of each worker; 0: none, else the job's number from 1
};

// An APU has the name of its CPU in front of its own.
String device_name(const Caps& caps) {
  const size_t own = caps.name.find("(RADV ");
  return own == String::npos ? caps.name : caps.name.substr(own);
}

// What a run compiles. A run with a crash does so for the first pipeline of three.
struct Run {
  bool part = false;
  String crash = {};
  std::vector<Job> jobs(const Caps& caps) const {
    std::vector<Job> all = jobs_for(caps, part);
    if (!crash.empty()) all.erase(all.begin() + 3, all.end());
    return all;
  }
};

void compile_some(const Lines& lines, Shared* shared, size_t worker, const Run& run) {
  const Compiler compiler;
  const std::vector<Job> jobs = run.jobs(compiler.caps());
  for (size_t i; (i = shared->next++) < jobs.size();) {
    shared->current[worker] = i + 1;
    alarm(kSeconds);
    const Job& job = jobs[i];
    const bool crashes = !run.crash.empty() && i == 0;
    if (crashes && run.crash == "signal") compiled::plant(nullptr, 0);
    if (crashes && run.crash != "signal")
      compiled::plant(matrix_in_struct_spirv, sizeof(matrix_in_struct_spirv));
    try {
      for (const Compiled& one : compiler.compile(job.plan, false)) {
        const String row = row_of(job, one);
        lines.add(text("row %zu %s", i, row.c_str()));
        for (const String& fault : faults_of(one, compiler.caps()))
          lines.add(text("fault %zu %s: %s", i, fault.c_str(), row.c_str()));
      }
    } catch (const std::exception& e) {
      lines.add(text("fault %zu %s: %s", i, job.line.c_str(), e.what()));
    }
    alarm(0);
    shared->current[worker] = 0;
  }
}

Outcome compile_all(const Run& run) {
  Outcome outcome;
  Lines about, lines;
  const String ended = in_process([&] {
    const Compiler compiler;
    about.add(compiler.driver() + ", " + device_name(compiler.caps()));
    const std::vector<Job> jobs = run.jobs(compiler.caps());
    for (const Job& job : jobs) about.add(begin_of(job, "%s"));
    if (run.part) return;
    for (const String& kernel : missing_kernels(jobs)) lines.add("fault 0 not compiled: " + kernel);
  });
  std::vector<String> names = about.all();
  if (!ended.empty() || names.size() < 2)
    throw std::runtime_error(("the device cannot be opened: " + ended).c_str());
  outcome.driver = names[0];
  names.erase(names.begin());

  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap");
  Shared* const shared = new (memory) Shared{};
  const size_t workers = std::min<size_t>(std::max(1u, std::thread::hardware_concurrency()), 8);
  std::map<pid_t, size_t> running;
  const auto start = [&](size_t worker) {
    pid_t child;
    in_process([&] { compile_some(lines, shared, worker, run); }, &child);
    running[child] = worker;
  };
  for (size_t worker = 0; worker < workers; ++worker) start(worker);
  std::map<size_t, std::vector<String>> rows;  // of jobs
  while (!running.empty()) {
    int status = 0;
    const pid_t child = wait(&status);
    if (child < 0) throw std::runtime_error("wait");
    const auto found = running.find(child);
    if (found == running.end()) continue;
    const size_t worker = found->second, current = shared->current[worker].exchange(0);
    running.erase(found);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    const char* const how = !WIFSIGNALED(status)          ? "fails"
                            : WTERMSIG(status) == SIGALRM ? "is too slow"
                                                          : "crashes";
    if (current == 0) throw std::runtime_error("a process ended between pipelines");
    String row = names[current - 1];
    row.replace(row.find("%s"), 2, how);
    rows[current - 1].push_back(row);
    if (row.find(kLifted) == String::npos) outcome.faults.push_back("the compiler " + row);
    start(worker);
  }
  munmap(memory, sizeof(Shared));
  for (const String& line : lines.all()) {
    char kind[8];
    size_t job = 0;
    int read = 0;
    if (std::sscanf(line.c_str(), "%7s %zu %n", kind, &job, &read) != 2) continue;
    const String rest = line.substr(size_t(read));
    if (std::strcmp(kind, "row") == 0)
      rows[job].push_back(rest);
    else
      outcome.faults.push_back(rest);
  }
  for (const auto& [job, texts] : rows)
    outcome.rows.insert(outcome.rows.end(), texts.begin(), texts.end());
  if (rows.size() != names.size())
    outcome.faults.push_back(
        text("%zu of %zu pipelines were not compiled", names.size() - rows.size(), names.size()));
  return outcome;
}

// ---- files ----

std::vector<String> read_lines(const String& file) {
  std::vector<String> lines;
  std::ifstream in(file.c_str());
  for (std::string line; std::getline(in, line);) lines.push_back(line.c_str());
  return lines;
}

int write_lines(const String& file, const std::vector<String>& lines) {
  std::ofstream out(file.c_str());
  for (const String& line : lines) out << line.c_str() << "\n";
  out.close();
  return out.good() ? 0 : (std::printf("cannot write %s\n", file.c_str()), 1);
}

String driver_line(const String& driver) { return "# driver: " + driver; }

// Where a row's problem begins; npos: it has none.
size_t problem_at(const String& row) {
  const size_t forward = row.rfind("  fwd ");
  return forward == String::npos ? row.rfind("  bwd ") : forward;
}

// A row's kernel and tile, and its problem; and the number of spilled registers.
struct Place {
  String key = {};
  bool compiled = false;
  long long spills = 0;
};
Place place_of(const String& row) {
  char stem[32], tile[32], spills[16];
  const int found = std::sscanf(row.c_str(), "%31s %31s %*d %*s %*s %15s", stem, tile, spills);
  const size_t problem = problem_at(row);
  if (found < 2 || problem == String::npos) return {row};
  return {String(stem) + " " + tile + row.substr(problem), found == 3,
          found == 3 ? std::atoll(spills) : 0};
}

// Whether two rows of one driver and problem differ. An instruction of a thousand is no difference:
// on Battlemage bwd_origin has 1258 or 1259, by the machine that the compiler runs on.
bool differ(const String& was, const String& is) {
  long long instructions[2] = {};
  String others[2] = {was, is};  // without the column of instructions, the last one
  for (int n = 0; n < 2; ++n) {
    const size_t end = problem_at(others[n]);
    const size_t digits = end == String::npos ? end : others[n].rfind(' ', end - 1);
    const size_t column = digits == String::npos ? digits : others[n].find_last_not_of(' ', digits);
    if (column == String::npos) return was != is;
    instructions[n] = std::atoll(others[n].c_str() + digits);
    others[n].erase(column + 1, end - column - 1);
  }
  return others[0] != others[1] ||
         std::llabs(instructions[0] - instructions[1]) > 1 + instructions[0] / 1000;
}

int compare(const Outcome& now, const String& file, bool part) {
  const std::vector<String> table = read_lines(file);
  if (table.size() < 4) return std::printf("FAILED: %s is no table\n", file.c_str()), 1;
  const bool same = table[1] == driver_line(now.driver);
  if (!same)
    std::printf("%s is of another driver: only what is spilled was compared\n  %s\n", file.c_str(),
                table[1].c_str());
  // Two launches of a problem may have the same kernel and tile: they are compared in order.
  std::map<String, int> seen, seen_now;
  const auto numbered = [](std::map<String, int>* of, const String& key) {
    return key + text(" %d", (*of)[key]++);
  };
  std::map<String, String> before;
  for (const String& row : table)
    if (row[0] != '#') before[numbered(&seen, place_of(row).key)] = row;
  int differences = 0;
  const auto say = [&](const String& was, const String& is) {
    if (++differences <= 10) std::printf("  was  %s\n  is   %s\n", was.c_str(), is.c_str());
  };
  for (const String& row : now.rows) {
    const Place place = place_of(row);
    const auto found = before.find(numbered(&seen_now, place.key));
    if (found == before.end()) {
      if (same) say("not there", row);
      continue;
    }
    const Place was = place_of(found->second);
    if (same ? differ(found->second, row) : was.compiled && place.spills > 2 * was.spills)
      say(found->second, row);
    before.erase(found);
  }
  if (same && !part)
    for (const auto& [key, row] : before) say(row, "not there");
  if (differences == 0) return 0;
  std::printf("FAILED: %d rows of %s have changed. If that is meant: scripts/gates --write\n",
              differences, file.c_str());
  return 1;
}

std::vector<String> plans_now() {
  Lines lines;
  const String ended = in_process([&] {
    const Compiler compiler;
    Caps caps = compiler.caps();
    caps.name = device_name(caps);
    lines.add("# Written by scripts/gates --write; do not edit. What planning sees, and takes.");
    lines.add(driver_line(compiler.driver() + ", " + device_name(caps)));
    for (const String& line : plans_for(caps)) lines.add(line);
  });
  if (!ended.empty()) throw std::runtime_error(("the device cannot be opened: " + ended).c_str());
  return lines.all();
}

int compare_plans(const String& file) {
  const std::vector<String> now = plans_now(), before = read_lines(file);
  if (before.size() < 3) return std::printf("FAILED: %s is no list of plans\n", file.c_str()), 1;
  if (before[1] != now[1])
    return std::printf("skipped: %s is of another driver\n  %s\n  %s\n", file.c_str(),
                       before[1].c_str(), now[1].c_str()),
           77;
  int differences = 0;
  for (size_t i = 0; i < std::max(now.size(), before.size()); ++i) {
    const String a = i < before.size() ? before[i] : "", b = i < now.size() ? now[i] : "";
    if (a != b && ++differences <= 10) std::printf("  was  %s\n  is   %s\n", a.c_str(), b.c_str());
  }
  if (differences == 0) return std::printf("%zu lines as in %s\n", now.size(), file.c_str()), 0;
  std::printf(
      "FAILED: %d lines of %s have changed. If that is meant: scripts/gates --write-plans\n",
      differences, file.c_str());
  return 1;
}

int show(const String& line) {
  const Compiler compiler;
  std::printf("%s\n", compiler.driver().c_str());
  const Job job{line, plan_of(line, compiler.caps()), false};
  for (const Compiled& one : compiler.compile(job.plan, false)) {
    std::printf("%s\n", row_of(job, one).c_str());
    for (const auto& s : one.figures.statistics)
      std::printf("    %-40s %lld\n", s.first.c_str(), s.second);
  }
  return 0;
}

// 0: the crash is found, by its kernel, and the pipelines behind it are compiled all the same.
int find_crash(const String& kind) {
  if (kind != "signal" && kind != "matrix_in_struct")
    return std::puts("usage: see the top of gates.cpp"), 2;
  const Outcome now = compile_all({true, kind});
  for (const String& fault : now.faults) std::printf("  %s\n", fault.c_str());
  const bool found = now.faults.size() == 1 && now.rows.size() == 3 &&
                     now.faults[0] == "the compiler " + now.rows[0] &&
                     now.rows[0].find(" crashes  ") != String::npos;
  if (found) return std::printf("%s: the crash was found\n", now.driver.c_str()), 0;
  if (kind != "signal" && now.faults.empty())
    return std::printf("skipped: %s does not crash any more\n", now.driver.c_str()), 77;
  return std::printf("FAILED: %s: %zu rows and not this crash\n", now.driver.c_str(),
                     now.rows.size()),
         1;
}

int run(int argc, char** argv) {
  const String option = argc == 3 ? argv[1] : "";
  if (argc != 2 && option.empty()) return std::puts("usage: see the top of gates.cpp"), 2;
  const String file = argv[argc - 1];
  const bool rules = argc == 2 && file == "--rules";
  if (option == "--show") return show(file);
  if (option == "--crash") return find_crash(file);
  if (option == "--plans") return compare_plans(file);
  if (option == "--write-plans") return write_lines(file, plans_now());
  const bool part = option == "--part" || option == "--write-part";
  const bool writes = option == "--write" || option == "--write-part";
  if (!option.empty() && !part && !writes) return std::puts("usage: see the top of gates.cpp"), 2;

  const Outcome now = compile_all({part});
  for (const String& fault : now.faults) std::printf("  %s\n", fault.c_str());
  const auto spills = [](const String& row) { return place_of(row).spills > 0; };
  std::printf("%zu pipelines, %s: %zu faults; %zd pipelines spill\n", now.rows.size(),
              now.driver.c_str(), now.faults.size(),
              std::count_if(now.rows.begin(), now.rows.end(), spills));
  if (rules) return !now.faults.empty();
  if (writes) {
    std::vector<String> lines = {
        "# Written by scripts/gates --write; do not edit. What a compiler says of the kernels.",
        driver_line(now.driver), kColumns};
    lines.insert(lines.end(), now.rows.begin(), now.rows.end());
    return write_lines(file, lines) != 0 || !now.faults.empty();
  }
  const int stale = compare(now, file, part);
  return !now.faults.empty() || stale != 0;
}

}  // namespace
}  // namespace gates

int main(int argc, char** argv) {
  try {
    return gates::run(argc, argv);
  } catch (const std::exception& e) {
    std::printf("FAILED: %s\n", e.what());
    return 1;
  }
}
