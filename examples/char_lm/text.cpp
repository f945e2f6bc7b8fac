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

constexpr char kMagic[] = "tandem-char-lm-1";

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

void write_losses(const std::string& path, const std::vector<double>& losses) {
  std::ofstream file(path);
  file << "step,loss\n";
  char line[64];
  for (size_t i = 0; i < losses.size(); ++i) {
    std::snprintf(line, sizeof line, "%zu,%.7f\n", i + 1, losses[i]);
    file << line;
  }
  if (!file.flush()) fail("cannot write " + path);
}

std::vector<double> read_losses(const std::string& path) {
  std::istringstream file(read_file(path));
  std::string line;
  if (!std::getline(file, line) || line.substr(0, 9) != "step,loss")
    fail(path + " does not start with the line step,loss");
  std::vector<double> losses;
  while (std::getline(file, line)) {
    size_t step = 0;
    double loss = 0;
    if (std::sscanf(line.c_str(), "%zu,%lf", &step, &loss) != 2 || step != losses.size() + 1)
      fail(path + ": line " + std::to_string(losses.size() + 2) + " is not that of step " +
           std::to_string(losses.size() + 1) + ": " + line);
    losses.push_back(loss);
  }
  return losses;
}

std::string side_by_side(const std::string& name_a, const std::vector<double>& a,
                         const std::string& name_b, const std::vector<double>& b, size_t every) {
  const size_t steps = std::min(a.size(), b.size());
  if (steps == 0) fail("there is no step that both curves have");
  std::string out;
  char line[160];
  std::snprintf(line, sizeof line, "%6s  %14.14s  %14.14s  %10s\n", "step", name_a.c_str(),
                name_b.c_str(), "difference");
  out += line;
  double largest = 0;
  size_t where = 0;
  for (size_t i = 0; i < steps; ++i) {
    if (std::fabs(a[i] - b[i]) > largest) {
      largest = std::fabs(a[i] - b[i]);
      where = i;
    }
    if (i != 0 && (i + 1) % every != 0 && i + 1 != steps) continue;
    std::snprintf(line, sizeof line, "%6zu  %14.6f  %14.6f  %10.1e\n", i + 1, a[i], b[i],
                  a[i] - b[i]);
    out += line;
  }
  std::snprintf(line, sizeof line, "largest difference %.2e, at step %zu of %zu\n", largest,
                where + 1, steps);
  return out + line;
}

void save_model(const std::string& path, Model<float>& model, const Alphabet& alphabet) {
  const Config& c = model.config();
  std::ofstream file(path, std::ios::binary);
  file << kMagic << ' ' << c.vocabulary << ' ' << c.context << ' ' << c.layers << ' ' << c.heads
       << ' ' << c.width << '\n'
       << alphabet.characters();
  file.write(reinterpret_cast<const char*>(model.parameters().data()),
             std::streamsize(model.parameters().size() * sizeof(float)));
  if (!file.flush()) fail("cannot write " + path);
}

SavedModel load_model(const std::string& path) {
  const std::string bytes = read_file(path);
  const size_t end = bytes.find('\n');
  std::istringstream head(bytes.substr(0, end));
  std::string magic;
  SavedModel saved;
  Config& c = saved.config;
  if (end == std::string::npos || !(head >> magic) || magic != kMagic ||
      !(head >> c.vocabulary >> c.context >> c.layers >> c.heads >> c.width) || c.vocabulary < 1 ||
      c.vocabulary > 256 || bytes.size() < end + 1 + size_t(c.vocabulary))
    fail(path + " is no model of this program");
  saved.alphabet = Alphabet(bytes.substr(end + 1, size_t(c.vocabulary)));
  const size_t at = end + 1 + size_t(c.vocabulary);
  saved.parameters.resize((bytes.size() - at) / sizeof(float));
  std::copy_n(bytes.data() + at, saved.parameters.size() * sizeof(float),
              reinterpret_cast<char*>(saved.parameters.data()));
  return saved;
}

}  // namespace char_lm
