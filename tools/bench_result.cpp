// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bench_result.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "tools.h"

namespace tandem::tool {
namespace {

std::string cell(const Result& row, const char* key, const char* format = "{:.4g}") {
  const auto it = row.find(key);
  if (it == row.end() || it->is_null()) return "-";
  if (it->is_string()) return it->get<std::string>();
  if (it->is_number_float()) return fmt::format(fmt::runtime(format), it->get<double>());
  if (it->is_array()) {
    std::string s;
    for (const auto& word : *it)
      s += (s.empty() ? "" : " ") + (word.is_string() ? word.get<std::string>() : word.dump());
    return s;
  }
  return it->dump();
}

// What makes two rows the same measurement.
std::string identity(const Result& row, bool with_path = true) {
  std::string s;
  for (const char* key : {"case", "op", "impl", "backend", "dtype"}) s += cell(row, key) + "|";
  return with_path ? s + cell(row, "path") : s;
}

// The row of `rows` that is the same measurement as `row`, one of `others`; else the one that
// differs in its path alone, where no other row of either file does; else null.
const Result* find_before(const Result& rows, const Result& others, const Result& row) {
  const Result* found = nullptr;
  for (const Result& r : rows)
    if (identity(r) == identity(row)) found = &r;
  if (found) return found;
  const auto alike = [&](const Result& r) { return identity(r, false) == identity(row, false); };
  if (std::count_if(rows.begin(), rows.end(), alike) != 1 ||
      std::count_if(others.begin(), others.end(), alike) != 1)
    return nullptr;
  return &*std::find_if(rows.begin(), rows.end(), alike);
}

bool has_time(const Result& row) {
  const auto ms = row.find("ms");
  return ms != row.end() && ms->is_number() && ms->get<double>() > 0;
}
double time_of(const Result& row) { return row["ms"].get<double>(); }

// By which part of a time two medians may differ by chance: half of what the samples of each spread
// over, together; never less than the clock of a GPU moves by itself. Negative: a row has no
// spread.
double noise_of(const Result& before, const Result& after) {
  constexpr double kLeast = 0.01;
  double sum = 0;
  for (const Result* row : {&before, &after}) {
    const auto spread = row->find("spread");
    if (spread == row->end() || !spread->is_number()) return -1;
    sum += spread->get<double>() / 2;
  }
  return std::max(sum, kLeast);
}

// A kernel that became slow, or clocks that are low, and no error of the fit (plan/cost).
constexpr double kSlow = 2;

// By how many times a row took longer than its plan's estimate; 0: it has none, or no time.
double over_estimate(const Result& row) {
  const auto ms = row.find("ms"), estimated = row.find("estimated_ms");
  if (ms == row.end() || estimated == row.end()) return 0;
  if (!ms->is_number() || !estimated->is_number()) return 0;
  return ms->get<double>() / estimated->get<double>();
}

// Whether a file has the parts of a result; what these say may be anything.
bool is_result(const Result& r) {
  if (!r.is_object() || !r.contains("header") || !r.contains("rows")) return false;
  const Result& rows = r["rows"];
  return r["header"].is_object() && rows.is_array() &&
         std::all_of(rows.begin(), rows.end(), [](const Result& row) { return row.is_object(); });
}

}  // namespace

Result load_result(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file + " cannot be read");
  Result r = Result::parse(in, nullptr, false);
  if (!is_result(r)) throw std::runtime_error(file + " is no result of tandem bench");
  return r;
}

void save_result(const Result& result, const std::string& file) {
  std::ofstream out(file);
  // One row a line: people read and compare these files, too.
  out << "{\n  \"header\": " << result["header"].dump() << ",\n  \"rows\": [";
  const char* comma = "\n    ";
  for (const Result& row : result["rows"]) {
    out << comma << row.dump();
    comma = ",\n    ";
  }
  out << "\n  ]\n}\n";
  out.flush();
  if (!out) throw std::runtime_error(file + " cannot be written");
}

std::string result_table(const Result& result) {
  const Result& h = result["header"];
  std::string s = fmt::format("{}, {}; commit {}, {}; {} MHz{}\n", cell(h, "device"),
                              cell(h, "driver"), cell(h, "commit"), cell(h, "date"),
                              cell(h, "clocks_mhz"), h.contains("turns") ? "; in turns" : "");
  Table table({"case", "op", "impl", "backend", "path", "dtype", ">ms", ">TFLOP/s", ">spread",
               ">err ratio", ">build ms"});
  for (const Result& row : result["rows"]) {
    std::string spread = "-";
    if (const auto it = row.find("spread"); it != row.end() && it->is_number())
      spread = fmt::format("{:.1f} %", 100 * it->get<double>());
    table.add({cell(row, "case"), cell(row, "op"), cell(row, "impl"), cell(row, "backend"),
               cell(row, "path"), cell(row, "dtype"), cell(row, "ms"), cell(row, "tflops"), spread,
               cell(row, "max_err_ratio", "{:.3f}"), cell(row, "build_ms", "{:.1f}")});
  }
  s += table.text();
  for (const Result& row : result["rows"])
    if (row.contains("refused"))
      s += fmt::format("{} {}: {} refused: {}\n", cell(row, "case"), cell(row, "op"),
                       cell(row, "impl"), cell(row, "refused"));
  for (const Result& row : result["rows"])
    if (const double times = over_estimate(row); times > kSlow)
      s += fmt::format("{} {}: {}.{} took {:.1f} times its estimate of {} ms\n", cell(row, "case"),
                       cell(row, "op"), cell(row, "backend"), cell(row, "path"), times,
                       cell(row, "estimated_ms"));
  return s;
}

