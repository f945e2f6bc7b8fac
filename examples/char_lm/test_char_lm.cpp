// SPDX-License-Identifier: MIT OR Apache-2.0
// The example's own arithmetic by finite differences, and its attention on every usable device
// against one written from the definition.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "device_attention.h"
#include "naive_attention.h"
#include "text.h"
#include "train.h"

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

  for (const std::string& name : tandem::harness::usable_devices()) {
    CAPTURE(name);
    const auto session = tandem::harness::Session::open(name);
    DeviceAttention attention(*session, c, sequences, DeviceAttention::Use::training);
    model.forward(attention, batch.tokens);
    CHECK(std::fabs(double(model.loss(batch.targets)) - exact_loss) < 1e-5);
    model.backward(attention, batch.tokens);
    std::vector<double> error(exact.gradients());
    for (size_t i = 0; i < error.size(); ++i) error[i] -= double(model.gradients()[i]);
    CHECK(length(error) < 1e-5 * length(exact.gradients()));
  }
}

namespace {

// A small text, and a model that learns it in a few steps.
struct Lesson {
  std::string text;
  Alphabet alphabet;
  std::vector<int> tokens;
  Config config = small_config();
  Schedule schedule;
  Lesson() {
    for (int i = 0; i < 20; ++i) text += "the quick brown fox jumps over the lazy dog; ";
    alphabet = Alphabet(text);
    tokens = alphabet.encode(text);
    config.vocabulary = alphabet.size();
    config.context = 24;
    config.width = 32;
    schedule.steps = 80;
    schedule.batch = 4;
    schedule.rate = 8e-3f;
    schedule.seed = 3;
  }
};

std::vector<double> steps(Trainer& trainer, const Lesson& lesson, const std::string& device,
                          int last, int slices = 0) {
  const auto session = tandem::harness::Session::open(device);
  DeviceAttention attention(*session, lesson.config, lesson.schedule.batch,
                            DeviceAttention::Use::training, slices);
  std::vector<double> losses;
  while (trainer.steps_done() < last) losses.push_back(trainer.step(attention, lesson.tokens));
  return losses;
}

}  // namespace

TEST_CASE("training learns, and repeats itself bit for bit") {
  const Lesson lesson;
  Pool pool(2);
  auto train = [&] {
    Trainer trainer(lesson.config, lesson.schedule, lesson.alphabet, pool);
    return steps(trainer, lesson, "cpu", lesson.schedule.steps);
  };
  const std::vector<double> first = train(), second = train();
  CHECK(std::fabs(first.front() - std::log(double(lesson.alphabet.size()))) < 0.3);
  CHECK(first.back() < 1.0);
  CHECK(first == second);
}

TEST_CASE("training in slices has the losses of whole executes") {
  const Lesson lesson;
  Pool pool(2);
  for (const std::string& name : tandem::harness::usable_devices()) {
    CAPTURE(name);
    std::vector<double> losses[2];
    for (int sliced : {0, 1}) {
      Trainer trainer(lesson.config, lesson.schedule, lesson.alphabet, pool);
      losses[sliced] = steps(trainer, lesson, name, 12, sliced ? 5 : 0);
    }
    REQUIRE(losses[0].size() == losses[1].size());
    // CUDA may sum d_q in any order, in slices or not.
    double apart = 0;
    for (size_t i = 0; i < losses[0].size(); ++i)
      apart = std::max(apart, std::fabs(losses[0][i] - losses[1][i]));
    CHECK(apart <= (name.compare(0, 4, "cuda") == 0 ? 1e-3 : 0.0));
  }
}

TEST_CASE("what one device has begun, every device continues") {
  const Lesson lesson;
  const std::string file = "test_char_lm_checkpoint.bin";
  const int stop = 30, last = 60;
  Pool pool(2);
  for (const std::string& from : tandem::harness::usable_devices()) {
    Trainer whole(lesson.config, lesson.schedule, lesson.alphabet, pool);
    const std::vector<double> begun = steps(whole, lesson, from, stop);
    save(file, whole.checkpoint());
    const std::vector<double> rest = steps(whole, lesson, from, last);
    CHECK(rest.back() < 0.8 * begun.back());  // there was something left to learn
    for (const std::string& to : tandem::harness::usable_devices()) {
      CAPTURE(from);
      CAPTURE(to);
      Trainer resumed(load(file), pool);
      REQUIRE(resumed.steps_done() == stop);
      const std::vector<double> losses = steps(resumed, lesson, to, last);
      double apart = 0;
      for (size_t i = 0; i < rest.size(); ++i)
        apart = std::max(apart, std::fabs(losses[i] - rest[i]));
      std::printf("%s begins, %s continues: losses differ by up to %.1e\n", from.c_str(),
                  to.c_str(), apart);
      CHECK(apart <= (from == to ? 0.0 : 1e-3));
    }
  }
  std::remove(file.c_str());
}

TEST_CASE("curves and checkpoints survive their files") {
  Curve a, b;
  a.losses = {3.5, 2.25, 2.0};
  b.first = 2;
  b.losses = {2.5, 2.0};
  const std::string csv = "test_char_lm_losses.csv", file = "test_char_lm_model.bin";
  write_losses(csv, b);
  CHECK(read_losses(csv).first == 2);
  CHECK(read_losses(csv).losses == b.losses);
  const std::string table = side_by_side("one", a, "two", b, 2);
  CHECK(table.find("largest difference 2.50e-01, at step 2 of 3") != std::string::npos);

  Pool pool(1);
  Schedule schedule;
  schedule.rate = 0.1f;
  Trainer trainer(small_config(), schedule, Alphabet("abcdefg"), pool);
  const Checkpoint written = trainer.checkpoint();
  save(file, written);
  const Checkpoint saved = load(file);
  CHECK(saved.parameters == trainer.model().parameters());
  CHECK(saved.adam.m == written.adam.m);
  CHECK(saved.random == written.random);
  CHECK(saved.schedule.rate == 0.1f);
  CHECK(saved.alphabet.characters() == "abcdefg");
  CHECK(saved.config.width == small_config().width);
  CHECK_THROWS(load(csv));
  Checkpoint other = saved;
  other.parameters.pop_back();
  CHECK_THROWS(Trainer(other, pool));
  save(file, other);
  CHECK_THROWS(load(file));
  CHECK_THROWS(saved.alphabet.encode("h"));
  std::remove(csv.c_str());
  std::remove(file.c_str());
}
