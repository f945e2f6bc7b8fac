// SPDX-License-Identifier: MIT OR Apache-2.0
// The example's own arithmetic by finite differences, and its attention on every usable device against
// one written from the definition.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "device_attention.h"
#include "naive_attention.h"
#include "text.h"

namespace {

using namespace char_lm;

Config small_config() {
  Config c;
  c.vocabulary = 7;
  c.context = 5;
  c.layers = 2;
  c.heads = 2;
  c.width = 8;
  return c;
}

Batch some_batch(const Config& c, int sequences) {
  Normal random(99);
  Batch b;
  for (int i = 0; i < sequences * c.context; ++i) {
    b.tokens.push_back(int(random.bits() % uint64_t(c.vocabulary)));
    b.targets.push_back(int(random.bits() % uint64_t(c.vocabulary)));
  }
  return b;
}

// Away from the small start, where many gradients nearly vanish and would test nothing.
template <typename T>
void shake(std::vector<T>* parameters) {
  Normal random(5);
  for (T& p : *parameters) p += T(float(0.3 * random()));
}

double length(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("every gradient is the slope of the loss") {
  Pool pool(2);
  const Config c = small_config();
  const int sequences = 2;
  Model<double> model(c, pool);
  model.initialise(1);
  shake(&model.parameters());
  NaiveAttention<double> attention(c, sequences);
  const Batch batch = some_batch(c, sequences);
  auto loss = [&] {
    model.forward(attention, batch.tokens);
    return model.loss(batch.targets);
  };
  loss();
  model.backward(attention, batch.tokens);
  const std::vector<double> gradients = model.gradients();

  const double step = 1e-5;
  size_t alive = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    double& p = model.parameters()[i];
    const double at = p;
    p = at + step;
    const double above = loss();
    p = at - step;
    const double below = loss();
    p = at;
    const double slope = (above - below) / (2 * step);
    INFO("parameter " << i);
    REQUIRE(std::fabs(gradients[i] - slope) <= 1e-8 + 1e-6 * std::fabs(slope));
    alive += std::fabs(slope) > 1e-6;
  }
  CHECK(alive > gradients.size() * 3 / 4);
}

TEST_CASE("attention on every device gives the model's gradients") {
  Config c = small_config();
  c.context = 37;  // no multiple of a tile
  c.width = 48;
  c.heads = 3;
  const int sequences = 3;
  const Batch batch = some_batch(c, sequences);
  Pool pool(2);

  Model<float> model(c, pool);
  model.initialise(1);
  shake(&model.parameters());
  Model<double> exact(c, pool);
  std::copy(model.parameters().begin(), model.parameters().end(), exact.parameters().begin());
  NaiveAttention<double> naive(c, sequences);
  exact.forward(naive, batch.tokens);
  const double exact_loss = exact.loss(batch.targets);
  exact.backward(naive, batch.tokens);

  for (const std::string& name : tandem::support::usable_devices()) {
    CAPTURE(name);
    const auto session = tandem::support::Session::open(name);
    DeviceAttention attention(*session, c, sequences, DeviceAttention::Use::training);
    model.forward(attention, batch.tokens);
    CHECK(std::fabs(double(model.loss(batch.targets)) - exact_loss) < 1e-5);
    model.backward(attention, batch.tokens);
    std::vector<double> error(exact.gradients());
    for (size_t i = 0; i < error.size(); ++i) error[i] -= double(model.gradients()[i]);
    CHECK(length(error) < 1e-5 * length(exact.gradients()));
  }
}

TEST_CASE("training learns, and repeats itself bit for bit") {
  const std::string text = "the quick brown fox jumps over the lazy dog; ";
  std::string long_text;
  for (int i = 0; i < 20; ++i) long_text += text;
  const Alphabet alphabet(long_text);
  Config c = small_config();
  c.vocabulary = alphabet.size();
  c.context = 24;
  c.width = 32;
  const std::vector<int> tokens = alphabet.encode(long_text);
  Pool pool(2);
  auto train = [&] {
    const auto session = tandem::support::Session::open("cpu");
    DeviceAttention attention(*session, c, 4, DeviceAttention::Use::training);
    Model<float> model(c, pool);
    model.initialise(3);
    Adam adam(model.parameters().size(), pool);
    Normal random(4);
    std::vector<float> losses;
    for (int i = 0; i < 80; ++i) {
      const Batch batch = random_batch(tokens, 4, c.context, &random);
      model.forward(attention, batch.tokens);
      losses.push_back(model.loss(batch.targets));
      model.backward(attention, batch.tokens);
      adam.step(&model.parameters(), model.gradients(), 5e-3f, 1.0f);
    }
    return losses;
  };
  const std::vector<float> first = train(), second = train();
  CHECK(std::fabs(first.front() - std::log(float(alphabet.size()))) < 0.3f);
  CHECK(first.back() < 1.0f);
  CHECK(first == second);
}

TEST_CASE("curves and models survive their files") {
  const std::vector<double> a = {3.5, 2.25, 2.0}, b = {3.5, 2.5, 2.0};
  const std::string csv = "test_char_lm_losses.csv", file = "test_char_lm_model.bin";
  write_losses(csv, a);
  CHECK(read_losses(csv) == a);
  const std::string table = side_by_side("one", a, "two", b, 2);
  CHECK(table.find("largest difference 2.50e-01, at step 2 of 3") != std::string::npos);

  Pool pool(1);
  const Config c = small_config();
  Model<float> model(c, pool);
  model.initialise(8);
  const Alphabet alphabet("abcdefg");
  save_model(file, model, alphabet);
  const SavedModel saved = load_model(file);
  CHECK(saved.parameters == model.parameters());
  CHECK(saved.alphabet.characters() == "abcdefg");
  CHECK(saved.config.width == c.width);
  CHECK_THROWS(load_model(csv));
  CHECK_THROWS(alphabet.encode("h"));
  std::remove(csv.c_str());
  std::remove(file.c_str());
}
