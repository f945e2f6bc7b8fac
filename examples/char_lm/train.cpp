// SPDX-License-Identifier: MIT OR Apache-2.0
#include "train.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace char_lm {
namespace {

constexpr char kMagic[] = "tandem-char-lm-2";

// Rises over the first steps and then falls along half a cosine to a tenth.
float rate_at(int step, const Schedule& s) {
  const int rise = std::min(20, s.steps / 5 + 1);
  if (step < rise) return s.rate * float(step + 1) / float(rise);
  const float t = float(step - rise) / float(std::max(1, s.steps - rise));
  return s.rate * (0.55f + 0.45f * std::cos(3.14159265f * t));
}

Config checked(const Config& c) {
  if (c.context < 1 || c.layers < 1 || c.heads < 1 || c.width < 1 || c.width % c.heads != 0)
    throw std::runtime_error("width " + std::to_string(c.width) + " is no multiple of heads " +
                             std::to_string(c.heads));
  return c;
}

}  // namespace

Trainer::Trainer(const Config& config, const Schedule& schedule, const Alphabet& alphabet,
                 Pool& pool)
    : model_(checked(config), pool),
      adam_(model_.parameters().size(), pool),
      random_(schedule.seed + 1) {  // not the sequence that the parameters are drawn from
  at_.config = config;
  at_.schedule = schedule;
  at_.alphabet = alphabet;
  model_.initialise(schedule.seed);
}

Trainer::Trainer(const Checkpoint& from, Pool& pool)
    : at_(from),
      model_(checked(from.config), pool),
      adam_(model_.parameters().size(), pool),
      random_(from.random) {
  const size_t size = model_.parameters().size();
  if (from.parameters.size() != size || from.adam.m.size() != size || from.adam.v.size() != size)
    throw std::runtime_error("the checkpoint has " + std::to_string(from.parameters.size()) +
                             " parameters, its model " + std::to_string(size));
  model_.parameters() = from.parameters;
  adam_.state() = from.adam;
}

double Trainer::step(Attention<float>& attention, const std::vector<int>& text) {
  const Batch batch = random_batch(text, at_.schedule.batch, at_.config.context, &random_);
  model_.forward(attention, batch.tokens);
  const double loss = double(model_.loss(batch.targets));
  if (!std::isfinite(loss))
    throw std::runtime_error("the loss of step " + std::to_string(at_.step + 1) + " is not finite");
  model_.backward(attention, batch.tokens);
  adam_.step(&model_.parameters(), model_.gradients(), rate_at(at_.step, at_.schedule), 1.0f);
  ++at_.step;
  return loss;
}

const Checkpoint& Trainer::checkpoint() {
  at_.random = random_.state();
  at_.parameters = model_.parameters();
  at_.adam = adam_.state();
  return at_;
}

void save(const std::string& path, const Checkpoint& at) {
  const Config& c = at.config;
  const Schedule& s = at.schedule;
  std::ofstream file(path, std::ios::binary);
  file.precision(9);  // a float's every bit
  file << kMagic << ' ' << c.vocabulary << ' ' << c.context << ' ' << c.layers << ' ' << c.heads
       << ' ' << c.width << ' ' << s.steps << ' ' << s.batch << ' ' << s.rate << ' ' << s.seed
       << ' ' << at.step << ' ' << at.random << ' ' << at.adam.steps << '\n'
       << at.alphabet.characters();
  for (const std::vector<float>* part : {&at.parameters, &at.adam.m, &at.adam.v})
    file.write(reinterpret_cast<const char*>(part->data()),
               std::streamsize(part->size() * sizeof(float)));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

Checkpoint load(const std::string& path) {
  const std::string bytes = read_file(path);
  const size_t end = bytes.find('\n');
  std::istringstream head(bytes.substr(0, end));
  std::string magic;
  Checkpoint at;
  Config& c = at.config;
  Schedule& s = at.schedule;
  if (end == std::string::npos || !(head >> magic) || magic != kMagic ||
      !(head >> c.vocabulary >> c.context >> c.layers >> c.heads >> c.width >> s.steps >> s.batch >>
        s.rate >> s.seed >> at.step >> at.random >> at.adam.steps) ||
      c.vocabulary < 1 || c.vocabulary > 256 || s.batch < 1 ||
      bytes.size() < end + 1 + size_t(c.vocabulary))
    throw std::runtime_error(path + " is no checkpoint of this program");
  at.alphabet = Alphabet(bytes.substr(end + 1, size_t(c.vocabulary)));
  const char* from = bytes.data() + end + 1 + size_t(c.vocabulary);
  const size_t left = size_t(bytes.data() + bytes.size() - from), third = left / 3 / sizeof(float);
  if (left != third * 3 * sizeof(float)) throw std::runtime_error(path + " is truncated");
  for (std::vector<float>* part : {&at.parameters, &at.adam.m, &at.adam.v}) {
    part->resize(third);
    std::memcpy(part->data(), from, third * sizeof(float));
    from += third * sizeof(float);
  }
  return at;
}

}  // namespace char_lm