std::string result_csv(const Result& result) {
  const std::vector<const char*> keys = {
      "case", "op", "impl", "backend", "path", "dtype",    "B",  "Hq",     "Hk",
      "Sq",   "Sk", "D",    "Dv",      "mask", "features", "ms", "tflops", "max_err_ratio"};
  std::string s;
  for (const char* key : keys) s += (s.empty() ? "" : ",") + std::string(key);
  s += "\n";
  for (const Result& row : result["rows"]) {
    std::string line;
    for (const char* key : keys) {
      std::string word = cell(row, key, "{:.6g}");
      if (word.find(',') != std::string::npos) word = "\"" + word + "\"";
      line += (key == keys.front() ? "" : ",") + word;
    }
    s += line + "\n";
  }
  return s;
}

Result merge_results(const std::vector<std::string>& files) {
  Result merged;
  for (const std::string& file : files) {
    Result r = load_result(file);
    if (merged.is_null()) {
      merged = std::move(r);
      continue;
    }
    Result& header = merged["header"];  // no member is added to merged while this lives
    if (cell(header, "device") != cell(r["header"], "device"))
      throw std::runtime_error(fmt::format("{} was measured on {}, not on {}", file,
                                           cell(r["header"], "device"), cell(header, "device")));
    if (!r["header"].contains("turns")) header.erase("turns");
    const std::string backend = cell(r["header"], "backend");
    std::string all = cell(header, "backend");
    if (("," + all + ",").find("," + backend + ",") == std::string::npos)
      header["backend"] = all + "," + backend;
    for (Result& row : r["rows"]) merged["rows"].push_back(std::move(row));
    // What scripts/bench_models.py did not time.
    for (const char* key : {"skipped", "not_reached"})
      if (const auto it = r["header"].find(key); it != r["header"].end() && !it->empty())
        header[key] = *it;
  }
  return merged;
}

Comparison compare_results(const std::string& before, const std::string& after) {
  const Result a = load_result(before), b = load_result(after);
  Table table({"case", "op", "impl", "backend", "path", "dtype", ">ms before", ">ms after",
               ">speed", ">noise", "verdict", ">err ratio"});
  Comparison c;
  for (const Result& row : b["rows"]) {
    const Result* match = find_before(a["rows"], b["rows"], row);
    const bool timed = match && has_time(*match) && has_time(row);
    const double speed = timed ? time_of(*match) / time_of(row) : 0;
    const double noise = timed ? noise_of(*match, row) : 0;
    std::string verdict = "-";
    if (!match)
      ++c.added, verdict = "new";
    else if (timed)
      verdict = noise < 0                                      ? (++c.unknown, "no spread")
                : time_of(row) > time_of(*match) * (1 + noise) ? (++c.slower, "slower")
                : time_of(*match) > time_of(row) * (1 + noise) ? (++c.faster, "faster")
                                                               : (++c.same, "same");
    else if (has_time(*match))
      ++c.lost, verdict = "lost";
    std::string path = cell(row, "path");
    if (match && cell(*match, "path") != path) path = cell(*match, "path") + " > " + path;
    table.add({cell(row, "case"), cell(row, "op"), cell(row, "impl"), cell(row, "backend"), path,
               cell(row, "dtype"), match ? cell(*match, "ms") : "-", cell(row, "ms"),
               timed ? fmt::format("{:.3f} x", speed) : "-",
               timed && noise >= 0 ? fmt::format("{:.1f} %", 100 * noise) : "-", verdict,
               cell(row, "max_err_ratio", "{:.3f}")});
  }
  for (const Result& row : a["rows"])
    if (has_time(row) && !find_before(b["rows"], a["rows"], row)) ++c.missing;
  c.text = fmt::format("before: {}, commit {}\nafter:  {}, commit {}\n",
                       cell(a["header"], "device"), cell(a["header"], "commit"),
                       cell(b["header"], "device"), cell(b["header"], "commit"));
  if (a["header"].contains("turns") != b["header"].contains("turns"))
    c.text += "one file was timed in turns and the other was not: the clock may differ\n";
  c.text += table.text();
  c.text += fmt::format("{} faster, {} slower, {} same", c.faster, c.slower, c.same);
  const auto add = [&](int n, const std::string& what) {
    if (n) c.text += fmt::format(", {} {}", n, what);
  };
  add(c.unknown, "without a spread");
  add(c.lost, "lost (timed before, refused now)");
  add(c.added, "new");
  add(c.missing, "of " + before + " missing");
  c.text += "\n";
  return c;
}

}  // namespace tandem::tool
