// SPDX-License-Identifier: MIT OR Apache-2.0
#include "text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

namespace char_lm {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

}  // namespace

Alphabet::Alphabet(const std::string& text) {
  const std::set<unsigned char> used(text.begin(), text.end());
  characters_.assign(used.begin(), used.end());
}

std::vector<int> Alphabet::encode(const std::string& text) const {
  std::vector<int> place(256, -1), tokens;
  for (size_t i = 0; i < characters_.size(); ++i) place[(unsigned char)(characters_[i])] = int(i);
  tokens.reserve(text.size());
  for (const char c : text) {
    const int token = place[(unsigned char)(c)];
    if (token < 0)
      fail("the model's alphabet lacks the character " + std::to_string(int((unsigned char)(c))));
    tokens.push_back(token);
  }
  return tokens;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) fail("cannot read " + path);
  return text.str();
}

Batch random_batch(const std::vector<int>& text, int sequences, int context, Normal* random) {
  Batch batch;
  const uint64_t places = text.size() - size_t(context);
  for (int i = 0; i < sequences; ++i) {
    const auto at = text.begin() + long(random->bits() % places);
    batch.tokens.insert(batch.tokens.end(), at, at + context);
    batch.targets.insert(batch.targets.end(), at + 1, at + context + 1);
  }
  return batch;
}

void write_losses(const std::string& path, const Curve& curve) {
  std::ofstream file(path);
  file << "step,loss\n";
  char line[64];
  for (int step = curve.first; step <= curve.last(); ++step) {
    std::snprintf(line, sizeof line, "%d,%.7f\n", step, curve.at(step));
    file << line;
  }
  if (!file.flush()) fail("cannot write " + path);
}

Curve read_losses(const std::string& path) {
  std::istringstream file(read_file(path));
  std::string line;
  if (!std::getline(file, line) || line.substr(0, 9) != "step,loss")
    fail(path + " does not start with the line step,loss");
  Curve curve;
  while (std::getline(file, line)) {
    int step = 0;
    double loss = 0;
    const bool good = std::sscanf(line.c_str(), "%d,%lf", &step, &loss) == 2;
    if (good && curve.losses.empty()) curve.first = step;
    if (!good || step != curve.last() + 1)
      fail(path + ": line " + std::to_string(curve.losses.size() + 2) + " is not that of step " +
           std::to_string(curve.last() + 1) + ": " + line);
    curve.losses.push_back(loss);
  }
  return curve;
}

std::string side_by_side(const std::string& name_a, const Curve& a, const std::string& name_b,
                         const Curve& b, int every) {
  const int first = std::max(a.first, b.first), last = std::min(a.last(), b.last());
  if (first > last) fail("there is no step that both curves have");
  std::string out;
  char line[160];
  std::snprintf(line, sizeof line, "%6s  %14.14s  %14.14s  %10s\n", "step", name_a.c_str(),
                name_b.c_str(), "difference");
  out += line;
  double largest = 0;
  int where = first;
  for (int step = first; step <= last; ++step) {
    const double difference = a.at(step) - b.at(step);
    if (std::fabs(difference) > largest) {
      largest = std::fabs(difference);
      where = step;
    }
    if (step != first && step % every != 0 && step != last) continue;
    std::snprintf(line, sizeof line, "%6d  %14.6f  %14.6f  %10.1e\n", step, a.at(step), b.at(step),
                  difference);
    out += line;
  }
  std::snprintf(line, sizeof line, "largest difference %.2e, at step %d of %d\n", largest, where,
                last);
  return out + line;
}

}  // namespace char_lm
